/* A rank waits for others through the one of its calls that has waited longest and lacks somebody. That makes a graph:
 * whoever can be reached in it and waits for nobody is why nothing goes on; if there is no such rank, it is a circle.
 */
#include "watch/report.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "mpixla.h"

/* A report of a thousand ranks has as many lines as one of some dozens: these are the most of each. */
enum { LINES_TOLD = 16, PYTHON_LINES_TOLD = 24, ABSENCES_TOLD = 16, STEPS_TOLD = 12, RANKS_TOLD = 32 };

/* How a rank stands to a call that takes it. */
typedef enum standing { COMES, PASSED, DIFFERS, MISSING } standing;

static int tags_meet(int64_t sent, int64_t wanted) {
    return wanted == MPIXLA_ANY_TAG || wanted == sent;
}

/* Whether a call of `other` has the other end of this message of a call of `rank`. */
static int message_meets(const state *other, const state_call *c, const state_peer *p, int64_t rank) {
    for (int64_t i = 0; i < other->in_calls; i++) {
        const state_call *k = &other->calls[i];
        if (k->comm != c->comm || k->pauses) continue;
        for (int64_t j = 0; j < k->messages; j++) {
            const state_peer *q = &k->peers[j];
            int names = q->rank == rank || (q->receives && q->rank == MPIXLA_ANY_SOURCE);
            int meets = p->receives ? tags_meet(q->tag, p->tag) : tags_meet(p->tag, q->tag);
            if (q->receives != p->receives && names && meets) return 1;
        }
    }
    return 0;
}

static int calls_differ(const state_call *a, const state_call *b) {
    return strcmp(a->op, b->op) != 0 || a->root != b->root || strcmp(a->kind, b->kind) != 0 || a->items != b->items;
}

static const state_past *past_find(const state *s, int64_t comm, int64_t sequence) {
    for (int64_t i = 0; i < s->in_past; i++)
        if (s->past[i].comm == comm && s->past[i].sequence == sequence) return &s->past[i];
    return NULL;
}

static standing collective_stands(const state *other, const state_call *c) {
    for (int64_t i = 0; i < other->in_calls; i++) {
        const state_call *k = &other->calls[i];
        if (!k->collective || k->comm != c->comm || k->sequence != c->sequence) continue;
        return calls_differ(c, k) ? DIFFERS : k->pauses ? MISSING : COMES;
    }
    const state_past *past = past_find(other, c->comm, c->sequence);
    if (past) return past->op != state_op(c->op) ? DIFFERS : PASSED;
    for (int64_t i = 0; i < other->in_comms; i++)
        if (other->comms[i].comm == c->comm && other->comms[i].calls > c->sequence) return PASSED;
    return MISSING;
}

/* Whom one call of a rank waits for: sets `lacks[r]`. Returns how many. */
static int64_t call_lacks(const report_ranks *ranks, int64_t rank, const state_call *c, standing *lacks) {
    int64_t found = 0;
    for (int64_t i = 0; i < ranks->n; i++) lacks[i] = COMES;
    if (c->collective) {
        for (int64_t i = 0; i < c->needs; i++) {
            int64_t other = c->needed[i];
            if (other < 0 || other >= ranks->n) continue;
            lacks[other] = collective_stands(&ranks->all[other], c);
            found += lacks[other] >= DIFFERS;
        }
        return found;
    }
    /* What is sent with what is received has mostly gone: so what is received comes first. */
    for (int receives = 1; receives >= 0 && found == 0; receives--)
        for (int64_t i = 0; i < c->messages; i++) {
            const state_peer *p = &c->peers[i];
            int meets = 0;
            if (p->receives != receives) continue;
            if (p->rank != MPIXLA_ANY_SOURCE) {
                if (p->rank < 0 || p->rank >= ranks->n || message_meets(&ranks->all[p->rank], c, p, rank)) continue;
                lacks[p->rank] = MISSING;
                found++;
                continue;
            }
            for (int64_t j = 0; j < c->needs && !meets; j++)
                meets = c->needed[j] >= 0 && c->needed[j] < ranks->n &&
                        message_meets(&ranks->all[c->needed[j]], c, p, rank);
            for (int64_t j = 0; j < c->needs && !meets; j++) {
                if (c->needed[j] < 0 || c->needed[j] >= ranks->n) continue;
                lacks[c->needed[j]] = MISSING;
                found++;
            }
        }
    return found;
}

