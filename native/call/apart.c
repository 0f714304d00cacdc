/* XLA goes on in the thread that tells it of the end of a call, and may come to a collective there, and wait. So there
 * is a thread for each call that is under way: one that has nothing to do, or a new one. */
#include "call/apart.h"

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

typedef struct job {
    struct job *next;
    ffi_call_frame call; /* a copy, as XLA uses its own again; the attributes stay where they are */
    apart_make *make;
    const void *operation;
    void *state;
    ffi_future *future;
    int64_t site;           /* of the thread that XLA called in */
    fenv_t floats;          /* how XLA's thread rounds, and whether it has denormal numbers */
    max_align_t contents[]; /* what the copy points to */
} job;

static atomic_int_least64_t under_way;
static pthread_mutex_t giving = PTHREAD_MUTEX_INITIALIZER; /* for the rest */
static pthread_cond_t given = PTHREAD_COND_INITIALIZER;
static job *first, **end = &first;
static int64_t idle; /* threads that wait, and that no job in the list was given for */

void mpixla_calls_apart(void) {
    (void)feature_set(FEATURE_APART, 1);
}

int64_t apart_count(void) {
    return atomic_load(&under_way);
}

/* Copying. Memory is given out from the front, what needs the most alignment first. */

static size_t buffers_size(const ffi_buffers *from) {
    size_t bytes = (size_t)from->size * (sizeof(ffi_buffer) + sizeof(void *) + sizeof(int));
    for (int64_t i = 0; i < from->size; i++)
        bytes += (size_t)((const ffi_buffer *)from->buffers[i])->rank * sizeof(int64_t);
    return (bytes + sizeof(max_align_t) - 1) / sizeof(max_align_t) * sizeof(max_align_t);
}

static void buffers_copy(ffi_buffers *to, const ffi_buffers *from, void *memory) {
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

static job *job_make(const ffi_call_frame *call) {
    size_t args = buffers_size(&call->args), rets = buffers_size(&call->rets);
    job *made = malloc(sizeof *made + args + rets);
    if (!made) return NULL;
    made->next = NULL;
    made->call = *call;
    buffers_copy(&made->call.args, &call->args, made->contents);
    buffers_copy(&made->call.rets, &call->rets, (char *)made->contents + args);
    made->site = site_of_thread();
    (void)fegetenv(&made->floats);
    return made;
}

/* Threads */

static job *job_take(void) {
    job *taken = first;
    first = taken->next;
    if (!first) end = &first;
    return taken;
}

static void job_run(job *taken) {
    (void)fesetenv(&taken->floats);
    mpixla_site_call(taken->site);
    ffi_error *error = taken->make(&taken->call, taken->operation, taken->state);
    ffi_call_end(&taken->call, taken->future, error);
    free(taken);
    atomic_fetch_sub(&under_way, 1);
}

static void *jobs_run(void *nothing) {
    pthread_mutex_lock(&giving);
    for (;; idle++) {
        while (!first) pthread_cond_wait(&given, &giving);
        job *taken = job_take();
        pthread_mutex_unlock(&giving);
        job_run(taken);
        pthread_mutex_lock(&giving);
    }
    return nothing;
}

/* Gives a thread the job. Returns 0 or REFUSED. */
static int job_give(job *made) {
    pthread_mutex_lock(&giving);
    int code = 0; /* a new thread finds the job once this is done */
    if (idle == 0) code = thread_start(jobs_run, STACK_BYTES, "for a call that is to be made apart from XLA's threads");
    if (code == 0) {
        if (idle > 0) idle--;
        *end = made;
        end = &made->next;
        pthread_cond_signal(&given);
    }
    pthread_mutex_unlock(&giving);
    return code;
}

ffi_error *apart_run(ffi_call_frame *call, apart_make *make, const void *operation, void *state) {
    ffi_future *future;
    job *made = job_make(call);
    if (!made) {
        error_set("there is no memory for a call that is to be made apart from XLA's threads");
        return ffi_error_of_call(call);
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
    atomic_fetch_add(&under_way, 1);
    call->future = future; /* before it is known how it ends */
    if (job_give(made) != 0) {
        atomic_fetch_sub(&under_way, 1);
        ffi_call_end(call, future, ffi_error_of_call(call));
        free(made);
    }
    return NULL;
}
