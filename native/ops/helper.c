#include "ops/helper.h"

const mpixla_helper_row *mpixla_helper_table(size_t *rows) {
    static const mpixla_helper_row table[] = {
        {"order", (mpixla_handler *)mpixla_order_host},
        {"pack", (mpixla_handler *)mpixla_pack_host},
        {"unpack", (mpixla_handler *)mpixla_unpack_host},
    };
    *rows = sizeof table / sizeof table[0];
    return table;
}
