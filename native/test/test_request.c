#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "call.h"
#include "check.h"
#include "fixture.h"
#include "handler.h"
#include "ops/request.h"
#include "run.h"
#include "scarce.h"

static call c;
static float id[4];

static void start_make(call *s, const char *op, int64_t comm, int64_t root, float *to) {
    call_make(s, op, comm, root);
    s->sides[CALL_RESULTS].buffers[0].data = to;
}

static void wait_make(call *w, const char *op, float *from, int64_t count) {
    call_make(w, op, FIXTURE_RANK0, 0);
    w->sides[CALL_OPERANDS].buffers[0].data = from;
    if (strcmp(op, "wait_recv") == 0) call_count_set(w, CALL_OPERANDS, 1, count);
    if (strcmp(op, "wait_send") != 0) call_count_set(w, CALL_RESULTS, 0, count);
}

static const char *start(const char *op) {
    start_make(&c, op, FIXTURE_RANK0, 0, id);
    return call_run(&c);
}

static const char *wait_for(const char *op, int64_t count) {
    wait_make(&c, op, id, count);
    memset(c.template_, 0x11, sizeof c.template_);
    return call_run(&c);
}

static const char *waits_of(const char *op) {
    return strcmp(op, "isend") == 0 || strcmp(op, "ibarrier") == 0    ? "wait_send"
           : strcmp(op, "irecv") == 0 || strcmp(op, "isendrecv") == 0 ? "wait_recv"
                                                                      : "wait";
}

/* MPI's functions and all their arguments, on copies of the data, which are copied out in the end. */
static void starts_and_waits(void) {
    static const struct {
        const char *op;
        int64_t comm, root;
        const char *call;
        int64_t sent, received; /* items */
    } rows[] = {
        {"iallgather", FIXTURE_RANK0, 0, "MPI_Iallgather 3 t11 to 3 t11 c2", 3, 12},
        {"iallreduce", FIXTURE_RANK2, 0, "MPI_Iallreduce 3 t11 op 100 c3", 3, 3},
        {"ialltoall", FIXTURE_RANK0, 0, "MPI_Ialltoall 3 t11 to 3 t11 c2", 12, 12},
        {"ialltoallv", FIXTURE_RANK0, 0, "MPI_Ialltoallv (3 3 3 3 @ 0 3 6 9) t11 to (3 3 3 3 @ 0 3 6 9) t11 c2", 12,
         12},
        {"ibarrier", FIXTURE_RANK0, 0, "MPI_Ibarrier c2", 0, 0},
        {"ibcast", FIXTURE_RANK0, 0, "MPI_Ibcast 3 t11 root 0 c2", 3, 3},
        {"ibcast", FIXTURE_RANK2, 0, "MPI_Ibcast 3 t11 root 0 c3", 0, 3},
        {"iexscan", FIXTURE_RANK2, 0, "MPI_Iexscan 3 t11 op 100 c3", 3, 3},
        {"igather", FIXTURE_RANK0, 0, "MPI_Igather 3 t11 to 3 t11 root 0 c2", 3, 12},
        {"irecv", FIXTURE_RANK0, 0, "MPI_Irecv 12 t6 <- 2 tag 8 c2", 0, 3},
        {"ireduce", FIXTURE_RANK0, 0, "MPI_Ireduce 3 t11 op 100 root 0 c2", 3, 3},
        {"ireduce_scatter", FIXTURE_RANK0, 0, "MPI_Ireduce_scatter_block 3 t11 op 100 c2", 12, 3},
        {"iscan", FIXTURE_RANK2, 0, "MPI_Iscan 3 t11 op 100 c3", 3, 3},
        {"iscatter", FIXTURE_RANK0, 0, "MPI_Iscatter 3 t11 to 3 t11 root 0 c2", 12, 3},
        {"iscatter", FIXTURE_RANK2, 0, "MPI_Iscatter 3 t11 to 3 t11 root 0 c3", 0, 3},
        {"isend", FIXTURE_RANK0, 0, "MPI_Isend 3 t11 -> 1 tag 7 c2", 3, 0},
        {"isendrecv", FIXTURE_RANK0, 0, "MPI_Isend 3 t11 -> 1 tag 7 c2", 3, 3},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int both = strcmp(rows[i].op, "isendrecv") == 0, before = fake->calls;
        start_make(&c, rows[i].op, rows[i].comm, rows[i].root, id);
        memset(c.send, 0x22, sizeof c.send);
        CHECK_STR(call_run(&c), "");
        CHECK_INT(fake->calls, before + 1 + both);
        CHECK_STR(fake->call, rows[i].call);
        CHECK(id[0] >= 1 && id[1] >= 1);
        /* What MPI reads is a copy, and not XLA's. */
        CHECK(fake->send != c.send && fake->recv != c.recv && fake->recv != c.template_);
        if (rows[i].sent > 0) {
            CHECK(fake->send != NULL && memcmp(fake->send, c.send, (size_t)rows[i].sent * 4) == 0);
            memset(c.send, 0x33, sizeof c.send);
            CHECK_INT(*(const char *)fake->send, 0x22);
        }
        fake->arrived_bytes = (size_t)rows[i].received * 4;
        CHECK_STR(wait_for(waits_of(rows[i].op), rows[i].received), "");
        CHECK_INT(fake->calls, before + 1 + both);
        for (int64_t b = 0; b < rows[i].received * 4; b++) CHECK_INT(c.recv[b], 0x7f);
        CHECK_INT(c.recv[rows[i].received * 4], 0);
    }
    fake->arrived_bytes = 0;
}

