#include "watch/failure.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/feature.h"
#include "base/hash.h"
#include "base/output.h"
#include "base/thread.h"
#include "mpi/mpi.h"
#include "mpixla.h"

enum { MOST_KEPT = 1024 };

typedef struct failure {
    struct failure *next;
    int is_printed;
    uint64_t hash;    /* of the sentence */
    comm_entry *lost; /* as in failure_add */
    char sentence[];
} failure;

static failure *unseen;       /* by a front end, in the order in which they happened; at most MOST_KEPT */
static int64_t unseen_count;  /* failures in this list */
static int64_t dropped_count; /* further ones, and those without memory */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* for these */

/* Prints a failure that the program has not seen, with the rank. */
static void failure_sentence_print(const char *sentence) {
    const mpi_library *mpi = mpi_get();
    output_print("mpixla: rank %d: a call failed, and nobody has looked at its result: %s\n", mpi ? mpi->world_rank : 0,
                 sentence);
}

/* The caller of the following static functions holds the lock. */

/* Adds a failure to the list, and sets FEATURE_UNPRINTED, unless one with the same sentence is in it; only counts it if
 * the list is full or there is no memory. The caller holds the lock. */
static void failure_list_add(const char *sentence, comm_entry *lost) {
    const uint64_t hash = hash_text(sentence);
    failure **end = &unseen;
    while (*end && ((*end)->hash != hash || strcmp((*end)->sentence, sentence) != 0)) end = &(*end)->next;
    if (*end) return;
    size_t bytes = strlen(sentence) + 1;
    failure *made = unseen_count < MOST_KEPT ? calloc(1, sizeof *made + bytes) : NULL;
    if (!made) {
        dropped_count++;
        return;
    }
    memcpy(made->sentence, sentence, bytes);
    made->hash = hash;
    made->lost = lost;
    *end = made;
    unseen_count++;
    feature_set(FEATURE_UNPRINTED, 1);
}

/* Removes the failures of a communicator that has lost a process, or, for NULL, those whose sentence is in the text;
 * sets or clears FEATURE_UNPRINTED for the others. The caller holds the lock. */
static void failure_remove(const comm_entry *lost, const char *text) {
    int unprinted = 0;
    for (failure **at = &unseen; *at;) {
        failure *f = *at;
        if (lost ? f->lost == lost : strstr(text, f->sentence) != NULL) {
            *at = f->next;
            free(f);
            unseen_count--;
        } else {
            unprinted += !f->is_printed;
            at = &f->next;
        }
    }
    feature_set(FEATURE_UNPRINTED, unprinted > 0);
}

/* Marks the death of a communicator's process as seen by the program, and removes the failures for that reason: all
 * later calls on it fail for it as well. The caller holds the lock. */
static void failure_loss_mark_seen(comm_entry *lost) {
    comm_attach(lost, COMM_SLOT_LOSS, lost);
    failure_remove(lost, "");
}

/* Prints the failures; without `again`, only those that have not been printed. Clears FEATURE_UNPRINTED. Returns the
 * number of all, also of those of which no sentence was kept. The caller holds the lock. */
static int64_t failure_print_all(int again) {
    int64_t count = dropped_count;
    for (failure *f = unseen; f; f = f->next, count++) {
        if (!f->is_printed || again) failure_sentence_print(f->sentence);
        f->is_printed = 1;
    }
    if (dropped_count > 0 && again)
        output_print("mpixla: rank %d: %lld more calls failed, of which no sentence was kept\n",
                     mpi_get() ? mpi_get()->world_rank : 0, (long long)dropped_count);
    feature_set(FEATURE_UNPRINTED, 0);
    return count;
}

void failure_add(const char *sentence, comm_entry *lost) {
    const int is_raised = thread_is_front_end();
    if (is_raised ? lost == NULL : lost && comm_attached(lost, COMM_SLOT_LOSS)) return; /* the program knows */
    pthread_mutex_lock(&lock);
    if (is_raised)
        failure_loss_mark_seen(lost);
    else
        failure_list_add(sentence, lost);
    pthread_mutex_unlock(&lock);
}

void failure_unseen_print(void) {
    pthread_mutex_lock(&lock);
    (void)failure_print_all(0);
    pthread_mutex_unlock(&lock);
}

/* Removes the failures whose sentences are in the text of an exception that the front end has seen; if a process of a
 * communicator has died, all failures for that reason. */
void mpixla_failures_seen(const char *text) {
    if (features_get() & FEATURE_FORKED) return; /* its parent's failures are no concern of its own */
    pthread_mutex_lock(&lock);
    for (failure *f = unseen; f;) {
        comm_entry *lost = f->lost && strstr(text, f->sentence) ? f->lost : NULL;
        if (lost) failure_loss_mark_seen(lost);
        f = lost ? unseen : f->next; /* those behind it may be gone */
    }
    failure_remove(NULL, text);
    pthread_mutex_unlock(&lock);
}

/* Prints all failures that were not seen, also those that were printed before, at the end of the process. Returns their
 * number. */
int64_t mpixla_failures_end(void) {
    pthread_mutex_lock(&lock);
    int64_t count = failure_print_all(1);
    pthread_mutex_unlock(&lock);
    return count;
}
