#include "execute.h"

#include <stdio.h>

#include "base/error.h"
#include "base/feature.h"
#include "call/prepared.h"
#include "call/site.h"
#include "call/worker.h"
#include "check/check.h"
#include "mpi/loss.h"
#include "ops/request.h"
#include "ops/window.h"
#include "routes/gpu.h"
#include "routes/routes.h"
#include "watch/failure.h"
#include "watch/flight.h"
#include "watch/log.h"
#include "watch/trace.h"
#include "xla/ffi.h"

int64_t mpixla_calls_in_flight(void) {
    return flight_count() + worker_call_count();
}

/* Makes XLA's error for a refused call, the sentence of error_get and the call's source line, and notes the failure for
 * the case that the program ends without having seen it (watch/failure.h). */
static ffi_error *execute_refusal_make(const ffi_call_frame *call, int64_t site) {
    char sentence[ERROR_BYTES + SITE_TEXT_BYTES + 16];
    const char *line = site_text(site);
    snprintf(sentence, sizeof sentence, *line ? "%s (at %s)" : "%s", error_get(), line);
    failure_add(sentence, NULL);
    return ffi_error_make(call, FFI_ABORTED, sentence);
}

/* Returns the advice for an MPI error of this class, to stand behind MPI's text; "" if there is none. Sets `*lost` to
 * the communicator if one of its processes has died, and revokes its derived communicators. */
static const char *execute_error_advice(const frame *f, int class, comm_entry **lost) {
    *lost = loss_is_error(class) ? f->started ? f->started->communicator : f->facts.communicator : NULL;
    if (!*lost && class == mpi_get()->facts.err_truncate)
        return ". The message is longer than the template of its receive. With --check (MPIXLA_CHECK=1) the error "
               "names the lines of both";
    if (!*lost) return "";
    loss_derived_revoke(*lost);
    return ". A process of this communicator has died, or another rank has revoked it because one has: go on without "
           "it by comm.Revoke() and comm.Shrink(), as docs/trouble.md shows";
}

/* Sets the error for an MPI error code: MPI's text, the description of the call behind `caller`, and advice. Notes the
 * failure (watch/failure.h), with the communicator if one of its processes has died, and revokes derived communicators
 * then. */
static void execute_mpi_error_set(const frame *f, int code, const char *caller) {
    char description[512], called[sizeof description + 16];
    comm_entry *lost;
    const char *advice = execute_error_advice(f, mpi_error_class(code), &lost);
    frame_describe(f, description, sizeof description);
    snprintf(called, sizeof called, "%s%s", caller, description);
    (void)mpi_error_set(f->fault.function ? f->fault.function : f->facts.row->mpi_name, code, called, advice);
    failure_add(error_get(), lost);
}

/* Copies the template's values behind the message that arrived to the result, and sets f->arrived. If the route works
 * on copies, the result is one, and the template is not. Returns 0 or an error code. */
static int execute_template_rest_copy(frame *f) {
    const int code = frame_arrived_set(f, f->status);
    const int64_t at = f->arrived, bytes = frame_buffer_bytes(&f->recv) - at;
    if (code != 0 || bytes <= 0) return code;
    char *to = (char *)f->recv.data + at;
    const char *from = (const char *)f->template_.data + at;
    return frame_array_device(f) ? device_copy_within(frame_device(f), to, from, bytes)
                                 : device_copy_out(frame_device(f), to, from, bytes);
}

/* Writes an integer of a result that is int32 or int64. Returns 0, or REFUSED if it is too large for int32. */
static int execute_number_write(const frame_buffer *to, int i, int64_t value) {
    if (to->dtype->number == FFI_S64) {
        ((int64_t *)to->data)[i] = value;
        return 0;
    }
    if (value > INT32_MAX)
        return error_set("a message of %lld items came, a length that int32 does not hold: set jax_enable_x64",
                         (long long)value);
    ((int32_t *)to->data)[i] = (int32_t)value;
    return 0;
}

