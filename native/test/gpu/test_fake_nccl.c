/* The fake NCCL, between threads and between processes: right results, and each misuse seen. */
#define _GNU_SOURCE /* fork; NOLINT(*-reserved-identifier,cert-*): the C library's name for it */
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "test/gpu/fake_context.h"
#include "test/gpu/fake_driver.h"
#include "test/gpu/fake_group.h"
#include "test/gpu/fake_memory.h"
#include "test/gpu/fake_nccl.h"
#include "test/gpu/fake_reduce.h"
#include "test/gpu/fake_stream.h"
#include "test/gpu/gpu_check.h"
#include "test/run.h"

/* NCCL's numbers. */
enum { INT8 = 0, UINT8, INT32, UINT32, INT64, UINT64, HALF, FLOAT, DOUBLE, BFLOAT };
enum { RANKS = 3 };

/* A rank: a thread with a GPU, a stream and a communicator of its own. */
typedef struct place {
    int rank, size;
    fake_stream *stream;
    nccl_comm comm;
    int32_t *memory; /* of the GPU: 8 items, 0 to 7 */
} place;

/* What all ranks of now have. */
static struct {
    int size;
    nccl_id id;
    void (*body)(place *p);
} all;

/* Device memory with these integers, and reading it. */
static int32_t *integers(size_t count, int32_t first, int32_t step) {
    int32_t *memory = fake_memory_alloc(count * sizeof *memory), *engine = fake_memory_engine(memory);
    for (size_t i = 0; i < count; i++) engine[i] = first + step * (int32_t)i;
    return memory;
}

static int32_t at(const int32_t *memory, size_t i) {
    return ((const int32_t *)fake_memory_engine(memory))[i];
}

static void *rank_run(void *number) {
    place here = {.rank = (int)(intptr_t)number, .size = all.size}, *p = &here;
    fake_complaints_start();
    p->stream = fake_stream_take(p->rank);
    CHECK_INT(cuCtxPushCurrent_v2(fake_context_get(p->rank)), 0);
    CHECK_INT(ncclCommInitRank(&p->comm, p->size, all.id, p->rank), 0);
    p->memory = integers(8, 0, 1);
    all.body(p);
    CHECK_INT(fake_stream_run(p->stream, fake_stream_added(p->stream)), 0);
    CHECK_STR(complaint(), "");
    if (p->comm && ncclCommDestroy(p->comm) != 0) {
        CHECK_STR(complaint(), "ncclCommDestroy waits for ever: the communicator has failed, and must be aborted");
        CHECK_INT(ncclCommAbort(p->comm), 0);
    }
    CHECK_INT(cuCtxPopCurrent_v2(NULL), 0);
    fake_stream_give(p->stream);
    (void)fake_memory_free(p->memory);
    fake_complaints_end();
    return NULL;
}

static void on_ranks(int size, void (*body)(place *p)) {
    all.size = size;
    all.body = body;
    CHECK_INT(ncclGetUniqueId(&all.id), 0);
    threads_run(size, rank_run);
    CHECK_INT(fake_comms_live(), 0);
    CHECK_INT(fake_memory_live(), 0);
}

static void synchronize(place *p) {
    CHECK_INT(cuStreamSynchronize(p->stream), 0);
}

/* The asynchronous error. */
static int error_of(place *p) {
    int error = -1;
    CHECK_INT(ncclCommGetAsyncError(p->comm, &error), 0);
    return error;
}