/* The call through which a rank waits, and whom it lacks; NULL if it lacks nobody. */
static const state_call *rank_lacks(const report_ranks *ranks, int64_t rank, standing *lacks) {
    const state *s = &ranks->all[rank];
    const state_call *worst = NULL;
    if (s->presence != STATE_HERE) return NULL;
    for (int64_t i = 0; i < s->in_calls; i++) {
        const state_call *c = &s->calls[i];
        if (c->pauses || (worst && c->milliseconds <= worst->milliseconds)) continue;
        if (call_lacks(ranks, rank, c, lacks) > 0) worst = c;
    }
    if (worst) (void)call_lacks(ranks, rank, worst, lacks);
    return worst;
}

int report_is_stuck(const report_ranks *ranks, int64_t rank) {
    standing *lacks = calloc((size_t)ranks->n, sizeof *lacks);
    int stuck = lacks && rank_lacks(ranks, rank, lacks) != NULL;
    free(lacks);
    return stuck;
}

/* Milliseconds, and bytes in one: what a message may take that was sent before its sender left. */
enum { ARRIVES_WITHIN = 2000, SLOWEST_NETWORK = 10000 };

static int calls_any(const state_call *c) {
    int any = 0;
    for (int64_t i = 0; i < c->messages; i++) any |= c->peers[i].rank == MPIXLA_ANY_SOURCE;
    return any;
}

int report_is_in_vain(const report_ranks *ranks, int64_t rank) {
    standing *lacks = calloc((size_t)ranks->n, sizeof *lacks);
    const state_call *c = lacks ? rank_lacks(ranks, rank, lacks) : NULL;
    int64_t gone = 0, lacking = 0;
    for (int64_t i = 0; c && i < ranks->n; i++) {
        int64_t patience = ARRIVES_WITHIN + c->bytes / SLOWEST_NETWORK;
        lacking += lacks[i] == MISSING;
        gone += lacks[i] == MISSING && ranks->all[i].left >= patience && c->milliseconds >= patience;
    }
    free(lacks);
    return c && gone > 0 && (gone == lacking || !calls_any(c));
}

int64_t report_lowest(const report_ranks *ranks, int64_t rank, int64_t milliseconds) {
    standing *lacks = calloc((size_t)ranks->n, sizeof *lacks);
    int64_t lowest = lacks ? 0 : rank;
    for (; lowest < rank; lowest++) {
        const state_call *c = rank_lacks(ranks, lowest, lacks);
        if (c && c->milliseconds >= milliseconds) break;
    }
    free(lacks);
    return lowest;
}

static int is_lost(const state *s) {
    return s->presence == STATE_STOPPED || s->presence == STATE_DEAD;
}

int report_has_lost(const report_ranks *ranks) {
    int lost = 0;
    for (int64_t i = 0; i < ranks->n; i++) lost |= is_lost(&ranks->all[i]);
    return lost;
}

/* Words */

typedef struct writer {
    FILE *to;
    const report_ranks *ranks;
    int64_t n; /* how many */
    double limit;
    report_reason reason;
    standing *lacks;
    bool *seen;      /* by rank: it can be reached */
    int64_t *alike;  /* by rank: the first that stands as it does */
    int64_t *path;   /* ranks, from one to the next that it waits for */
    int64_t circle;  /* path[circle] to path[circled - 1] wait for each other */
    int64_t circled; /* 0: none do */
} writer;

static int64_t count_chosen(const writer *w, const bool *chosen) {
    int64_t n = 0;
    for (int64_t i = 0; i < w->n; i++) n += chosen[i];
    return n;
}

