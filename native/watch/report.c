/* The report traverses the wait-for graph. A waiting rank has an edge to each rank that its call lacks; of its several
 * calls, the one that has waited longest and lacks a rank. The cause is the ranks that can be reached from the
 * reporting rank and wait for no rank. If all ranks that can be reached wait, the graph has a cycle.
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

/* The report shows at most so many of each: that of a thousand ranks is no longer than that of some dozens. */
enum { LINES_SHOWN = 16, PYTHON_LINES_SHOWN = 24, ABSENCES_SHOWN = 16, STEPS_SHOWN = 12, RANKS_SHOWN = 32 };

/* How a rank stands to a call of another rank that needs it: it is in that call or has made it (ARRIVED), it is in or
 * has made another call in its place (DIFFERS), or none of these (MISSING). */
typedef enum arrival { ARRIVED, DIFFERS, MISSING } arrival;

/* Returns whether the number is a rank of MPI_COMM_WORLD: a number that another process has sent may be any. */
static int report_rank_exists(const report_ranks *ranks, int64_t rank) {
    return rank >= 0 && rank < ranks->n;
}

/* Returns whether a receive with tag `wanted` takes a message with tag `sent`. */
static int report_tags_match(int64_t sent, int64_t wanted) {
    return wanted == MPIXLA_ANY_TAG || wanted == sent;
}

/* Returns whether a call of `other` is the counterpart of this message of a call of `rank`: the receive of a send, or
 * the send of a receive. */
static int report_message_is_matched(const state *other, const state_call *c, const state_peer *p, int64_t rank) {
    for (int64_t i = 0; i < other->call_count; i++) {
        const state_call *k = &other->calls[i];
        if (k->comm != c->comm || k->pauses) continue;
        for (int64_t j = 0; j < k->messages; j++) {
            const state_peer *q = &k->peers[j];
            int names = q->rank == rank || (q->receives && q->rank == MPIXLA_ANY_SOURCE);
            int meets = p->receives ? report_tags_match(q->tag, p->tag) : report_tags_match(p->tag, q->tag);
            if (q->receives != p->receives && names && meets) return 1;
        }
    }
    return 0;
}

/* Sets `lacks` to MISSING for the ranks that a message of a call of `rank` waits for: its peer, or, if it may come from
 * any rank, all ranks that could send it. Returns their number; 0 if the other end has come. */
static int64_t report_message_find_missing(const report_ranks *ranks, int64_t rank, const state_call *c,
                                           const state_peer *p, int *lacks) {
    const int is_from_any = p->rank == MPIXLA_ANY_SOURCE;
    const int64_t *ends = is_from_any ? c->needed : &p->rank, n = is_from_any ? c->needs : 1;
    int64_t found = 0;
    for (int64_t i = 0; i < n; i++)
        if (report_rank_exists(ranks, ends[i]) && report_message_is_matched(&ranks->all[ends[i]], c, p, rank)) return 0;
    for (int64_t i = 0; i < n; i++) {
        if (!report_rank_exists(ranks, ends[i])) continue;
        lacks[ends[i]] = MISSING;
        found++;
    }
    return found;
}

/* Returns whether two collective calls differ in a fact that must be equal on all ranks. */
static int report_calls_differ(const state_call *a, const state_call *b) {
    return strcmp(a->op, b->op) != 0 || a->root != b->root || strcmp(a->kind, b->kind) != 0 || a->items != b->items;
}

/* Returns the call that a rank is in, and that has the number and communicator of collective call `c`; NULL if there is
 * none. */
static const state_call *report_counterpart_find(const state *s, const state_call *c) {
    for (int64_t i = 0; i < s->call_count; i++) {
        const state_call *k = &s->calls[i];
        if (k->collective && k->comm == c->comm && k->sequence == c->sequence) return k;
    }
    return NULL;
}

/* Returns the record of a past call that a rank has made with the number and communicator of collective call `c`; NULL
 * if there is none, or the rank has forgotten it. */
static const state_past *report_past_call_find(const state *s, const state_call *c) {
    for (int64_t i = 0; i < s->past_count; i++)
        if (s->past[i].comm == c->comm && s->past[i].sequence == c->sequence) return &s->past[i];
    return NULL;
}

