/* The comparison is MPI_Iallreduce on the communicator itself, followed by the call. So all ranks have the same
 * sequence of collective calls there whatever the program does: one comparison, then one call if all agree. It is never
 * a blocking call, so that a rank that starts a call and one that makes it are compared as well. A rank that has
 * started a call cannot take it back: so the others start another one in its place, which sends and receives nothing,
 * and ranks are still in step.
 */
#include "check/agree.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "check/wanted.h"
#include "mpi/reduction.h"

/* A number and its complement: of both the maximum over all ranks. */
typedef struct words {
    uint64_t mine[2], most[2];
    mpi_request request;
} words;

typedef struct agreement {
    words words;
    wanted mine;
    int64_t sequence;
    int settled, code;
    char *refusal; /* NULL: all want the same */
    struct agreement *next;
} agreement;

static int words_start(const comm_entry *entry, uint64_t number, words *w) {
    w->mine[0] = number;
    w->mine[1] = ~number;
    return mpi_get()->small->iallreduce(w->mine, w->most, 2, dtype_find(FFI_U64)->handle, *reduction_named("MPI_MAX"),
                                        entry->handle, &w->request);
}

static int words_wait(words *w, int *agree) {
    _Alignas(16) char status[MPI_STATUS_BYTES];
    int code = mpi_get()->wait(&w->request, status);
    *agree = w->most[0] == ~w->most[1];
    return code;
}

/* The report */

typedef struct text {
    char *at;
    size_t bytes, used;
} text;

__attribute__((format(printf, 2, 3))) static void add(text *t, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    t->used = text_add_list(t->at, t->bytes, t->used, format, arguments);
    va_end(arguments);
}

/* "ranks 0, 2 and 5 to 7": those that want what `first` wants. */
static void add_ranks(text *t, const wanted *all, int size, int first) {
    enum { SHOWN = 6 };
    int shown = 0, pending = -1, members = 0;
    for (int i = first; i < size; i++) members += wanted_differ(&all[i].facts, &all[first].facts) == 0;
    add(t, members == 1 ? "rank" : "ranks");
    for (int i = first; i < size; i++) {
        if (wanted_differ(&all[i].facts, &all[first].facts) != 0) continue;
        int end = i;
        while (end + 1 < size && wanted_differ(&all[end + 1].facts, &all[first].facts) == 0) end++;
        if (end == i + 1) end = i;
        for (pending = end + 1; pending < size; pending++)
            if (wanted_differ(&all[pending].facts, &all[first].facts) == 0) break;
        if (++shown > SHOWN) {
            add(t, " and others");
            return;
        }
        add(t, "%s%d", shown == 1 ? " " : pending >= size ? " and " : ", ", i);
        if (end > i) add(t, " to %d", end);
        i = end;
    }
}

static int anybody_starts(const wanted *all, int size) {
    int found = 0;
    for (int i = 0; i < size; i++) found |= all[i].starts != 0;
    return found;
}

static void report(const comm_entry *entry, const wanted *all, int size, int64_t sequence, char *into, size_t bytes) {
    enum { SHOWN = 4 };
    text t = {.at = into, .bytes = bytes};
    int differences = 0, groups = 0;
    char what[128];
    add(&t, "r%d | MPIXLA_CHECK: the ranks of communicator '%s' do not agree on their collective call number %lld:",
        mpi_get()->world_rank, entry->name, (long long)sequence + 1);
    for (int i = 0; i < size; i++) {
        int known = 0;
        for (int j = 0; j < i && !known; j++) known = wanted_differ(&all[i].facts, &all[j].facts) == 0;
        if (known) continue;
        for (int j = 0; j < i; j++) differences |= wanted_differ(&all[i].facts, &all[j].facts);
        if (++groups > SHOWN) continue;
        add(&t, "\n  ");
        add_ranks(&t, all, size, i);
        add(&t, ": %s, %s%s", all[i].call, all[i].line[0] ? "at " : "at an unknown line", all[i].line);
    }
    if (groups > SHOWN) add(&t, "\n  and %d more kinds of calls", groups - SHOWN);
    wanted_name(differences, what, sizeof what);
    add(&t, "\nThey differ in %s. ", what);
    if (differences == WANTED_LINE)
        add(&t, "If ranks are meant to make one call in different lines, set MPIXLA_CHECK=calls. ");
    else
        add(&t, "All ranks must make the same collective calls in the same order. ");
    add(&t, anybody_starts(all, size) ? "No rank gets a result of this call." : "No rank has made this call.");
}

typedef struct replacement {
    struct replacement *next;
    mpi_request request;
    char sent, received; /* MPICH refuses one address for both */
    int zeros[];
} replacement;

/* What takes the place of a call that others have started and that this rank has not. It must not receive what they
 * send: Open MPI 5 writes all of a message that is too long. Nobody ever waits for it, and so MPI keeps its memory.
 * Returns MPI's error code, or MPI_REFUSED with error_set. */