/* "0, 2 and 5 to 9" */
static void write_ranks(const writer *w, const bool *chosen) {
    char text[TEXT_RANGES * 64] = "";
    (void)text_add_ranks(text, sizeof text, 0, chosen, w->n);
    fputs(text, w->to);
}

/* Text of several lines, each after this. */
static void write_lines(const writer *w, const char *text, const char *before, int most) {
    for (int i = 0; *text && i < most; i++) {
        size_t length = strcspn(text, "\n");
        fprintf(w->to, "%s%.*s\n", before, (int)length, text);
        text += length + (text[length] == '\n');
    }
}

static const char *line_of(const char *text, int64_t line, int *length) {
    for (; line > 0 && *text; line--) {
        text += strcspn(text, "\n");
        text += *text == '\n';
    }
    *length = (int)strcspn(text, "\n");
    return text;
}

/* Why a rank that waits for nobody does not come. */
static void write_absence(const writer *w, const state *s) {
    const state_call *c = s->in_calls > 0 ? &s->calls[0] : NULL;
    const char *where = *s->where ? s->where : "unknown process";
    switch (s->presence) {
        case STATE_STOPPED:
            fprintf(w->to, "its process is stopped (SIGSTOP, or a debugger): %s", where);
            return;
        case STATE_DEAD:
            fprintf(w->to, "its process is gone: %s", where);
            return;
        case STATE_SILENT:
            fprintf(w->to,
                    "it does not answer: %s, which has left MPI, has lost its connection, or is held up as a whole",
                    where);
            return;
        default:
            break;
    }
    if (c && c->pauses)
        fprintf(w->to, "its GPU is still at work on what comes before %s", c->what);
    else if (c)
        fprintf(w->to, "it is in %s, to which all ranks that it takes have come", c->what);
    else if (s->ended)
        fprintf(w->to, "it is at the end of its script");
    else
        fprintf(w->to, "it is in no call of mpixla");
    if (!c && !s->ended && s->percent >= 0)
        fprintf(w->to, "; in the last second it used %lld %% of a processor", (long long)s->percent);
}

/* Several ranks may be away for one reason. */
static int absences_equal(const state *a, const state *b) {
    if (a->presence != b->presence || a->presence != STATE_HERE) return 0;
    if (a->in_calls != b->in_calls || a->ended != b->ended) return 0;
    if (a->in_calls > 0) return strcmp(a->calls[0].what, b->calls[0].what) == 0;
    return a->ended || (strcmp(a->python, b->python) == 0 && (a->percent >= 20) == (b->percent >= 20));
}

static void write_missing(writer *w, const bool *missing) {
    const state *all = w->ranks->all;
    int64_t n = w->n, groups = 0;
    bool *alike = calloc((size_t)n, sizeof *alike), *done = calloc((size_t)n, sizeof *done);
    int64_t left = count_chosen(w, missing);
    for (int64_t i = 0; alike && done && i < n; i++) {
        /* NOLINTNEXTLINE(clang-analyzer-security.ArrayBound): both have as many as there are ranks */
        if (!missing[i] || done[i]) continue;
        if (groups++ == ABSENCES_TOLD) {
            fprintf(w->to, "  And %lld more have not come.\n", (long long)left);
            break;
        }
        memset(alike, 0, (size_t)n * sizeof *alike);
        for (int64_t j = i; j < n; j++)
            if (missing[j] && (j == i || absences_equal(&all[i], &all[j]))) alike[j] = done[j] = 1;
        int64_t several = count_chosen(w, alike) > 1;
        left -= count_chosen(w, alike);
        fprintf(w->to, "  %s ", several ? "Ranks" : "Rank");
        write_ranks(w, alike);
        fprintf(w->to, " %s not come%s: ", several ? "have" : "has", several ? "; the same is true of each" : "");
        write_absence(w, &all[i]);
        fprintf(w->to, ".\n");
        int speaks = all[i].presence == STATE_HERE && all[i].in_calls == 0 && !all[i].ended;
        if (speaks && *all[i].python) write_lines(w, all[i].python, "    ", PYTHON_LINES_TOLD);
    }
    free(alike);
    free(done);
}

