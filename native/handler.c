/* The life of one call: frame_read checks it, the row's expression makes it, and whatever went wrong becomes an
 * FFI error, which Python sees as an exception. Nothing here allocates.
 */
#include "handler.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "call/apart.h"
#include "call/frame.h"
#include "call/site.h"
#include "check/check.h"
#include "mpi/loss.h"
#include "ops/exchange.h"
#include "ops/exscan.h"
#include "ops/halo.h"
#include "ops/replicated.h"
#include "ops/request.h"
#include "transport/nccl_calls.h"
#include "transport/transport.h"
#include "watch/failure.h"
#include "watch/flight.h"
#include "watch/log.h"
#include "watch/trace.h"
#include "xla/ffi.h"

#define NOWHERE MPIXLA_NOWHERE
#define EVERYWHERE MPIXLA_EVERYWHERE
#define ON_ROOT MPIXLA_ON_ROOT
#define OFF_ROOT MPIXLA_OFF_ROOT

int64_t mpixla_calls_in_flight(void) {
    return flight_count() + apart_count();
}

static ffi_error *fail(const ffi_call_frame *call, ffi_error_code code, const char *sentence, atomic_int *is_known) {
    failure_note(sentence, is_known);
    return ffi_error_make(call, code, sentence);
}

/* The call does not fit, in the words of error_get, to which this adds where it stands. */
static ffi_error *refuse(const ffi_call_frame *call, int64_t site) {
    char sentence[ERROR_BYTES + SITE_TEXT_BYTES + 16];
    const char *line = site_text(site);
    snprintf(sentence, sizeof sentence, *line ? "%s (at %s)" : "%s", error_get(), line);
    return fail(call, FFI_FAILED_PRECONDITION, sentence, NULL);
}

/* What to do about it, behind MPI's text. */
static const char *advice_of(const frame *f, int class, comm_entry **lost) {
    *lost = loss_is(class) ? f->started ? f->started->communicator : f->communicator : NULL;
    if (!*lost) return "";
    loss_spread(*lost);
    return ". A process of this communicator has died, or another rank has revoked it because one has: go on without "
           "it by comm.Revoke() and comm.Shrink(), as docs/faults.md shows";
}

static ffi_error *error_of_mpi(const ffi_call_frame *call, const frame *f, int code) {
    char what[512], text[MPI_ERROR_BYTES], message[sizeof what + sizeof text + 256];
    int class = mpi_error_class(code);
    comm_entry *lost;
    const char *advice = advice_of(f, class, &lost);
    frame_describe(f, 1, what, sizeof what);
    if (code == MPI_NO_LARGE_COUNT)
        snprintf(text, sizeof text,
                 "this MPI has no large-count functions (MPI 4.0) and the count exceeds %lld; send the array in pieces",
                 (long long)mpi_get()->count_limit);
    else
        mpi_error_describe(mpi_get(), code, text);
    snprintf(message, sizeof message, "r%d | %s returned error code %d: %s (%s)%s", mpi_get()->world_rank,
             f->fault.function ? f->fault.function : f->shape->mpi_name, class, text, what, advice);
    text_clean(message);
    return fail(call, FFI_INTERNAL, message, lost ? &lost->loss_is_known : NULL);
}

/* The result keeps the template's values beyond what arrived. */
static int template_keep(const frame *f, const transport *t) {
    int64_t arrived = 0;
    int code = mpi_get()->get_elements(f->status, f->type, &arrived);
    if (code != 0 || arrived >= f->recv.count) return code;
    if (arrived < 0) arrived = 0;
    int64_t item = f->recv.dtype->row->itemsize, at = arrived * item, bytes = (f->recv.count - arrived) * item;
    if (t) return transport_keep(t, f, at, bytes);
    memcpy((char *)f->recv.data + at, (const char *)f->template_.data + at, (size_t)bytes);
    return 0;
}