/* Off the root the result is what was sent. */
static void gives_back_off_the_root(void) {
    static const char *const rows[][2] = {{"igather", "MPI_Igather 3 t11 to 3 t11 root 0 c3"},
                                          {"ireduce", "MPI_Ireduce 3 t11 op 100 root 0 c3"}};
    for (int i = 0; i < 2; i++) {
        start_make(&c, rows[i][0], FIXTURE_RANK2, 0, id);
        memset(c.send, 0x22, sizeof c.send);
        CHECK_STR(call_run(&c), "");
        CHECK_STR(fake->call, rows[i][1]);
        CHECK(fake->send != c.send && fake->recv == NULL);
        memset(c.send, 0x33, sizeof c.send);
        CHECK_STR(wait_for("wait", CALL_COUNT), "");
        for (int b = 0; b < CALL_BYTES; b++) CHECK_INT(c.recv[b], b < CALL_COUNT * 4 ? 0x22 : 0);
    }
}

/* A large reduction that is started needs a function of MPI 4.0. */
static void starts_large_reductions(void) {
    static const struct {
        const char *op, *large, *without;
    } rows[] = {
        {"iallreduce", "MPI_Iallreduce_c 3 t11 op 100 c2",
         "r0 | MPI_Iallreduce was called with more than 2 items, for which this MPI has no function (MPI_Iallreduce_c "
         "is of MPI 4.0): send the array in pieces"},
        {"iexscan", "MPI_Iexscan_c 3 t11 op 100 c2",
         "r0 | MPI_Iexscan was called with more than 2 items, for which this MPI has no function (MPI_Iexscan_c is of "
         "MPI 4.0): send the array in pieces"},
        {"ireduce", "MPI_Ireduce_c 3 t11 op 100 root 0 c2",
         "r0 | MPI_Ireduce was called with more than 2 items, for which this MPI has no function (MPI_Ireduce_c is of "
         "MPI 4.0): send the array in pieces"},
        {"iscan", "MPI_Iscan_c 3 t11 op 100 c2",
         "r0 | MPI_Iscan was called with more than 2 items, for which this MPI has no function (MPI_Iscan_c is of MPI "
         "4.0): send the array in pieces"},
        {"ireduce_scatter", "MPI_Ireduce_scatter_block_c 3 t11 op 100 c2",
         "r0 | MPI_Ireduce_scatter_block was called with more than 2 items, for which this MPI has no function "
         "(MPI_Ireduce_scatter_block_c is of MPI 4.0): send the array in pieces"},
    };
    mpixla_count_limit_set(2);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int before = fake->calls;
        CHECK_STR(start(rows[i].op), fake->has_large ? "" : rows[i].without);
        CHECK_INT(fake->calls - before, fake->has_large);
        if (!fake->has_large) continue;
        CHECK_STR(fake->call, rows[i].large);
        CHECK_STR(wait_for("wait", CALL_COUNT), "");
    }
    mpixla_count_limit_set(INT_MAX);
}

static void keeps_the_template(void) {
    for (int64_t arrived = 0; arrived <= CALL_COUNT; arrived++) {
        CHECK_STR(start("irecv"), "");
        fake->missing = 4 * (CALL_COUNT - arrived);
        fake->arrived_bytes = (size_t)arrived * 4;
        CHECK_STR(wait_for("wait_recv", CALL_COUNT), "");
        for (int64_t b = 0; b < CALL_COUNT * 4; b++) CHECK_INT(c.recv[b], b < arrived * 4 ? 0x7f : 0x11);
    }
    fake->missing = 4 * CALL_COUNT - FAKE_UNDEFINED;
    fake->arrived_bytes = 0;
    CHECK_STR(start("irecv"), "");
    CHECK_STR(wait_for("wait_recv", CALL_COUNT), "");
    CHECK_INT(c.recv[0], 0x11);
    fake->missing = 0;
}

