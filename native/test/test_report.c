/* Reports of made-up ranks. */
#include <stdlib.h>

#include "base/hash.h"
#include "check.h"
#include "check/check.h"
#include "mpi/comm.h"
#include "mpixla.h"
#include "watch/report.h"

enum { RANKS = 4, WORLD = 77, HALF = 88 };

static state all[RANKS];
static int room[RANKS];
static const report_ranks four = {.all = all, .n = RANKS, .room = room};
static const int64_t others[RANKS][RANKS - 1] = {{1, 2, 3}, {0, 2, 3}, {0, 1, 3}, {0, 1, 2}};
static state_peer peers[RANKS][2];
static state_comm comms[RANKS][1];

static void everybody_ends(void) {
    for (int i = 0; i < RANKS; i++)
        all[i] = (state){.rank = i,
                         .presence = STATE_HERE,
                         .ended = 1,
                         .left_ms = -1,
                         .has_all_comms = 1,
                         .where = "",
                         .python = "",
                         .last = ""};
}

/* A rank waits in a call. */
static state_call *put(int rank, const char *op, const char *what) {
    state *s = &all[rank];
    s->ended = 0;
    state_call *c = &s->calls[s->call_count++];
    *c = (state_call){.milliseconds = 1500,
                      .comm = WORLD,
                      .has_members = 1,
                      .root = -1,
                      .items = 3,
                      .bytes = 12,
                      .description = what,
                      .op = op,
                      .kind = "float32",
                      .site = "a.py:1",
                      .comm_name = "world",
                      .needed = others[rank],
                      .needs = RANKS - 1};
    return c;
}

static state_call *collective(int rank, const char *op, int64_t sequence) {
    state_call *c = put(rank, op, op);
    c->collective = 1;
    c->sequence = sequence;
    return c;
}

static state_call *message(int rank, int receives, int64_t peer, int64_t tag) {
    state_call *c = put(rank, receives ? "MPI_Recv" : "MPI_Send", receives ? "MPI_Recv" : "MPI_Send");
    peers[rank][0] = (state_peer){.rank = peer, .tag = tag, .receives = receives};
    c->peers = peers[rank];
    c->messages = 1;
    return c;
}

static const char *report_because(int rank, report_reason reason) {
    static char kept[1 << 16];
    char *text = report_write(&four, rank, reason, 1);
    snprintf(kept, sizeof kept, "%s", text ? text : "(none)");
    free(text);
    return kept;
}

static const char *report(int rank) {
    return report_because(rank, REPORT_LIMIT);
}

static void lacks(const char *text, const char *part) {
    CHECK(strstr(text, part) == NULL);
    if (strstr(text, part)) printf("%s\n", text);
}

static void a_rank_that_never_comes(void) {
    everybody_ends();
    for (int i = 0; i < 3; i++) (void)collective(i, "MPI_Allreduce", 4);
    CHECK(report_is_stuck(&four, 0));
    CHECK(!report_is_stuck(&four, 3));
    CHECK_IN(report(0), "mpixla: rank 0 has waited for 1.5 s in a call, longer than MPIXLA_TIMEOUT=1 allows");
    CHECK_IN(report(0), "  Rank 3 has not come: it is at the end of its script.\n");
    CHECK_IN(report(0),
             "  ranks 0 to 2; of rank 0:\n    in a call for 1.5 s: MPI_Allreduce (12 bytes)\n    waits for rank 3\n");
    lacks(report(0), "circle");
    all[3] = (state){.rank = 3,
                     .presence = STATE_HERE,
                     .percent = 99,
                     .where = "process 9 on a",
                     .last = "",
                     .python = "Python's main thread:\n  b.py:2 in f"};
    CHECK_IN(report(0),
             "  Rank 3 has not come: it is in no call of mpixla; in the last second it used 99 % of a processor.\n"
             "    Python's main thread:\n      b.py:2 in f\n");
    all[3].percent = -1;
    CHECK_IN(report(0), "it is in no call of mpixla.\n");
    all[3].presence = STATE_STOPPED;
    CHECK_IN(report(0), "Rank 3 has not come: its process is stopped (SIGSTOP, or a debugger): process 9 on a.\n");
    all[3].presence = STATE_DEAD;
    CHECK_IN(report(0), "Rank 3 has not come: its process is gone: process 9 on a.\n");
    all[3].presence = STATE_SILENT;
    CHECK_IN(report(0), "Rank 3 has not come: it does not answer: process 9 on a, which");
}

