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

/* Makes XLA's error, and notes the failure for the case that the program ends without having seen it (watch/failure.h).
 * `lost`: the communicator, if one of its processes has died. */
static ffi_error *execute_error_make(const ffi_call_frame *call, ffi_error_code code, const char *sentence,
                                     comm_entry *lost) {
    failure_add(sentence, lost);
    return ffi_error_make(call, code, sentence);
}

/* Makes XLA's error for a refused call, the sentence of error_get and the call's source line, and notes the failure
 * (watch/failure.h). */
static ffi_error *execute_refusal_make(const ffi_call_frame *call, int64_t site) {
    char sentence[ERROR_BYTES + SITE_TEXT_BYTES + 16];
    const char *line = site_text(site);
    snprintf(sentence, sizeof sentence, *line ? "%s (at %s)" : "%s", error_get(), line);
    return execute_error_make(call, FFI_ABORTED, sentence, NULL);
}

/* Returns the advice for an MPI error of this class, to stand behind MPI's text; "" if there is none. Sets `*lost` to
 * the communicator if one of its processes has died, and revokes its derived communicators. */
static const char *execute_error_advice(const frame *f, int class, comm_entry **lost) {
    *lost = loss_is_error(class) ? f->started ? f->started->communicator : f->facts.communicator : NULL;
    if (!*lost && class == mpi_get()->facts.err_truncate)
        return ". The message is longer than the template of its receive. With --check (MPIXLA_CHECK=1) the error "
               "names "
               "the lines of both";
    if (!*lost) return "";
    loss_derived_revoke(*lost);
    return ". A process of this communicator has died, or another rank has revoked it because one has: go on without "
           "it by comm.Revoke() and comm.Shrink(), as docs/trouble.md shows";
}

/* Makes XLA's error for an MPI error code: MPI's text, the description of the call, and advice. Notes the failure
 * (watch/failure.h), and revokes derived communicators if a process has died. */
static ffi_error *execute_mpi_error_make(const ffi_call_frame *call, const frame *f, int code) {
    char description[512];
    comm_entry *lost;
    const char *advice = execute_error_advice(f, mpi_error_class(code), &lost);
    frame_describe(f, description, sizeof description);
    (void)mpi_error_set(f->fault.function ? f->fault.function : f->facts.row->mpi_name, code, description, advice);
    return execute_error_make(call, FFI_INTERNAL, error_get(), lost);
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
    return code;
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

/* Makes a call from start to end, with buffers on this GPU, or on the host for NULL. Returns XLA's error, or NULL for
 * success. */
static ffi_error *execute_call(const ffi_call_frame *call, prepared *p, const operation *o, frame_gpu *gpu,
                               unsigned on) {
    frame f;
    flight_call here;
    watch w;
    flight *mine = flight_of_thread();
    if (!mine) return execute_refusal_make(call, 0);
    if (prepared_read(p, &f, &o->row, call, gpu)) return execute_refusal_make(call, f.facts.site);
    const int takes_request = o->row.request != MPIXLA_COMPLETES, is_new = !f.route;
    flight_enter(mine, &here, &f.facts);

    int code = on ? execute_watch_begin(&w, on, &f) : 0, made = 0;
    if (code == 0) code = routes_find(&f, o, on);
    const route *r = f.route; /* NULL: not chosen yet */
    if (code == 0 && is_new) prepared_publish(p, &f);
    if (code == 0 && r->begin) code = r->begin(&f);
    if (code == 0 && f.facts.windows) code = window_begin(&f);
    if (code == 0 && takes_request) code = request_attach(&f);
    if (code == 0 && f.started) flight_started_set(&here, f.started);
    if (code == 0 && on) code = execute_watch_run(&w, &f);
    if (code == 0) {
        made = 1;
        code = execute_call_make(&f, o, r);
        if (on & FEATURE_LOG) log_end(&w.line, &f.facts, mpi_error_class(code));
        if (o->row.request == MPIXLA_STARTS) request_finish(&f, code);
    }
    if (on) code = execute_watch_end(&w, &f, made, code);
    if (code == 0) code = execute_arrival_check(&f);
    if (f.facts.windows) window_end(&f);
    if (r && r->end) code = r->end(&f, code);
    if (on & FEATURE_TRACE) trace_end(&w.traced, r ? r->name : NULL, code != 0);

    flight_leave(mine, &here);
    ffi_error *error = code == 0         ? NULL
                       : code == REFUSED ? execute_refusal_make(call, f.facts.site)
                                         : execute_mpi_error_make(call, &f, code);
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