/* What a rank makes, or made, of collective call `c` of another. */
static void write_its_call(const writer *w, int64_t rank, const state_call *c) {
    const state *s = &w->ranks->all[rank];
    fprintf(w->to, "    on rank %lld: ", (long long)rank);
    for (int64_t i = 0; i < s->in_calls; i++)
        if (s->calls[i].collective && s->calls[i].comm == c->comm && s->calls[i].sequence == c->sequence) {
            fprintf(w->to, "%s\n", s->calls[i].what);
            return;
        }
    const state_past *past = past_find(s, c->comm, c->sequence);
    int length = 0;
    const char *line = past ? line_of(s->last, past->line, &length) : "";
    fprintf(w->to, "%.*s\n", length, line);
}

/* The lower rank first, so that the text is the same whoever writes it. */
static void write_difference(const writer *w, int64_t rank, const state_call *c, int64_t other) {
    int64_t low = rank < other ? rank : other, high = rank < other ? other : rank;
    fprintf(w->to, "  Ranks %lld and %lld make different calls: collective call %lld on communicator '%s' is\n",
            (long long)low, (long long)high, (long long)c->sequence + 1, c->comm_name);
    write_its_call(w, low, c);
    write_its_call(w, high, c);
}

/* From a rank to one that it waits for, and on, but to none of `missing`. If every rank on the way waits, some rank
 * comes twice: the circle is path[begin] to path[end - 1]. Returns the end, or 0. */
static int64_t walk(const writer *w, int64_t rank, const bool *missing, int64_t *begin) {
    for (int64_t length = 0; rank < w->n && length <= w->n; length++) {
        for (*begin = 0; *begin < length; ++*begin)
            if (w->path[*begin] == rank) return length;
        w->path[length] = rank;
        if (!rank_lacks(w->ranks, rank, w->lacks)) return 0;
        for (rank = 0; rank < w->n; rank++)
            /* NOLINTNEXTLINE(clang-analyzer-security.ArrayBound): both have as many as there are ranks */
            if (w->lacks[rank] == MISSING && !missing[rank]) break;
    }
    return 0;
}

static void write_circle(writer *w, int64_t rank, const bool *missing) {
    int64_t begin = 0, end = walk(w, rank, missing, &begin);
    if (end <= 0) return;
    w->circle = begin;
    w->circled = end;
    if (end - begin == 1) {
        fprintf(w->to, "  Rank %lld waits for itself.\n", (long long)w->path[begin]);
        return;
    }
    fprintf(w->to, "  These ranks wait for each other in a circle:");
    for (int64_t i = begin; i < end; i++) {
        if (i - begin == STEPS_TOLD && end - i > 2) { /* the last closes the circle */
            fprintf(w->to, ", and so on through %lld more,", (long long)(end - i - 1));
            i = end - 1;
        } else if (i > begin) {
            fprintf(w->to, ",");
        }
        fprintf(w->to, " rank %lld waits for rank %lld", (long long)w->path[i],
                (long long)w->path[i + 1 < end ? i + 1 : begin]);
    }
    fprintf(w->to, ".\n");
}

/* Finds those who can be reached from a rank and wait for nobody, and tells the first calls that differ. */
static void reach(writer *w, int64_t rank, bool *missing) {
    const report_ranks *ranks = w->ranks;
    int64_t *queue = w->path, first = 0, last = 0;
    int differ = 0;
    queue[last++] = rank;
    w->seen[rank] = 1;
    while (first < last) {
        int64_t r = queue[first++];
        const state_call *c = rank_lacks(ranks, r, w->lacks);
        if (!c) {
            missing[r] = 1;
            continue;
        }
        for (int64_t i = 0; i < w->n; i++) {
            if (w->lacks[i] < DIFFERS) continue;
            if (w->lacks[i] == DIFFERS && !differ) {
                differ = 1;
                write_difference(w, r, c, i);
            }
            if (w->lacks[i] == DIFFERS && ranks->all[i].in_calls > 0) continue; /* it has come, to its own call */
            if (w->seen[i]) continue;
            w->seen[i] = 1;
            queue[last++] = i;
        }
    }
}

