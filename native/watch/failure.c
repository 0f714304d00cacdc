#include "watch/failure.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/feature.h"
#include "mpi/mpi.h"
#include "mpixla.h"

typedef struct failure {
    struct failure *next;
    int told;
    comm_entry *lost; /* NULL: its cause is its own */
    char sentence[];
} failure;

static failure *unseen;
static int forgotten; /* for which there was no memory: told at once */
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

/* Takes out the failures that have this `lost`; for NULL, those whose sentence is in the text. */
static void take_out(const char *text, const comm_entry *lost) {
    for (failure **f = &unseen; *f;) {
        failure *this = *f;
        if (lost ? this->lost != lost : strstr(text, this->sentence) == NULL) {
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
    feature_set(FEATURE_UNTOLD, left > 0);
}

/* The table is locked. */
static void become_known(comm_entry *lost) {
    comm_attach(lost, COMM_SLOT_LOSS, lost);
    take_out("", lost);
}

/* The table is locked. */
static void keep(const char *sentence, comm_entry *lost) {
    failure **end = &unseen;
    while (*end && strcmp((*end)->sentence, sentence) != 0) end = &(*end)->next;
    if (*end) return;
    size_t bytes = strlen(sentence) + 1;
    failure *made = calloc(1, sizeof *made + bytes);
    if (made) {
        memcpy(made->sentence, sentence, bytes);
        made->lost = lost;
        *end = made;
        feature_set(FEATURE_UNTOLD, 1);
    } else {
        forgotten++;
        tell(sentence);
    }
}

void failure_note(const char *sentence, comm_entry *lost) {
    caller *is_caller = atomic_load(&thread_of_caller);
    int is_raised = is_caller && is_caller();
    if (is_raised ? lost == NULL : lost && comm_attached(lost, COMM_SLOT_LOSS)) return;
    pthread_mutex_lock(&table);
    if (is_raised) {
        become_known(lost);
        look_for_untold();
    } else {
        keep(sentence, lost);
    }
    pthread_mutex_unlock(&table);
}

static int64_t tell_locked(int again) {
    int64_t count = forgotten;
    for (failure *f = unseen; f; f = f->next, count++) {
        if (!f->told || again) tell(f->sentence);
        f->told = 1;
    }
    feature_set(FEATURE_UNTOLD, 0);
    fflush(stderr);
    return count;
}

void failure_tell(void) {
    pthread_mutex_lock(&table);
    (void)tell_locked(0);
    pthread_mutex_unlock(&table);
}

void mpixla_failures_seen(const char *text) {
    if (features_get() & FEATURE_FORKED) return; /* its parent's failures are no concern of its own */
    pthread_mutex_lock(&table);
    for (failure *f = unseen; f;) {
        comm_entry *lost = f->lost && strstr(text, f->sentence) ? f->lost : NULL;
        if (lost) become_known(lost);
        f = lost ? unseen : f->next; /* those behind it may be gone */
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