/* What the receive buffer has behind the rows that count. */
static int rest_clear(const frame *f, const transport *t) {
    if (t) return device_clear(&t->gpu, f->rest, f->rest_bytes) ? MPI_REFUSED : 0;
    memset(f->rest, 0, (size_t)f->rest_bytes);
    return 0;
}

/* What a row's handlers do. */
typedef struct operation {
    frame_shape shape;
    int (*run)(frame *f);
    int (*through_nccl)(const frame *f); /* NULL: it takes another transport */
} operation;

/* Between the debug lines. Returns MPI's code, or what mpi.h has beside it. */
static int run(frame *f, const transport *t, const operation *o) {
    int code = f->reverse ? comm_reversed(f->communicator, &f->comm) : 0;
    if (code == 0) code = t ? transport_run(t, f, o->run, o->through_nccl) : o->run(f);
    if (code == 0 && f->rest) code = rest_clear(f, t); /* last: MPI may have had a GPU's memory */
    if (code == 0 && f->template_.dtype && f->recv.count > 0 && !f->id.dtype) code = template_keep(f, t);
    return code;
}

/* With a transport for buffers of a GPU. */
static ffi_error *handle(const ffi_call_frame *call, const operation *o, transport *t) {
    frame f;
    log_call line;
    flight *mine = flight_mine();
    if (!mine) return refuse(call, 0);
    if (frame_read(&f, &o->shape, call, t ? &t->gpu : NULL)) return refuse(call, f.site);
    const frame *outer = flight_enter(mine, &f);
    trace_call traced;
    int tracing = trace_is_on(), checks = check_is_due(&f);
    if (tracing) trace_start(&traced, &f, t != NULL);
    int code = checks ? check_begin(&f) : 0, begun = code == 0, ran = 0;
    if (code == 0) code = t ? transport_begin(t, &f, o->through_nccl) : plan_is_needed() ? transport_join(&f) : 0;
    if (code == 0 && f.id.dtype && request_take(&f)) code = MPI_REFUSED;
    if (code == 0 && tracing) trace_request(&traced, &f);
    if (code == 0 && checks) {
        code = check_wait(&f);
        if (code != 0) request_abandon(&f);
    }
    if (code == 0) {
        int logging = log_is_on();
        ran = 1;
        if (logging) log_start(&line, &f);
        code = run(&f, t, o);
        if (logging) log_end(&line, &f, mpi_error_class(code));
        if (o->shape.request == FRAME_STARTS) request_settle(&f, code);
    }
    if (checks && begun) code = check_end(&f, ran, code);
    if (t) code = transport_end(t, code);
    if (tracing) trace_end(&traced, t, code != 0);
    flight_leave(mine, outer);
    ffi_error *error = code == 0 ? NULL : code == MPI_REFUSED ? refuse(call, f.site) : error_of_mpi(call, &f, code);
    if (o->shape.request == FRAME_WAITS) request_settle(&f, code); /* the error has said what the request was */
    return error;
}

static ffi_error *handle_apart(const ffi_call_frame *call, const void *o) {
    return handle(call, o, NULL);
}

static ffi_error *handle_on_host(ffi_call_frame *call, const operation *o) {
    if (ffi_is_answered(call)) return NULL;
    if (failure_is_untold()) failure_tell();
    return apart_is_on(call) ? apart_run(call, handle_apart, o) : handle(call, o, NULL);
}

static ffi_error *handle_on_device(const ffi_call_frame *call, const operation *o) {
    if (ffi_is_answered(call)) return NULL;
    if (failure_is_untold()) failure_tell();
    transport t = {.block = NULL};
    if (device_enter(&t.gpu, call)) return refuse(call, 0);
    ffi_error *error = handle(call, o, &t);
    device_leave(&t.gpu);
    return error;
}