static const char *wait_with_status(int64_t status, int dtype, void *numbers) {
    wait_make(&c, "wait_recv", id, CALL_COUNT);
    call_attribute_insert(&c, 1, "status", status);
    if (numbers) call_insert(&c, CALL_RESULTS, 1, dtype, 3, numbers);
    return call_run(&c);
}

static void gives_the_numbers_of_a_message(void) {
    int32_t narrow[3] = {0};
    int64_t wide[3] = {0};
    fake->missing = 4; /* bytes */
    CHECK_STR(start("irecv"), "");
    CHECK_STR(wait_with_status(MPIXLA_STATUS_NUMBERS, FFI_S32, narrow), "");
    CHECK(narrow[0] == 2 && narrow[1] == 0 && narrow[2] == CALL_COUNT - 1);
    CHECK_STR(start("isendrecv"), "");
    CHECK_STR(wait_with_status(MPIXLA_STATUS_NUMBERS, FFI_S64, wide), "");
    CHECK(wide[0] == 2 && wide[1] == 0 && wide[2] == CALL_COUNT - 1);
    fake->missing = 0;
    CHECK_STR(start("irecv"), "");
    CHECK_IN(wait_with_status(mpixla_status_register(wide), FFI_S64, NULL), "gives no status other than its numbers");
    CHECK_STR(wait_with_status(MPIXLA_NO_STATUS, FFI_S64, NULL), "");
    id[0] = id[1] = 0; /* no request */
    CHECK_STR(wait_with_status(MPIXLA_STATUS_NUMBERS, FFI_S32, narrow), "");
    CHECK(narrow[0] == FAKE_PROC_NULL && narrow[1] == FAKE_ANY_TAG && narrow[2] == 0);
}

/* Zeros stand for none: the template, or zeros, without a call. */
static void waits_for_no_request(void) {
    int before = fake->calls;
    id[0] = id[1] = 0;
    wait_make(&c, "wait", id, CALL_COUNT);
    memset(c.recv, 0x44, sizeof c.recv);
    CHECK_STR(call_run(&c), "");
    for (int b = 0; b < CALL_BYTES; b++) CHECK_INT(c.recv[b], b < CALL_COUNT * 4 ? 0 : 0x44);
    CHECK_STR(wait_for("wait_recv", CALL_COUNT), "");
    CHECK_INT(c.recv[0], 0x11);
    CHECK_STR(wait_for("wait_send", 0), "");
    CHECK_INT(fake->calls, before);
}

static void waits_once(void) {
    static const char twice[] =
        "a request was already waited for: each is waited for once. Keep its result, or start another request";
    static const char never[] = "a request was waited for that was never started in this process";
    CHECK_STR(start("iallreduce"), "");
    float first[2] = {id[0], id[1]};
    CHECK_STR(wait_for("wait", CALL_COUNT), "");
    CHECK_STR(wait_for("wait", CALL_COUNT), twice);
    CHECK_INT(c.code, FFI_ABORTED);
    CHECK_STR(start("iallreduce"), ""); /* in the same place */
    CHECK(id[0] == first[0] && id[1] == first[1] + 1);
    float second[2] = {id[0], id[1]};
    memcpy(id, first, sizeof first);
    CHECK_STR(wait_for("wait", CALL_COUNT), twice);
    id[1] = second[1] + 1;
    CHECK_STR(wait_for("wait", CALL_COUNT), never);
    id[0] = (float)REQUEST_LIMIT + 5;
    CHECK_STR(wait_for("wait", CALL_COUNT), never);
    id[0] = 0;
    CHECK_STR(wait_for("wait", CALL_COUNT), never);
    static const float wrong[][2] = {{1.5F, 1}, {-1, 1}, {1, 0.5F}, {3e38F, 1}, {1, -1}, {1, 1e10F}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        memcpy(id, wrong[i], sizeof wrong[i]);
        CHECK_IN(wait_for("wait", CALL_COUNT), "the value that was waited for is no request");
    }
    memcpy(id, second, sizeof second);
    CHECK_STR(wait_for("wait", CALL_COUNT), "");
}

