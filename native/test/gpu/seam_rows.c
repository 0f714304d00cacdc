/* The handlers that XLA calls, one for each row of the tables, and the device handlers behind them. */
#include "test/gpu/seam_rows.h"

#include <string.h>

/* Handlers that are in no table. */
#define HELPERS(ROW) ROW(exact_add) ROW(exact_round) ROW(order) ROW(pack) ROW(rank) ROW(unpack)

enum {
#define ROW(name) AT_##name,
#define MPIXLA_OP(name, ...) ROW(name)
#include "tables/ops.def"
    HELPERS(ROW) ROWS
#undef ROW
};

static ffi_handler *_Atomic device_handlers[ROWS];

#define ROW(name)                                                           \
    static ffi_error *run_##name(ffi_call_frame *call) {                    \
        return seam_run(call, "mpixla_" #name, device_handlers[AT_##name]); \
    }
#include "tables/ops.def"
HELPERS(ROW)
#undef ROW

static const struct {
    const char *target;
    ffi_handler *wrapper;
} rows[ROWS] = {
#define ROW(name) {"mpixla_" #name, run_##name},
#include "tables/ops.def"
    HELPERS(ROW)
#undef ROW
};

static int find(const char *target) {
    for (int i = 0; i < ROWS; i++)
        if (strcmp(rows[i].target, target) == 0) return i;
    return -1;
}

ffi_handler *seam_wrapper(const char *target) {
    int i = find(target);
    return i < 0 ? NULL : rows[i].wrapper;
}

int seam_handler_set(const char *target, ffi_handler *device_handler) {
    int i = find(target);
    if (i < 0) return -1;
    device_handlers[i] = device_handler;
    return 0;
}
