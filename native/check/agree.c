/* The comparison is MPI_Iallreduce on the communicator itself, followed by the call. So all ranks have the same
 * sequence of collective calls there whatever the program does: one comparison, then one call if all agree. The
 * comparison is always nonblocking, so that a rank that starts a call and a rank that makes a blocking one are compared
 * as well. A rank cannot take back a call that it has started: the other ranks start a replacement, which sends and
 * receives nothing, and the sequences stay equal.
 *
 * Descriptions of calls travel in messages on a communicator of the library, independent of the order of calls:
 * a rank may learn of a difference long before another rank waits for its request. A thread that waits here progresses
 * all active comparisons, on all communicators, since other ranks may wait for them.
 */
#include "check/agree.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/output.h"
#include "base/text.h"
#include "check/signature.h"
#include "mpi/agreed.h"
#include "mpi/job.h"
#include "mpi/outbox.h"
#include "mpi/reduction.h"

/* Time that a rank which knows of a difference waits for the descriptions of the other ranks. */
#define EXCHANGE_PATIENCE_NS INT64_C(5000000000)

/* The operands of MAX: the words of the hash of the call (mpi/agreed.h), and an id of the communicator, which rank 0
 * gives; it is 0 on all others. */
enum { COMMUNICATOR = AGREED_WORDS, WORDS };
typedef struct agree_words {
    uint64_t mine[WORDS], most[WORDS];
    mpi_request request;
} agree_words;

typedef enum agree_phase { COMPARING, EXCHANGING, FINISHED } agree_phase;

/* The receive of another rank's description. */
typedef struct agree_peer {
    mpi_request coming;
    int is_active;   /* the receive is not complete */
    signature other; /* `call` is empty until it is received */
} agree_peer;

typedef struct agreement {
    comm_entry *entry;
    agree_phase phase;
    agree_words words;
    signature mine;
    agree_peer *peers; /* by rank; NULL before EXCHANGING */
    bool *marks;       /* in the same memory, for the report: two for each rank */
    int64_t sequence, until;
    int code;
    char *refusal; /* the report; NULL: the calls agree, or no memory */
    struct agreement *next;
} agreement;

static mpixla_handle channel; /* 0: not set */
static agreement *active;     /* list of the active comparisons of all threads */
static atomic_int active_count;
static outbox outgoing;                                  /* descriptions on their way to other ranks */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards these three, and the comparisons in the list */

void agree_channel_set(mpixla_handle comm) {
    channel = comm;
}

/* Starts the reduction (MPI_Iallreduce on the communicator) that compares the hash `number` between the ranks; `w` must
 * last until it is complete. Returns 0 or an error code of MPI. */
static int agree_words_start(const comm_entry *entry, uint64_t number, agree_words *w) {
    agreed_fill(w->mine, number);
    w->mine[COMMUNICATOR] =
        entry->rank == 0 ? (uint64_t)(mpi_get()->world_rank + 1) << 32 | (uint64_t)entry->number : 0;
    return mpi_get()->small->iallreduce(w->mine, w->most, WORDS, dtype_find(FFI_U64)->handle,
                                        *reduction_named("MPI_MAX"), entry->handle, &w->request);
}

/* Sets the id of the communicator that all ranks have in common, from the complete reduction, unless the communicator
 * has one. */
static void agree_words_finish(comm_entry *entry, const agree_words *w) {
    if (atomic_load_explicit(&entry->agreed, memory_order_relaxed) == 0)
        atomic_store(&entry->agreed, (int64_t)hash_combine(w->most[COMMUNICATOR], WORDS));
}

/* Returns whether all ranks have the same hash. */
static int agree_words_are_same(const agree_words *w) {
    return agreed_is_same(agreed_read(w->most));
}

/* The report */

/* Returns the description of a rank's call; its `call` is empty until it is received. */
static const signature *agreement_peer_call(const agreement *a, int rank) {
    return &a->peers[rank].other;
}

/* Returns whether a rank's description was received. */
static int agreement_peer_is_known(const agreement *a, int rank) {
    return agreement_peer_call(a, rank)->call[0] != '\0';
}

