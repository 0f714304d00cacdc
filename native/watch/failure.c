#include "watch/failure.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mpi/mpi.h"
#include "mpixla.h"

typedef struct failure {
    struct failure *next;
    int told;
    char sentence[];
} failure;

static failure *unseen;
static int forgotten; /* for which there was no memory: told at once */
static atomic_int untold;
typedef void *caller(void);
static _Atomic(caller *) thread_of_caller;
static pthread_mutex_t table = PTHREAD_MUTEX_INITIALIZER;

static void tell(const char *sentence) {
    const mpi_library *mpi = mpi_get();
    fprintf(stderr, "mpixla: rank %d: a call failed, and nobody has looked at its result: %s\n",
            mpi ? mpi->world_rank : 0, sentence);
}

void mpixla_failures_raised_on(void *(*thread)(void)) {
    atomic_store(&thread_of_caller, thread);
}

void failure_note(const char *sentence) {
    caller *is_caller = atomic_load(&thread_of_caller);
    if (!is_caller || !is_caller()) failure_keep(sentence);
}

void failure_keep(const char *sentence) {
    pthread_mutex_lock(&table);
    failure **end = &unseen;
    while (*end && strcmp((*end)->sentence, sentence) != 0) end = &(*end)->next;
    if (!*end) {
        size_t bytes = strlen(sentence) + 1;
        failure *made = calloc(1, sizeof *made + bytes);
        if (made) {
            memcpy(made->sentence, sentence, bytes);
            *end = made;
            atomic_store(&untold, 1);
        } else {
            forgotten++;
            tell(sentence);
        }
    }
    pthread_mutex_unlock(&table);
}

int failure_is_untold(void) {
    return atomic_load_explicit(&untold, memory_order_relaxed);
}

static int64_t tell_locked(int again) {
    int64_t count = forgotten;
    for (failure *f = unseen; f; f = f->next, count++) {
        if (!f->told || again) tell(f->sentence);
        f->told = 1;
    }
    atomic_store(&untold, 0);
    fflush(stderr);
    return count;
}

void failure_tell(void) {
    pthread_mutex_lock(&table);
    (void)tell_locked(0);
    pthread_mutex_unlock(&table);
}

void mpixla_failures_seen(const char *text) {
    int left = 0;
    pthread_mutex_lock(&table);
    for (failure **f = &unseen; *f;) {
        if (!strstr(text, (*f)->sentence)) {
            left += !(*f)->told;
            f = &(*f)->next;
            continue;
        }
        failure *gone = *f;
        *f = gone->next;
        free(gone);
    }
    atomic_store(&untold, left > 0);
    pthread_mutex_unlock(&table);
}

int64_t mpixla_failures_end(void) {
    pthread_mutex_lock(&table);
    int64_t count = tell_locked(1);
    pthread_mutex_unlock(&table);
    return count;
}

/* The C library runs this last of all: Python, and MPI with it, has ended by then. */
static void end_badly(void) {
    fflush(NULL);
    _exit(EXIT_FAILURE);
}

int mpixla_exit_badly(void) {
    return atexit(end_badly) == 0 ? 0 : -1;
}