static void several_that_never_come(void) {
    everybody_ends();
    (void)collective(0, "MPI_Allreduce", 4);
    CHECK_IN(report(0), "  Ranks 1 to 3 have not come; the same is true of each: it is at the end of its script.\n");
    CHECK_IN(report(0), "    waits for ranks 1 to 3\n");
    (void)collective(2, "MPI_Allreduce", 4);
    CHECK_IN(report(0), "  Ranks 1 and 3 have not come");
}

static void circles(void) {
    everybody_ends();
    (void)message(0, 1, 1, 5);
    (void)message(1, 1, 0, 5);
    CHECK_IN(report(0), "in a circle: rank 0 waits for rank 1, rank 1 waits for rank 0.\n");
    CHECK_IN(report(1), "in a circle: rank 1 waits for rank 0, rank 0 waits for rank 1.\n");
    lacks(report(0), "has not come");
    everybody_ends();
    (void)message(0, 1, 1, 5); /* leads to the circle, and is not in it */
    (void)message(1, 0, 2, 5);
    (void)message(2, 0, 3, 5);
    (void)message(3, 0, 1, 5);
    CHECK_IN(report(0), "in a circle: rank 1 waits for rank 2, rank 2 waits for rank 3, rank 3 waits for rank 1.\n");
    everybody_ends();
    (void)message(0, 1, 0, 5);
    CHECK_IN(report(0), "Rank 0 waits for itself.\n");
}

static void a_chain(void) {
    everybody_ends();
    (void)message(0, 1, 1, 5);
    (void)message(1, 1, 2, 5);
    CHECK_IN(report(0), "  Rank 2 has not come: it is at the end of its script.\n");
    lacks(report(0), "Rank 1 has not come");
    lacks(report(0), "circle");
    lacks(report(0), "Rank 3");
    (void)message(2, 0, 3, 6);
    (void)message(3, 1, 2, MPIXLA_ANY_TAG); /* these two have met */
    CHECK_IN(report(0), "  Rank 2 has not come: it is in MPI_Send, to which all ranks that it takes have come.\n");
}

static void messages_that_meet(void) {
    everybody_ends();
    (void)message(0, 0, 1, 5);
    (void)message(1, 1, 0, 5);
    CHECK(!report_is_stuck(&four, 0) && !report_is_stuck(&four, 1));
    CHECK_IN(report(0), "All ranks that the call takes have come to it");
    peers[1][0].rank = MPIXLA_ANY_SOURCE;
    CHECK(!report_is_stuck(&four, 0) && !report_is_stuck(&four, 1));
    peers[1][0].tag = 6; /* the wrong one */
    CHECK(report_is_stuck(&four, 0) && report_is_stuck(&four, 1));
    peers[1][0].tag = MPIXLA_ANY_TAG;
    all[1].calls[0].comm = HALF; /* another communicator */
    CHECK(report_is_stuck(&four, 0) && report_is_stuck(&four, 1));
    all[1].calls[0].comm = WORLD;
    all[1].calls[0].pauses = 1; /* its GPU computes */
    CHECK(report_is_stuck(&four, 0));
    CHECK(!report_is_stuck(&four, 1)); /* it waits for nobody yet */
    CHECK_IN(report(0), "  Rank 1 has not come: its GPU is still at work on the program's steps before MPI_Recv.\n");
}

static void any_source(void) {
    everybody_ends();
    (void)message(2, 1, MPIXLA_ANY_SOURCE, MPIXLA_ANY_TAG);
    CHECK(report_is_stuck(&four, 2));
    CHECK_IN(report(2), "    waits for any of ranks 0, 1 and 3\n");
    (void)message(3, 0, 2, 1);
    CHECK(!report_is_stuck(&four, 2));
}

/* What is small has been sent: so a call that sends and receives waits for what it receives. */
static void both_ways(void) {
    everybody_ends();
    for (int i = 0; i < 2; i++) {
        (void)message(i, 0, 1 - i, 1);
        peers[i][1] = (state_peer){.rank = i + 2, .tag = 1, .receives = 1};
        all[i].calls[0].messages = 2;
    }
    CHECK_IN(report(0), "  Rank 2 has not come");
    lacks(report(0), "circle");
    lacks(report(0), "waits for rank 1");
}