static void refuses_what_does_not_fit(void) {
    CHECK_STR(start("iallreduce"), "");
    CHECK_STR(wait_for("wait", CALL_COUNT + 1),
              "a request that gives 3 items of float32 was waited for as one that gives 4 of float32");
    wait_make(&c, "wait", id, CALL_COUNT);
    call_dtype_set(&c, CALL_RESULTS, 0, FFI_S32);
    CHECK_IN(call_run(&c), "3 items of float32 was waited for as one that gives 3 of int32");
    CHECK_IN(wait_for("wait_send", 0), "as one that gives 0 of nothing");
    CHECK_STR(wait_for("wait", CALL_COUNT), ""); /* it is still there */
    start_make(&c, "isend", FIXTURE_RANK0, 0, id);
    call_count_set(&c, CALL_RESULTS, 0, 1);
    CHECK_STR(call_run(&c), "the id of a request is two float32 numbers, but MPI_Isend was called with 1 of float32");
    call_count_set(&c, CALL_RESULTS, 0, 2);
    call_dtype_set(&c, CALL_RESULTS, 0, FFI_S32);
    CHECK_IN(call_run(&c), "but MPI_Isend was called with 2 of int32");
    start_make(&c, "ialltoall", FIXTURE_RANK0, 0, id);
    call_count_set(&c, CALL_OPERANDS, 0, 10);
    CHECK_IN(call_run(&c), "whose numbers do not match");
    wait_make(&c, "wait_recv", id, CALL_COUNT);
    call_remove(&c, CALL_OPERANDS, 1);
    CHECK_IN(call_run(&c), "MPI_Wait was called with 1 operands on this rank, but takes 2");
}

/* A batch has one request, whose id each of its parts has; what a wait comes after may be anything. */
static void takes_batches_and_more_operands(void) {
    start_make(&c, "iallreduce", FIXTURE_RANK0, 0, id);
    call_count_set(&c, CALL_RESULTS, 0, 4);
    CHECK_STR(call_run(&c), "");
    CHECK(id[0] == id[2] && id[1] == id[3] && id[0] >= 1);
    wait_make(&c, "wait", id, CALL_COUNT);
    call_count_set(&c, CALL_OPERANDS, 0, 4);
    id[3]++;
    CHECK_IN(call_run(&c), "the examples of a vmap have different requests here");
    id[3]--;
    call_insert(&c, CALL_OPERANDS, 1, FFI_C64, 5, NULL);
    call_insert(&c, CALL_OPERANDS, 2, 63, 0, NULL); /* a type without a row */
    CHECK_STR(call_run(&c), "");
}

static const char *without_id(const char *op, int waits, int64_t count) {
    if (waits)
        wait_make(&c, op, id, count);
    else
        start_make(&c, op, FIXTURE_RANK0, 0, id);
    call_count_set(&c, waits ? CALL_OPERANDS : CALL_RESULTS, 0, 0);
    for (int i = 0; !waits && i < c.frame.args.size; i++) call_count_set(&c, CALL_OPERANDS, i, count);
    return call_run(&c);
}

/* A batch without examples has no ids: the first wait is for the first start that gives as much, and none is lost. */
static void waits_without_ids(void) {
    fake->done = 1;
    CHECK_STR(without_id("isend", 0, 0), "");
    CHECK_STR(without_id("irecv", 0, 0), "");
    CHECK_IN(without_id("irecv", 0, CALL_COUNT), "but MPI_Irecv was called with 0 of float32");
    CHECK_STR(without_id("wait_recv", 1, 0), "");
    CHECK_STR(without_id("wait_recv", 1, 0), ""); /* no request */
    CHECK_STR(without_id("wait_send", 1, 0), "");
    CHECK_IN(without_id("wait_recv", 1, CALL_COUNT), "but MPI_Wait was called with 0 of float32");
    CHECK_INT(mpixla_requests_end(), 0);
}

static void tells_of_errors_of_mpi(void) {
    static const char *const ops[] = {"iallgather",      "iallreduce", "ialltoall", "ialltoallv", "ibarrier",
                                      "ibcast",          "iexscan",    "igather",   "irecv",      "ireduce",
                                      "ireduce_scatter", "iscan",      "iscatter",  "isend",      "isendrecv"};
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        int cancelled = fake->cancelled;
        int is_exchange = strcmp(ops[i], "isendrecv") == 0;
        fixture_fail(is_exchange ? "MPI_Isend" : call_shape(ops[i])->mpi_name, 0xabc06);
        CHECK_IN(start(ops[i]), " returned error code 6: the fake MPI's text for error 703494 (MPI_I");
        CHECK_INT(c.code, FFI_INTERNAL);
        CHECK_INT(fake->cancelled, cancelled + is_exchange); /* its receive was started */
        fixture_fail(NULL, 0);
    }
    CHECK_STR(start("irecv"), "");
    fixture_fail("MPI_Wait", 6);
    CHECK_STR(wait_for("wait_recv", CALL_COUNT),
              "r0 | MPI_Wait returned error code 6: the fake MPI's text for error 6 (MPI_Wait for MPI_Irecv <- 2 with "
              "tag 8 and 3 items of float32, on rank 0 of 4 of communicator 'rank0')");
    fixture_fail(NULL, 0);
    CHECK_IN(wait_for("wait_recv", CALL_COUNT), "already waited for");
    /* A receive that may be for a process that died goes on, and the memory is free after this. */
    mpixla_loss_classes_set(75, 76, 77);
    for (int class = 75; class <= 77; class++) {
        int cancelled = fake->cancelled;
        CHECK_STR(start("irecv"), "");
        fixture_fail("MPI_Wait", class);
        CHECK_IN(wait_for("wait_recv", CALL_COUNT), "A process of this communicator has died");
        fixture_fail(NULL, 0);
        CHECK_INT(fake->cancelled, cancelled + (class == 76));
    }
    mpixla_loss_classes_set(0, 0, 0);
    CHECK_STR(start("irecv"), "");
    fixture_fail("MPI_Get_elements_x", 3);
    CHECK_IN(wait_for("wait_recv", CALL_COUNT), "r0 | MPI_Wait returned error code 3: ");
    fixture_fail(NULL, 0);
    CHECK_STR(start("isendrecv"), "");
    CHECK_STR(wait_for("wait_recv", CALL_COUNT), "");
}