static int stands_alike(const state *a, const state *b) {
    if (a->presence != b->presence || a->in_calls != b->in_calls || a->ended != b->ended || a->in_calls != 1) return 0;
    const state_call *c = &a->calls[0], *k = &b->calls[0];
    return c->collective && k->collective && c->comm == k->comm && c->sequence == k->sequence &&
           c->pauses == k->pauses && !calls_differ(c, k) && strcmp(c->site, k->site) == 0;
}

static void write_waits(writer *w, int64_t rank) {
    const state_call *c = rank_lacks(w->ranks, rank, w->lacks);
    if (!c) return;
    bool *chosen = calloc((size_t)w->n, sizeof *chosen);
    if (!chosen) return;
    for (int64_t i = 0; i < w->n; i++) chosen[i] = w->lacks[i] >= DIFFERS;
    fprintf(w->to, "    waits for %s%s ", calls_any(c) ? "any of " : "",
            count_chosen(w, chosen) > 1 ? "ranks" : "rank");
    write_ranks(w, chosen);
    fprintf(w->to, "\n");
    free(chosen);
}

static void write_call(const writer *w, const state *s, const state_call *c) {
    if (c->pauses)
        fprintf(w->to, "    its GPU computes what comes before %s (%lld bytes)\n", c->what, (long long)c->bytes);
    else
        fprintf(w->to, "    in a call for %.1f s: %s (%lld bytes)\n", 1e-3 * (double)c->milliseconds, c->what,
                (long long)c->bytes);
    if (!*c->site) write_lines(w, s->python, "      ", PYTHON_LINES_TOLD);
}

static void write_rank(writer *w, int64_t rank) {
    const state *s = &w->ranks->all[rank];
    bool *alike = calloc((size_t)w->n, sizeof *alike);
    if (!alike) return;
    for (int64_t i = rank; i < w->n; i++) alike[i] = w->alike[i] == rank;
    fprintf(w->to, "  %s ", count_chosen(w, alike) > 1 ? "ranks" : "rank");
    write_ranks(w, alike);
    if (count_chosen(w, alike) > 1) fprintf(w->to, "; of rank %lld", (long long)rank);
    free(alike);
    fprintf(w->to, "%s%s%s:\n", *s->where ? " (" : "", s->where, *s->where ? ")" : "");
    for (int64_t i = 0; i < s->in_calls; i++) write_call(w, s, &s->calls[i]);
    write_waits(w, rank);
    if (s->presence != STATE_HERE || s->in_calls == 0) {
        fprintf(w->to, "    ");
        write_absence(w, s);
        fprintf(w->to, "\n");
    }
    if (s->ended && s->in_calls > 0) fprintf(w->to, "    its script has ended\n");
    const char *last = s->last;
    if (s->in_newest) { /* that one is told above */
        last += strcspn(last, "\n");
        last += *last == '\n';
    }
    if (*last) fprintf(w->to, "    its last calls, the newest first:\n");
    write_lines(w, last, "      ", LINES_TOLD);
}

static void write_ended(writer *w, int64_t rank, bool *missing) {
    fprintf(w->to,
            "mpixla: rank %lld has come to the end of its script, and has waited there for longer than "
            "MPIXLA_TIMEOUT=%g allows for a process that cannot come, so the whole job ends.\n",
            (long long)rank, w->limit);
    for (int64_t i = 0; i < w->n; i++) missing[i] = is_lost(&w->ranks->all[i]);
    write_missing(w, missing);
}

