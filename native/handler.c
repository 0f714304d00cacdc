/* The life of one call: frame_read checks it, the row's expression makes it, and whatever went wrong becomes an
 * FFI error, which Python sees as an exception. Nothing here allocates.
 */
#include "handler.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "call/frame.h"
#include "ops/exchange.h"
#include "ops/halo.h"
#include "ops/request.h"
#include "watch/failure.h"
#include "watch/flight.h"
#include "watch/log.h"
#include "xla/ffi.h"

#define NOWHERE MPIXLA_NOWHERE
#define EVERYWHERE MPIXLA_EVERYWHERE
#define ON_ROOT MPIXLA_ON_ROOT
#define OFF_ROOT MPIXLA_OFF_ROOT

int64_t mpixla_calls_in_flight(void) {
    return flight_count();
}

static ffi_error *fail(const ffi_call_frame *call, ffi_error_code code, const char *sentence) {
    failure_note(sentence);
    return ffi_error_make(call, code, sentence);
}

/* The call does not fit, in the words of error_get. */
static ffi_error *refuse(const ffi_call_frame *call) {
    return fail(call, FFI_FAILED_PRECONDITION, error_get());
}

static ffi_error *error_of_mpi(const ffi_call_frame *call, const frame *f, int code, int class) {
    char what[512], text[MPI_ERROR_BYTES], message[sizeof what + sizeof text + 64];
    frame_describe(f, 1, what, sizeof what);
    if (code == MPI_NO_LARGE_COUNT)
        snprintf(text, sizeof text,
                 "this MPI has no large-count functions (MPI 4.0) and the count exceeds %lld; send the array in pieces",
                 (long long)mpi_get()->count_limit);
    else
        mpi_error_describe(mpi_get(), code, text);
    snprintf(message, sizeof message, "r%d | %s returned error code %d: %s (%s)", mpi_get()->world_rank,
             f->fault.function ? f->fault.function : f->shape->mpi_name, class, text, what);
    return fail(call, FFI_INTERNAL, message);
}

/* The result keeps the template's values beyond what arrived. */
static int template_keep(const frame *f) {
    int64_t arrived = 0;
    int code = mpi_get()->get_elements(f->status, f->type, &arrived);
    if (code != 0 || arrived >= f->recv.count) return code;
    if (arrived < 0) arrived = 0;
    int64_t item = f->recv.dtype->row->itemsize;
    memcpy((char *)f->recv.data + arrived * item, (const char *)f->template_.data + arrived * item,
           (size_t)((f->recv.count - arrived) * item));
    return 0;
}

static ffi_error *handle(const ffi_call_frame *call, const frame_shape *shape, int (*run)(frame *f)) {
    frame f;
    log_call line;
    if (ffi_is_answered(call)) return NULL;
    if (failure_is_untold()) failure_tell();
    flight *mine = flight_mine();
    if (!mine || frame_read(&f, shape, call) || (f.id.dtype && request_take(&f))) return refuse(call);

    int logging = log_is_on(), class = 0;
    if (logging) log_start(&line, &f);
    const frame *outer = flight_enter(mine, &f);
    int code = f.reverse ? comm_reversed(f.communicator, &f.comm) : 0;
    if (code == 0) code = run(&f);
    if (code == 0 && f.template_.dtype && f.recv.count > 0 && !f.id.dtype) code = template_keep(&f);
    flight_leave(mine, outer);
    /* The class is the number that the MPI standard names; codes may be any numbers of the implementation. */
    if (code != 0 && (code == MPI_NO_LARGE_COUNT || code == MPI_REFUSED || mpi_get()->error_class(code, &class) != 0))
        class = code;
    if (logging) log_end(&line, &f, class);
    ffi_error *error = code == 0 ? NULL : code == MPI_REFUSED ? refuse(call) : error_of_mpi(call, &f, code, class);
    if (f.id.dtype) request_settle(&f, code);
    return error;
}

/* What each row of the tables becomes. First the handler: the row's call in a function, and the shape of its frame. */
#define HANDLER(name, handler_, mpi_name_, attributes_, call, ...)                                        \
    static int name##_run(frame *c) {                                                                     \
        const mpi_counted *mpi = c->mpi;                                                                  \
        (void)mpi;                                                                                        \
        return call;                                                                                      \
    }                                                                                                     \
    ffi_error *handler_(ffi_call_frame *call_frame) {                                                     \
        static const frame_shape shape = {.mpi_name = mpi_name_, .attributes = attributes_, __VA_ARGS__}; \
        return handle(call_frame, &shape, name##_run);                                                    \
    }

#define MPIXLA_OP(name, handler_, mpi_name_, send_, template__, recv_, counts_, attributes_, call)               \
    HANDLER(name, handler_, mpi_name_, attributes_, call, .send = send_, .template_ = template__, .recv = recv_, \
            .counts = counts_)
#include "tables/ops.def"
#undef MPIXLA_OP

#define MPIXLA_START(name, handler_, mpi_name_, send_, template__, counts_, attributes_, call)                       \
    HANDLER(name, handler_, mpi_name_, attributes_, call, .send = send_, .template_ = template__, .counts = counts_, \
            .request = FRAME_STARTS)
#define MPIXLA_WAIT(name, handler_, mpi_name_, template__, recv_, attributes_, call)                              \
    HANDLER(name, handler_, mpi_name_, attributes_, call, .template_ = template__, .recv = recv_, .counts = FREE, \
            .request = FRAME_WAITS)
#include "tables/requests.def"
#undef MPIXLA_START
#undef MPIXLA_WAIT

/* Then a row of the table that Python reads. */
#define ROW(name_, handler_, mpi_name_, attributes_, ...) \
    {.name = #name_,                                      \
     .mpi_name = mpi_name_,                               \
     .host_handler = (mpixla_handler *)handler_,          \
     .attributes = (attributes_) & ~IN_PLACE,             \
     .in_place = ((attributes_) & IN_PLACE) != 0,         \
     __VA_ARGS__},

const mpixla_op_row *mpixla_op_table(size_t *rows) {
    static const mpixla_op_row table[] = {
#define MPIXLA_OP(name, handler_, mpi_name_, send_, template__, recv_, counts_, attributes_, call) \
    ROW(name, handler_, mpi_name_, attributes_, .send = send_, .template_ = template__, .recv = recv_)
#include "tables/ops.def"
#undef MPIXLA_OP
    };
    *rows = sizeof table / sizeof table[0];
    return table;
}

const mpixla_op_row *mpixla_request_op_table(size_t *rows) {
    static const mpixla_op_row table[] = {
#define MPIXLA_START(name, handler_, mpi_name_, send_, template__, counts_, attributes_, call) \
    ROW(name, handler_, mpi_name_, attributes_, .send = send_, .template_ = template__, .recv = EVERYWHERE)
#define MPIXLA_WAIT(name, handler_, mpi_name_, template__, recv_, attributes_, call) \
    ROW(name, handler_, mpi_name_, attributes_, .send = EVERYWHERE, .template_ = template__, .recv = recv_)
#include "tables/requests.def"
#undef MPIXLA_START
#undef MPIXLA_WAIT
    };
    *rows = sizeof table / sizeof table[0];
    return table;
}