/* Returns whether the channel reaches the rank: it does not reach another MPI_COMM_WORLD. */
static int agreement_peer_is_reachable(const agreement *a, int rank) {
    const int *members = atomic_load(&a->entry->members);
    return !members || members[rank] >= 0;
}

/* Returns the properties in which two ranks differ, as signature_differences. A rank without description differs in the
 * operation from all ranks with one, and from those without one only if the channel reaches one of the two. */
static int agreement_peers_differ(const agreement *a, int i, int j) {
    if (!agreement_peer_is_known(a, i) && !agreement_peer_is_known(a, j))
        return agreement_peer_is_reachable(a, i) != agreement_peer_is_reachable(a, j) ? SIGNATURE_OTHER_OPERATION : 0;
    if (!agreement_peer_is_known(a, i) || !agreement_peer_is_known(a, j)) return SIGNATURE_OTHER_OPERATION;
    return signature_differences(&agreement_peer_call(a, i)->facts, &agreement_peer_call(a, j)->facts);
}

/* Returns whether any rank may have started its call already, as a request: then MPI waits for the others' calls. True
 * if a description says that its call starts a request, or if a rank's description is missing: a rank in a blocking
 * call sends its description at once, so that rank has started a request and does not wait for it yet. Where the
 * channel does not reach all ranks (agreement_peer_is_reachable), each rank lacks a description, so all return 1, and
 * all make the same number of calls. */
static int agreement_any_starts(const agreement *a) {
    int found = 0;
    for (int i = 0; i < a->entry->size; i++)
        found |= agreement_peer_call(a, i)->starts != 0 || !agreement_peer_is_known(a, i);
    return found;
}

/* Appends "rank 1: ...", the call of the ranks that are `alike`, as the rank `first` describes it; returns the new
 * length. */
static size_t agreement_add_group(const agreement *a, char *text, size_t bytes, size_t used, int first,
                                  const bool *alike) {
    const signature *w = agreement_peer_call(a, first);
    int several = 0;
    for (int i = first + 1; i < a->entry->size; i++) several |= alike[i];
    used = text_add(text, bytes, used, several ? "\n  ranks " : "\n  rank ");
    used = text_add_ranks(text, bytes, used, alike, a->entry->size);
    if (!agreement_peer_is_reachable(a, first))
        return text_add(text, bytes, used, ": a call in another MPI_COMM_WORLD, which cannot be known here");
    if (!agreement_peer_is_known(a, first))
        return text_add(text, bytes, used, ": another call, which they have started and do not wait for yet");
    return text_add(text, bytes, used, ": %s, at %s", w->call, w->line[0] ? w->line : "an unknown line");
}

/* Appends the ranks that use the communicator in several threads, as the likely reason, if there are any; returns the
 * new length. Reads this rank's state again: its second thread may have come after the description was sent. */
static size_t agreement_add_threads(const agreement *a, char *text, size_t bytes, size_t used) {
    bool *shared = a->marks;
    int found = 0;
    for (int i = 0; i < a->entry->size; i++) {
        shared[i] =
            i == a->entry->rank ? atomic_load(&a->entry->is_shared) != 0 : agreement_peer_call(a, i)->is_shared != 0;
        found += shared[i];
    }
    if (found == 0) return used;
    used = text_add(text, bytes, used, " On rank%s ", found > 1 ? "s" : "");
    used = text_add_ranks(text, bytes, used, shared, a->entry->size);
    return text_add(text, bytes, used,
                    " several threads make collective calls on this communicator, in no order: give each thread a "
                    "communicator of its own.");
}

/* Writes the report of a difference to `text`: each group of ranks with its call, the properties in which the calls
 * differ, and advice. */