/* The memory of requests that are over is used again, and each size has its own. */
static void keeps_memory(void) {
    const void *first[3];
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < 3; i++) {
            static _Alignas(16) char data[4 * (10 << 8)];
            start_make(&c, "isend", FIXTURE_RANK0, 0, id);
            c.sides[CALL_OPERANDS].buffers[0].data = data;
            call_count_set(&c, CALL_OPERANDS, 0, 10LL << (4 * i));
            CHECK_STR(call_run(&c), "");
            if (i == 2) CHECK_INT((intptr_t)fake->send % 64, 0);
            if (round == 0) first[i] = fake->send;
            CHECK(fake->send == first[i]);
            CHECK_STR(wait_for("wait_send", 0), "");
        }
    CHECK(first[0] != first[1] && first[1] != first[2]);
    start_make(&c, "isend", FIXTURE_RANK0, 0, id);
    call_count_set(&c, CALL_OPERANDS, 0, INT64_MAX / 2);
    CHECK_IN(call_run(&c),
             "the send buffer of MPI_Isend has a dimension of 4611686018427387903 items, which is no valid shape");
    call_count_set(&c, CALL_OPERANDS, 0, INT64_C(1) << 59);
    CHECK_IN(call_run(&c), "out of memory for a request of 2305843009213693952 bytes");
}

/* Pages of memory that the process has. */
static long resident(void) {
    long pages = 0, total = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld %ld", &total, &pages) != 2) pages = 0;
    if (file) (void)fclose(file);
    return pages;
}

/* The memory of large ones is given back, and taken again by the next. */
static void gives_large_memory_back(void) {
    const int64_t count = (INT64_C(1) << 26) + 1;
    char *data = calloc((size_t)count, 4);
    CHECK(data != NULL);
    const long before = resident(), pages = count * 4 / sysconf(_SC_PAGESIZE);
    for (int round = 0; round < 3; round++) {
        start_make(&c, "isend", FIXTURE_RANK0, 0, id);
        c.sides[CALL_OPERANDS].buffers[0].data = data;
        call_count_set(&c, CALL_OPERANDS, 0, count);
        CHECK_STR(call_run(&c), "");
        CHECK(resident() - before > pages / 2);
        CHECK(memcmp(fake->send, data, 4096) == 0);
        CHECK_STR(wait_for("wait_send", 0), "");
        CHECK(resident() - before < pages / 2 || !scarce_is_real());
    }
    free(data);
}

/* What threads do at once: requests with ids, those of batches without examples, and messages to this rank itself, each
 * of which looks at those of the others. */
enum { THREADS = 4, ROUNDS = 200 };

static void *start_and_wait(void *unused) {
    static _Thread_local call mine;
    float own[2];
    for (int i = 0; i < ROUNDS; i++) {
        start_make(&mine, "iallreduce", FIXTURE_RANK0, 0, own);
        CHECK_STR(call_run(&mine), "");
        wait_make(&mine, "wait", own, CALL_COUNT);
        CHECK_STR(call_run(&mine), "");
        CHECK_IN(call_run(&mine), "already waited for");
    }
    return unused;
}

static void *start_and_wait_without_ids(void *unused) {
    static _Thread_local call mine;
    for (int i = 0; i < ROUNDS; i++) {
        start_make(&mine, "isend", FIXTURE_RANK0, 0, NULL);
        call_count_set(&mine, CALL_RESULTS, 0, 0);
        call_count_set(&mine, CALL_OPERANDS, 0, 0);
        CHECK_STR(call_run(&mine), "");
        wait_make(&mine, "wait_send", NULL, 0);
        call_count_set(&mine, CALL_OPERANDS, 0, 0);
        CHECK_STR(call_run(&mine), "");
    }
    return unused;
}