/* Writes the source, tag and length of the message that came, if they are a result of the call; of no message, those of
 * a receive from MPI_PROC_NULL. Returns 0 or an error code. */
static int execute_numbers_write(const frame *f) {
    const mpixla_mpi_facts *facts = &mpi_get()->facts;
    const int has_message =
        f->facts.row->request != MPIXLA_WAITS || (f->started && facts_have(f->started, ATTRIBUTE_SOURCE));
    int64_t bytes = 0;
    if (!f->numbers.dtype) return 0;
    const int code = has_message ? mpi_bytes_of(f->status, &bytes) : 0;
    if (code != 0) return code;
    const int failed =
        execute_number_write(&f->numbers, 0, has_message ? mpi_source_of(f->status) : facts->proc_null) ||
        execute_number_write(&f->numbers, 1, has_message ? mpi_tag_of(f->status) : facts->any_tag) ||
        execute_number_write(&f->numbers, 2, bytes / f->recv.dtype->row->itemsize);
    return failed ? REFUSED : 0;
}

/* Refuses a message that is no whole number of items, so of another data type than its template. Returns 0 or REFUSED.
 */
static int execute_arrival_check(const frame *f) {
    const dtype_entry *dtype = f->recv.dtype;
    if (f->arrived == 0 || f->arrived % dtype->row->itemsize == 0) return 0;
    char description[512];
    frame_describe(f, description, sizeof description);
    return error_set(
        "r%d | a message of %lld bytes came, which is no whole number of items of %s: receive with a "
        "template of the shape and data type of the array that is sent (%s)",
        mpi_get()->world_rank, (long long)f->arrived, dtype->row->name, description);
}

/* Makes the call by its route, and then fills the rest of its result: zeros behind the rows that count, and the
 * template's values where nothing was received. Returns 0 or an error code. */
static int execute_call_make(frame *f, const operation *o, const route *r) {
    int code = r->run(f, o);
    if (code == 0 && f->rest) code = device_clear(frame_device(f), f->rest, f->rest_bytes);
    if (code == 0 && f->template_.dtype && f->recv.count > 0 && !f->id.dtype)
        code = f->facts.windows & FACTS_RECEIVES_WINDOW ? window_received(f) : execute_template_rest_copy(f);
    return code == 0 ? execute_numbers_write(f) : code;
}

/* The features that watch one call. */
typedef struct watch {
    unsigned on;
    int checks;  /* the call is compared, and */
    int checked; /* may be made */
    trace_call traced;
    log_call line;
} watch;

/* Begins trace and checks of a call, in `w`, before anything that may wait. Returns 0, or an error code of the checks.
 */
static int execute_watch_begin(watch *w, unsigned on, frame *f) {
    w->on = on;
    w->checks = (w->on & FEATURE_CHECKS) && check_is_due(&f->facts);
    if (w->on & FEATURE_TRACE) trace_start(&w->traced, &f->facts, f->gpu != NULL, w->checks);
    int code = w->checks ? routes_check(f) : 0;
    if (code == 0 && w->checks) code = check_begin(f);
    w->checked = w->checks && code == 0;
    return code;
}

/* Passes the call's request, now known, to trace, checks and log, right before the call is made; abandons the request
 * if the checks refuse the call. Returns 0, or an error code of the checks. */
static int execute_watch_run(watch *w, frame *f) {
    const request *r = f->request;
    const trace_request known = {r ? r->number : -1, r ? r->generation : 0, f->started};
    if (w->on & FEATURE_TRACE) trace_request_set(&w->traced, &f->facts, &known);
    int code = w->checks ? check_run(f) : 0;
    if (code != 0)
        request_abandon(f);
    else if (w->on & FEATURE_LOG)
        log_start(&w->line, &f->facts, f->started);
    return code;
}

/* Ends the checks of a call; `made`: the call was made. Returns its code, or REFUSED if its message does not fit. */
static int execute_watch_end(const watch *w, frame *f, int made, int code) {
    return w->checked ? check_end(f, made, code) : code;
}