/* What each row of the tables becomes. First the handlers: the row's calls in functions, and the shape of its frame. */
#define HANDLER(name, host_handler, device_handler, mpi_name_, attributes_, call, nccl_call, ...)            \
    static int name##_run(frame *c) {                                                                        \
        const mpi_counted *mpi = c->mpi;                                                                     \
        (void)mpi;                                                                                           \
        return call;                                                                                         \
    }                                                                                                        \
    static const operation name##_operation = {                                                              \
        .shape = {.op_name = #name, .mpi_name = mpi_name_, .attributes = (attributes_) | SITE, __VA_ARGS__}, \
        .run = name##_run,                                                                                   \
        .through_nccl = nccl_call};                                                                          \
    ffi_error *host_handler(ffi_call_frame *call_frame) {                                                    \
        return handle_on_host(call_frame, &name##_operation);                                                \
    }                                                                                                        \
    ffi_error *device_handler(ffi_call_frame *call_frame) {                                                  \
        return handle_on_device(call_frame, &name##_operation);                                              \
    }

#define MPIXLA_OP(name, host_handler, device_handler, mpi_name_, send_, template__, recv_, counts_, attributes_, call, \
                  nccl_call)                                                                                           \
    HANDLER(name, host_handler, device_handler, mpi_name_, attributes_, call, nccl_call, .send = send_,                \
            .template_ = template__, .recv = recv_, .counts = counts_)
#include "tables/ops.def"
#undef MPIXLA_OP

#define MPIXLA_START(name, host_handler, device_handler, mpi_name_, send_, template__, counts_, attributes_, call) \
    HANDLER(name, host_handler, device_handler, mpi_name_, attributes_, call, NULL, .send = send_,                 \
            .template_ = template__, .counts = counts_, .request = FRAME_STARTS)
#define MPIXLA_WAIT(name, host_handler, device_handler, mpi_name_, template__, recv_, attributes_, call)     \
    HANDLER(name, host_handler, device_handler, mpi_name_, attributes_, call, NULL, .template_ = template__, \
            .recv = recv_, .counts = FREE, .request = FRAME_WAITS)
#include "tables/requests.def"
#undef MPIXLA_START
#undef MPIXLA_WAIT

/* Then a row of the table that Python reads. */
#define ROW(name_, host_handler_, device_handler_, mpi_name_, attributes_, ...) \
    {.name = #name_,                                                            \
     .mpi_name = mpi_name_,                                                     \
     .host_handler = (mpixla_handler *)host_handler_,                           \
     .device_handler = (mpixla_handler *)device_handler_,                       \
     .attributes = ((attributes_) | SITE) & ~(IN_PLACE | SPLITS),               \
     .in_place = ((attributes_) & IN_PLACE) != 0,                               \
     __VA_ARGS__},

const mpixla_op_row *mpixla_op_table(size_t *rows) {
    static const mpixla_op_row table[] = {
#define MPIXLA_OP(name, host_handler, device_handler, mpi_name_, send_, template__, recv_, counts_, attributes_, call, \
                  nccl_call)                                                                                           \
    ROW(name, host_handler, device_handler, mpi_name_, attributes_, .send = send_, .template_ = template__,            \
        .recv = recv_)
#include "tables/ops.def"
#undef MPIXLA_OP
    };
    *rows = sizeof table / sizeof table[0];
    return table;
}

const mpixla_op_row *mpixla_request_op_table(size_t *rows) {
    static const mpixla_op_row table[] = {
#define MPIXLA_START(name, host_handler, device_handler, mpi_name_, send_, template__, counts_, attributes_, call) \
    ROW(name, host_handler, device_handler, mpi_name_, attributes_, .send = send_, .template_ = template__,        \
        .recv = EVERYWHERE)
#define MPIXLA_WAIT(name, host_handler, device_handler, mpi_name_, template__, recv_, attributes_, call)         \
    ROW(name, host_handler, device_handler, mpi_name_, attributes_, .send = EVERYWHERE, .template_ = template__, \
        .recv = recv_)
#include "tables/requests.def"
#undef MPIXLA_START
#undef MPIXLA_WAIT
    };
    *rows = sizeof table / sizeof table[0];
    return table;
}