/* Returns whether a rank has arrived at collective call `c` of another rank, has made a different call in its place, or
 * is missing. */
static arrival report_arrival_find(const state *other, const state_call *c) {
    const state_call *k = report_counterpart_find(other, c);
    if (k) return report_calls_differ(c, k) ? DIFFERS : k->pauses ? MISSING : ARRIVED;
    const state_past *past = report_past_call_find(other, c);
    if (past) return past->op != (int64_t)hash_text(c->op) ? DIFFERS : ARRIVED;
    for (int64_t i = 0; i < other->comm_count; i++)
        if (other->comms[i].comm == c->comm && other->comms[i].calls > c->sequence) return ARRIVED;
    return MISSING;
}

/* Sets `lacks` for the ranks that a collective call needs. Returns how many of them have not arrived. */
static int64_t report_collective_find_missing(const report_ranks *ranks, const state_call *c, int *lacks) {
    int64_t found = 0;
    for (int64_t i = 0; i < c->needs; i++) {
        int64_t other = c->needed[i];
        if (!report_rank_exists(ranks, other)) continue;
        lacks[other] = (int)report_arrival_find(&ranks->all[other], c);
        found += lacks[other] != ARRIVED;
    }
    return found;
}

/* Bytes: every MPI sends a message of so many before its receive is posted. */
enum { SENT_AT_ONCE = 1024 };

/* Sets `lacks`, the arrival of each rank, for a call of `rank`. Returns how many ranks have not arrived. */
static int64_t report_call_find_missing(const report_ranks *ranks, int64_t rank, const state_call *c, int *lacks) {
    int64_t found = 0;
    for (int64_t i = 0; i < ranks->n; i++) lacks[i] = ARRIVED;
    if (c->collective) return report_collective_find_missing(ranks, c, lacks);
    /* A call that sends without waiting, and receives, waits for the message that it receives. */
    for (int receives = 1; receives >= 0 && (found == 0 || c->bytes > SENT_AT_ONCE); receives--)
        for (int64_t i = 0; i < c->messages; i++)
            if (c->peers[i].receives == receives)
                found += report_message_find_missing(ranks, rank, c, &c->peers[i], lacks);
    return found;
}

/* Returns the call in which a rank has waited longest for others, with the arrival of each rank in `lacks`; NULL if the
 * rank waits for none. */
static const state_call *report_waiting_call_find(const report_ranks *ranks, int64_t rank, int *lacks) {
    const state *s = &ranks->all[rank];
    const state_call *longest = NULL;
    if (s->presence != STATE_HERE) return NULL;
    for (int64_t i = 0; i < s->call_count; i++) {
        const state_call *c = &s->calls[i];
        if (c->pauses || (longest && c->milliseconds <= longest->milliseconds)) continue;
        if (report_call_find_missing(ranks, rank, c, lacks) > 0) longest = c;
    }
    if (longest) (void)report_call_find_missing(ranks, rank, longest, lacks);
    return longest;
}

int report_is_stuck(const report_ranks *ranks, int64_t rank) {
    return report_waiting_call_find(ranks, rank, ranks->room) != NULL;
}

/* Returns whether the call receives from MPIXLA_ANY_SOURCE. */
static int report_call_is_from_any(const state_call *c) {
    int any = 0;
    for (int64_t i = 0; i < c->messages; i++) any |= c->peers[i].rank == MPIXLA_ANY_SOURCE;
    return any;
}

/* Returns whether some of the ranks that a call lacks may have done their part: the other end of one of its messages
 * has come and gone, while another message waits. */
static int report_peers_are_uncertain(const report_ranks *ranks, const state_call *c, const int *lacks) {
    int64_t lacking = 0;
    for (int64_t i = 0; i < ranks->n; i++) lacking += lacks[i] != ARRIVED;
    return !c->collective && lacking > 1 && !report_call_is_from_any(c);
}

/* Returns whether the call needs a rank of another MPI_COMM_WORLD, which cannot be asked. */
static int report_call_has_foreign_rank(const report_ranks *ranks, const state_call *c) {
    const int is_any = report_call_is_from_any(c);
    int found = 0;
    for (int64_t i = 0; (c->collective || is_any) && i < c->needs; i++)
        found |= !report_rank_exists(ranks, c->needed[i]);
    for (int64_t i = 0; !is_any && i < c->messages; i++) found |= !report_rank_exists(ranks, c->peers[i].rank);
    return found;
}

