/* The handlers, and the table that Python reads, made from the rows of ops.def. */
#include "handler.h"

#include "call/frame.h"
#include "life.h"
#include "neighbours/exchange.h"
#include "neighbours/halo.h"
#include "ops/exscan.h"
#include "ops/replicated.h"
#include "ops/request.h"
#include "transport/nccl_calls.h"

#define NOWHERE MPIXLA_NOWHERE
#define EVERYWHERE MPIXLA_EVERYWHERE
#define ON_ROOT MPIXLA_ON_ROOT
#define OFF_ROOT MPIXLA_OFF_ROOT

enum {
#define MPIXLA_OP(name, host_handler, device_handler, mpi_name, request, send, template_, recv, counts, attributes, \
                  call, nccl)                                                                                       \
    ROW_##name,
#include "tables/ops.def"
#undef MPIXLA_OP
};

/* What each row becomes. First its handlers: the row's calls in functions, and the shape of its frame. */
#define MPIXLA_OP(name, host_handler, device_handler, mpi_name_, request_, send_, template__, recv_, counts_, \
                  attributes_, call, nccl_call)                                                               \
    static int name##_run(frame *c) {                                                                         \
        const mpi_counted *mpi = c->mpi;                                                                      \
        (void)mpi;                                                                                            \
        return call;                                                                                          \
    }                                                                                                         \
    static const life_operation name##_operation = {.row = {.number = ROW_##name,                             \
                                                            .op_name = #name,                                 \
                                                            .mpi_name = mpi_name_,                            \
                                                            .request = MPIXLA_##request_,                     \
                                                            .send = send_,                                    \
                                                            .template_ = template__,                          \
                                                            .recv = recv_,                                    \
                                                            .counts = counts_,                                \
                                                            .attributes = (attributes_) | PACKED | SITE},     \
                                                    .run = name##_run,                                        \
                                                    .through_nccl = nccl_call};                               \
    ffi_error *host_handler(ffi_call_frame *call_frame) {                                                     \
        return life_on_host(call_frame, &name##_operation);                                                   \
    }                                                                                                         \
    ffi_error *device_handler(ffi_call_frame *call_frame) {                                                   \
        return life_on_device(call_frame, &name##_operation);                                                 \
    }
#include "tables/ops.def"
#undef MPIXLA_OP

/* Then a row of the table that Python reads. */
const mpixla_op_row *mpixla_op_table(size_t *rows, size_t *row_size) {
    static const mpixla_op_row table[] = {
#define MPIXLA_OP(name_, host_handler_, device_handler_, mpi_name_, request_, send_, template__, recv_, counts_, \
                  attributes_, call, nccl_call)                                                                  \
    {.name = #name_,                                                                                             \
     .mpi_name = mpi_name_,                                                                                      \
     .host_handler = (mpixla_handler *)host_handler_,                                                            \
     .device_handler = (mpixla_handler *)device_handler_,                                                        \
     .send = send_,                                                                                              \
     .template_ = template__,                                                                                    \
     .recv = recv_,                                                                                              \
     .attributes = ((attributes_) | PACKED | SITE) & ~(IN_PLACE | LOCAL | SPLITS),                               \
     .in_place = ((attributes_) & IN_PLACE) != 0,                                                                \
     .request = MPIXLA_##request_},
#include "tables/ops.def"
#undef MPIXLA_OP
    };
    *rows = sizeof table / sizeof table[0];
    if (row_size) *row_size = sizeof table[0];
    return table;
}
