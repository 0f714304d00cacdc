/* The report follows a graph. A rank that waits points to the ranks that its call lacks; of several calls the one
 * counts that has waited longest and lacks somebody. The ranks that can be reached from the one that reports, and that
 * wait for nobody themselves, are why nothing goes on. If all that can be reached wait, some wait for each other in a
 * circle.
 */
#include "watch/report.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/text.h"
#include "check/check.h"
#include "mpi/comm.h"
#include "mpixla.h"

/* The most of each that is told, so that the report of a thousand ranks is no longer than that of some dozens. */
enum { LINES_TOLD = 16, PYTHON_LINES_TOLD = 24, ABSENCES_TOLD = 16, STEPS_TOLD = 12, RANKS_TOLD = 32 };

/* How a rank stands to a call of another that takes it: it is in that call or has made it, it is in or has made another
 * call in its place, or none of these. */
typedef enum standing { COMES, DIFFERS, MISSING } standing;

/* Ranks that other processes have named may be any numbers. */
static int is_rank(const report_ranks *ranks, int64_t rank) {
    return rank >= 0 && rank < ranks->n;
}

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

/* Sets `lacks` for the ranks that lack in a message of a call of `rank`: its peer, or, if it may come from any rank,
 * all that could send it. Returns how many. */
static int64_t message_lacks(const report_ranks *ranks, int64_t rank, const state_call *c, const state_peer *p,
                             int *lacks) {
    const int is_from_any = p->rank == MPIXLA_ANY_SOURCE;
    const int64_t *ends = is_from_any ? c->needed : &p->rank, n = is_from_any ? c->needs : 1;
    int64_t found = 0;
    for (int64_t i = 0; i < n; i++)
        if (is_rank(ranks, ends[i]) && message_meets(&ranks->all[ends[i]], c, p, rank)) return 0;
    for (int64_t i = 0; i < n; i++) {
        if (!is_rank(ranks, ends[i])) continue;
        lacks[ends[i]] = MISSING;
        found++;
    }
    return found;
}

static int calls_differ(const state_call *a, const state_call *b) {
    return strcmp(a->op, b->op) != 0 || a->root != b->root || strcmp(a->kind, b->kind) != 0 || a->items != b->items;
}

/* The call of a rank that takes the place of this collective call: the same number on the same communicator. NULL if
 * the rank is not in it. */
static const state_call *counterpart_find(const state *s, const state_call *c) {
    for (int64_t i = 0; i < s->in_calls; i++) {
        const state_call *k = &s->calls[i];
        if (k->collective && k->comm == c->comm && k->sequence == c->sequence) return k;
    }
    return NULL;
}

/* The same among the calls that a rank has made, as far as it remembers them. */
static const state_past *past_find(const state *s, const state_call *c) {
    for (int64_t i = 0; i < s->in_past; i++)
        if (s->past[i].comm == c->comm && s->past[i].sequence == c->sequence) return &s->past[i];
    return NULL;
}

static standing collective_stands(const state *other, const state_call *c) {
    const state_call *k = counterpart_find(other, c);
    if (k) return calls_differ(c, k) ? DIFFERS : k->pauses ? MISSING : COMES;
    const state_past *past = past_find(other, c);
    if (past) return past->op != (int64_t)hash_text(c->op) ? DIFFERS : COMES;
    for (int64_t i = 0; i < other->in_comms; i++)
        if (other->comms[i].comm == c->comm && other->comms[i].calls > c->sequence) return COMES;
    return MISSING;
}

static int64_t collective_lacks(const report_ranks *ranks, const state_call *c, int *lacks) {
    int64_t found = 0;
    for (int64_t i = 0; i < c->needs; i++) {
        int64_t other = c->needed[i];
        if (!is_rank(ranks, other)) continue;
        lacks[other] = (int)collective_stands(&ranks->all[other], c);
        found += lacks[other] != COMES;
    }
    return found;
}

