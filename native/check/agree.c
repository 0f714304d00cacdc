/* The comparison is MPI_Iallreduce on the communicator itself, followed by the call. So all ranks have the same
 * sequence of collective calls there whatever the program does: one comparison, then one call if all agree. It is never
 * a blocking call, so that a rank that starts a call and one that makes it are compared as well. A rank that has
 * started a call cannot take it back: so the others start another one in its place, which sends and receives nothing,
 * and ranks are still in step.
 *
 * What each rank wants travels in messages on a communicator of the library's, so that it depends on no order of calls:
 * a rank may learn of a difference long before another one waits for what it has started. Whoever waits here moves all
 * that is under way, on whatever communicator, since the others may wait for that.
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
#include "check/wanted.h"
#include "mpi/agreed.h"
#include "mpi/job.h"
#include "mpi/outbox.h"
#include "mpi/reduction.h"

/* Nanoseconds that a rank which knows of a difference waits to hear what the others want. */
#define TELL_PATIENCE INT64_C(5000000000)

/* Of each of these all ranks learn the greatest: those of what they want, which is a number (mpi/agreed.h), and which
 * communicator it is, for which rank 0 has a number and the others have 0. */
enum { COMMUNICATOR = AGREED_WORDS, WORDS };
typedef struct words {
    uint64_t mine[WORDS], most[WORDS];
    mpi_request request;
} words;

typedef enum phase { COMPARING, TELLING, SETTLED } phase;

/* Receives what another rank wants. */
typedef struct teller {
    mpi_request coming;
    int is_coming; /* `coming` is not done */
    wanted other;  /* with an empty `call` until it has come */
} teller;

typedef struct agreement {
    comm_entry *entry;
    phase phase;
    words words;
    wanted mine;
    teller *tellers; /* by rank, from TELLING on */
    bool *marks;     /* behind them, for the report: two for each rank */
    int64_t sequence, until;
    int code;
    char *refusal; /* NULL: all want the same */
    struct agreement *next;
} agreement;

static mpixla_handle channel; /* 0: there is none */
static agreement *under_way;  /* of all threads */
static atomic_int in_under_way;
static outbox told;                                        /* what this rank wants, on its way to other ranks */
static pthread_mutex_t moving = PTHREAD_MUTEX_INITIALIZER; /* for these three */

void agree_channel_set(mpixla_handle comm) {
    channel = comm;
}

static int words_start(const comm_entry *entry, uint64_t number, words *w) {
    agreed_fill(w->mine, number);
    w->mine[COMMUNICATOR] =
        entry->rank == 0 ? (uint64_t)(mpi_get()->world_rank + 1) << 32 | (uint64_t)entry->number : 0;
    return mpi_get()->small->iallreduce(w->mine, w->most, WORDS, dtype_find(FFI_U64)->handle,
                                        *reduction_named("MPI_MAX"), entry->handle, &w->request);
}

/* All ranks have told. Now they have one number for the communicator. */
static void words_are_there(comm_entry *entry, const words *w) {
    if (atomic_load_explicit(&entry->agreed, memory_order_relaxed) == 0)
        atomic_store(&entry->agreed, (int64_t)hash_combine(w->most[COMMUNICATOR], WORDS));
}

static int words_agree(const words *w) {
    return agreed_is_same(agreed_read(w->most));
}

/* The report */

static const wanted *wanted_by(const agreement *a, int rank) {
    return &a->tellers[rank].other;
}

static int is_known(const agreement *a, int rank) {
    return wanted_by(a, rank)->call[0] != '\0';
}

/* Whether the channel reaches the rank: it has none to those of another MPI_COMM_WORLD. */
static int can_tell(const agreement *a, int rank) {
    const int *members = atomic_load(&a->entry->members);
    return !members || members[rank] >= 0;
}

/* What differs between two ranks. Those that have not told differ in all from the rest, and from each other only in
 * whether they can. */
static int differences_between(const agreement *a, int i, int j) {
    if (!is_known(a, i) && !is_known(a, j)) return can_tell(a, i) != can_tell(a, j) ? WANTED_OTHER_OPERATION : 0;
    if (!is_known(a, i) || !is_known(a, j)) return WANTED_OTHER_OPERATION;
    return wanted_differ(&wanted_by(a, i)->facts, &wanted_by(a, j)->facts);
}