/* Makes a call whose frame was read, from start to end, and publishes the frame for later runs, unless `p` is NULL.
 * Returns 0 or an error code. A call that waits leaves its request to the caller. */
static int execute_frame(frame *f, prepared *p, const operation *o, flight *mine, unsigned on) {
    flight_call here;
    watch w;
    const int takes_request = o->row.request != MPIXLA_COMPLETES, is_new = !f->route;
    flight_enter(mine, &here, &f->facts);

    int code = on ? execute_watch_begin(&w, on, f) : 0, made = 0;
    if (code == 0) code = routes_find(f, o, on);
    const route *r = f->route; /* NULL: not chosen yet */
    if (code == 0 && is_new) prepared_publish(p, f);
    if (code == 0 && r->begin) code = r->begin(f);
    if (code == 0 && f->facts.windows) code = window_begin(f);
    if (code == 0 && takes_request) code = request_attach(f);
    if (code == 0 && f->started) flight_started_set(&here, f->started);
    if (code == 0 && on) code = execute_watch_run(&w, f);
    if (code == 0) {
        made = 1;
        code = execute_call_make(f, o, r);
        if (on & FEATURE_LOG) log_end(&w.line, &f->facts, mpi_error_class(code));
        if (o->row.request == MPIXLA_STARTS) request_finish(f, code);
    }
    if (on) code = execute_watch_end(&w, f, made, code);
    if (code == 0) code = execute_arrival_check(f);
    if (f->facts.windows) window_end(f);
    if (r && r->end) code = r->end(f, code);
    if (on & FEATURE_TRACE) trace_end(&w.traced, r ? r->name : NULL, code != 0);

    flight_leave(mine, &here);
    return code;
}

/* Makes a call of XLA's, with buffers on this GPU, or on the host for NULL. Returns XLA's error, or NULL for success.
 */
static ffi_error *execute_call(const ffi_call_frame *call, prepared *p, const operation *o, frame_gpu *gpu,
                               unsigned on) {
    frame f;
    flight *mine = flight_of_thread();
    if (!mine) return execute_refusal_make(call, 0);
    if (prepared_read(p, &f, &o->row, call, gpu)) return execute_refusal_make(call, f.facts.site);
    const int code = execute_frame(&f, p, o, mine, on);
    ffi_error *error = NULL;
    if (code == REFUSED) {
        error = execute_refusal_make(call, f.facts.site);
    } else if (code != 0) {
        execute_mpi_error_set(&f, code, "");
        error = ffi_error_make(call, FFI_INTERNAL, error_get());
    }
    if (o->row.request == MPIXLA_WAITS) request_finish(&f, code); /* after the error, which describes the request */
    return error;
}

/* Refuses all calls in a forked process, with error_set: no lock may be taken there, as another thread may have held it
 * at the fork. Elsewhere prints the failures that the program has not seen. Returns whether calls are refused. */
static int execute_process_check(unsigned on) {
    if (on & FEATURE_FORKED) return comm_state_check() != 0;
    failure_unseen_print();
    return 0;
}

/* Makes a call with the host's memory on a worker thread (worker_function). */
static ffi_error *execute_on_worker(const ffi_call_frame *call, const void *o, void *p) {
    return execute_call(call, p, o, NULL, features_get());
}

ffi_error *execute_on_host(ffi_call_frame *call, const operation *o) {
    const unsigned on = features_get();
    if (ffi_query_answer(call, FFI_STAGE_EXECUTE)) return NULL;
    if ((on & (FEATURE_FORKED | FEATURE_UNPRINTED)) && execute_process_check(on)) return ffi_error_from_sentence(call);
    prepared *p = prepared_of(call);
    return (on & FEATURE_WORKERS) && ffi_has_futures(call) ? worker_call_submit(call, execute_on_worker, o, p)
                                                           : execute_call(call, p, o, NULL, on);
}