/* A message of so many bytes is sent before the other end comes, under every MPI. */
enum { SENT_AT_ONCE = 1024 };

/* Sets `lacks`, by rank, for one call of this rank. Returns how many ranks it lacks. */
static int64_t call_lacks(const report_ranks *ranks, int64_t rank, const state_call *c, int *lacks) {
    int64_t found = 0;
    for (int64_t i = 0; i < ranks->n; i++) lacks[i] = COMES;
    if (c->collective) return collective_lacks(ranks, c, lacks);
    /* A call that sends at once, and receives, waits for what it receives. */
    for (int receives = 1; receives >= 0 && (found == 0 || c->bytes > SENT_AT_ONCE); receives--)
        for (int64_t i = 0; i < c->messages; i++)
            if (c->peers[i].receives == receives) found += message_lacks(ranks, rank, c, &c->peers[i], lacks);
    return found;
}

/* The call through which a rank waits, with the ranks that it lacks in `lacks`; NULL if the rank waits for nobody. */
static const state_call *rank_lacks(const report_ranks *ranks, int64_t rank, int *lacks) {
    const state *s = &ranks->all[rank];
    const state_call *longest = NULL;
    if (s->presence != STATE_HERE) return NULL;
    for (int64_t i = 0; i < s->in_calls; i++) {
        const state_call *c = &s->calls[i];
        if (c->pauses || (longest && c->milliseconds <= longest->milliseconds)) continue;
        if (call_lacks(ranks, rank, c, lacks) > 0) longest = c;
    }
    if (longest) (void)call_lacks(ranks, rank, longest, lacks);
    return longest;
}

int report_is_stuck(const report_ranks *ranks, int64_t rank) {
    return rank_lacks(ranks, rank, ranks->room) != NULL;
}

static int is_from_any(const state_call *c) {
    int any = 0;
    for (int64_t i = 0; i < c->messages; i++) any |= c->peers[i].rank == MPIXLA_ANY_SOURCE;
    return any;
}

/* Whether the call may be done with some of the ranks that it lacks: the other end of a message has come and gone,
 * while another of its messages waits. */
static int is_doubtful(const report_ranks *ranks, const state_call *c, const int *lacks) {
    int64_t lacking = 0;
    for (int64_t i = 0; i < ranks->n; i++) lacking += lacks[i] != COMES;
    return !c->collective && lacking > 1 && !is_from_any(c);
}

/* Whether the call takes a rank of another MPI_COMM_WORLD, which nobody can ask. */
static int takes_a_stranger(const report_ranks *ranks, const state_call *c) {
    const int is_any = is_from_any(c);
    int found = 0;
    for (int64_t i = 0; (c->collective || is_any) && i < c->needs; i++) found |= !is_rank(ranks, c->needed[i]);
    for (int64_t i = 0; !is_any && i < c->messages; i++) found |= !is_rank(ranks, c->peers[i].rank);
    return found;
}

/* Returns whether a thread of the front end may make another call while this one waits, or that is unknown. */
static int has_other_threads(const state *s, const state_call *c) {
    return s->threads != c->is_front_end;
}

/* Whether the rank has made so many calls on another communicator, which may be the same one. */
static int may_have_come(const state *other, const state_call *c) {
    for (int64_t i = 0; c->collective && i < other->in_comms; i++) {
        const state_comm *of = &other->comms[i];
        if (of->comm != c->comm && comm_keys_alike(of->comm, c->comm) && of->calls > c->sequence) return 1;
    }
    return 0;
}

/* Returns whether it is certain that a rank which this call lacks has not come to it. A communicator is listed from its
 * first use on, so one that is not in a complete list was not used. That of a message, which nobody counts, has had the
 * time to arrive. */
static int is_absent(const state *other, const state_call *c) {
    if (!c->has_members) return 0; /* it is another rank, maybe */
    return !c->collective || (other->has_all_comms && !may_have_come(other, c));
}