static void collectives_give_what_they_should(place *p) {
    int n = p->size, r = p->rank, sum = n * (n - 1) / 2;
    int32_t *from = integers(6, 10 * r, 1), *to = integers(6 * (size_t)n, -1, 0);
    CHECK_INT(ncclAllReduce(from, to, 6, INT32, FAKE_SUM, p->comm, p->stream), 0);
    CHECK_INT(at(to, 1), -1); /* late */
    synchronize(p);
    for (int i = 0; i < 6; i++) CHECK_INT(at(to, (size_t)i), 10 * sum + n * i);
    CHECK_INT(ncclAllReduce(to, to, 6, INT32, FAKE_MAX, p->comm, p->stream), 0); /* in place */
    CHECK_INT(ncclReduce(from, to + 1, 2, INT32, FAKE_MIN, n - 1, p->comm, p->stream), 0);
    synchronize(p);
    CHECK_INT(at(to, 0), 10 * sum);
    CHECK_INT(at(to, 1), r == n - 1 ? 0 : 10 * sum + n);
    CHECK_INT(ncclBroadcast(from, to, 3, INT32, 0, p->comm, p->stream), 0);
    synchronize(p);
    for (int i = 0; i < 3; i++) CHECK_INT(at(to, (size_t)i), i);
    CHECK_INT(ncclAllGather(from, to, 2, INT32, p->comm, p->stream), 0);
    synchronize(p);
    for (int i = 0; i < 2 * n; i++) CHECK_INT(at(to, (size_t)i), 10 * (i / 2) + i % 2);
    CHECK_INT(ncclAllGather(to + 2 * r, to, 2, INT32, p->comm, p->stream), 0); /* in place */
    CHECK_INT(ncclReduceScatter(to, to + 2 * r, 2, INT32, FAKE_SUM, p->comm, p->stream), 0);
    synchronize(p);
    for (int i = 0; i < 2; i++) CHECK_INT(at(to, (size_t)(2 * r + i)), n * (10 * r + i));
    CHECK_INT(ncclAllReduce(from, to, 0, INT32, FAKE_SUM, p->comm, p->stream), 0);
    CHECK_INT(error_of(p), 0);
    fake_memory_free(from);
    fake_memory_free(to);
}

/* More bytes than the pipes hold, in a ring, with a message to oneself, and two of them between the same ranks. */
static void groups_go_on_together(place *p) {
    enum { MANY = 100000 };
    int next = (p->rank + 1) % p->size, last = (p->rank + p->size - 1) % p->size;
    int32_t *from = integers(MANY, p->rank, 1), *to = integers(MANY, -1, 0), *small = integers(4, 100 * p->rank, 1);
    CHECK_INT(ncclGroupStart(), 0);
    CHECK_INT(ncclSend(from, MANY, INT32, next, p->comm, p->stream), 0);
    CHECK_INT(ncclGroupStart(), 0);
    CHECK_INT(ncclSend(small, 1, INT32, next, p->comm, p->stream), 0);
    CHECK_INT(ncclGroupEnd(), 0);
    CHECK(fake_stream_is_idle(p->stream));
    CHECK_INT(ncclSend(small + 1, 1, INT32, p->rank, p->comm, p->stream), 0);
    CHECK_INT(ncclRecv(to, MANY, INT32, last, p->comm, p->stream), 0);
    CHECK_INT(ncclRecv(small + 2, 1, INT32, last, p->comm, p->stream), 0);
    CHECK_INT(ncclRecv(small + 3, 1, INT32, p->rank, p->comm, p->stream), 0);
    CHECK_INT(ncclGroupEnd(), 0);
    CHECK(!fake_stream_is_idle(p->stream));
    synchronize(p);
    CHECK_INT(at(to, 0), last);
    CHECK_INT(at(to, MANY - 1), last + MANY - 1);
    CHECK_INT(at(small, 2), 100 * last);
    CHECK_INT(at(small, 3), 100 * p->rank + 1);
    /* A gather of rows of different length: a broadcast for each rank. */
    CHECK_INT(ncclGroupStart(), 0);
    for (int i = 0, place_ = 0; i < p->size; place_ += ++i)
        CHECK_INT(ncclBroadcast(from, to + place_, (size_t)i + 1, INT32, i, p->comm, p->stream), 0);
    CHECK_INT(ncclGroupEnd(), 0);
    synchronize(p);
    for (int i = 0, place_ = 0; i < p->size; place_ += ++i) CHECK_INT(at(to, (size_t)(place_ + i)), 2 * i);
    fake_memory_free(from);
    fake_memory_free(to);
    fake_memory_free(small);
}

/* One value of a type, reduced with itself. */
#define REDUCED(type, T, a, b, op) reduced(type, &(T){a}, &(T){b}, sizeof(T), op)
static double reduced(int type, void *a, const void *b, size_t bytes, int op) {
    CHECK_INT(fake_reduce_itemsize(type), bytes);
    fake_reduce(a, b, 1, type, op);
    switch (type) {
        case INT8:
            return *(int8_t *)a;
        case UINT8:
            return *(uint8_t *)a;
        case INT32:
            return *(int32_t *)a;
        case UINT32:
            return *(uint32_t *)a;
        case INT64:
            return (double)*(int64_t *)a;
        case UINT64:
            return (double)*(uint64_t *)a;
        case FLOAT:
            return *(float *)a;
        case DOUBLE:
            return *(double *)a;
        default:
            return *(uint16_t *)a; /* as it is */
    }
}