static void agreement_report(const agreement *a, char *text, size_t bytes) {
    enum { SHOWN = 4 };
    const int size = a->entry->size;
    bool *seen = a->marks, *alike = a->marks + size;
    int differences = 0, groups = 0;
    char description[128];
    size_t used = text_add(text, bytes, 0,
                           "r%d | MPIXLA_CHECK: the ranks of communicator '%s' do not agree on their collective call "
                           "number %lld:",
                           mpi_get()->world_rank, a->entry->name, (long long)a->sequence + 1);
    for (int i = 0; i < size; i++) {
        if (seen[i]) continue;
        for (int j = 0; j < size; j++) {
            alike[j] = agreement_peers_differ(a, i, j) == 0;
            seen[j] |= alike[j];
            if (agreement_peer_is_known(a, i) && agreement_peer_is_known(a, j))
                differences |= agreement_peers_differ(a, i, j);
        }
        if (++groups <= SHOWN) used = agreement_add_group(a, text, bytes, used, i, alike);
    }
    if (groups > SHOWN) used = text_add(text, bytes, used, "\n  and %d more kinds of calls", groups - SHOWN);
    signature_differences_describe(differences, description, sizeof description);
    used = text_add(text, bytes, used, differences ? "\nThey differ in %s. " : "\n", description);
    used = text_add(text, bytes, used,
                    differences == SIGNATURE_OTHER_LINE
                        ? "If ranks are meant to make one call in different lines, set MPIXLA_CHECK=calls. "
                        : "All ranks must make the same collective calls in the same order. ");
    used = text_add(text, bytes, used,
                    agreement_any_starts(a) ? "No rank gets a result of this call." : "No rank has made this call.");
    (void)agreement_add_threads(a, text, bytes, used);
}

typedef struct agree_replacement {
    struct agree_replacement *next;
    mpi_request request;
    char sent, received; /* MPICH refuses one address for both */
    int zeros[];
} agree_replacement;

static agree_replacement *replacements;

/* Starts an empty collective call in place of one that other ranks have started and this rank has not. Returns 0 or
 * MPI's error code; without memory it ends the job, or returns REFUSED on one rank (job_fail). The call must not
 * receive their messages: Open MPI 5 writes all of a message that is too long. Its request is never waited for, so MPI
 * keeps the memory. */
static int agree_replacement_start(const comm_entry *entry) {
    mpixla_handle byte = dtype_find(FFI_U8)->handle;
    agree_replacement *one = calloc(1, sizeof *one + (size_t)entry->size * sizeof one->zeros[0]);
    if (!one) {
        (void)error_set("out of memory to stay in step with the ranks of communicator '%s'", entry->name);
        return job_fail(entry);
    }
    int code = mpi_get()->small->ialltoallv(&one->sent, one->zeros, one->zeros, byte, &one->received, one->zeros,
                                            one->zeros, byte, entry->handle, &one->request);
    if (code != 0) {
        free(one);
        return code;
    }
    one->next = replacements;
    replacements = one;
    return 0;
}

/* The exchange of descriptions, once the reduction has told this rank, and tells all others, that the calls differ. */

/* Returns the tag of the descriptions of one comparison, equal on all ranks. */
static int agreement_tag(const agreement *a) {
    enum { FIRST_TAG = 2, TAGS = 30000 }; /* MPI has 32768 at least; watch/post.c uses 1 */
    return FIRST_TAG + (int)(hash_combine(a->words.most[COMMUNICATOR], (uint64_t)a->sequence) % TAGS);
}

/* Ends the job by job_fail, as there is no memory for the descriptions; returns REFUSED on a communicator of one rank.
 */
static int agree_memory_fail(const comm_entry *entry) {
    (void)error_set("out of memory for the report of the differences between the ranks of communicator '%s'",
                    entry->name);
    return job_fail(entry);
}

/* Sets a comparison to EXCHANGING: starts to send this rank's description to each other rank that the channel reaches,
 * and to receive theirs. Returns 0 or an error code; without memory it ends the job, or returns REFUSED on one rank
 * (job_fail). The caller holds the lock. */