/* What is large may wait for its receiver, while that which was received has come. */
static void large_both_ways(void) {
    everybody_ends();
    state_call *c = message(1, 0, 2, 1);
    peers[1][1] = (state_peer){.rank = 0, .tag = 1, .receives = 1};
    c->messages = 2;
    c->milliseconds = 5000;
    all[0].left_ms = 5000;
    CHECK(report_is_in_vain(&four, 1)); /* it is small */
    c->bytes = 4096;
    CHECK(!report_is_in_vain(&four, 1)); /* rank 2 may be late */
    all[2].call_count = 0;
    all[2].ended = 0;
    CHECK_IN(report(1),
             "  Rank 0 has not come, or come and gone: it is at the end of its script.\n"
             "  Rank 2 has not come, or come and gone: it is in no call of mpixla");
    CHECK_IN(report(1), "    waits for some of ranks 0 and 2\n");
    (void)message(0, 1, 1, 2); /* and now it waits for rank 1 */
    lacks(report(0), "circle");
    CHECK_IN(report(0), "  Rank 2 has not come, or come and gone: ");
    all[0].call_count = 0;
    all[2].left_ms = 5000;
    CHECK(report_is_in_vain(&four, 1));
}

static void calls_that_differ(void) {
    everybody_ends();
    for (int i = 0; i < RANKS; i++) (void)collective(i, i == 2 ? "MPI_Bcast" : "MPI_Reduce", 8);
    CHECK(report_is_stuck(&four, 0));
    CHECK_IN(report(0),
             "  Ranks 0 and 2 make different calls: collective call 9 on communicator 'world' is\n"
             "    on rank 0: MPI_Reduce\n    on rank 2: MPI_Bcast\n");
    CHECK_IN(report(2), "  Ranks 0 and 2 make different calls: collective call 9 on communicator 'world' is\n");
    lacks(report(0), "circle");
    lacks(report(0), "has not come");
    for (int field = 0; field < 3; field++) {
        everybody_ends();
        for (int i = 0; i < RANKS; i++) {
            state_call *c = collective(i, "MPI_Reduce", 8);
            if (i < 3) continue;
            if (field == 0) c->root = 1;
            if (field == 1) c->items = 4;
            if (field == 2) c->kind = "int32";
        }
        CHECK(report_is_stuck(&four, 1));
        CHECK_IN(report(1), "  Ranks 1 and 3 make different calls: collective call 9");
    }
}

/* One that was made and is over. */
static void a_call_that_differed(void) {
    const state_past past[] = {{.comm = WORLD, .sequence = 9, .op = (int64_t)hash_text("MPI_Barrier"), .line = 0},
                               {.comm = WORLD, .sequence = 8, .op = (int64_t)hash_text("MPI_Bcast"), .line = 1}};
    everybody_ends();
    for (int i = 0; i < 3; i++) (void)collective(i, "MPI_Reduce", 8);
    all[3].past = past;
    all[3].past_count = 2;
    all[3].last = "MPI_Barrier, later\nMPI_Bcast, the one\nMPI_Send, before";
    CHECK_IN(report(0), "    on rank 0: MPI_Reduce\n    on rank 3: MPI_Bcast, the one\n");
    CHECK_IN(report(0), "      MPI_Barrier, later\n      MPI_Bcast, the one\n      MPI_Send, before\n");
    all[3].in_newest = 1;
    lacks(report(0), "      MPI_Barrier, later\n");
}

/* Whoever has made the call already is not waited for. */
static void a_rank_that_went_on(void) {
    everybody_ends();
    (void)collective(1, "MPI_Bcast", 8);
    for (int i = 0; i < RANKS; i++) {
        comms[i][0] = (state_comm){.comm = WORLD, .calls = 9};
        all[i].comms = comms[i];
        all[i].comm_count = 1;
    }
    CHECK(!report_is_stuck(&four, 1));
    comms[2][0].calls = 8;
    CHECK(report_is_stuck(&four, 1));
    CHECK_IN(report(1), "    waits for rank 2\n");
    comms[2][0] = (state_comm){.comm = HALF, .calls = 100};
    CHECK(report_is_stuck(&four, 1));
    (void)collective(2, "MPI_Gather", 3); /* it is behind, and waits itself: for those who have ended */
    CHECK_IN(report(1), "    waits for rank 2\n");
}