static void types_reduce(void) {
    CHECK(REDUCED(INT8, int8_t, 100, 100, FAKE_SUM) == -56);
    CHECK(REDUCED(INT8, int8_t, -1, 1, FAKE_MAX) == 1);
    CHECK(REDUCED(UINT8, uint8_t, 255, 1, FAKE_MAX) == 255);
    CHECK(REDUCED(INT32, int32_t, -3, 5, FAKE_PROD) == -15);
    CHECK(REDUCED(UINT32, uint32_t, 0xffffffffu, 2, FAKE_MIN) == 2);
    CHECK(REDUCED(INT64, int64_t, -1, 3, FAKE_MIN) == -1);
    CHECK(REDUCED(UINT64, uint64_t, ~UINT64_C(0), 2, FAKE_SUM) == 1);
    CHECK(REDUCED(FLOAT, float, 1.5f, 2, FAKE_PROD) == 3);
    CHECK(REDUCED(DOUBLE, double, 1e300, -1, FAKE_MAX) == 1e300);
    CHECK(REDUCED(FLOAT, float, NAN, 2, FAKE_MAX) == 2); /* unlike mpixla's own maximum */
    CHECK(isnan(REDUCED(DOUBLE, double, NAN, 2, FAKE_SUM)));
    /* Halves: 1 is 0x3c00, 2^-24 the smallest; 65504 the largest; ties go to even. */
    CHECK(REDUCED(HALF, uint16_t, 0x3c00, 0x3c00, FAKE_SUM) == 0x4000);
    CHECK(REDUCED(HALF, uint16_t, 0x0001, 0x0001, FAKE_SUM) == 0x0002);
    CHECK(REDUCED(HALF, uint16_t, 0x03ff, 0x0001, FAKE_SUM) == 0x0400);
    CHECK(REDUCED(HALF, uint16_t, 0x7bff, 0x7bff, FAKE_SUM) == 0x7c00);
    CHECK(REDUCED(HALF, uint16_t, 0x3c00, 0x1000, FAKE_SUM) == 0x3c00); /* 1 + 2^-11: a tie */
    CHECK(REDUCED(HALF, uint16_t, 0x3c01, 0x1000, FAKE_SUM) == 0x3c02);
    CHECK(REDUCED(HALF, uint16_t, 0xbc00, 0x3c00, FAKE_MIN) == 0xbc00);
    CHECK(REDUCED(HALF, uint16_t, 0x7e00, 0x3c00, FAKE_SUM) == 0x7e00);
    CHECK(REDUCED(HALF, uint16_t, 0xfc00, 0x3c00, FAKE_SUM) == 0xfc00);
    CHECK(REDUCED(BFLOAT, uint16_t, 0x3f80, 0x3f80, FAKE_SUM) == 0x4000);
    CHECK(REDUCED(BFLOAT, uint16_t, 0x3f80, 0x3b80, FAKE_SUM) == 0x3f80); /* 1 + 2^-8: a tie */
    CHECK(REDUCED(BFLOAT, uint16_t, 0x3f81, 0x3b80, FAKE_SUM) == 0x3f82);
    CHECK(REDUCED(BFLOAT, uint16_t, 0x7fc0, 0x3f80, FAKE_PROD) == 0x7fc0);
    CHECK_INT(fake_reduce_itemsize(10), 0);
    CHECK_INT(fake_reduce_itemsize(-1), 0);
}

