/* A word while the start of MPI waits for other processes. MPI_Init holds Python's lock, so no thread of Python's could
 * say it. */
#include <pthread.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/output.h"
#include "base/system.h"
#include "base/thread.h"
#include "mpixla.h"

enum { STACK_BYTES = 1 << 16, SENTENCE_BYTES = 2048 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed;
static int is_watched; /* a thread watches, and MPI has not started */
static int64_t until;  /* when it speaks */
static char sentence[SENTENCE_BYTES];

/* Runs the thread that prints the sentence once the time is over, and ends at once if MPI has started by then. */
static void *init_thread_run(void *nothing) {
    pthread_mutex_lock(&lock);
    while (is_watched && !system_condition_wait(&changed, &lock, until)) {
    }
    if (is_watched) output_write(sentence);
    pthread_mutex_unlock(&lock);
    return nothing;
}

/* Starts a thread that prints `text` if mpixla_init_done is not called within so many seconds. Returns 0 or REFUSED. */
int mpixla_init_watch(double seconds, const char *text) {
    int code = system_condition_make(&changed);
    if (code != 0) return code;
    snprintf(sentence, sizeof sentence, "%s", text);
    until = clock_now() + (int64_t)(seconds * 1e9);
    is_watched = 1;
    return thread_start(init_thread_run, STACK_BYTES, "while MPI starts");
}

/* Ends the thread of mpixla_init_watch, as MPI has started: the sentence is no longer printed. */
void mpixla_init_done(void) {
    pthread_mutex_lock(&lock);
    if (is_watched) pthread_cond_broadcast(&changed);
    is_watched = 0;
    pthread_mutex_unlock(&lock);
}