/* Returns whether another thread of the front end may make a call while this one waits, or that is unknown. */
static int report_rank_has_other_threads(const state *s, const state_call *c) {
    return s->threads != c->is_front_end;
}

/* Returns whether the rank may have made collective call `c`, on a communicator that may be the same one under another
 * number. */
static int report_rank_may_have_arrived(const state *other, const state_call *c) {
    for (int64_t i = 0; c->collective && i < other->comm_count; i++) {
        const state_comm *of = &other->comms[i];
        if (of->comm != c->comm && comm_keys_alike(of->comm, c->comm) && of->calls > c->sequence) return 1;
    }
    return 0;
}

/* Returns whether it is certain that a rank which call `c` lacks has not come to it. A communicator is listed from its
 * first use on, so one that is not in a complete list was not used. A message, which no rank counts, has had the time
 * to arrive. */
static int report_rank_is_absent(const state *other, const state_call *c) {
    if (!c->has_members) return 0; /* it is another rank, maybe */
    return !c->collective || (other->has_all_comms && !report_rank_may_have_arrived(other, c));
}

int report_is_in_vain(const report_ranks *ranks, int64_t rank) {
    /* A rank that has left may have sent the message before. It arrives within so many milliseconds, and one more for
     * each BYTES_PER_MS bytes. */
    enum { ARRIVAL_MS = 2000, BYTES_PER_MS = 10000 };
    const int *lacks = ranks->room;
    const state_call *c = report_waiting_call_find(ranks, rank, ranks->room);
    int64_t gone = 0, lacking = 0;
    for (int64_t i = 0; c && i < ranks->n; i++) {
        int64_t arrival_ms = ARRIVAL_MS + c->bytes / BYTES_PER_MS;
        lacking += lacks[i] == MISSING;
        gone += lacks[i] == MISSING && ranks->all[i].left_ms >= arrival_ms && c->milliseconds >= arrival_ms &&
                report_rank_is_absent(&ranks->all[i], c);
    }
    if (!c || gone == 0 || (report_call_is_from_any(c) && report_rank_has_other_threads(&ranks->all[rank], c)))
        return 0;
    return c->collective || (gone == lacking && !report_call_has_foreign_rank(ranks, c));
}

/* Returns the call in which a rank waits, if the rank can make no other call meanwhile, with the arrivals in
 * ranks->room; else NULL. */
static const state_call *report_only_call_find(const report_ranks *ranks, int64_t rank) {
    const state *s = &ranks->all[rank];
    const state_call *c = report_waiting_call_find(ranks, rank, ranks->room);
    return c && s->call_count == 1 && s->requests == 0 && !report_rank_has_other_threads(s, c) ? c : NULL;
}

/* Returns the first rank that certainly has not come to call `c`: one whose process is gone, or else one that is not in
 * the call; -1 if there is none. The arrivals must be in ranks->room. */
static int64_t report_absent_rank_find(const report_ranks *ranks, const state_call *c) {
    int64_t found = -1;
    for (int64_t i = 0; i < ranks->n; i++) {
        const state *other = &ranks->all[i];
        if (ranks->room[i] != MISSING || !c->has_members) continue;
        if (other->presence == STATE_DEAD) return i;
        if (found < 0 && other->presence == STATE_HERE && report_rank_is_absent(other, c)) found = i;
    }
    return found;
}

/* Returns the hash `number` combined with a call of `rank`. */
static uint64_t report_call_hash(uint64_t number, int64_t rank, const state_call *c) {
    number = hash_combine(number, (uint64_t)rank);
    return hash_combine(hash_combine(number, (uint64_t)c->thread), (uint64_t)c->number);
}

/* Returns the hash of the cycle of waiting ranks through rank `begin`, the same for each rank of the cycle; 0 if one of
 * these may make another call. */