int report_is_in_vain(const report_ranks *ranks, int64_t rank) {
    /* Who has left may have sent the message before, and it is still on its way: for so many milliseconds, and one more
     * for so many bytes. */
    enum { ARRIVES_WITHIN = 2000, SLOWEST_NETWORK = 10000 };
    const int *lacks = ranks->room;
    const state_call *c = rank_lacks(ranks, rank, ranks->room);
    int64_t gone = 0, lacking = 0;
    for (int64_t i = 0; c && i < ranks->n; i++) {
        int64_t patience = ARRIVES_WITHIN + c->bytes / SLOWEST_NETWORK;
        lacking += lacks[i] == MISSING;
        gone += lacks[i] == MISSING && ranks->all[i].left >= patience && c->milliseconds >= patience &&
                is_absent(&ranks->all[i], c);
    }
    if (!c || gone == 0 || (is_from_any(c) && has_other_threads(&ranks->all[rank], c))) return 0;
    return c->collective || (gone == lacking && !takes_a_stranger(ranks, c));
}

/* Returns the call in which a rank waits and does nothing else, with the ranks that it lacks in ranks->room; NULL if
 * it may still do something. */
static const state_call *only_call(const report_ranks *ranks, int64_t rank) {
    const state *s = &ranks->all[rank];
    const state_call *c = rank_lacks(ranks, rank, ranks->room);
    return c && s->in_calls == 1 && s->requests == 0 && !has_other_threads(s, c) ? c : NULL;
}

/* The first rank that this call lacks for certain: one whose process is gone, or else one that is elsewhere; -1: none.
 */
static int64_t absent_find(const report_ranks *ranks, const state_call *c) {
    int64_t found = -1;
    for (int64_t i = 0; i < ranks->n; i++) {
        const state *other = &ranks->all[i];
        if (ranks->room[i] != MISSING || !c->has_members) continue;
        if (other->presence == STATE_DEAD) return i;
        if (found < 0 && other->presence == STATE_HERE && is_absent(other, c)) found = i;
    }
    return found;
}

static uint64_t call_number(uint64_t number, int64_t rank, const state_call *c) {
    number = hash_combine(number, (uint64_t)rank);
    return hash_combine(hash_combine(number, (uint64_t)c->thread), (uint64_t)c->number);
}

/* The number of the circle that goes through this rank, whichever of its ranks that is; 0 if one of them may do
 * something else. */
static uint64_t circle_number(const report_ranks *ranks, int64_t begin) {
    int64_t lowest = begin, rank = begin;
    uint64_t number = 1;
    do {
        const state_call *c = only_call(ranks, rank);
        if (!c) return 0;
        rank = absent_find(ranks, c);
        if (rank < lowest) lowest = rank;
    } while (rank != begin);
    rank = lowest;
    do {
        const state_call *c = only_call(ranks, rank);
        number = call_number(number, rank, c);
        rank = absent_find(ranks, c);
    } while (rank != lowest);
    return number;
}

uint64_t report_deadlock(const report_ranks *ranks, int64_t rank) {
    /* After as many steps as there are ranks the way has gone once around a circle, if it comes to one. */
    for (int64_t steps = 0; steps <= ranks->n; steps++) {
        const state_call *c = rank_lacks(ranks, rank, ranks->room);
        if (!c || is_from_any(c) || is_doubtful(ranks, c, ranks->room)) return 0;
        int64_t next = absent_find(ranks, c);
        if (next < 0) return 0;
        if (ranks->all[next].presence == STATE_DEAD) return call_number(call_number(1, rank, c), next, c);
        rank = next;
    }
    return circle_number(ranks, rank);
}

