/* XLA continues in the thread that tells it the end of a call, and may wait in a collective there. So each call that is
 * under way has a thread of its own: an idle one, or a new one. */
#include "call/worker.h"

#include <fenv.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/feature.h"
#include "base/thread.h"
#include "call/site.h"
#include "mpixla.h"
#include "xla/ffi.h"

enum { STACK_BYTES = 8 << 20 /* as a thread of XLA's has */ };

typedef struct queued_call {
    struct queued_call *next;
    ffi_call_frame call; /* a copy, as XLA uses its own again; the attributes stay where they are */
    worker_function *make;
    const void *operation;
    void *state;
    ffi_future *future;
    int64_t site;           /* of the thread that XLA called in */
    fenv_t floats;          /* how XLA's thread rounds, and whether it has denormal numbers */
    max_align_t contents[]; /* the arrays that the copy points to */
} queued_call;

static atomic_int_least64_t calls_under_way;
static pthread_mutex_t queue_lock = PTHREAD_MUTEX_INITIALIZER; /* for all below */
static pthread_cond_t queue_changed = PTHREAD_COND_INITIALIZER;
static queued_call *queue_first, **queue_end = &queue_first;
static int64_t idle_threads; /* threads that wait, less the calls in the queue that have one of them */

void mpixla_calls_apart(void) {
    (void)feature_set(FEATURE_WORKERS, 1);
}

int64_t worker_call_count(void) {
    return atomic_load(&calls_under_way);
}

/* Copying: the arrays lie in the memory in the order of their alignment, the greatest first. */

/* Returns the bytes that a copy of the buffers' descriptors takes, in whole units of the greatest alignment. */
static size_t worker_buffers_bytes(const ffi_buffers *from) {
    size_t bytes = (size_t)from->size * (sizeof(ffi_buffer) + sizeof(void *) + sizeof(int));
    for (int64_t i = 0; i < from->size; i++)
        bytes += (size_t)((const ffi_buffer *)from->buffers[i])->rank * sizeof(int64_t);
    return (bytes + sizeof(max_align_t) - 1) / sizeof(max_align_t) * sizeof(max_align_t);
}

/* Copies the descriptors of the buffers to `memory`, of worker_buffers_bytes bytes. The arrays lie there in the order
 * of their alignment, the greatest first. */
static void worker_buffers_copy(ffi_buffers *to, const ffi_buffers *from, void *memory) {
    size_t size = (size_t)from->size;
    ffi_buffer *buffers = memory;
    int64_t *dims = (int64_t *)(buffers + size);
    for (size_t i = 0; i < size; i++) {
        buffers[i] = *(const ffi_buffer *)from->buffers[i];
        size_t rank = (size_t)buffers[i].rank;
        if (rank > 0) memcpy(dims, buffers[i].dims, rank * sizeof *dims);
        buffers[i].dims = dims;
        dims += rank;
    }
    to->buffers = (void **)dims;
    for (size_t i = 0; i < size; i++) to->buffers[i] = &buffers[i];
    to->types = (int *)(to->buffers + size);
    if (size > 0) memcpy(to->types, from->types, size * sizeof *to->types);
}

/* Returns a copy of the call for the queue, with the site and the floating-point environment of XLA's thread; NULL
 * without memory. It copies the lists and descriptors of the buffers, and neither their data nor the attributes.
 * worker_call_run frees it. */
static queued_call *worker_call_copy(const ffi_call_frame *call) {
    size_t args = worker_buffers_bytes(&call->args), rets = worker_buffers_bytes(&call->rets);
    queued_call *made = malloc(sizeof *made + args + rets);
    if (!made) return NULL;
    made->next = NULL;
    made->call = *call;
    worker_buffers_copy(&made->call.args, &call->args, made->contents);
    worker_buffers_copy(&made->call.rets, &call->rets, (char *)made->contents + args);
    made->site = site_of_thread();
    (void)fegetenv(&made->floats);
    return made;
}

/* Threads */

/* Removes and returns the first call of the queue, which must not be empty; worker_call_run frees it. The caller holds
 * the lock. */
static queued_call *worker_call_dequeue(void) {
    queued_call *taken = queue_first;
    queue_first = taken->next;
    if (!queue_first) queue_end = &queue_first;
    return taken;
}

/* Makes the call `taken` with the site and the floating-point environment of XLA's thread, passes its end or error to
 * XLA, and frees the copy. */
static void worker_call_run(queued_call *taken) {
    (void)fesetenv(&taken->floats);
    mpixla_site_call(taken->site);
    ffi_error *error = taken->make(&taken->call, taken->operation, taken->state);
    ffi_call_end(&taken->call, taken->future, error);
    free(taken);
    atomic_fetch_sub(&calls_under_way, 1);
}

/* Runs a worker thread: makes one call of the queue after another, and never returns. */
static void *worker_thread_run(void *nothing) {
    pthread_mutex_lock(&queue_lock);
    for (;; idle_threads++) {
        while (!queue_first) pthread_cond_wait(&queue_changed, &queue_lock);
        queued_call *taken = worker_call_dequeue();
        pthread_mutex_unlock(&queue_lock);
        worker_call_run(taken);
        pthread_mutex_lock(&queue_lock);
    }
    return nothing;
}

/* Appends the call to the queue, and starts a thread for it if none is idle. Returns 0; REFUSED if no thread can be
 * started, and then the call is not in the queue. */
static int worker_call_enqueue(queued_call *made) {
    pthread_mutex_lock(&queue_lock);
    int code = 0; /* a new thread finds the call once the lock is free */
    if (idle_threads == 0)
        code = thread_start(worker_thread_run, STACK_BYTES, "for a call that is to be made apart from XLA's threads");
    if (code == 0) {
        if (idle_threads > 0) idle_threads--;
        *queue_end = made;
        queue_end = &made->next;
        pthread_cond_signal(&queue_changed);
    }
    pthread_mutex_unlock(&queue_lock);
    return code;
}

ffi_error *worker_call_submit(ffi_call_frame *call, worker_function *make, const void *operation, void *state) {
    ffi_future *future;
    queued_call *made = worker_call_copy(call);
    if (!made) {
        error_set("there is no memory for a call that is to be made apart from XLA's threads");
        return ffi_error_from_sentence(call);
    }
    ffi_error *error = ffi_future_make(call, &future);
    if (error) {
        free(made);
        return error;
    }
    made->make = make;
    made->operation = operation;
    made->state = state;
    made->future = future;
    atomic_fetch_add(&calls_under_way, 1);
    call->future = future; /* before it is known how it ends */
    if (worker_call_enqueue(made) != 0) {
        atomic_fetch_sub(&calls_under_way, 1);
        ffi_call_end(call, future, ffi_error_from_sentence(call));
        free(made);
    }
    return NULL;
}