static uint64_t report_cycle_hash(const report_ranks *ranks, int64_t begin) {
    int64_t lowest = begin, rank = begin;
    uint64_t number = 1;
    do {
        const state_call *c = report_only_call_find(ranks, rank);
        if (!c) return 0;
        rank = report_absent_rank_find(ranks, c);
        if (rank < lowest) lowest = rank;
    } while (rank != begin);
    rank = lowest;
    do {
        const state_call *c = report_only_call_find(ranks, rank);
        number = report_call_hash(number, rank, c);
        rank = report_absent_rank_find(ranks, c);
    } while (rank != lowest);
    return number;
}

uint64_t report_deadlock_hash(const report_ranks *ranks, int64_t rank) {
    /* After as many steps as there are ranks the path has been around a cycle, if it leads to one. */
    for (int64_t steps = 0; steps <= ranks->n; steps++) {
        const state_call *c = report_waiting_call_find(ranks, rank, ranks->room);
        if (!c || report_call_is_from_any(c) || report_peers_are_uncertain(ranks, c, ranks->room)) return 0;
        int64_t next = report_absent_rank_find(ranks, c);
        if (next < 0) return 0;
        if (ranks->all[next].presence == STATE_DEAD) return report_call_hash(report_call_hash(1, rank, c), next, c);
        rank = next;
    }
    return report_cycle_hash(ranks, rank);
}

int64_t report_lowest_waiting_find(const report_ranks *ranks, int64_t rank, int64_t milliseconds) {
    int64_t lowest = 0;
    for (; lowest < rank; lowest++) {
        const state_call *c = report_waiting_call_find(ranks, lowest, ranks->room);
        if (c && c->milliseconds >= milliseconds) break;
    }
    return lowest;
}

/* Returns whether the rank's process is stopped or gone. */
static int report_rank_is_lost(const state *s) {
    return s->presence == STATE_STOPPED || s->presence == STATE_DEAD;
}

int report_has_lost(const report_ranks *ranks) {
    int lost = 0;
    for (int64_t i = 0; i < ranks->n; i++) lost |= report_rank_is_lost(&ranks->all[i]);
    return lost;
}

/* Text */

/* All arrays are by rank. */
typedef struct writer {
    FILE *to;
    const report_ranks *ranks;
    int64_t n;    /* ranks */
    int64_t rank; /* that reports */
    report_reason reason;
    double limit;
    int *lacks;                  /* as the last report_waiting_call_find has set it */
    bool *reached, *missing;     /* from `rank`; and it waits for no rank */
    bool *uncertain;             /* reached only by calls whose peers are uncertain */
    bool *done, *group;          /* ranks that are written, and that are written together now */
    int64_t chosen;              /* ranks that are chosen to be shown */
    int64_t *alike;              /* the first rank that is alike */
    int64_t *path, begin, end;   /* path[begin] to path[end - 1] are the cycle; end is 0 if there is none */
    const state_call *differing; /* the call of differ[0] that differs from that of differ[1]; NULL: none does */
    int64_t differ[2];
    const state_call *waits; /* the call through which `rank` waits */
} writer;

/* Returns the number of ranks that are set in `chosen`. */
static int64_t report_ranks_count(const writer *w, const bool *chosen) {
    int64_t n = 0;
    for (int64_t i = 0; i < w->n; i++) n += chosen[i];
    return n;
}

/* Writes the chosen ranks as ranges: "0, 2 and 5 to 9". */
static void report_write_numbers(const writer *w, const bool *chosen) {
    char text[TEXT_RANGES * 64] = "";
    (void)text_add_ranks(text, sizeof text, 0, chosen, w->n);
    fputs(text, w->to);
}

/* Writes "rank 3", or "ranks 0, 2 and 5 to 9", with `word` for "rank". */
static void report_write_ranks(const writer *w, const char *word, const bool *chosen) {
    fprintf(w->to, "%s%s ", word, report_ranks_count(w, chosen) > 1 ? "s" : "");
    report_write_numbers(w, chosen);
}

/* Writes the first `most` lines of a text, each with `before` in front. */
static void report_write_lines(const writer *w, const char *text, const char *before, int most) {
    for (int i = 0; *text && i < most; i++) {
        size_t length = strcspn(text, "\n");
        fprintf(w->to, "%s%.*s\n", before, (int)length, text);
        text += length + (text[length] == '\n');
    }
}