static void *send_to_itself(void *unused) {
    static _Thread_local call mine;
    float own[2];
    for (int i = 0; i < ROUNDS; i++) {
        call_make(&mine, "send", FIXTURE_RANK0, 0);
        call_attribute_set(&mine, "dest", 0);
        CHECK_STR(call_run(&mine), "");
        start_make(&mine, "isend", FIXTURE_RANK0, 0, own);
        call_attribute_set(&mine, "dest", 0);
        CHECK_STR(call_run(&mine), "");
        wait_make(&mine, "wait_send", own, 0);
        CHECK_STR(call_run(&mine), "");
    }
    return unused;
}

/* Ids that strayed: they name what is there at this moment, but not what it gives, and so disturb nobody. */
static void *wait_for_strays(void *unused) {
    static atomic_int places;
    static _Thread_local call mine;
    float stray[2] = {(float)(1 + atomic_fetch_add(&places, 1)), 1};
    for (int i = 0; i < 4 * ROUNDS; i++) {
        wait_make(&mine, "wait", stray, CALL_COUNT + 1);
        CHECK_IN(call_run(&mine), "a request ");
        int is_old = strstr(mine.message, "already waited for") != NULL;
        stray[1] += is_old || stray[1] <= 1 ? 1 : -1;
    }
    return unused;
}

static int64_t ended;

static void run_end(void) {
    ended = mpixla_requests_end();
}

static void works_from_several_threads(void) {
    fake->done = 1;
    const run_threads all[] = {threads_start(THREADS, start_and_wait),
                               threads_start(THREADS, start_and_wait_without_ids),
                               threads_start(THREADS, send_to_itself), threads_start(THREADS, wait_for_strays)};
    for (size_t k = 0; k < sizeof all / sizeof all[0]; k++) threads_join(&all[k]);
    CHECK_STR(fixture_stderr_of(run_end), "");
    CHECK_INT(ended, 0);
}

static const char *end(int64_t found) {
    const char *told = fixture_stderr_of(run_end);
    CHECK_INT(ended, found);
    return told;
}

static void names_what_was_never_waited_for(void) {
    CHECK_STR(end(0), "");
    fake->done = 0;
    CHECK_STR(start("isendrecv"), "");
    CHECK_STR(end(1),
              "mpixla: r0 | MPI_Irecv and MPI_Isend -> 1 with tag 7 and 3 items <- 2 with tag 8 and 3 items of "
              "float32, on rank 0 of 4 of communicator 'rank0' was started, but never waited for\n");
    int cancelled = fake->cancelled, freed = fake->freed;
    CHECK_INT(freed, 1);
    CHECK_STR(start("iallreduce"), "");
    fake->done = 1;
    CHECK_IN(end(1), "mpixla: r0 | MPI_Iallreduce with 3 items of float32, op MPI_SUM, on rank");
    CHECK_STR(start("irecv"), "");
    CHECK_IN(end(1), "MPI_Irecv <- 2");
    CHECK_INT(fake->cancelled, cancelled);
    CHECK_INT(fake->freed, freed);
    for (int i = 0; i < 3; i++) CHECK_STR(start("irecv"), "");
    CHECK_IN(end(3), "'rank0' was started, but never waited for (3 times)\n");
    for (int tag = 0; tag < 20; tag++) {
        start_make(&c, "isend", FIXTURE_RANK0, 0, id);
        call_attribute_set(&c, "sendtag", tag);
        CHECK_STR(call_run(&c), "");
    }
    const char *told = end(20);
    CHECK_IN(told, " with tag 15 and");
    CHECK(!strstr(told, " with tag 16 and"));
    CHECK_IN(told, "never waited for\nmpixla: and 4 more like these.\n");
    CHECK_STR(end(0), "");
}

/* Whether this is memory of the process. A pipe takes bytes, where reading them would end the test. Sanitizers and
 * valgrind see themselves what is written there. */
static int is_mapped(const void *memory) {
    int ends[2];
    if (!scarce_is_real()) return 1;
    CHECK_INT(pipe(ends), 0);
    int is = write(ends[1], memory, 1) == 1;
    close(ends[0]);
    close(ends[1]);
    return is;
}

/* What the process ends with: a receive, a send, and collective calls, of which the second has more memory than is kept
 * for the next. */
enum { UNFINISHED = 4 };
static void unfinished_start(char *memory[UNFINISHED]) {
    static const int64_t counts[] = {CALL_COUNT, (INT64_C(1) << 26) + 1};
    CHECK_STR(start("irecv"), "");
    memory[0] = fake->recv;
    CHECK_STR(start("isend"), "");
    memory[1] = (char *)(uintptr_t)fake->send;
    for (int i = 0; i < 2; i++) {
        start_make(&c, "ibcast", FIXTURE_RANK2, 0, id);
        call_count_set(&c, CALL_OPERANDS, 0, counts[i]);
        CHECK_STR(call_run(&c), "");
        memory[2 + i] = fake->recv;
    }
}