static void misuse_is_refused(place *p) {
    int32_t host[4] = {0}, *memory = p->memory;
    fake_stream *elsewhere = fake_stream_take(1 - p->rank);
    CHECK_REFUSED(ncclAllReduce(host, memory, 4, INT32, FAKE_SUM, p->comm, p->stream), FAKE_NCCL_INVALID_ARGUMENT,
                  "ncclAllReduce of 4 int32, sum: the source, 16 bytes");
    CHECK_REFUSED(ncclRecv(host, 4, INT32, 1 - p->rank, p->comm, p->stream), FAKE_NCCL_INVALID_ARGUMENT,
                  "is not device memory");
    CHECK_REFUSED(ncclAllGather(memory, memory, 8, INT32, p->comm, p->stream), FAKE_NCCL_INVALID_ARGUMENT,
                  "not within one live allocation");
    CHECK_REFUSED(ncclSend((char *)memory + 1, 1, INT32, 0, p->comm, p->stream), FAKE_NCCL_INVALID_ARGUMENT,
                  "not aligned");
    CHECK_REFUSED(ncclAllReduce(memory, memory + 1, 4, INT32, FAKE_SUM, p->comm, p->stream), FAKE_NCCL_INVALID_USAGE,
                  "overlap in another way");
    CHECK_REFUSED(ncclSend(memory, 1, 10, 0, p->comm, p->stream), FAKE_NCCL_INVALID_ARGUMENT, "no type 10");
    CHECK_REFUSED(ncclAllReduce(memory, memory, 1, INT32, 4, p->comm, p->stream), FAKE_NCCL_INVALID_ARGUMENT,
                  "no reduction 4");
    CHECK_REFUSED(ncclSend(memory, 1, INT32, p->size, p->comm, p->stream), FAKE_NCCL_INVALID_ARGUMENT, "has 2 ranks");
    CHECK_REFUSED(ncclSend(memory, 1, INT32, 0, p->comm, NULL), FAKE_NCCL_INVALID_ARGUMENT, "no stream");
    CHECK_REFUSED(ncclSend(memory, 1, INT32, 0, p->comm, elsewhere), FAKE_NCCL_INVALID_USAGE,
                  "the stream is of device");
    CHECK_REFUSED(ncclSend(memory, 1, INT32, 0, memory, p->stream), FAKE_NCCL_INVALID_ARGUMENT, "no communicator");
    CHECK_REFUSED(ncclSend(memory, 1, INT32, p->rank, p->comm, p->stream), FAKE_NCCL_INVALID_USAGE,
                  "sends itself more messages than it receives");
    CHECK_REFUSED(ncclGroupEnd(), FAKE_NCCL_INVALID_USAGE, "without ncclGroupStart");
    /* What is refused in a group makes its end fail, and nothing of it is run. */
    CHECK_INT(ncclGroupStart(), 0);
    CHECK_INT(ncclSend(memory, 1, INT32, 1 - p->rank, p->comm, p->stream), 0);
    CHECK_INT(ncclRecv(host, 1, INT32, 1 - p->rank, p->comm, p->stream), FAKE_NCCL_INVALID_ARGUMENT);
    CHECK_REFUSED(ncclGroupEnd(), FAKE_NCCL_INVALID_ARGUMENT, "is not device memory");
    CHECK_INT(ncclGroupStart(), 0);
    CHECK_INT(ncclRecv(memory, 2, INT32, 1 - p->rank, p->comm, p->stream), 0);
    CHECK_INT(ncclSend(memory + 1, 2, INT32, 1 - p->rank, p->comm, p->stream), 0);
    CHECK_REFUSED(ncclGroupEnd(), FAKE_NCCL_INVALID_USAGE, "writes where ncclSend of 2 int32 to rank");
    CHECK(fake_stream_is_idle(p->stream));
    CHECK_IN(ncclGetLastError(p->comm), "within a group");
    CHECK_INT(error_of(p), 0);
    fake_stream_give(elsewhere);
}

/* Each of these ruins its communicator. */
static void ends_badly(place *p, const char *part) {
    synchronize(p); /* the stream does not fail */
    CHECK(error_of(p) != 0);
    CHECK_IN(complaint(), part);
    CHECK(ncclAllReduce(NULL, NULL, 0, INT32, FAKE_SUM, p->comm, p->stream) != 0);
    CHECK_IN(complaint(), "the asynchronous error");
    CHECK_INT(ncclCommAbort(p->comm), 0);
    p->comm = NULL;
}

static void counts_differ(place *p) {
    if (p->rank == 0)
        CHECK_INT(ncclSend(p->memory, 3, INT32, 1, p->comm, p->stream), 0);
    else
        CHECK_INT(ncclRecv(p->memory, 4, INT32, 0, p->comm, p->stream), 0);
    ends_badly(p, "rank 1 calls ncclRecv of 4 int32 from rank 0, but rank 0 calls ncclSend of 3 int32 to rank 1");
}

static void types_differ(place *p) {
    CHECK_INT(ncclAllReduce(p->memory, p->memory, 4, p->rank ? INT32 : FLOAT, FAKE_SUM, p->comm, p->stream), 0);
    ends_badly(p, "calls ncclAllReduce of 4 ");
}