/* Returns the address in the text behind its first `line` lines. */
static const char *report_lines_skip(const char *text, int64_t line) {
    for (; line > 0 && *text; line--) {
        text += strcspn(text, "\n");
        text += *text == '\n';
    }
    return text;
}

/* Missing ranks */

/* Writes the reason why a rank that waits for no other rank does not come to a call. */
static void report_write_absence(const writer *w, const state *s) {
    const state_call *c = s->call_count > 0 ? &s->calls[0] : NULL;
    const char *where = *s->where ? s->where : "unknown process";
    if (s->presence == STATE_STOPPED)
        fprintf(w->to, "its process is stopped (SIGSTOP, or a debugger): %s", where);
    else if (s->presence == STATE_DEAD)
        fprintf(w->to, "its process is gone: %s", where);
    else if (s->presence == STATE_SILENT)
        fprintf(w->to, "it does not answer: %s, which has left MPI, has lost its connection, or is held up as a whole",
                where);
    else if (c && c->pauses)
        fprintf(w->to, "its GPU is still at work on the program's steps before %s", c->description);
    else if (c && report_call_has_foreign_rank(w->ranks, c))
        fprintf(w->to, "it is in %s, which takes ranks of another MPI_COMM_WORLD, whose calls are unknown here",
                c->description);
    else if (c)
        fprintf(w->to, "it is in %s, to which all ranks that it takes have come", c->description);
    else if (s->ended)
        fprintf(w->to, "it is at the end of its script");
    else if (s->percent < 0)
        fprintf(w->to, "it is in no call of mpixla");
    else
        fprintf(w->to, "it is in no call of mpixla; in the last second it used %lld %% of a processor",
                (long long)s->percent);
}

/* Returns whether two ranks are missing for the same reason, so that one line serves both. */
static int report_absences_equal(const state *a, const state *b) {
    if (a->presence != b->presence || a->presence != STATE_HERE) return 0;
    if (a->call_count != b->call_count || a->ended != b->ended) return 0;
    if (a->call_count > 0) return strcmp(a->calls[0].description, b->calls[0].description) == 0;
    return a->ended || (strcmp(a->python, b->python) == 0 && (a->percent >= 20) == (b->percent >= 20));
}

/* Writes the ranks that the report has found missing, in ABSENCES_SHOWN groups at most, each with the reason. */
static void report_write_missing(writer *w) {
    const state *all = w->ranks->all;
    int64_t n = w->n, left = report_ranks_count(w, w->missing), groups = 0;
    for (int64_t i = 0; i < n; i++) w->done[i] = !w->missing[i];
    for (int64_t i = 0; i < n; i++) {
        if (w->done[i]) continue;
        if (groups++ == ABSENCES_SHOWN) {
            fprintf(w->to, "  And %lld more have not come.\n", (long long)left);
            break;
        }
        for (int64_t j = 0; j < n; j++) {
            int equal = w->uncertain[i] == w->uncertain[j] && report_absences_equal(&all[i], &all[j]);
            w->group[j] = !w->done[j] && (j == i || equal);
            w->done[j] |= w->group[j];
        }
        left -= report_ranks_count(w, w->group);
        fputs("  ", w->to);
        report_write_ranks(w, "Rank", w->group);
        int several = report_ranks_count(w, w->group) > 1;
        fprintf(w->to, several ? " have not come%s; the same is true of each: " : " has not come%s: ",
                w->uncertain[i] ? ", or come and gone" : "");
        report_write_absence(w, &all[i]);
        fputs(".\n", w->to);
        int speaks = all[i].presence == STATE_HERE && all[i].call_count == 0 && !all[i].ended;
        if (speaks) report_write_lines(w, all[i].python, "    ", PYTHON_LINES_SHOWN);
    }
}

/* Calls that differ */

/* Writes the call that a rank is in, or has made, in the place of collective call `c` of another rank. */
static void report_write_counterpart(const writer *w, int64_t rank, const state_call *c) {
    const state *s = &w->ranks->all[rank];
    const state_call *k = report_counterpart_find(s, c);
    const state_past *past = k ? NULL : report_past_call_find(s, c);
    const char *line = k ? k->description : past ? report_lines_skip(s->last, past->line) : "";
    fprintf(w->to, "    on rank %lld: %.*s\n", (long long)rank, (int)strcspn(line, "\n"), line);
}