/* A rank that has not told has started its call, and does not wait for it yet: one that makes a call tells at once. Of
 * those that cannot tell, any may have: all ranks of such a communicator suppose so, and stay in step by that. */
static int anybody_starts(const agreement *a) {
    int found = 0;
    for (int i = 0; i < a->entry->size; i++) found |= wanted_by(a, i)->starts != 0 || !is_known(a, i);
    return found;
}

/* "rank 1: ..." for the first of those who want the same, which are `alike`. */
static size_t add_group(const agreement *a, char *text, size_t bytes, size_t used, int first, const bool *alike) {
    const wanted *w = wanted_by(a, first);
    int several = 0;
    for (int i = first + 1; i < a->entry->size; i++) several |= alike[i];
    used = text_add(text, bytes, used, several ? "\n  ranks " : "\n  rank ");
    used = text_add_ranks(text, bytes, used, alike, a->entry->size);
    if (!can_tell(a, first))
        return text_add(text, bytes, used, ": a call in another MPI_COMM_WORLD, which cannot be known here");
    if (!is_known(a, first))
        return text_add(text, bytes, used, ": another call, which they have started and do not wait for yet");
    return text_add(text, bytes, used, ": %s, at %s", w->call, w->line[0] ? w->line : "an unknown line");
}

/* Says which ranks use the communicator in several threads, as the likely reason. This rank's may have come to it since
 * it told the others. */
static size_t add_threads(const agreement *a, char *text, size_t bytes, size_t used) {
    bool *shared = a->marks;
    int found = 0;
    for (int i = 0; i < a->entry->size; i++) {
        shared[i] = i == a->entry->rank ? atomic_load(&a->entry->is_shared) != 0 : wanted_by(a, i)->is_shared != 0;
        found += shared[i];
    }
    if (found == 0) return used;
    used = text_add(text, bytes, used, " On rank%s ", found > 1 ? "s" : "");
    used = text_add_ranks(text, bytes, used, shared, a->entry->size);
    return text_add(text, bytes, used,
                    " several threads make collective calls on this communicator, in no order: give each thread a "
                    "communicator of its own.");
}

static void report_words(const agreement *a, char *text, size_t bytes) {
    enum { SHOWN = 4 };
    const int size = a->entry->size;
    bool *seen = a->marks, *alike = a->marks + size;
    int differences = 0, groups = 0;
    char what[128];
    size_t used = text_add(text, bytes, 0,
                           "r%d | MPIXLA_CHECK: the ranks of communicator '%s' do not agree on their collective call "
                           "number %lld:",
                           mpi_get()->world_rank, a->entry->name, (long long)a->sequence + 1);
    for (int i = 0; i < size; i++) {
        if (seen[i]) continue;
        for (int j = 0; j < size; j++) {
            alike[j] = differences_between(a, i, j) == 0;
            seen[j] |= alike[j];
            if (is_known(a, i) && is_known(a, j)) differences |= differences_between(a, i, j);
        }
        if (++groups <= SHOWN) used = add_group(a, text, bytes, used, i, alike);
    }
    if (groups > SHOWN) used = text_add(text, bytes, used, "\n  and %d more kinds of calls", groups - SHOWN);
    wanted_name(differences, what, sizeof what);
    used = text_add(text, bytes, used, differences ? "\nThey differ in %s. " : "\n", what);
    used = text_add(text, bytes, used,
                    differences == WANTED_OTHER_LINE
                        ? "If ranks are meant to make one call in different lines, set MPIXLA_CHECK=calls. "
                        : "All ranks must make the same collective calls in the same order. ");
    used = text_add(text, bytes, used,
                    anybody_starts(a) ? "No rank gets a result of this call." : "No rank has made this call.");
    (void)add_threads(a, text, bytes, used);
}

typedef struct replacement {
    struct replacement *next;
    mpi_request request;
    char sent, received; /* MPICH refuses one address for both */
    int zeros[];
} replacement;

static replacement *replaced;

/* What takes the place of a call that others have started and that this rank has not. It must not receive what they
 * send: Open MPI 5 writes all of a message that is too long. Nobody ever waits for it, and so MPI keeps its memory.
 */
