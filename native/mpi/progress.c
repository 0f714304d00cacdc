/* The thread sleeps between its calls, for as long as the buffers of a connection last, and longer when there are no
 * requests. What waits itself is in MPI already, so it is not counted. A call that moves nothing is as short as calls
 * get, and costs the processor that computes; after a few of those it sleeps again.
 */
#include "mpi/progress.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"
#include "mpi/comm.h"
#include "mpi/mpi.h"
#include "mpixla.h"

enum { BURST = 64, IDLE_CALLS = 2, STACK_BYTES = 1 << 18 };

static atomic_int on;
static struct timespec period;
static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER; /* for the count */
static pthread_cond_t counted = PTHREAD_COND_INITIALIZER;
static int64_t under_way;
static pthread_mutex_t calling = PTHREAD_MUTEX_INITIALIZER; /* for `ended`; held in MPI */
static int ended;
static int64_t shortest = INT64_MAX; /* of the calls lately, in nanoseconds; the thread's own */

/* Sleeps until some request is under way. */
static void progress_requests_wait(void) {
    pthread_mutex_lock(&counting);
    while (under_way <= 0) pthread_cond_wait(&counted, &counting);
    pthread_mutex_unlock(&counting);
}

/* Returns whether a call of MPI that took so long has moved a message: longer than twice the shortest call lately, a
 * minimum that grows slowly. */
static int progress_has_moved(int64_t nanoseconds) {
    shortest = nanoseconds < shortest ? nanoseconds : shortest + shortest / 1024 + 1;
    return nanoseconds > 2 * shortest;
}

/* Drives MPI's progress by probes, BURST at most, until IDLE_CALLS in succession were too short to have moved a message
 * (progress_has_moved). Returns whether to go on: 0 once progress_end was called, or if a probe fails. Takes the lock
 * `calling`, and holds it all the time. The probes are on MPI_COMM_WORLD: on MPI_COMM_SELF MPICH would move nothing. */
static int progress_mpi_call(const mpi_library *mpi) {
    pthread_mutex_lock(&calling);
    int goes_on = !ended;
    for (int i = 0, idle = 0; goes_on && i < BURST && idle < IDLE_CALLS; i++) {
        int64_t begin = clock_now();
        goes_on = mpi_progress(mpi->facts.comm_world) == 0;
        idle = progress_has_moved(clock_now() - begin) ? 0 : idle + 1;
    }
    pthread_mutex_unlock(&calling);
    return goes_on;
}

/* Runs the thread that calls MPI while requests are under way, until progress_end or a failure. */
static void *progress_thread_run(void *nothing) {
    const mpi_library *mpi = mpi_get();
    do {
        progress_requests_wait();
        nanosleep(&period, NULL);
    } while (progress_mpi_call(mpi));
    atomic_store(&on, 0);
    return nothing;
}

/* Adds to the number of requests under way, and wakes the thread at the first one. Does nothing while the thread is
 * off. */
static void progress_requests_add(int64_t more) {
    if (!atomic_load_explicit(&on, memory_order_relaxed)) return;
    pthread_mutex_lock(&counting);
    under_way += more;
    if (under_way == 1 && more > 0) pthread_cond_signal(&counted);
    pthread_mutex_unlock(&counting);
}

void progress_request_started(void) {
    progress_requests_add(1);
}

void progress_request_ended(void) {
    progress_requests_add(-1);
}

void progress_end(void) {
    pthread_mutex_lock(&calling);
    ended = 1;
    pthread_mutex_unlock(&calling);
}

/* Ends the thread's calls when MPI_Finalize begins, since a call of MPI during it, or after it, ends the process. */
static void progress_end_with_mpi(void *nothing) {
    (void)nothing;
    progress_end();
}

/* Starts the progress thread, which calls MPI every so many nanoseconds while requests are under way. Returns 0 or
 * REFUSED. */
int mpixla_progress_set(int64_t nanoseconds) {
    if (!mpi_get()) return error_set("mpixla_start has not been called");
    if (nanoseconds <= 0)
        return error_set("the time between two calls of MPI must be more than 0 ns, but is %lld ns",
                         (long long)nanoseconds);
    period = (struct timespec){.tv_sec = nanoseconds / 1000000000, .tv_nsec = nanoseconds % 1000000000};
    int code = thread_start(progress_thread_run, STACK_BYTES, "that calls MPI while requests are under way");
    if (code != 0) return code;
    comm_slot_destructor_set(COMM_SLOT_PROGRESS, progress_end_with_mpi);
    comm_attach(comm_find_any(0), COMM_SLOT_PROGRESS, &ended);
    atomic_store(&on, 1);
    return 0;
}