/* A receive is cancelled, which gives its memory back. A send and a collective call cannot be taken back: MPI may read
 * and write their memory until the process is gone. */
static void leaves_unfinished_memory_to_mpi(void) {
    char *first[UNFINISHED], *second[UNFINISHED];
    fake->done = 0;
    unfinished_start(first);
    CHECK_IN(end(UNFINISHED), "MPI_Ibcast");
    for (int i = 1; i < UNFINISHED; i++) {
        CHECK(is_mapped(first[i]));
        if (is_mapped(first[i])) first[i][0] = 1; /* as MPI does: AddressSanitizer looks */
    }
    unfinished_start(second);
    for (int i = 0; i < UNFINISHED; i++) CHECK_INT(first[i] == second[i], i == 0);
    fixture_fail("MPI_Cancel", 6);
    (void)end(UNFINISHED);
    fixture_fail(NULL, 0);
    fake->done = 1;
    CHECK_STR(start("irecv"), "");
    CHECK(fake->recv != second[0]);
    CHECK_STR(wait_for("wait_recv", CALL_COUNT), "");
}

static const void *received_into;

static void recv_remember(void) {
    if (fake->recv) received_into = fake->recv;
}

/* The receive of an exchange whose send fails is under way, and is cancelled; where that fails as well, no other
 * request may have its memory. */
static void keeps_a_receive_that_cannot_be_cancelled(void) {
    fake->during = recv_remember;
    for (int cancels = 1; cancels >= 0; cancels--) {
        fixture_fail("MPI_Isend", 0x10006);
        if (!cancels) fake->failing[1] = "MPI_Cancel";
        CHECK_IN(start("isendrecv"), " returned error code 6");
        const void *first = received_into;
        fixture_fail(NULL, 0);
        CHECK_STR(start("isendrecv"), "");
        CHECK_INT(received_into == first, cancels);
        CHECK_STR(wait_for("wait_recv", CALL_COUNT), "");
    }
    fake->during = NULL;
    /* Likewise where a receive goes on after its wait has failed. */
    mpixla_loss_classes_set(75, 76, 77);
    CHECK_STR(start("irecv"), "");
    const void *first = fake->recv;
    fixture_fail("MPI_Wait", 76);
    fake->failing[1] = "MPI_Cancel";
    CHECK_IN(wait_for("wait_recv", CALL_COUNT), "A process of this communicator has died");
    fixture_fail(NULL, 0);
    mpixla_loss_classes_set(0, 0, 0);
    CHECK_IN(wait_for("wait_recv", CALL_COUNT), "already waited for");
    CHECK_STR(start("irecv"), "");
    CHECK(fake->recv != first);
    CHECK_STR(wait_for("wait_recv", CALL_COUNT), "");
}

/* A message may go on after its communicator was freed, while MPI has it. */
static void waits_for_a_message_after_its_communicator_was_freed(void) {
    static const char *const starts[] = {"isend", "irecv", "isendrecv", "iallreduce"};
    for (size_t i = 0; i < sizeof starts / sizeof starts[0]; i++) {
        const char *op = waits_of(starts[i]);
        int number = fake->comm_new(0, FIXTURE_SIZE, 0);
        int64_t comm = mpixla_comm_register(fake->handle(number), "short-lived");
        start_make(&c, starts[i], comm, 0, id);
        CHECK_STR(call_run(&c), "");
        CHECK_INT(fake->comm_free(number), 0);
        CHECK_IN(call_run(&c), "communicator 'short-lived' was freed");
        wait_make(&c, op, id, CALL_COUNT);
        call_attribute_set(&c, "comm", comm);
        if (strcmp(op, "wait") == 0)
            CHECK_IN(call_run(&c), "communicator 'short-lived' was freed");
        else
            CHECK_STR(call_run(&c), "");
    }
    call_attribute_set(&c, "comm", 1 << 20);
    CHECK_IN(call_run(&c), "is not registered in this process");
    CHECK_STR(wait_for("wait", CALL_COUNT), "");
}

static void start_without_memory(void) {
    start_make(&c, "iallreduce", FIXTURE_RANK0, 0, id);
    call_count_set(&c, CALL_OPERANDS, 0, INT64_C(1) << 58);
    (void)call_run(&c);
}

/* The others would wait for ever in the call that this one has no memory for. */
static void ends_the_job_without_memory_for_a_collective_call(void) {
    scarce_end end = scarce_run(start_without_memory);
    CHECK_IN(end.told, "mpixla: r0 | out of memory for a request of ");
    CHECK_INT(end.status, 1);
}