static int agreement_exchange_start(agreement *a) {
    const comm_entry *entry = a->entry;
    const int *members = atomic_load(&a->entry->members);
    const mpi_counted *mpi = mpi_get()->small;
    const mpixla_handle byte = dtype_find(FFI_U8)->handle;
    const int64_t bytes = (int64_t)sizeof a->mine;
    int code = 0;
    a->phase = EXCHANGING;
    a->until = clock_now() + EXCHANGE_PATIENCE_NS;
    a->peers = calloc((size_t)entry->size, sizeof *a->peers + 2 * sizeof *a->marks);
    if (!a->peers) return agree_memory_fail(entry);
    a->marks = (bool *)&a->peers[entry->size];
    a->peers[entry->rank].other = a->mine;
    for (int i = 0; channel && members && i < entry->size && code == 0; i++) {
        agree_peer *t = &a->peers[i];
        if (i == entry->rank || !agreement_peer_is_reachable(a, i)) continue;
        outbox_message *m = outbox_message_new(bytes);
        if (!m) return agree_memory_fail(entry);
        memcpy(m->data, &a->mine, sizeof a->mine);
        code = outbox_send(&outgoing, m, members[i], agreement_tag(a), channel);
        if (code == 0) code = mpi->irecv(&t->other, bytes, byte, members[i], agreement_tag(a), channel, &t->coming);
        t->is_active = code == 0;
    }
    return code;
}

/* Tests a request, if it is active. Sets `*busy` to 0 once it is complete or has failed. Returns 0 or MPI's error code.
 */
static int agree_request_test(mpi_request *request, int *busy) {
    _Alignas(16) char status[MPI_STATUS_BYTES];
    int done = 0, code = *busy ? mpi_get()->test(request, &done, status) : 0;
    if (done || code != 0) *busy = 0;
    return code;
}

/* Tests the receives, and sets `*coming` to the number of active ones. Returns 0 or MPI's error code. */
static int agreement_exchange_test(agreement *a, int *coming) {
    int code = 0;
    *coming = 0;
    for (int i = 0; i < a->entry->size; i++) {
        agree_peer *t = &a->peers[i];
        const int failed = agree_request_test(&t->coming, &t->is_active);
        if (failed != 0) code = failed;
        *coming += t->is_active;
    }
    return code;
}

/* Sets a comparison to FINISHED with this code; for REFUSED, keeps a copy of error_get's text in `refusal`. */
static void agreement_finish(agreement *a, int code) {
    a->phase = FINISHED;
    a->code = code;
    if (code != REFUSED) return;
    a->refusal = malloc(ERROR_BYTES);
    if (a->refusal) snprintf(a->refusal, ERROR_BYTES, "%s", error_get());
}

/* Sets the report of the difference between the ranks' calls as the error, and returns REFUSED. First starts an empty
 * call in place of this rank's, if this rank has not started its call and another may have; returns an error code,
 * without a report, if that fails. */
static int agreement_conclude(const agreement *a) {
    char description[ERROR_BYTES];
    int code = !a->mine.starts && agreement_any_starts(a) ? agree_replacement_start(a->entry) : 0;
    if (code != 0) return code;
    agreement_report(a, description, sizeof description);
    return error_set("%s", description);
}

/* Moves a comparison to its next phase if its requests are complete, without blocking; once it is FINISHED, `code` is
 * its result. The caller holds the lock. */
static void agreement_progress(agreement *a) {
    int coming = 1, busy = 1;
    if (a->phase == COMPARING) {
        int code = agree_request_test(&a->words.request, &busy);
        if (code == 0 && busy) return;
        if (code == 0) agree_words_finish(a->entry, &a->words);
        if (code == 0 && !agree_words_are_same(&a->words)) code = agreement_exchange_start(a);
        if (code != 0 || a->phase == COMPARING) agreement_finish(a, code);
    }
    if (a->phase == EXCHANGING) {
        int code = agreement_exchange_test(a, &coming);
        if (code != 0 || coming == 0 || clock_now() >= a->until)
            agreement_finish(a, code != 0 ? code : agreement_conclude(a));
    }
}

/* Active comparisons */

/* Returns a new comparison of the call, with this rank's signature; agreement_free frees it. Without memory calls
 * job_fail, as the other ranks wait for this one, and returns NULL if that returns. */