static int replace(const comm_entry *entry) {
    mpixla_handle byte = dtype_find(FFI_U8)->handle;
    replacement *one = calloc(1, sizeof *one + (size_t)entry->size * sizeof one->zeros[0]);
    if (!one) {
        (void)error_set("out of memory to stay in step with the ranks of communicator '%s'", entry->name);
        return MPI_REFUSED;
    }
    int code = mpi_get()->ialltoallv(&one->sent, one->zeros, one->zeros, byte, &one->received, one->zeros, one->zeros,
                                     byte, entry->handle, &one->request);
    if (code != 0) {
        free(one);
        return code;
    }
    check_state *s = atomic_load(&entry->checks);
    one->next = s->replaced;
    s->replaced = one;
    return 0;
}

/* All ranks are here, and know that they disagree. Returns MPI_REFUSED with error_set, or MPI's error code. */
static int tell(const comm_entry *entry, const wanted *mine, int64_t sequence) {
    const int size = entry->size;
    wanted *all = malloc((size_t)size * sizeof *all);
    mpixla_handle byte = dtype_find(FFI_U8)->handle;
    int64_t bytes = (int64_t)sizeof *mine;
    if (!all) { /* the others wait, and cannot be told */
        (void)error_set("out of memory to say on what the ranks of communicator '%s' disagree", entry->name);
        return MPI_REFUSED;
    }
    int code = mpi_get()->small->allgather(mine, bytes, byte, all, bytes, byte, entry->handle);
    if (code == 0 && !mine->starts && anybody_starts(all, size)) code = replace(entry);
    if (code == 0) {
        char what[ERROR_BYTES];
        report(entry, all, size, sequence, what, sizeof what);
        (void)error_set("%s", what);
        code = MPI_REFUSED;
    }
    free(all);
    return code;
}

/* Calls that complete */

int agree_now(check_state *s, const frame *f) {
    const comm_entry *entry = s->entry;
    int lines = check_mode_get() == CHECK_LINES, agree = 1;
    if (entry->size == 1) return 0;
    agree_settle(s);
    const wanted_facts facts = wanted_facts_of(f, lines);
    words w;
    int code = words_start(entry, wanted_hash(&facts), &w);
    if (code == 0) code = words_wait(&w, &agree);
    if (code != 0 || agree) return code;
    wanted mine;
    wanted_fill(&mine, f, lines);
    return tell(entry, &mine, f->sequence);
}

/* Calls that start */

static void settle(check_state *s, agreement *a) {
    int agree = 1;
    s->first = a->next;
    if (!s->first) s->last = NULL;
    a->settled = 1;
    a->code = words_wait(&a->words, &agree);
    if (a->code != 0 || agree) return;
    a->code = tell(s->entry, &a->mine, a->sequence);
    if (a->code != MPI_REFUSED) return;
    a->refusal = malloc(ERROR_BYTES);
    if (a->refusal) snprintf(a->refusal, ERROR_BYTES, "%s", error_get());
}

void agree_settle(check_state *s) {
    while (s->first) settle(s, s->first);
}

struct agreement *agree_start(check_state *s, const frame *f, int *code) {
    int lines = check_mode_get() == CHECK_LINES;
    agreement *a = calloc(1, sizeof *a);
    *code = 0;
    if (!a) {
        (void)error_set("out of memory for the check of %s", f->shape->mpi_name);
        return NULL;
    }
    wanted_fill(&a->mine, f, lines);
    a->sequence = f->sequence;
    *code = words_start(s->entry, wanted_hash(&a->mine.facts), &a->words);
    if (*code != 0) {
        free(a);
        return NULL;
    }
    if (s->last)
        s->last->next = a;
    else
        s->first = a;
    s->last = a;
    return a;
}

int agree_wait(check_state *s, struct agreement *a) {
    while (!a->settled) settle(s, s->first);
    int code = a->code;
    if (code == MPI_REFUSED)
        (void)error_set(
            "%s", a->refusal
                      ? a->refusal
                      : "the ranks do not agree on their collective call, and there was no memory to say on what");
    free(a->refusal);
    free(a);
    return code;
}

int agree_end(check_state *s) {
    _Alignas(16) char status[MPI_STATUS_BYTES];
    while (s->first) {
        agreement *a = s->first;
        int done = 0;
        if (mpi_get()->test(&a->words.request, &done, status) != 0) return 0;
        if (!done) return 1;
        s->first = a->next;
        a->settled = 1;
        if (a->words.most[0] == ~a->words.most[1]) continue;
        if (tell(s->entry, &a->mine, a->sequence) == MPI_REFUSED) fprintf(stderr, "mpixla: %s\n", error_get());
    }
    return 0;
}

/* What is not waited for is MPI's. */
void agree_free(check_state *s) {
    s->first = s->last = NULL;
}