/* Writes the first two ranks whose calls differ, with both calls, the lower rank first: the text is the same on each
 * rank. */
static void report_write_difference(const writer *w) {
    const state_call *c = w->differing;
    int64_t a = w->differ[0], b = w->differ[1], low = a < b ? a : b, high = a < b ? b : a;
    fprintf(w->to, "  Ranks %lld and %lld make different calls: collective call %lld on communicator '%s' is\n",
            (long long)low, (long long)high, (long long)c->sequence + 1, c->comm_name);
    report_write_counterpart(w, low, c);
    report_write_counterpart(w, high, c);
}

/* Threads */

/* Returns whether two threads of a rank use the communicator of one of its calls, now or earlier. */
static int report_rank_shares_comm(const state *s) {
    int found = 0;
    for (int64_t i = 0; i < s->call_count; i++) {
        found |= s->calls[i].is_shared != 0;
        for (int64_t j = 0; j < i; j++) found |= s->calls[i].comm == s->calls[j].comm;
    }
    return found;
}

/* Writes the ranks that use a communicator in several threads, as the likely reason. */
static void report_write_shared_comms(const writer *w) {
    for (int64_t i = 0; i < w->n; i++) w->group[i] = w->reached[i] && report_rank_shares_comm(&w->ranks->all[i]);
    if (report_ranks_count(w, w->group) == 0) return;
    fputs("  Several threads of ", w->to);
    report_write_ranks(w, "rank", w->group);
    fputs(" use one communicator, in no order: give each thread a communicator of its own.\n", w->to);
}

/* Checks */

/* Writes the advice to run with --check, if the call is collective and calls before it were not compared. */
static void report_write_check_advice(const writer *w) {
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

/* Cycles */

/* Finds a cycle of ranks that wait for each other, and sets w->path, begin and end; leaves end at 0 if there is none.
 * Goes from the reporting rank to one that it waits for, and so on, but to none that is missing, and by no call whose
 * peers are uncertain. If all ranks on the path wait, one comes twice, where the cycle closes. */
static void report_cycle_find(writer *w) {
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
        const state_call *c = report_waiting_call_find(w->ranks, rank, w->lacks);
        if (!c || report_peers_are_uncertain(w->ranks, c, w->lacks)) return;
        for (rank = 0; rank < n; rank++)
            if (w->lacks[rank] == MISSING && !w->missing[rank]) break;
    }
}