static void roots_differ(place *p) {
    CHECK_INT(ncclBroadcast(p->memory, p->memory, 4, INT32, p->rank, p->comm, p->stream), 0);
    ends_badly(p, "with root");
}

static void reductions_differ(place *p) {
    CHECK_INT(ncclAllReduce(p->memory, p->memory, 4, INT32, p->rank ? FAKE_SUM : FAKE_MAX, p->comm, p->stream), 0);
    ends_badly(p, "maximum");
}

static void collectives_differ(place *p) {
    if (p->rank == 0)
        CHECK_INT(ncclAllReduce(p->memory, p->memory, 4, INT32, FAKE_SUM, p->comm, p->stream), 0);
    else
        CHECK_INT(ncclReduceScatter(p->memory, p->memory + 4, 4, INT32, FAKE_SUM, p->comm, p->stream), 0);
    ends_badly(p, "ncclReduceScatter of 4 int32, sum");
}

static void freed_too_early(place *p) {
    CHECK_INT(ncclAllReduce(p->memory, p->memory, 4, INT32, FAKE_SUM, p->comm, p->stream), 0);
    fake_memory_free(p->memory);
    p->memory = NULL;
    ends_badly(p, "when the stream came to it, memory of ncclAllReduce");
}

static void one_leaves(place *p) {
    if (p->rank == 0) {
        CHECK_INT(ncclAllReduce(p->memory, p->memory, 4, INT32, FAKE_SUM, p->comm, p->stream), 0);
        CHECK_REFUSED(ncclCommDestroy(p->comm), FAKE_NCCL_INVALID_USAGE, "still had 1 of its operations to run");
        CHECK_INT(ncclCommAbort(p->comm), 0);
        p->comm = NULL;
        synchronize(p);
        CHECK_INT(at(p->memory, 0), 0);
    } else {
        CHECK_INT(ncclRecv(p->memory, 4, INT32, 0, p->comm, p->stream), 0);
        ends_badly(p, "but rank 0 has left the communicator");
    }
}

/* Both receive, and nobody sends. */
static void all_wait_in_vain(place *p) {
    CHECK_INT(ncclRecv(p->memory, 4, INT32, 1 - p->rank, p->comm, p->stream), 0);
    ends_badly(p, "in ncclRecv of 4 int32 from rank");
}

/* Both send first, without a group. */
static void all_send_first(place *p) {
    CHECK_INT(ncclSend(p->memory, 1, INT32, 1 - p->rank, p->comm, p->stream), 0);
    CHECK_INT(ncclRecv(p->memory + 1, 1, INT32, 1 - p->rank, p->comm, p->stream), 0);
    ends_badly(p, "in ncclSend of 1 int32 to rank");
}

static void failures_are_injected(place *p) {
    if (p->rank == 0) {
        int32_t *memory = integers(4, 0, 1);
        int error = 0;
        CHECK_INT(fake_fail("ncclCommGetAsyncError", 1, FAKE_NCCL_REMOTE), 0);
        CHECK_INT(ncclCommGetAsyncError(p->comm, &error), 0);
        CHECK_INT(error, FAKE_NCCL_REMOTE);
        CHECK_IN(complaint(), "nobody minded");
        CHECK_INT(fake_fail("ncclSend", 1, FAKE_NCCL_SYSTEM), 0);
        CHECK_INT(ncclGroupStart(), 0);
        CHECK_INT(ncclSend(memory, 1, INT32, 1, p->comm, p->stream), FAKE_NCCL_SYSTEM);
        CHECK_INT(ncclGroupEnd(), FAKE_NCCL_SYSTEM);
        CHECK_INT(fake_fail("ncclGroupEnd", 1, FAKE_NCCL_SYSTEM), 0);
        CHECK_INT(ncclGroupStart(), 0);
        CHECK_INT(ncclSend(memory, 1, INT32, 1, p->comm, p->stream), 0);
        CHECK_INT(ncclGroupEnd(), FAKE_NCCL_SYSTEM);
        CHECK(fake_stream_is_idle(p->stream));
        CHECK_IN(complaint(), "nobody minded");
        fake_memory_free(memory);
        CHECK_INT(error_of(p),
                  0); /* the other rank asks nothing: it might get the failure that is meant for this one */
    }
}