static void write_waiting(writer *w, int64_t rank, bool *missing) {
    const report_ranks *ranks = w->ranks;
    const state *s = &ranks->all[rank];
    double longest = 0;
    const char *what = "";
    for (int64_t i = 0; i < s->in_calls; i++)
        if (1e-3 * (double)s->calls[i].milliseconds >= longest) {
            longest = 1e-3 * (double)s->calls[i].milliseconds;
            what = s->calls[i].what;
        }
    fprintf(w->to, "mpixla: rank %lld has waited for %.1f s in a call", (long long)rank, longest);
    if (w->reason == REPORT_IN_VAIN)
        fprintf(w->to, " for a rank that is at the end of its script, so the whole job ends.\n");
    else if (w->reason == REPORT_WORD)
        fprintf(w->to,
                ", and goes on waiting; MPIXLA_TIMEOUT=seconds ends a job that waits for so long, and 0 turns this "
                "off.\n");
    else
        fprintf(w->to, ", longer than MPIXLA_TIMEOUT=%g allows, so the whole job ends.\n", w->limit);
    fprintf(w->to, "  It waits in %s.\n", what);
    if (!rank_lacks(ranks, rank, w->lacks)) {
        fprintf(w->to, "  All ranks that the call takes have come to it, and yet it does not end.\n");
    } else {
        reach(w, rank, missing);
        write_missing(w, missing);
        write_circle(w, rank, missing);
    }
}

static int64_t choose(const writer *w, bool *chosen, int64_t rank) {
    int64_t added = !chosen[w->alike[rank]];
    chosen[w->alike[rank]] = 1;
    return added;
}

/* The first that stands as this rank does, where those before it are known. */
static int64_t first_alike(const writer *w, int64_t rank) {
    for (int64_t i = 0; i < rank; i++)
        if (w->alike[i] == i && stands_alike(&w->ranks->all[i], &w->ranks->all[rank])) return i;
    return rank;
}

/* If not all can be told: the one that reports, those that are missing, those that wait in a circle, then the others.
 */
static void write_each(writer *w, int64_t rank, const bool *missing) {
    const int64_t n = w->n;
    int64_t told = 0;
    bool *chosen = calloc((size_t)n, sizeof *chosen);
    if (!chosen) return;
    for (int64_t i = 0; i < n; i++) w->alike[i] = first_alike(w, i);
    told += choose(w, chosen, rank);
    for (int64_t i = 0; i < n && told < RANKS_TOLD; i++)
        if (missing[i]) told += choose(w, chosen, i);
    for (int64_t i = w->circle; i < w->circled && told < RANKS_TOLD; i++) told += choose(w, chosen, w->path[i]);
    for (int64_t i = 0; i < n && told < RANKS_TOLD; i++) told += choose(w, chosen, i);
    fprintf(w->to, "What each rank does:\n");
    for (int64_t i = 0; i < n; i++)
        if (chosen[i]) write_rank(w, i);
    for (int64_t i = n - 1; i >= 0; i--) chosen[i] = !chosen[w->alike[i]]; /* a rank's first is not behind it */
    if (count_chosen(w, chosen) > 0) {
        fprintf(w->to, "  and %lld more: ", (long long)count_chosen(w, chosen));
        write_ranks(w, chosen);
        fprintf(w->to, "\n");
    }
    free(chosen);
}

static void write_all(writer *w, int64_t rank) {
    const int64_t n = w->n;
    bool *missing = calloc((size_t)n, sizeof *missing);
    if (!missing) return;
    if (w->ranks->all[rank].in_calls > 0)
        write_waiting(w, rank, missing);
    else
        write_ended(w, rank, missing);
    write_each(w, rank, missing);
    free(missing);
}

char *report_write(const report_ranks *ranks, int64_t rank, report_reason reason, double limit) {
    char *text = NULL;
    size_t bytes = 0, n = (size_t)ranks->n;
    writer w = {.ranks = ranks,
                .n = ranks->n,
                .limit = limit,
                .reason = reason,
                .to = open_memstream(&text, &bytes),
                .lacks = calloc(n, sizeof *w.lacks),
                .seen = calloc(n, sizeof *w.seen),
                .alike = calloc(n, sizeof *w.alike),
                .path = calloc(n + 1, sizeof *w.path)};
    int complete = w.to && w.lacks && w.seen && w.alike && w.path;
    if (complete) write_all(&w, rank);
    if (w.to && fclose(w.to) != 0) complete = 0;
    free(w.lacks);
    free(w.seen);
    free(w.alike);
    free(w.path);
    if (complete) return text;
    free(text);
    return NULL;
}