static void sub_communicators(void) {
    static const int64_t one[] = {1}, three[] = {3};
    everybody_ends();
    state_call *c = collective(3, "MPI_Allreduce", 0), *k = collective(1, "MPI_Allreduce", 0);
    c->comm = k->comm = HALF;
    c->needed = one;
    k->needed = three;
    c->needs = k->needs = 1;
    CHECK(!report_is_stuck(&four, 1) && !report_is_stuck(&four, 3));
    k->comm = WORLD;
    CHECK_IN(report(3), "rank 3 waits for rank 1, rank 1 waits for rank 3");
}

static void moving(void) {
    everybody_ends();
    for (int i = 0; i < RANKS; i++) (void)collective(i, "MPI_Allreduce", 0);
    for (int i = 0; i < RANKS; i++) CHECK(!report_is_stuck(&four, i));
    CHECK_IN(report(0), "All ranks that the call takes have come to it, and yet it does not end.\n");
    all[2].calls[0].pauses = 1;
    CHECK_IN(report(0), "Rank 2 has not come: its GPU is still at work on the program's steps before MPI_Allreduce.\n");
}

/* The one that lacks somebody counts, not the one that lasts longest. */
static void several_threads(void) {
    everybody_ends();
    for (int i = 0; i < 2; i++) {
        state_call *c = collective(i, "MPI_Allreduce", 0);
        c->needs = 1; /* each other */
        c->milliseconds = 9000;
    }
    state_call *c = put(0, "MPI_Recv", "MPI_Recv");
    peers[0][0] = (state_peer){.rank = 3, .receives = 1};
    c->peers = peers[0];
    c->messages = 1;
    CHECK(report_is_stuck(&four, 0) && !report_is_stuck(&four, 1));
    CHECK_IN(report(0),
             "    in a call for 9.0 s: MPI_Allreduce (12 bytes)\n    in a call for 1.5 s: MPI_Recv (12 bytes)\n    "
             "waits for rank 3\n");
}

/* However many ranks there are, a report has some dozens of lines. */
static void many_ranks(void) {
    enum { MANY = 300, REPORTS = 299 };
    static state ring[MANY];
    static state_peer next[MANY];
    static char stacks[MANY][32];
    static int room_of_many[MANY];
    const report_ranks many = {.all = ring, .n = MANY, .room = room_of_many};
    for (int i = 0; i < MANY; i++) {
        next[i] = (state_peer){.rank = (i + 1) % MANY, .receives = 1};
        snprintf(stacks[i], sizeof stacks[i], "  in line %d", i);
        ring[i] =
            (state){.rank = i, .presence = STATE_HERE, .where = "", .python = stacks[i], .last = "", .call_count = 1};
        ring[i].calls[0] = (state_call){.milliseconds = 1500,
                                        .comm = WORLD,
                                        .description = "MPI_Recv",
                                        .op = "MPI_Recv",
                                        .kind = "",
                                        .site = "a.py:1",
                                        .comm_name = "",
                                        .peers = &next[i],
                                        .messages = 1};
    }
    char *text = report_write(&many, REPORTS, REPORT_LIMIT, 1);
    CHECK_IN(text, "in a circle: rank 299 waits for rank 0, rank 0 waits for rank 1, ");
    CHECK_IN(text, "rank 10 waits for rank 11, and so on through 287 more, rank 298 waits for rank 299.\n");
    CHECK_IN(text, "  rank 30:\n");
    CHECK_IN(text, "  rank 299:\n");
    lacks(text, "  rank 31:\n");
    CHECK_IN(text, "  and 268 more: 31 to 298\n");
    free(text);

    for (int i = 0; i < MANY; i++) ring[i].call_count = i == REPORTS;
    ring[REPORTS].calls[0].peers = &(state_peer){.rank = MPIXLA_ANY_SOURCE, .receives = 1};
    int64_t odd[MANY / 2];
    for (int i = 0; i < MANY / 2; i++) odd[i] = 2 * i;
    ring[REPORTS].calls[0].needed = odd;
    ring[REPORTS].calls[0].needs = MANY / 2;
    text = report_write(&many, REPORTS, REPORT_LIMIT, 1);
    CHECK_IN(text, "  Rank 30 has not come: it is in no call of mpixla");
    lacks(text, "  Rank 32 has not come");
    CHECK_IN(text, "  And 134 more have not come.\n");
    CHECK_IN(text, "    waits for any of ranks 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22 and 138 more\n");
    CHECK_IN(text, "  rank 60:\n");
    lacks(text, "  rank 62:\n");
    lacks(text, "  rank 1:\n");
    CHECK_IN(text, "  and 268 more: 1, 3, 5, ");
    free(text);
}