/* What this rank sends to itself is copied, and left to MPI until it is received. */
static void leaves_messages_to_itself(void) {
    static const char *const never =
        "mpixla: r0 | MPI_Send -> 0 with tag 7 and 3 items of float32, on rank 0 of 4 of communicator 'rank0' went to "
        "this rank itself, but was never received\n";
    fake->done = 0;
    call_make(&c, "send", FIXTURE_RANK0, 0);
    call_attribute_set(&c, "dest", 0);
    CHECK_STR(call_run(&c), "");
    CHECK_STR(fake->call, "MPI_Isend 3 t11 -> 0 tag 7 c2");
    CHECK(fake->send != c.send && memcmp(fake->send, c.send, 3 * sizeof(float)) == 0);
    CHECK_STR(end(1), never);

    CHECK_STR(call_run(&c), "");
    fake->done = 1; /* received */
    CHECK_STR(end(0), "");

    /* The next one closes those that were received, and their memory is used again. */
    fake->done = 0;
    CHECK_STR(call_run(&c), "");
    const void *first = fake->send;
    fake->done = 1;
    CHECK_STR(call_run(&c), "");
    const void *second = fake->send;
    CHECK_STR(call_run(&c), "");
    CHECK(first != second && (fake->send == first || fake->send == second));
    CHECK_STR(end(0), "");

    /* An isend leaves its message when it is waited for; a failed send leaves nothing. */
    fake->done = 0;
    start_make(&c, "isend", FIXTURE_RANK0, 0, id);
    call_attribute_set(&c, "dest", 0);
    CHECK_STR(call_run(&c), "");
    CHECK_STR(wait_for("wait_send", 0), "");
    CHECK_IN(end(1), "MPI_Isend -> 0 with tag 7 and 3 items");
    call_make(&c, "send", FIXTURE_RANK0, 0);
    call_attribute_set(&c, "dest", 0);
    fixture_fail("MPI_Isend", 0x10006);
    CHECK_IN(call_run(&c), "r0 | MPI_Send returned error code 6");
    fixture_fail(NULL, 0);
    CHECK_STR(end(0), "");
}

/* As long as for one. */
static void waits_for_all_at_once(void) {
    int64_t started, one, many;
    fake->done = 0;
    CHECK_STR(start("irecv"), "");
    started = clock_now();
    end(1);
    one = clock_now() - started;
    for (int i = 0; i < 10; i++) CHECK_STR(start("irecv"), "");
    started = clock_now();
    end(10);
    many = clock_now() - started;
    CHECK(many < 5 * one);
    fake->done = 1;
}

static const char *start_large(const char *op) {
    static float data[1 << 12];
    start_make(&c, op, FIXTURE_RANK0, 0, id);
    c.sides[CALL_OPERANDS].buffers[0].data = data;
    call_count_set(&c, CALL_OPERANDS, 0, 1 << 12);
    return call_run(&c);
}

/* Last: it leaves them under way. */
static void refuses_too_many(void) {
    int started = 0;
    while (started <= REQUEST_LIMIT && strcmp(start("isend"), "") == 0) started++;
    CHECK_STR(c.message, "65536 requests were started and not waited for; wait for each of them");
    CHECK_STR(wait_for("wait_send", 0), "");
    CHECK_STR(start_large("isend"), ""); /* in the place of the other */
    CHECK_STR(start("isend"), "65536 requests were started and not waited for; wait for each of them");
    CHECK_STR(wait_for("wait_send", 0), "");
    /* Without memory for it, the place stays free, and the others would wait for this rank. */
    scarce_end end = scarce_run(start_without_memory);
    CHECK_IN(end.told, "mpixla: r0 | out of memory for a request of ");
    CHECK_INT(end.status, 1);
    CHECK_STR(start("isend"), "");
}

int main(int argc, char **argv) {
    fixture_start(argc, argv);
    starts_and_waits();
    gives_back_off_the_root();
    starts_large_reductions();
    keeps_the_template();
    gives_the_numbers_of_a_message();
    waits_for_no_request();
    waits_once();
    refuses_what_does_not_fit();
    takes_batches_and_more_operands();
    waits_without_ids();
    tells_of_errors_of_mpi();
    keeps_memory();
    gives_large_memory_back();
    works_from_several_threads();
    names_what_was_never_waited_for();
    leaves_unfinished_memory_to_mpi();
    keeps_a_receive_that_cannot_be_cancelled();
    waits_for_a_message_after_its_communicator_was_freed();
    ends_the_job_without_memory_for_a_collective_call();
    leaves_messages_to_itself();
    waits_for_all_at_once();
    refuses_too_many();
    return check_failures();
}