ffi_error *execute_on_device(const ffi_call_frame *call, const operation *o) {
    const unsigned on = features_get();
    if (ffi_query_answer(call, FFI_STAGE_EXECUTE)) return NULL;
    if ((on & (FEATURE_FORKED | FEATURE_UNPRINTED)) && execute_process_check(on)) return ffi_error_from_sentence(call);
    gpu_call g;
    if (gpu_enter(&g, call)) return execute_refusal_make(call, 0);
    ffi_error *error = execute_call(call, prepared_of(call), o, &g.of_frame, on);
    gpu_leave(&g);
    return error;
}

/* Ends a call outside of XLA, of which `f` was read: returns 0 for code 0; else REFUSED, with the error set, and the
 * failure noted. */
static int execute_given_end(const frame *f, const mpixla_call *call, int code) {
    if (code == 0) return 0;
    if (code == REFUSED)
        failure_add(error_get(), NULL);
    else
        execute_mpi_error_set(f, code, call->caller ? call->caller : "");
    return REFUSED;
}

/* Reads a call outside of XLA. Returns the flight record of this thread; NULL if the call is refused, with the error
 * set, and the failure noted. */
static flight *execute_given_read(frame *f, const mpixla_call *call, const frame_shape *row, unsigned on) {
    const int may_be_made = !(on & (FEATURE_FORKED | FEATURE_UNPRINTED)) || !execute_process_check(on);
    flight *mine = may_be_made ? flight_of_thread() : NULL;
    if (mine && frame_given_read(f, row, call) == 0) return mine;
    failure_add(error_get(), NULL);
    return NULL;
}

int execute_given(const mpixla_call *call, const operation *o) {
    const unsigned on = features_get() & ~FEATURE_CHECKS;
    frame f;
    flight *mine = execute_given_read(&f, call, &o->row, on);
    return mine ? execute_given_end(&f, call, execute_frame(&f, NULL, o, mine, on)) : REFUSED;
}

/* The rows of messages that are started outside of XLA: their buffers stay where they are until they are waited for. */
static const frame_shape sent_message = {.op_name = "send",
                                         .mpi_name = "MPI_Isend",
                                         .pattern = PAIR,
                                         .send = MPIXLA_EVERYWHERE,
                                         .attributes = COMM | DEST | SENDTAG};
static const frame_shape received_message = {.op_name = "recv",
                                             .mpi_name = "MPI_Irecv",
                                             .pattern = PAIR,
                                             .recv = MPIXLA_EVERYWHERE,
                                             .attributes = COMM | RECVTAG | SOURCE};

static const frame_shape *execute_message_row(const mpixla_call *call) {
    return call->send ? &sent_message : &received_message;
}

int mpixla_message_start(const mpixla_call *call, mpixla_handle *request) {
    frame f;
    *request = 0; /* MPI may write half of it */
    if (!execute_given_read(&f, call, execute_message_row(call), features_get())) return REFUSED;
    const int code = call->send ? f.mpi->isend(f.send.data, f.send.count, f.type, f.dest, f.sendtag, f.comm, request)
                                : f.mpi->irecv(f.recv.data, f.recv.count, f.type, f.source, f.recvtag, f.comm, request);
    return execute_given_end(&f, call, code);
}

int mpixla_message_wait(const mpixla_call *call, mpixla_handle *request) {
    const unsigned on = features_get();
    frame f;
    flight_call here;
    trace_call traced;
    log_call line;
    _Alignas(16) char status[MPI_STATUS_BYTES];
    flight *mine = execute_given_read(&f, call, execute_message_row(call), on);
    if (!mine) return REFUSED;
    flight_enter(mine, &here, &f.facts);
    if (on & FEATURE_TRACE) trace_start(&traced, &f.facts, 0, 0);
    if (on & FEATURE_LOG) log_start(&line, &f.facts, NULL);
    const int code = mpi_get()->wait(request, status);
    if (on & FEATURE_LOG) log_end(&line, &f.facts, mpi_error_class(code));
    if (on & FEATURE_TRACE) trace_end(&traced, NULL, code != 0);
    flight_leave(mine, &here);
    return execute_given_end(&f, call, code);
}