int64_t report_lowest(const report_ranks *ranks, int64_t rank, int64_t milliseconds) {
    int64_t lowest = 0;
    for (; lowest < rank; lowest++) {
        const state_call *c = rank_lacks(ranks, lowest, ranks->room);
        if (c && c->milliseconds >= milliseconds) break;
    }
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

/* All arrays are by rank. */
typedef struct writer {
    FILE *to;
    const report_ranks *ranks;
    int64_t n;    /* how many they are */
    int64_t rank; /* the one that reports */
    report_reason reason;
    double limit;
    int *lacks;                  /* as the last rank_lacks has set it */
    bool *reached, *missing;     /* from `rank`; and it waits for nobody itself */
    bool *doubtful;              /* reached only by calls that may be done with it */
    bool *done, *group;          /* of those that are being told: have been, and are now, together */
    int64_t told;                /* how many are chosen to be */
    int64_t *alike;              /* the first rank that stands as it does */
    int64_t *path, begin, end;   /* path[begin] to path[end - 1] wait for each other; end is 0 if none do */
    const state_call *differing; /* the first call that differs between two ranks: this one, of the first of */
    int64_t differ[2];           /* these ranks; NULL: none does */
    const state_call *waits;     /* the call through which `rank` waits */
} writer;

static int64_t chosen_count(const writer *w, const bool *chosen) {
    int64_t n = 0;
    for (int64_t i = 0; i < w->n; i++) n += chosen[i];
    return n;
}

/* "0, 2 and 5 to 9" */
static void write_numbers(const writer *w, const bool *chosen) {
    char text[TEXT_RANGES * 64] = "";
    (void)text_add_ranks(text, sizeof text, 0, chosen, w->n);
    fputs(text, w->to);
}

/* "rank 3", or "ranks 0, 2 and 5 to 9", with `word` for "rank". */
static void write_ranks(const writer *w, const char *word, const bool *chosen) {
    fprintf(w->to, "%s%s ", word, chosen_count(w, chosen) > 1 ? "s" : "");
    write_numbers(w, chosen);
}

/* The first `most` lines of a text, each with `before` in front. */
static void write_lines(const writer *w, const char *text, const char *before, int most) {
    for (int i = 0; *text && i < most; i++) {
        size_t length = strcspn(text, "\n");
        fprintf(w->to, "%s%.*s\n", before, (int)length, text);
        text += length + (text[length] == '\n');
    }
}

/* The text from this line on. */
static const char *from_line(const char *text, int64_t line) {
    for (; line > 0 && *text; line--) {
        text += strcspn(text, "\n");
        text += *text == '\n';
    }
    return text;
}

/* Who has not come */

/* Why a rank that waits for nobody does not come. */
static void write_absence(const writer *w, const state *s) {
    const state_call *c = s->in_calls > 0 ? &s->calls[0] : NULL;
    const char *where = *s->where ? s->where : "unknown process";
    if (s->presence == STATE_STOPPED)
        fprintf(w->to, "its process is stopped (SIGSTOP, or a debugger): %s", where);
    else if (s->presence == STATE_DEAD)
        fprintf(w->to, "its process is gone: %s", where);
    else if (s->presence == STATE_SILENT)
        fprintf(w->to, "it does not answer: %s, which has left MPI, has lost its connection, or is held up as a whole",
                where);
    else if (c && c->pauses)
        fprintf(w->to, "its GPU is still at work on what comes before %s", c->what);
    else if (c && takes_a_stranger(w->ranks, c))
        fprintf(w->to, "it is in %s, which takes ranks of another MPI_COMM_WORLD, and these cannot be asked", c->what);
    else if (c)
        fprintf(w->to, "it is in %s, to which all ranks that it takes have come", c->what);
    else if (s->ended)
        fprintf(w->to, "it is at the end of its script");
    else if (s->percent < 0)
        fprintf(w->to, "it is in no call of mpixla");
    else
        fprintf(w->to, "it is in no call of mpixla; in the last second it used %lld %% of a processor",
                (long long)s->percent);
}

/* Whether two ranks are away for the same reason, so that they are told as one. */
static int absences_equal(const state *a, const state *b) {
    if (a->presence != b->presence || a->presence != STATE_HERE) return 0;
    if (a->in_calls != b->in_calls || a->ended != b->ended) return 0;
    if (a->in_calls > 0) return strcmp(a->calls[0].what, b->calls[0].what) == 0;
    return a->ended || (strcmp(a->python, b->python) == 0 && (a->percent >= 20) == (b->percent >= 20));
}

static void write_missing(writer *w) {
    const state *all = w->ranks->all;
    int64_t n = w->n, left = chosen_count(w, w->missing), groups = 0;
    for (int64_t i = 0; i < n; i++) w->done[i] = !w->missing[i];
    for (int64_t i = 0; i < n; i++) {
        if (w->done[i]) continue;
        if (groups++ == ABSENCES_TOLD) {
            fprintf(w->to, "  And %lld more have not come.\n", (long long)left);
            break;
        }
        for (int64_t j = 0; j < n; j++) {
            int equal = w->doubtful[i] == w->doubtful[j] && absences_equal(&all[i], &all[j]);
            w->group[j] = !w->done[j] && (j == i || equal);
            w->done[j] |= w->group[j];
        }
        left -= chosen_count(w, w->group);
        fputs("  ", w->to);
        write_ranks(w, "Rank", w->group);
        int several = chosen_count(w, w->group) > 1;
        fprintf(w->to, several ? " have not come%s; the same is true of each: " : " has not come%s: ",
                w->doubtful[i] ? ", or come and gone" : "");
        write_absence(w, &all[i]);
        fputs(".\n", w->to);
        int speaks = all[i].presence == STATE_HERE && all[i].in_calls == 0 && !all[i].ended;
        if (speaks) write_lines(w, all[i].python, "    ", PYTHON_LINES_TOLD);
    }
}

/* Calls that differ */

/* What a rank makes, or has made, in the place of collective call `c` of another. */
static void write_counterpart(const writer *w, int64_t rank, const state_call *c) {
    const state *s = &w->ranks->all[rank];
    const state_call *k = counterpart_find(s, c);
    const state_past *past = k ? NULL : past_find(s, c);
    const char *line = k ? k->what : past ? from_line(s->last, past->line) : "";
    fprintf(w->to, "    on rank %lld: %.*s\n", (long long)rank, (int)strcspn(line, "\n"), line);
}

/* The lower rank first, so that the text is the same whoever writes it. */
static void write_difference(const writer *w) {
    const state_call *c = w->differing;
    int64_t a = w->differ[0], b = w->differ[1], low = a < b ? a : b, high = a < b ? b : a;
    fprintf(w->to, "  Ranks %lld and %lld make different calls: collective call %lld on communicator '%s' is\n",
            (long long)low, (long long)high, (long long)c->sequence + 1, c->comm_name);
    write_counterpart(w, low, c);
    write_counterpart(w, high, c);
}

/* Threads */

/* Whether two threads of a rank use the communicator of its first call, by what is known of it or at this moment. */
static int is_shared(const state *s) {
    int found = 0;
    for (int64_t i = 0; i < s->in_calls; i++) {
        found |= s->calls[i].is_shared != 0;
        for (int64_t j = 0; j < i; j++) found |= s->calls[i].comm == s->calls[j].comm;
    }
    return found;
}

/* Says which ranks use a communicator in several threads, as the likely reason. */
static void write_threads(const writer *w) {
    for (int64_t i = 0; i < w->n; i++) w->group[i] = w->reached[i] && is_shared(&w->ranks->all[i]);
    if (chosen_count(w, w->group) == 0) return;
    fputs("  Several threads of ", w->to);
    write_ranks(w, "rank", w->group);
    fputs(" use one communicator, in no order: give each thread a communicator of its own.\n", w->to);
}

/* Checks */

/* Says how to find where ranks first differ: where they may have made other calls before, which were not compared. */
static void write_check(const writer *w) {
    const state_call *c = w->waits;
    const check_mode mode = check_mode_get();
    if (!c->collective || mode >= CHECK_CALLS || (mode == CHECK_FIRST && c->sequence < CHECK_FIRST_CALLS)) return;
    fprintf(w->to, "  It is collective call %lld on communicator '%s', of which ", (long long)c->sequence + 1,
            c->comm_name);
    if (mode == CHECK_FIRST)
        fprintf(w->to, "the first %d were compared", CHECK_FIRST_CALLS);
    else
        fputs("none was compared", w->to);
    fputs(
        ": one call more or less on a rank shifts all that follow, and their results are wrong. --check "
        "(MPIXLA_CHECK=1) compares all, and names the first line that differs.\n",
        w->to);
}

/* Circles */

/* Goes from the rank that reports to one that it waits for, and so on, but to none that is missing, and by no call that
 * may be done with it. If every rank on the way waits, some rank comes twice, and from there the path is a circle. */
static void circle_find(writer *w) {
    const int64_t n = w->n;
    int64_t rank = w->rank;
    for (int64_t length = 0; rank < n; length++) {
        for (int64_t i = 0; i < length; i++) {
            if (w->path[i] != rank) continue;
            w->begin = i;
            w->end = length;
            return;
        }
        w->path[length] = rank;
        const state_call *c = rank_lacks(w->ranks, rank, w->lacks);
        if (!c || is_doubtful(w->ranks, c, w->lacks)) return;
        for (rank = 0; rank < n; rank++)
            if (w->lacks[rank] == MISSING && !w->missing[rank]) break;
    }
}

static void write_circle(const writer *w) {
    if (w->end - w->begin == 1) {
        fprintf(w->to, "  Rank %lld waits for itself.\n", (long long)w->path[w->begin]);
        return;
    }
    fprintf(w->to, "  These ranks wait for each other in a circle:");
    for (int64_t i = w->begin; i < w->end; i++) {
        if (i - w->begin == STEPS_TOLD && w->end - i > 2) { /* the last closes the circle */
            fprintf(w->to, ", and so on through %lld more,", (long long)(w->end - i - 1));
            i = w->end - 1;
        } else if (i > w->begin) {
            fprintf(w->to, ",");
        }
        fprintf(w->to, " rank %lld waits for rank %lld", (long long)w->path[i],
                (long long)w->path[i + 1 < w->end ? i + 1 : w->begin]);
    }
    fprintf(w->to, ".\n");
}

/* Follows the graph from the rank that reports: finds the ranks that are missing, and the first calls that differ. */
static void follow(writer *w) {
    int64_t *queue = w->path, first = 0, last = 0;
    queue[last++] = w->rank;
    w->reached[w->rank] = 1;
    while (first < last) {
        int64_t rank = queue[first++];
        const state_call *c = rank_lacks(w->ranks, rank, w->lacks);
        if (!c) w->missing[rank] = 1;
        const int doubtful = c && is_doubtful(w->ranks, c, w->lacks);
        for (int64_t i = 0; c && i < w->n; i++) {
            if (w->lacks[i] == COMES) continue;
            if (w->lacks[i] == DIFFERS && !w->differing) {
                w->differing = c;
                w->differ[0] = rank;
                w->differ[1] = i;
            }
            int has_come = w->lacks[i] == DIFFERS && w->ranks->all[i].in_calls > 0; /* to a call of its own */
            w->doubtful[i] = doubtful && (!w->reached[i] || w->doubtful[i]);
            if (has_come || w->reached[i]) continue;
            w->reached[i] = 1;
            queue[last++] = i;
        }
    }
}

/* What each rank does */

/* Whether two ranks wait in the same line of the same collective call, and do nothing else: one is told for both. */
static int are_alike(const state *a, const state *b) {
    if (a->presence != b->presence || a->in_calls != b->in_calls || a->ended != b->ended || a->in_calls != 1) return 0;
    const state_call *c = &a->calls[0], *k = &b->calls[0];
    return c->collective && k->collective && c->comm == k->comm && c->sequence == k->sequence &&
           c->pauses == k->pauses && !calls_differ(c, k) && strcmp(c->site, k->site) == 0;
}

static void write_whom_it_lacks(writer *w, int64_t rank) {
    const state_call *c = rank_lacks(w->ranks, rank, w->lacks);
    if (!c) return;
    for (int64_t i = 0; i < w->n; i++) w->group[i] = w->lacks[i] != COMES;
    fprintf(w->to, "    waits for %s",
            is_from_any(c)                       ? "any of "
            : is_doubtful(w->ranks, c, w->lacks) ? "some of "
                                                 : "");
    write_ranks(w, "rank", w->group);
    fprintf(w->to, "\n");
}

static void write_call(const writer *w, const state *s, const state_call *c) {
    if (c->pauses)
        fprintf(w->to, "    its GPU computes what comes before %s (%lld bytes)\n", c->what, (long long)c->bytes);
    else
        fprintf(w->to, "    in a call for %.1f s: %s (%lld bytes)\n", 1e-3 * (double)c->milliseconds, c->what,
                (long long)c->bytes);
    if (!*c->site) write_lines(w, s->python, "      ", PYTHON_LINES_TOLD);
}

/* A rank, for all that are alike. */
static void write_rank(writer *w, int64_t rank) {
    const state *s = &w->ranks->all[rank];
    for (int64_t i = 0; i < w->n; i++) w->group[i] = w->alike[i] == rank;
    fputs("  ", w->to);
    write_ranks(w, "rank", w->group);
    if (chosen_count(w, w->group) > 1) fprintf(w->to, "; of rank %lld", (long long)rank);
    fprintf(w->to, "%s%s%s:\n", *s->where ? " (" : "", s->where, *s->where ? ")" : "");
    for (int64_t i = 0; i < s->in_calls; i++) write_call(w, s, &s->calls[i]);
    write_whom_it_lacks(w, rank);
    if (s->presence != STATE_HERE || s->in_calls == 0) {
        fprintf(w->to, "    ");
        write_absence(w, s);
        fprintf(w->to, "\n");
    }
    if (s->ended && s->in_calls > 0) fprintf(w->to, "    its script has ended\n");
    const char *last = from_line(s->last, s->in_newest != 0); /* a newest call that has not ended is told above */
    if (*last) fprintf(w->to, "    its last calls, the newest first:\n");
    write_lines(w, last, "      ", LINES_TOLD);
}

/* Those that are alike are told as the first of them. */
static void alike_find(writer *w) {
    for (int64_t i = 0; i < w->n; i++) {
        int64_t j = 0;
        while (j < i && (w->alike[j] != j || !are_alike(&w->ranks->all[j], &w->ranks->all[i]))) j++;
        w->alike[i] = j;
    }
}

/* Chooses a rank to be told, if there is room for one more. */
static void choose(writer *w, int64_t rank) {
    bool *chosen = &w->done[w->alike[rank]];
    if (*chosen || w->told == RANKS_TOLD) return;
    *chosen = 1;
    w->told++;
}

/* If not all can be told: the one that reports, those that are missing, those that wait in a circle, then the others.
 */
static void write_each(writer *w) {
    const int64_t n = w->n;
    alike_find(w);
    for (int64_t i = 0; i < n; i++) w->done[i] = 0;
    choose(w, w->rank);
    for (int64_t i = 0; i < n; i++)
        if (w->missing[i]) choose(w, i);
    for (int64_t i = w->begin; i < w->end; i++) choose(w, w->path[i]);
    for (int64_t i = 0; i < n; i++) choose(w, i);
    fprintf(w->to, "What each rank does:\n");
    for (int64_t i = 0; i < n; i++)
        if (w->done[i]) write_rank(w, i);
    for (int64_t i = 0; i < n; i++) w->group[i] = !w->done[w->alike[i]];
    if (chosen_count(w, w->group) == 0) return;
    fprintf(w->to, "  and %lld more: ", (long long)chosen_count(w, w->group));
    write_numbers(w, w->group);
    fprintf(w->to, "\n");
}

/* The whole */

static void write_ended(writer *w) {
    fprintf(w->to,
            "mpixla: rank %lld has come to the end of its script, and has waited there for longer than "
            "MPIXLA_TIMEOUT=%g allows for a process that cannot come, so the whole job ends.\n",
            (long long)w->rank, w->limit);
    for (int64_t i = 0; i < w->n; i++) w->missing[i] = is_lost(&w->ranks->all[i]);
    write_missing(w);
}

static void write_waiting(writer *w) {
    const state *s = &w->ranks->all[w->rank];
    const state_call *longest = &s->calls[0];
    for (int64_t i = 1; i < s->in_calls; i++)
        if (s->calls[i].milliseconds >= longest->milliseconds) longest = &s->calls[i];
    fprintf(w->to, "mpixla: rank %lld has waited for %.1f s in a call", (long long)w->rank,
            1e-3 * (double)longest->milliseconds);
    if (w->reason == REPORT_IN_VAIN)
        fprintf(w->to, " for a rank that is at the end of its script, so the whole job ends.\n");
    else if (w->reason == REPORT_DEADLOCK)
        fprintf(w->to, " that can never end, so the whole job ends.\n");
    else if (w->reason == REPORT_WORD && report_deadlock(w->ranks, w->rank))
        fprintf(w->to,
                ". It can never end, as it seems: if that is still so in %g s, the job ends. MPIXLA_TIMEOUT=0 turns "
                "this off.\n",
                w->limit);
    else if (w->reason == REPORT_WORD)
        fprintf(w->to,
                ", and goes on waiting; MPIXLA_TIMEOUT=seconds ends a job that waits for so long, and 0 turns this "
                "off.\n");
    else
        fprintf(w->to, ", longer than MPIXLA_TIMEOUT=%g allows, so the whole job ends.\n", w->limit);
    fprintf(w->to, "  It waits in %s.\n", longest->what);
    w->waits = rank_lacks(w->ranks, w->rank, w->lacks);
    if (!w->waits) {
        fputs(takes_a_stranger(w->ranks, longest)
                  ? "  The call takes ranks of another MPI_COMM_WORLD, which cannot be asked what they do.\n"
                  : "  All ranks that the call takes have come to it, and yet it does not end.\n",
              w->to);
        return;
    }
    follow(w);
    if (w->differing) write_difference(w);
    write_missing(w);
    circle_find(w);
    if (w->end > 0) write_circle(w);
    write_threads(w);
    write_check(w);
}

static void write_all(writer *w) {
    if (w->ranks->all[w->rank].in_calls > 0)
        write_waiting(w);
    else
        write_ended(w);
    write_each(w);
}

char *report_write(const report_ranks *ranks, int64_t rank, report_reason reason, double limit) {
    enum { FLAGS = 5 };
    char *text = NULL;
    size_t bytes = 0, n = (size_t)ranks->n;
    FILE *to = open_memstream(&text, &bytes);
    bool *flags = calloc(n, FLAGS * sizeof *flags);
    int64_t *numbers = calloc(n, 2 * sizeof *numbers);
    int is_complete = to && flags && numbers;
    writer w = {
        .to = to, .ranks = ranks, .n = ranks->n, .rank = rank, .reason = reason, .limit = limit, .lacks = ranks->room};
    if (is_complete) {
        w.reached = flags;
        w.missing = flags + n;
        w.done = flags + 2 * n;
        w.group = flags + 3 * n;
        w.doubtful = flags + 4 * n;
        w.path = numbers;
        w.alike = numbers + n;
        write_all(&w);
    }
    if (to && fclose(to) != 0) is_complete = 0;
    free(flags);
    free(numbers);
    if (is_complete) return text;
    free(text);
    return NULL;
}