static void what_cannot_join_is_refused(void) {
    nccl_comm comm;
    nccl_id id, none = {.internal = "something else"};
    CHECK_INT(ncclGetUniqueId(&id), 0);
    CHECK_REFUSED(ncclCommInitRank(&comm, 1, none, 0), FAKE_NCCL_INVALID_ARGUMENT, "did not make");
    CHECK_REFUSED(ncclCommInitRank(&comm, 2, id, 2), FAKE_NCCL_INVALID_ARGUMENT, "2 is no rank of 2");
    CHECK_REFUSED(ncclCommInitRank(&comm, 2, id, 0), FAKE_NCCL_SYSTEM, "only 1 of 2 ranks have joined");
    CHECK_REFUSED(ncclCommInitRank(&comm, 2, id, 1), FAKE_NCCL_SYSTEM, "only 1 of 2 ranks have joined");
    CHECK_INT(ncclCommInitRank(&comm, 1, id, 0), 0);
    CHECK_INT(ncclCommDestroy(comm), 0);
    CHECK_REFUSED(ncclCommDestroy(comm), FAKE_NCCL_INVALID_ARGUMENT, "a dead one");
    CHECK_REFUSED(ncclCommAbort(comm), FAKE_NCCL_INVALID_ARGUMENT, "a dead one");
}

/* What ncclCommInitRank returns in two processes, and what an allreduce gives. */
static void processes_meet(const char *shared, const char *enabled, const char *version, int expected) {
    nccl_id id;
    pid_t children[2];
    CHECK_INT(ncclGetUniqueId(&id), 0);
    fflush(stdout);
    for (int i = 0; i < 2; i++) {
        children[i] = fork();
        if (children[i] != 0) continue;
        nccl_comm comm;
        fake_stream *stream = fake_stream_take(0);
        setenv("MPIXLA_FAKE_DEVICE_SHARED", shared, 1);
        setenv("NCCL_MULTI_RANK_GPU_ENABLE", enabled, 1);
        setenv("MPIXLA_FAKE_NCCL_VERSION", version, 1);
        CHECK_INT(cuCtxPushCurrent_v2(fake_context_get(0)), 0);
        CHECK_INT(ncclCommInitRank(&comm, 2, id, i), expected);
        if (expected == 0) {
            int32_t *memory = integers(4, i, 1);
            CHECK_INT(ncclAllReduce(memory, memory, 4, INT32, FAKE_SUM, comm, stream), 0);
            CHECK_INT(cuStreamSynchronize(stream), 0);
            CHECK_INT(at(memory, 3), 7);
            CHECK_INT(ncclCommDestroy(comm), 0);
            fake_memory_free(memory);
            CHECK_STR(complaint(), "");
        } else {
            CHECK_IN(complaint(), "Duplicate GPU detected : rank 0 and rank 1");
        }
        int failed = atomic_load(&check_failed);
        fflush(stdout);
        _exit(failed != 0);
    }
    for (int i = 0; i < 2; i++) CHECK_INT(process_end(children[i]), 0);
}

int main(void) {
    setenv("MPIXLA_FAKE_DEVICE_COUNT", "3", 1);
    CHECK_INT(cuInit(0), 0);
    processes_meet("0", "0", "22703", 0);
    processes_meet("1", "0", "23004", FAKE_NCCL_INVALID_USAGE);
    processes_meet("1", "1", "22703", FAKE_NCCL_INVALID_USAGE);
    processes_meet("1", "1", "23004", 0);
    types_reduce();
    for (int size = 1; size <= RANKS; size++) on_ranks(size, collectives_give_what_they_should);
    for (int size = 1; size <= RANKS; size++) on_ranks(size, groups_go_on_together);
    on_ranks(2, misuse_is_refused);
    on_ranks(2, failures_are_injected);
    on_ranks(2, counts_differ);
    on_ranks(2, types_differ);
    on_ranks(2, roots_differ);
    on_ranks(2, reductions_differ);
    on_ranks(2, collectives_differ);
    on_ranks(2, freed_too_early);
    on_ranks(2, one_leaves);
    setenv("MPIXLA_FAKE_DEVICE_TIMEOUT", "1", 1);
    on_ranks(2, all_wait_in_vain);
    on_ranks(2, all_send_first);
    what_cannot_join_is_refused();
    return check_failures();
}