/* A call that takes a rank which has left never ends, but for what was sent before. */
static void in_vain(void) {
    everybody_ends();
    state_call *c = collective(0, "MPI_Allreduce", 4);
    c->milliseconds = 5000;
    CHECK(!report_is_in_vain(&four, 0)); /* they are at the end of their script, and may still use MPI there */
    all[2].left_ms = 5000;
    CHECK(report_is_in_vain(&four, 0));
    CHECK_IN(
        report_because(0, REPORT_IN_VAIN),
        "mpixla: rank 0 has waited for 5.0 s in a call for a rank that is at the end of its script, so the whole job "
        "ends.\n");
    all[2].left_ms = 100; /* it has just left, and so may have the call just behind it */
    CHECK(!report_is_in_vain(&four, 0));
    all[2].left_ms = 5000;
    c->milliseconds = 100;
    CHECK(!report_is_in_vain(&four, 0));
    c->milliseconds = 5000;
    comms[2][0] = (state_comm){.comm = WORLD, .calls = 5}; /* it has made the call */
    all[2].comms = comms[2];
    all[2].comm_count = 1;
    CHECK(!report_is_in_vain(&four, 0));
    comms[2][0].comm = WORLD + 1; /* or on one of the same kind, which it used in another order */
    CHECK(!report_is_in_vain(&four, 0));
    comms[2][0].calls = 4;
    CHECK(report_is_in_vain(&four, 0));
    comms[2][0] = (state_comm){.comm = WORLD + (INT64_C(1) << COMM_KEY_MEMBERS), .calls = 5};
    CHECK(report_is_in_vain(&four, 0));
    c->needs = 1; /* rank 1 alone */
    CHECK(!report_is_in_vain(&four, 0));

    everybody_ends();
    c = message(1, 1, 3, 0);
    c->milliseconds = 5000;
    all[2].left_ms = 5000;
    CHECK(!report_is_in_vain(&four, 1));
    all[3].left_ms = 5000;
    CHECK(report_is_in_vain(&four, 1));
    c->bytes = 100000000; /* which take their time */
    CHECK(!report_is_in_vain(&four, 1));
    c->milliseconds = all[3].left_ms = 15000;
    CHECK(report_is_in_vain(&four, 1));

    everybody_ends();
    c = message(0, 1, MPIXLA_ANY_SOURCE, 0);
    c->milliseconds = 5000;
    all[1].left_ms = all[2].left_ms = 5000;
    CHECK(!report_is_in_vain(&four, 0)); /* rank 3 may send it */
    all[3].left_ms = 5000;
    all[0].threads = 2;
    c->is_front_end = 1;
    CHECK(!report_is_in_vain(&four, 0)); /* or its own other thread */
    all[0].threads = -1;
    CHECK(!report_is_in_vain(&four, 0)); /* or nobody knows */
    all[0].threads = 1;
    CHECK(report_is_in_vain(&four, 0));
    c->is_front_end = 0; /* a thread of XLA's waits in the call, and that of Python's goes on */
    CHECK(!report_is_in_vain(&four, 0));
    all[0].threads = 0;
    CHECK(report_is_in_vain(&four, 0));
    static const int64_t needed[] = {1, -32766}; /* or a rank of another MPI_COMM_WORLD */
    c->needed = needed;
    c->needs = 2;
    CHECK(!report_is_in_vain(&four, 0));
}

/* That a rank which has left has not come to a call must be certain. */
static void in_vain_for_certain(void) {
    everybody_ends();
    state_call *c = collective(0, "MPI_Allreduce", 4);
    c->milliseconds = all[2].left_ms = 5000;
    comms[2][0] = (state_comm){.comm = HALF, .calls = 1};
    all[2].comms = comms[2];
    all[2].comm_count = 1;
    CHECK(report_is_in_vain(&four, 0)); /* it has never used the communicator */
    all[2].has_all_comms = 0;           /* but for one that is not in its list */
    CHECK(!report_is_in_vain(&four, 0));
    all[2].has_all_comms = 1;
    c->has_members = 0; /* and it may be another rank */
    CHECK(!report_is_in_vain(&four, 0));
    everybody_ends();
    c = message(1, 1, 3, 0);
    c->milliseconds = all[3].left_ms = 5000;
    CHECK(report_is_in_vain(&four, 1));
    c->has_members = 0;
    CHECK(!report_is_in_vain(&four, 1));
}