/* Writes the cycle: each rank, and the rank that it waits for. */
static void report_write_cycle(const writer *w) {
    if (w->end - w->begin == 1) {
        fprintf(w->to, "  Rank %lld waits for itself.\n", (long long)w->path[w->begin]);
        return;
    }
    fprintf(w->to, "  These ranks wait for each other in a circle:");
    for (int64_t i = w->begin; i < w->end; i++) {
        if (i - w->begin == STEPS_SHOWN && w->end - i > 2) { /* the last closes the cycle */
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

/* Traverses the graph from the reporting rank, breadth first: sets the ranks that it reaches, those of them that are
 * missing, and the first calls that differ. */
static void report_graph_traverse(writer *w) {
    int64_t *queue = w->path, first = 0, last = 0;
    queue[last++] = w->rank;
    w->reached[w->rank] = 1;
    while (first < last) {
        int64_t rank = queue[first++];
        const state_call *c = report_waiting_call_find(w->ranks, rank, w->lacks);
        if (!c) w->missing[rank] = 1;
        const int uncertain = c && report_peers_are_uncertain(w->ranks, c, w->lacks);
        for (int64_t i = 0; c && i < w->n; i++) {
            if (w->lacks[i] == ARRIVED) continue;
            if (w->lacks[i] == DIFFERS && !w->differing) {
                w->differing = c;
                w->differ[0] = rank;
                w->differ[1] = i;
            }
            int has_come = w->lacks[i] == DIFFERS && w->ranks->all[i].call_count > 0; /* to a call of its own */
            w->uncertain[i] = uncertain && (!w->reached[i] || w->uncertain[i]);
            if (has_come || w->reached[i]) continue;
            w->reached[i] = 1;
            queue[last++] = i;
        }
    }
}

/* Each rank */

/* Returns whether two ranks wait in the same collective call at the same line, and do nothing else: one stands for
 * both. */
static int report_ranks_are_alike(const state *a, const state *b) {
    if (a->presence != b->presence || a->call_count != b->call_count || a->ended != b->ended || a->call_count != 1)
        return 0;
    const state_call *c = &a->calls[0], *k = &b->calls[0];
    return c->collective && k->collective && c->comm == k->comm && c->sequence == k->sequence &&
           c->pauses == k->pauses && !report_calls_differ(c, k) && strcmp(c->site, k->site) == 0;
}

/* Writes the ranks that a rank waits for: "waits for rank 3". */
static void report_write_awaited(writer *w, int64_t rank) {
    const state_call *c = report_waiting_call_find(w->ranks, rank, w->lacks);
    if (!c) return;
    for (int64_t i = 0; i < w->n; i++) w->group[i] = w->lacks[i] != ARRIVED;
    fprintf(w->to, "    waits for %s",
            report_call_is_from_any(c)                          ? "any of "
            : report_peers_are_uncertain(w->ranks, c, w->lacks) ? "some of "
                                                                : "");
    report_write_ranks(w, "rank", w->group);
    fprintf(w->to, "\n");
}

/* Writes a call that a rank is in. */
static void report_write_call(const writer *w, const state *s, const state_call *c) {
    if (c->pauses)
        fprintf(w->to, "    its GPU computes the program's steps before %s (%lld bytes)\n", c->description,
                (long long)c->bytes);
    else
        fprintf(w->to, "    in a call for %.1f s: %s (%lld bytes)\n", 1e-3 * (double)c->milliseconds, c->description,
                (long long)c->bytes);
    if (!*c->site) report_write_lines(w, s->python, "      ", PYTHON_LINES_SHOWN);
}

/* Writes the calls of a rank, and the numbers of the ranks that it stands for. */
static void report_write_rank(writer *w, int64_t rank) {
    const state *s = &w->ranks->all[rank];
    for (int64_t i = 0; i < w->n; i++) w->group[i] = w->alike[i] == rank;
    fputs("  ", w->to);
    report_write_ranks(w, "rank", w->group);
    if (report_ranks_count(w, w->group) > 1) fprintf(w->to, "; of rank %lld", (long long)rank);
    fprintf(w->to, "%s%s%s:\n", *s->where ? " (" : "", s->where, *s->where ? ")" : "");
    for (int64_t i = 0; i < s->call_count; i++) report_write_call(w, s, &s->calls[i]);
    report_write_awaited(w, rank);
    if (s->presence != STATE_HERE || s->call_count == 0) {
        fprintf(w->to, "    ");
        report_write_absence(w, s);
        fprintf(w->to, "\n");
    }
    if (s->ended && s->call_count > 0) fprintf(w->to, "    its script has ended\n");
    const char *last = report_lines_skip(s->last, s->in_newest != 0); /* a newest call that has not ended is above */
    if (*last) fprintf(w->to, "    its last calls, the newest first:\n");
    report_write_lines(w, last, "      ", LINES_SHOWN);
}

/* Sets w->alike: of ranks that are alike, the first stands for all. */
static void report_ranks_group(writer *w) {
    for (int64_t i = 0; i < w->n; i++) {
        int64_t j = 0;
        while (j < i && (w->alike[j] != j || !report_ranks_are_alike(&w->ranks->all[j], &w->ranks->all[i]))) j++;
        w->alike[i] = j;
    }
}

/* Marks a rank, or the one that stands for it (w->alike), to be shown, unless RANKS_SHOWN are marked. */
static void report_rank_choose(writer *w, int64_t rank) {
    bool *chosen = &w->done[w->alike[rank]];
    if (*chosen || w->chosen == RANKS_SHOWN) return;
    *chosen = 1;
    w->chosen++;
}

/* Writes the calls of each rank. If not all can be shown: the reporting rank, the missing ranks, the cycle, the others.
 */
static void report_write_each_rank(writer *w) {
    const int64_t n = w->n;
    report_ranks_group(w);
    for (int64_t i = 0; i < n; i++) w->done[i] = 0;
    report_rank_choose(w, w->rank);
    for (int64_t i = 0; i < n; i++)
        if (w->missing[i]) report_rank_choose(w, i);
    for (int64_t i = w->begin; i < w->end; i++) report_rank_choose(w, w->path[i]);
    for (int64_t i = 0; i < n; i++) report_rank_choose(w, i);
    fprintf(w->to, "What each rank does:\n");
    for (int64_t i = 0; i < n; i++)
        if (w->done[i]) report_write_rank(w, i);
    for (int64_t i = 0; i < n; i++) w->group[i] = !w->done[w->alike[i]];
    if (report_ranks_count(w, w->group) == 0) return;
    fprintf(w->to, "  and %lld more: ", (long long)report_ranks_count(w, w->group));
    report_write_numbers(w, w->group);
    fprintf(w->to, "\n");
}

/* The whole */

/* Writes the reason why a rank that waits at the end of its script ends the job. */
static void report_write_ended(writer *w) {
    fprintf(w->to,
            "mpixla: rank %lld has come to the end of its script, and has waited there for longer than "
            "MPIXLA_TIMEOUT=%g allows for a process that cannot come, so the whole job ends.\n",
            (long long)w->rank, w->limit);
    for (int64_t i = 0; i < w->n; i++) w->missing[i] = report_rank_is_lost(&w->ranks->all[i]);
    report_write_missing(w);
}

/* Writes the call in which the reporting rank waits, and the cause: missing ranks, differing calls, or a cycle. */
static void report_write_waiting(writer *w) {
    const state *s = &w->ranks->all[w->rank];
    const state_call *longest = &s->calls[0];
    for (int64_t i = 1; i < s->call_count; i++)
        if (s->calls[i].milliseconds >= longest->milliseconds) longest = &s->calls[i];
    fprintf(w->to, "mpixla: rank %lld has waited for %.1f s in a call", (long long)w->rank,
            1e-3 * (double)longest->milliseconds);
    if (w->reason == REPORT_IN_VAIN)
        fprintf(w->to, " for a rank that is at the end of its script, so the whole job ends.\n");
    else if (w->reason == REPORT_DEADLOCK)
        fprintf(w->to, " that can never end, so the whole job ends.\n");
    else if (w->reason == REPORT_WARNING && report_deadlock_hash(w->ranks, w->rank))
        fprintf(w->to,
                ". It can never end, as it seems: if that is still so in %g s, the job ends. MPIXLA_TIMEOUT=0 turns "
                "this off.\n",
                w->limit);
    else if (w->reason == REPORT_WARNING)
        fprintf(w->to,
                ", and goes on waiting; MPIXLA_TIMEOUT=seconds ends a job that waits for so long, and 0 turns this "
                "off.\n");
    else
        fprintf(w->to, ", longer than MPIXLA_TIMEOUT=%g allows, so the whole job ends.\n", w->limit);
    fprintf(w->to, "  It waits in %s.\n", longest->description);
    w->waits = report_waiting_call_find(w->ranks, w->rank, w->lacks);
    if (!w->waits) {
        fputs(report_call_has_foreign_rank(w->ranks, longest)
                  ? "  The call takes ranks of another MPI_COMM_WORLD, whose calls are unknown here.\n"
                  : "  All ranks that the call takes have come to it, and yet it does not end.\n",
              w->to);
        return;
    }
    report_graph_traverse(w);
    if (w->differing) report_write_difference(w);
    report_write_missing(w);
    report_cycle_find(w);
    if (w->end > 0) report_write_cycle(w);
    report_write_shared_comms(w);
    report_write_check_advice(w);
}

/* Writes the whole report: its reason, and the calls of each rank. */
static void report_write_all(writer *w) {
    if (w->ranks->all[w->rank].call_count > 0)
        report_write_waiting(w);
    else
        report_write_ended(w);
    report_write_each_rank(w);
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
        w.uncertain = flags + 4 * n;
        w.path = numbers;
        w.alike = numbers + n;
        report_write_all(&w);
    }
    if (to && fclose(to) != 0) is_complete = 0;
    free(flags);
    free(numbers);
    if (is_complete) return text;
    free(text);
    return NULL;
}