static int replacement_start(const comm_entry *entry) {
    mpixla_handle byte = dtype_find(FFI_U8)->handle;
    replacement *one = calloc(1, sizeof *one + (size_t)entry->size * sizeof one->zeros[0]);
    if (!one) {
        (void)error_set("out of memory to stay in step with the ranks of communicator '%s'", entry->name);
        return job_fail(entry);
    }
    int code = mpi_get()->ialltoallv(&one->sent, one->zeros, one->zeros, byte, &one->received, one->zeros, one->zeros,
                                     byte, entry->handle, &one->request);
    if (code != 0) {
        free(one);
        return code;
    }
    one->next = replaced;
    replaced = one;
    return 0;
}

/* Telling: once this rank knows that they disagree, as all others do or will. */

static int tag_of(const agreement *a) {
    enum { FIRST_TAG = 2, TAGS = 30000 }; /* MPI has 32768 at least; watch/post.c uses 1 */
    return FIRST_TAG + (int)(hash_combine(a->words.most[COMMUNICATOR], (uint64_t)a->sequence) % TAGS);
}

static int agree_memory_fail(const comm_entry *entry) {
    (void)error_set("out of memory to say on what the ranks of communicator '%s' disagree", entry->name);
    return job_fail(entry);
}

/* Begins to tell the others. With the lock. */
static int telling_start(agreement *a) {
    const comm_entry *entry = a->entry;
    const int *members = atomic_load(&a->entry->members);
    const mpi_counted *mpi = mpi_get()->small;
    const mpixla_handle byte = dtype_find(FFI_U8)->handle;
    const int64_t bytes = (int64_t)sizeof a->mine;
    int code = 0;
    a->phase = TELLING;
    a->until = clock_now() + TELL_PATIENCE;
    a->tellers = calloc((size_t)entry->size, sizeof *a->tellers + 2 * sizeof *a->marks);
    if (!a->tellers) return agree_memory_fail(entry);
    a->marks = (bool *)&a->tellers[entry->size];
    a->tellers[entry->rank].other = a->mine;
    for (int i = 0; channel && members && i < entry->size && code == 0; i++) {
        teller *t = &a->tellers[i];
        if (i == entry->rank || !can_tell(a, i)) continue;
        outbox_message *m = outbox_message_new(bytes);
        if (!m) return agree_memory_fail(entry);
        memcpy(m->data, &a->mine, sizeof a->mine);
        code = outbox_send(&told, m, members[i], tag_of(a), channel);
        if (code == 0) code = mpi->irecv(&t->other, bytes, byte, members[i], tag_of(a), channel, &t->coming);
        t->is_coming = code == 0;
    }
    return code;
}

/* Sets `*busy` to 0 once the request is done. Returns 0 or MPI's error code. */
static int request_move(mpi_request *request, int *busy) {
    _Alignas(16) char status[MPI_STATUS_BYTES];
    int done = 0, code = *busy ? mpi_get()->test(request, &done, status) : 0;
    if (done || code != 0) *busy = 0;
    return code;
}

/* Sets `*coming` to how many ranks have yet to tell. Returns 0 or MPI's error code. */
static int agree_tellers_move(agreement *a, int *coming) {
    int code = 0;
    *coming = 0;
    for (int i = 0; i < a->entry->size; i++) {
        teller *t = &a->tellers[i];
        const int failed = request_move(&t->coming, &t->is_coming);
        if (failed != 0) code = failed;
        *coming += t->is_coming;
    }
    return code;
}

static void agreement_settle(agreement *a, int code) {
    a->phase = SETTLED;
    a->code = code;
    if (code != REFUSED) return;
    a->refusal = malloc(ERROR_BYTES);
    if (a->refusal) snprintf(a->refusal, ERROR_BYTES, "%s", error_get());
}

static int agreement_conclude(const agreement *a) {
    char what[ERROR_BYTES];
    int code = !a->mine.starts && anybody_starts(a) ? replacement_start(a->entry) : 0;
    if (code != 0) return code;
    report_words(a, what, sizeof what);
    return error_set("%s", what);
}

/* Does what there is to do for a comparison without waiting for anybody. */
static void agreement_move(agreement *a) {
    int coming = 1, busy = 1;
    if (a->phase == COMPARING) {
        int code = request_move(&a->words.request, &busy);
        if (code == 0 && busy) return;
        if (code == 0) words_are_there(a->entry, &a->words);
        if (code == 0 && !words_agree(&a->words)) code = telling_start(a);
        if (code != 0 || a->phase == COMPARING) agreement_settle(a, code);
    }
    if (a->phase == TELLING) {
        int code = agree_tellers_move(a, &coming);
        if (code != 0 || coming == 0 || clock_now() >= a->until)
            agreement_settle(a, code != 0 ? code : agreement_conclude(a));
    }
}