static void receive_in_a_circle(void) {
    everybody_ends();
    for (int i = 0; i < 2; i++) message(i, 1, 1 - i, 5)->number = 7 + i;
    (void)message(2, 1, 0, 5); /* leads to it */
    all[3].call_count = 0;
}

/* Circles that nothing ends have a number, the same for the same calls. */
static void deadlocks(void) {
    receive_in_a_circle();
    const uint64_t number = report_deadlock_hash(&four, 0);
    CHECK(number != 0);
    CHECK(report_deadlock_hash(&four, 1) == number && report_deadlock_hash(&four, 2) == number);
    CHECK(report_deadlock_hash(&four, 3) == 0); /* it waits for nobody */
    all[1].calls[0].number++;
    CHECK(report_deadlock_hash(&four, 0) != number && report_deadlock_hash(&four, 0) != 0);
    CHECK_IN(report_because(0, REPORT_WARNING),
             "in a call. It can never end, as it seems: if that is still so in 1 s, the job ends.");
    CHECK_IN(report_because(0, REPORT_DEADLOCK), "in a call that can never end, so the whole job ends.\n");
    for (int why = 0; why < 7; why++) {
        receive_in_a_circle();
        switch (why) {
            case 0:
                all[1].threads = 1;
                break; /* another thread goes on */
            case 1:
                all[0].threads = -1;
                break; /* maybe */
            case 2:
                all[0].requests = 1;
                break; /* which the other one may wait for */
            case 3:
                peers[1][0].rank = MPIXLA_ANY_SOURCE;
                break; /* rank 3 may send it */
            case 4:
                all[0].calls[0].has_members = 0;
                break; /* it may wait for another rank */
            case 5:
                all[0].calls[0].pauses = 1;
                break; /* its GPU computes */
            default:
                (void)collective(1, "MPI_Allreduce", 3)->milliseconds++; /* another call, which may end */
        }
        CHECK(report_deadlock_hash(&four, 0) == 0);
    }
    receive_in_a_circle();
    peers[0][1] = (state_peer){.rank = 3, .tag = 5, .receives = 1};
    all[0].calls[0].messages = 2; /* that of rank 1, or that of rank 3, may have come before */
    CHECK(report_deadlock_hash(&four, 0) == 0);
    CHECK(report_deadlock_hash(&four, 2) == 0);
    receive_in_a_circle();
    all[0].threads = all[0].calls[0].is_front_end = 1; /* that which waits in the call */
    CHECK(report_deadlock_hash(&four, 1) == number);
}

/* Of collective calls, too, where it is certain that the other one has not come. */
static void deadlocks_of_collective_calls(void) {
    static const int64_t one[] = {1};
    everybody_ends();
    state_call *c = collective(0, "MPI_Allreduce", 4);
    c->needed = one;
    c->needs = 1;
    (void)message(1, 1, 0, 5);
    CHECK(report_deadlock_hash(&four, 0) != 0);
    all[1].has_all_comms = 0;
    CHECK(report_deadlock_hash(&four, 0) == 0);
}

/* A process that is gone comes to no call. */
static void deadlocks_by_a_death(void) {
    everybody_ends();
    for (int i = 0; i < 3; i++) (void)collective(i, "MPI_Allreduce", 4);
    all[3].presence = STATE_SILENT;
    CHECK(report_deadlock_hash(&four, 0) == 0);
    all[3].presence = STATE_DEAD;
    CHECK(report_deadlock_hash(&four, 0) != 0 && report_deadlock_hash(&four, 1) != 0);
    all[0].calls[0].has_members = 0; /* it may lack another rank */
    CHECK(report_deadlock_hash(&four, 0) == 0);
}

/* Two threads of a rank make calls on one communicator. */
static void threads_are_told(void) {
    static const char hint[] = "  Several threads of rank 1 use one communicator, in no order: give each thread";
    everybody_ends();
    for (int i = 0; i < 2; i++) (void)collective(i, "MPI_Allreduce", 4 + i);
    lacks(report(0), "Several threads");
    all[1].calls[0].is_shared = 1; /* it has seen them */
    CHECK_IN(report(0), hint);
    all[1].calls[0].is_shared = 0;
    (void)collective(1, "MPI_Bcast", 6); /* or they are there now */
    CHECK_IN(report(0), hint);
}

