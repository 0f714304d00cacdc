#include "watch/failure.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "mpi/mpi.h"
#include "mpixla.h"

typedef struct failure {
    struct failure *next;
    int told;
    atomic_int *is_known; /* NULL: its cause is its own */
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

/* Takes out the failures that have this `is_known`; for NULL, those whose sentence is in the text. */
static void take_out(const char *text, const atomic_int *is_known) {
    for (failure **f = &unseen; *f;) {
        failure *this = *f;
        if (is_known ? this->is_known != is_known : strstr(text, this->sentence) == NULL) {
            f = &this->next;
            continue;
        }
        *f = this->next;
        free(this);
    }
}

static void look_for_untold(void) {
    int left = 0;
    for (const failure *f = unseen; f; f = f->next) left += !f->told;
    atomic_store(&untold, left > 0);
}

/* The table is locked. */
static void become_known(atomic_int *is_known) {
    atomic_store(is_known, 1);
    take_out("", is_known);
}

/* The table is locked. */
static void keep(const char *sentence, atomic_int *is_known) {
    failure **end = &unseen;
    while (*end && strcmp((*end)->sentence, sentence) != 0) end = &(*end)->next;
    if (*end) return;
    size_t bytes = strlen(sentence) + 1;
    failure *made = calloc(1, sizeof *made + bytes);
    if (made) {
        memcpy(made->sentence, sentence, bytes);
        made->is_known = is_known;
        *end = made;
        atomic_store(&untold, 1);
    } else {
        forgotten++;
        tell(sentence);
    }
}

void failure_note(const char *sentence, atomic_int *is_known) {
    caller *is_caller = atomic_load(&thread_of_caller);
    int is_raised = is_caller && is_caller();
    if (is_raised ? is_known == NULL : is_known && atomic_load(is_known)) return;
    pthread_mutex_lock(&table);
    if (is_raised) {
        become_known(is_known);
        look_for_untold();
    } else {
        keep(sentence, is_known);
    }
    pthread_mutex_unlock(&table);
}

void failure_keep(const char *sentence) {
    pthread_mutex_lock(&table);
    keep(sentence, NULL);
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
    pthread_mutex_lock(&table);
    for (failure *f = unseen; f;) {
        atomic_int *is_known = f->is_known && strstr(text, f->sentence) ? f->is_known : NULL;
        if (is_known) become_known(is_known);
        f = is_known ? unseen : f->next; /* those behind it may be gone */
    }
    take_out(text, NULL);
    look_for_untold();
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
    return atexit(end_badly) == 0 ? 0 : error_set("the exit status of this process cannot be set: atexit has failed");
}