/* Comparisons that are under way */

/* Without memory it returns NULL as job_fail does: the other ranks compare, too, and wait for this one. */
static agreement *agreement_new(const frame *f, unsigned details) {
    agreement *a = calloc(1, sizeof *a);
    if (!a) {
        (void)error_set("out of memory for the check of %s", f->facts.row->mpi_name);
        (void)job_fail(f->facts.communicator);
        return NULL;
    }
    a->entry = f->facts.communicator;
    a->sequence = f->facts.sequence;
    wanted_fill(&a->mine, f, details);
    return a;
}

static void agreement_add(agreement *a) {
    pthread_mutex_lock(&moving);
    a->next = under_way;
    under_way = a;
    atomic_fetch_add(&in_under_way, 1);
    pthread_mutex_unlock(&moving);
}

/* With the lock. */
static void agreement_take_out(agreement *a) {
    agreement **at = &under_way;
    while (*at != a) at = &(*at)->next;
    *at = a->next;
    atomic_fetch_sub(&in_under_way, 1);
}

/* Frees one that is settled, unless MPI may still write to its memory: then that is MPI's for good. */
static void agreement_free(agreement *a) {
    int coming = 0;
    if (a->tellers) (void)agree_tellers_move(a, &coming);
    if (coming > 0) return;
    free(a->refusal);
    free(a->tellers);
    free(a);
}

/* Calls that complete */

int agree_now(const frame *f, unsigned details) {
    _Alignas(16) char status[MPI_STATUS_BYTES];
    agreement *a;
    if (atomic_load(&in_under_way) > 0) { /* which others may wait for meanwhile */
        int code = agree_start(f, details, &a);
        return code == 0 ? agree_wait(a) : code;
    }
    const wanted_facts facts = wanted_facts_of(f, details);
    words w;
    int code = words_start(f->facts.communicator, wanted_hash(&facts), &w);
    if (code == 0) code = mpi_get()->wait(&w.request, status);
    if (code == 0) words_are_there(f->facts.communicator, &w);
    if (code != 0 || words_agree(&w)) return code;
    a = agreement_new(f, details);
    if (!a) return REFUSED;
    a->words = w;
    pthread_mutex_lock(&moving);
    code = telling_start(a);
    if (code != 0) agreement_settle(a, code);
    pthread_mutex_unlock(&moving);
    agreement_add(a);
    return agree_wait(a);
}

/* Calls that start */

int agree_start(const frame *f, unsigned details, agreement **started) {
    agreement *a = *started = agreement_new(f, details);
    if (!a) return REFUSED;
    int code = words_start(f->facts.communicator, wanted_hash(&a->mine.facts), &a->words);
    if (code == 0) {
        agreement_add(a);
    } else {
        free(a);
        *started = NULL;
    }
    return code;
}

int agree_wait(agreement *a) {
    for (int looks = 0, settled = 0; !settled; looks++) {
        if (looks > 0) clock_between(looks);
        pthread_mutex_lock(&moving);
        for (agreement *any = under_way; any; any = any->next) agreement_move(any);
        settled = a->phase == SETTLED;
        if (settled) agreement_take_out(a);
        pthread_mutex_unlock(&moving);
    }
    int code = a->code;
    if (code == REFUSED)
        (void)error_set(
            "%s", a->refusal
                      ? a->refusal
                      : "the ranks do not agree on their collective call, and there was no memory to say on what");
    agreement_free(a);
    return code;
}

int agree_end(void) {
    int unknown = 0;
    pthread_mutex_lock(&moving);
    (void)outbox_is_sending(&told);
    for (agreement *a = under_way, *next; a; a = next) {
        next = a->next;
        agreement_move(a);
        unknown += a->phase != SETTLED;
        if (a->phase != SETTLED) continue;
        if (a->refusal) output_print("mpixla: %s\n", a->refusal);
        agreement_take_out(a);
        agreement_free(a);
    }
    pthread_mutex_unlock(&moving);
    return unknown;
}