/* Where ranks may have made other calls before, which were not compared, there is a way to find the first. */
static void checks_are_named(void) {
    static const char hint[] = "--check (MPIXLA_CHECK=1) compares all, and names the first line that differs.\n";
    everybody_ends();
    (void)collective(0, "MPI_Allreduce", 100);
    CHECK_IN(report(0), "  It is collective call 101 on communicator 'world', of which none was compared: ");
    atomic_store(&check_mode_now, CHECK_FIRST);
    CHECK_IN(report(0), "of which the first 64 were compared: one call more or less on a rank");
    CHECK_IN(report(0), hint);
    all[0].calls[0].sequence = 63;
    lacks(report(0), hint);
    all[0].calls[0].sequence = 100;
    atomic_store(&check_mode_now, CHECK_CALLS);
    lacks(report(0), hint);
    atomic_store(&check_mode_now, CHECK_OFF);
    everybody_ends();
    (void)message(0, 1, 1, 5);
    lacks(report(0), hint);
}

static void the_lowest_says_it(void) {
    everybody_ends();
    (void)collective(1, "MPI_Allreduce", 4);
    (void)collective(2, "MPI_Allreduce", 4);
    CHECK_INT(report_lowest_waiting_find(&four, 2, 1000), 1);
    all[1].calls[0].milliseconds = 900; /* it came later */
    CHECK_INT(report_lowest_waiting_find(&four, 2, 1000), 2);
    CHECK_INT(report_lowest_waiting_find(&four, 1, 1000), 1);
}

static void a_word(void) {
    everybody_ends();
    (void)collective(0, "MPI_Allreduce", 4);
    CHECK_IN(
        report_because(0, REPORT_WARNING),
        "mpixla: rank 0 has waited for 1.5 s in a call, and goes on waiting; MPIXLA_TIMEOUT=seconds ends a job that "
        "waits for so long, and 0 turns this off.\n  It waits in MPI_Allreduce.\n  Ranks 1 to 3 have not come");
}

/* Ranks of another MPI_COMM_WORLD, which are negative, cannot be asked whether they have come. */
static void strangers(void) {
    static const char stranger[] = "  The call takes ranks of another MPI_COMM_WORLD, whose calls are unknown here.\n";
    static const int64_t merged[] = {1, -32766};
    everybody_ends();
    state_call *c = collective(0, "MPI_Allreduce", 0), *k = collective(1, "MPI_Allreduce", 0);
    c->needed = merged;
    c->needs = 2;
    k->needs = 1; /* rank 0 */
    CHECK_IN(report(0), stranger);
    lacks(report(0), "All ranks that the call takes");
    CHECK_IN(report(1), "All ranks that the call takes");
    everybody_ends();
    (void)message(2, 1, -32766, 5);
    CHECK_IN(report(2), stranger);
    (void)message(1, 1, 2, 5);
    CHECK_IN(report(1), "Rank 2 has not come: it is in MPI_Recv, which takes ranks of another MPI_COMM_WORLD, whose");
}

/* A rank may say anything. */
static void nonsense(void) {
    static const int64_t wild[] = {-5, 1 << 30, 0};
    everybody_ends();
    state_call *c = collective(0, "MPI_Allreduce", 0);
    c->needed = wild;
    c->needs = 3;
    (void)report_is_stuck(&four, 0);
    (void)report(0);
    (void)message(1, 1, 1 << 30, 0);
    CHECK(!report_is_stuck(&four, 1));
    (void)report(1);
}

int main(void) {
    a_rank_that_never_comes();
    several_that_never_come();
    circles();
    a_chain();
    in_vain();
    in_vain_for_certain();
    deadlocks();
    deadlocks_of_collective_calls();
    deadlocks_by_a_death();
    threads_are_told();
    checks_are_named();
    a_word();
    the_lowest_says_it();
    messages_that_meet();
    any_source();
    both_ways();
    large_both_ways();
    calls_that_differ();
    a_call_that_differed();
    a_rank_that_went_on();
    sub_communicators();
    moving();
    several_threads();
    many_ranks();
    strangers();
    nonsense();
    return check_failures();
}