static agreement *agreement_new(const frame *f, unsigned details) {
    agreement *a = calloc(1, sizeof *a);
    if (!a) {
        (void)error_set("out of memory for the check of %s", f->facts.row->mpi_name);
        (void)job_fail(f->facts.communicator);
        return NULL;
    }
    a->entry = f->facts.communicator;
    a->sequence = f->facts.sequence;
    signature_fill(&a->mine, f, details);
    return a;
}

/* Adds a comparison to the list of active ones. Takes the lock. */
static void agreement_add(agreement *a) {
    pthread_mutex_lock(&lock);
    a->next = active;
    active = a;
    atomic_fetch_add(&active_count, 1);
    pthread_mutex_unlock(&lock);
}

/* Removes a comparison from the list of active ones. The caller holds the lock. */
static void agreement_remove(agreement *a) {
    agreement **at = &active;
    while (*at != a) at = &(*at)->next;
    *at = a->next;
    atomic_fetch_sub(&active_count, 1);
}

/* Frees a comparison that has ended, unless a receive is active: then its memory belongs to MPI for good. */
static void agreement_free(agreement *a) {
    int coming = 0;
    if (a->peers) (void)agreement_exchange_test(a, &coming);
    if (coming > 0) return;
    free(a->refusal);
    free(a->peers);
    free(a);
}

/* Blocking calls */

int agree_compare(const frame *f, unsigned details) {
    _Alignas(16) char status[MPI_STATUS_BYTES];
    agreement *a;
    if (atomic_load(&active_count) > 0) { /* other ranks may wait for these: progresses them meanwhile */
        int code = agree_compare_start(f, details, &a);
        return code == 0 ? agree_compare_wait(a) : code;
    }
    const signature_facts facts = signature_facts_of(f, details);
    agree_words w;
    int code = agree_words_start(f->facts.communicator, signature_hash(&facts), &w);
    if (code == 0) code = mpi_get()->wait(&w.request, status);
    if (code == 0) agree_words_finish(f->facts.communicator, &w);
    if (code != 0 || agree_words_are_same(&w)) return code;
    a = agreement_new(f, details);
    if (!a) return REFUSED;
    a->words = w;
    pthread_mutex_lock(&lock);
    code = agreement_exchange_start(a);
    if (code != 0) agreement_finish(a, code);
    pthread_mutex_unlock(&lock);
    agreement_add(a);
    return agree_compare_wait(a);
}

/* Calls that start requests */

int agree_compare_start(const frame *f, unsigned details, agreement **started) {
    agreement *a = *started = agreement_new(f, details);
    if (!a) return REFUSED;
    int code = agree_words_start(f->facts.communicator, signature_hash(&a->mine.facts), &a->words);
    if (code == 0) {
        agreement_add(a);
    } else {
        free(a);
        *started = NULL;
    }
    return code;
}

int agree_compare_wait(agreement *a) {
    for (int looks = 0, is_finished = 0; !is_finished; looks++) {
        if (looks > 0) clock_backoff(looks);
        pthread_mutex_lock(&lock);
        for (agreement *any = active; any; any = any->next) agreement_progress(any);
        is_finished = a->phase == FINISHED;
        if (is_finished) agreement_remove(a);
        pthread_mutex_unlock(&lock);
    }
    int code = a->code;
    if (code == REFUSED)
        (void)error_set(
            "%s", a->refusal
                      ? a->refusal
                      : "the ranks do not agree on their collective call, and there was no memory for the report");
    agreement_free(a);
    return code;
}

int agree_unfinished_report(void) {
    int unknown = 0;
    pthread_mutex_lock(&lock);
    (void)outbox_is_sending(&outgoing);
    for (agreement *a = active, *next; a; a = next) {
        next = a->next;
        agreement_progress(a);
        unknown += a->phase != FINISHED;
        if (a->phase != FINISHED) continue;
        if (a->refusal) output_print("mpixla: %s\n", a->refusal);
        agreement_remove(a);
        agreement_free(a);
    }
    pthread_mutex_unlock(&lock);
    return unknown;
}
