/* The handlers, and the table that Python reads, made from the rows of ops.def. */
#include "handler.h"

#include <pthread.h>
#include <string.h>

#include "base/error.h"
#include "execute.h"
#include "neighbours/exchange.h"
#include "neighbours/halo.h"
#include "ops/exscan.h"
#include "ops/replicated.h"
#include "ops/request.h"
#include "routes/nccl_calls.h"

#define NOWHERE MPIXLA_NOWHERE
#define EVERYWHERE MPIXLA_EVERYWHERE
#define ON_ROOT MPIXLA_ON_ROOT
#define OFF_ROOT MPIXLA_OFF_ROOT

enum {
#define MPIXLA_OP(name, host_handler, device_handler, shape, call, nccl) ROW_##name,
#include "tables/ops.def"
#undef MPIXLA_OP
    ROWS
};

/* The handlers of each row, and its operation: the call in a function, and the shape of its frame. */
#define MPIXLA_OP(name, host_handler, device_handler, shape, call, nccl)                                  \
    static int name##_run(frame *c) {                                                                     \
        const mpi_counted *mpi = c->mpi;                                                                  \
        (void)mpi;                                                                                        \
        return call;                                                                                      \
    }                                                                                                     \
    static const operation name##_operation = {                                                           \
        .row = {.number = ROW_##name, .op_name = #name, shape}, .run = name##_run, .through_nccl = nccl}; \
    ffi_error *host_handler(ffi_call_frame *call_frame) {                                                 \
        return execute_on_host(call_frame, &name##_operation);                                            \
    }                                                                                                     \
    ffi_error *device_handler(ffi_call_frame *call_frame) {                                               \
        return execute_on_device(call_frame, &name##_operation);                                          \
    }
#include "tables/ops.def"
#undef MPIXLA_OP

/* The operation of each row, with its handlers. */
static const struct {
    const operation *operation;
    ffi_handler *on_host, *on_device;
} all[] = {
#define MPIXLA_OP(name, host_handler, device_handler, shape, call, nccl) \
    {&name##_operation, host_handler, device_handler},
#include "tables/ops.def"
#undef MPIXLA_OP
};

/* The table that Python reads. */

static mpixla_op_row table[ROWS];

/* Fills the table of all operations from the rows of ops.def. */
static void handler_table_fill(void) {
    for (int i = 0; i < ROWS; i++) {
        const frame_shape *row = &all[i].operation->row;
        table[i] = (mpixla_op_row){.name = row->op_name,
                                   .mpi_name = row->mpi_name,
                                   .host_handler = (mpixla_handler *)all[i].on_host,
                                   .device_handler = (mpixla_handler *)all[i].on_device,
                                   .send = row->send,
                                   .template_ = row->template_,
                                   .recv = row->recv,
                                   .attributes = (row->attributes | OPTIONAL) & ((1U << ATTRIBUTES) - 1),
                                   .in_place = (row->attributes & IN_PLACE) != 0,
                                   .request = row->request,
                                   .optional = row->optional | OPTIONAL};
    }
}

/* Returns the table of all operations, and sets `*rows` to its number of rows and `*row_size`, unless it is NULL, to
 * their size; it is filled in the first call. */
const mpixla_op_row *mpixla_op_table(size_t *rows, size_t *row_size) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, handler_table_fill);
    *rows = ROWS;
    if (row_size) *row_size = sizeof table[0];
    return table;
}

/* The operations that mpixla_call_make makes: an mpixla_call has all of their attributes. */
enum { GIVEN = COMM | DEST | OP | RECVTAG | SENDTAG | SOURCE | STATUS };

/* Makes a call outside of XLA. Returns 0, or REFUSED with the error set: also for an operation that it does not make.
 */
int mpixla_call_make(const mpixla_call *call) {
    for (int i = 0; i < ROWS; i++) {
        const frame_shape *row = &all[i].operation->row;
        const uint32_t needed = row->attributes & ~row->optional & ((1U << ATTRIBUTES) - 1);
        const int is_made = !(needed & ~(uint32_t)GIVEN) && row->request == MPIXLA_COMPLETES;
        if (is_made && strcmp(row->op_name, call->name) == 0) return execute_given(call, all[i].operation);
    }
    return error_set("an operation '%s' cannot be called outside of XLA", call->name);
}
