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
    int is_told;
    uint64_t hash;    /* of the sentence */
    comm_entry *lost; /* as in failure_note */
    char sentence[];
} failure;

static failure *unseen;  /* that no front end has seen, in the order in which they happened; at most MOST_KEPT */
static int64_t kept;     /* how many these are */
static int64_t not_kept; /* further ones, and those for which there was no memory */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* for these */

static void sentence_print(const char *sentence) {
    const mpi_library *mpi = mpi_get();
    output_print("mpixla: rank %d: a call failed, and nobody has looked at its result: %s\n", mpi ? mpi->world_rank : 0,
                 sentence);
}

/* All that follows is with the lock, but for what the headers have. */

static void failure_keep(const char *sentence, comm_entry *lost) {
    const uint64_t hash = hash_text(sentence);
    failure **end = &unseen;
    while (*end && ((*end)->hash != hash || strcmp((*end)->sentence, sentence) != 0)) end = &(*end)->next;
    if (*end) return;
    size_t bytes = strlen(sentence) + 1;
    failure *made = kept < MOST_KEPT ? calloc(1, sizeof *made + bytes) : NULL;
    if (!made) {
        not_kept++;
        return;
    }
    memcpy(made->sentence, sentence, bytes);
    made->hash = hash;
    made->lost = lost;
    *end = made;
    kept++;
    feature_set(FEATURE_UNTOLD, 1);
}

/* Takes out the failures of a communicator that has lost a process, or, for NULL, those whose sentence is in the text.
 */
static void failures_take_out(const comm_entry *lost, const char *text) {
    int untold = 0;
    for (failure **at = &unseen; *at;) {
        failure *f = *at;
        if (lost ? f->lost == lost : strstr(text, f->sentence) != NULL) {
            *at = f->next;
            free(f);
            kept--;
        } else {
            untold += !f->is_told;
            at = &f->next;
        }
    }
    feature_set(FEATURE_UNTOLD, untold > 0);
}

/* The program has heard that a process of the communicator has died, which is why all later calls on it fail. */
static void loss_is_seen(comm_entry *lost) {
    comm_attach(lost, COMM_SLOT_LOSS, lost);
    failures_take_out(lost, "");
}

/* Prints the failures, without `again` those alone that have not been printed. Returns how many there are. */
static int64_t failures_print(int again) {
    int64_t count = not_kept;
    for (failure *f = unseen; f; f = f->next, count++) {
        if (!f->is_told || again) sentence_print(f->sentence);
        f->is_told = 1;
    }
    if (not_kept > 0 && again)
        output_print("mpixla: rank %d: %lld more calls failed, of which no sentence was kept\n",
                     mpi_get() ? mpi_get()->world_rank : 0, (long long)not_kept);
    feature_set(FEATURE_UNTOLD, 0);
    return count;
}

void failure_note(const char *sentence, comm_entry *lost) {
    const int is_raised = thread_is_front_end();
    if (is_raised ? lost == NULL : lost && comm_attached(lost, COMM_SLOT_LOSS)) return; /* the program knows */
    pthread_mutex_lock(&lock);
    if (is_raised)
        loss_is_seen(lost);
    else
        failure_keep(sentence, lost);
    pthread_mutex_unlock(&lock);
}

void failure_tell(void) {
    pthread_mutex_lock(&lock);
    (void)failures_print(0);
    pthread_mutex_unlock(&lock);
}

void mpixla_failures_seen(const char *text) {
    if (features_get() & FEATURE_FORKED) return; /* its parent's failures are no concern of its own */
    pthread_mutex_lock(&lock);
    for (failure *f = unseen; f;) {
        comm_entry *lost = f->lost && strstr(text, f->sentence) ? f->lost : NULL;
        if (lost) loss_is_seen(lost);
        f = lost ? unseen : f->next; /* those behind it may be gone */
    }
    failures_take_out(NULL, text);
    pthread_mutex_unlock(&lock);
}

int64_t mpixla_failures_end(void) {
    pthread_mutex_lock(&lock);
    int64_t count = failures_print(1);
    pthread_mutex_unlock(&lock);
    return count;
}
