#include "helpers/helper.h"

const mpixla_helper_row *mpixla_helper_table(size_t *rows) {
    static const mpixla_helper_row table[] = {
        {"exact_add", (mpixla_handler *)mpixla_exact_add_host, (mpixla_handler *)mpixla_exact_add_device},
        {"exact_round", (mpixla_handler *)mpixla_exact_round_host, (mpixla_handler *)mpixla_exact_round_device},
        {"order", (mpixla_handler *)mpixla_order, (mpixla_handler *)mpixla_order},
        {"pack", (mpixla_handler *)mpixla_pack_host, (mpixla_handler *)mpixla_pack_device},
        {"rank", (mpixla_handler *)mpixla_rank_host, (mpixla_handler *)mpixla_rank_device},
        {"unpack", (mpixla_handler *)mpixla_unpack_host, (mpixla_handler *)mpixla_unpack_device},
    };
    *rows = sizeof table / sizeof table[0];
    return table;
}
