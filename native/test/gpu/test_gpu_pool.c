/* The pool: who gets a block, and when; what is kept, and what is not. */
#include <stdlib.h>

#include "base/error.h"
#include "device/pool.h"
#include "test/gpu/fake_context.h"
#include "test/gpu/fake_driver.h"
#include "test/gpu/fake_event.h"
#include "test/gpu/fake_memory.h"
#include "test/gpu/fake_pinned.h"
#include "test/gpu/gpu_check.h"
#include "test/gpu/gpu_scene.h"
#include "test/run.h"
#include "test/scarce.h"

enum { PAGE = 4096 };

static device gpu, other_gpu;

static void drain(const device *d) {
    CHECK_INT(fake_stream_run(d->stream, fake_stream_added(d->stream)), 0);
}

static void *memory; /* of the GPU */

/* Something that the stream does with the block. */
static void use(const device *d, const pool_block *b) {
    CHECK_INT(
        b->kind == POOL_PINNED ? device_copy_in(d, memory, b->data, 16) : device_copy_within(d, memory, b->data, 16),
        0);
}

static void a_block_is_kept_back_while_the_stream_has_it(void) {
    for (pool_kind kind = 0; kind <= POOL_DEVICE; kind++) {
        pool_block *first = pool_get(&gpu, kind, 100);
        use(&gpu, first);
        pool_give_back(&gpu, first);
        pool_block *second = pool_get(&gpu, kind, 100);
        CHECK(second != first && second->data != first->data);
        pool_block *third = pool_get(&gpu, kind, 100); /* and again, though it has been asked */
        CHECK(third != first && third != second);
        use(&gpu, second);
        pool_give_back(&gpu, second);
        drain(&gpu);
        /* What came back first is given out first. */
        CHECK(pool_get(&gpu, kind, 100) == first);
        CHECK(pool_get(&gpu, kind, 100) == second);
        use(&gpu, third); /* after it was given back is too late, before is not */
        pool_give_back(&gpu, third);
        pool_give_back(&gpu, first);
        pool_give_back(&gpu, second);
        pool_block *fourth = pool_get(&gpu, kind, 100);
        CHECK(fourth != third);
        drain(&gpu);
        CHECK(pool_get(&gpu, kind, 100) == third);
        pool_give_back(&gpu, third);
        pool_give_back(&gpu, fourth);
    }
    pool_give_back(&gpu, NULL);
}

/* A stream that is idle does not keep back what another one has. */
static void a_block_waits_for_its_own_stream(void) {
    device late = gpu;
    late.stream = fake_stream_take(0);
    pool_block *b = pool_get(&late, POOL_PINNED, 3 * PAGE);
    use(&late, b);
    pool_give_back(&late, b);
    drain(&gpu);
    pool_block *mine = pool_get(&gpu, POOL_PINNED, 3 * PAGE);
    CHECK(mine != b);
    drain(&late);
    CHECK(pool_get(&gpu, POOL_PINNED, 3 * PAGE) == b);
    pool_give_back(&gpu, b);
    pool_give_back(&gpu, mine);
    fake_stream_give(late.stream);
}

static void sizes_are_kept_apart(void) {
    static const struct {
        int64_t bytes, room;
    } rows[] = {{0, PAGE}, {1, PAGE}, {PAGE, PAGE}, {PAGE + 1, 2 * PAGE}, {1 << 20, 1 << 20}, {(1 << 20) + 1, 2 << 20}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int64_t before = fake_pinned_bytes();
        pool_block *b[64];
        int n = 0;
        while (n < 64 && fake_pinned_bytes() == before) b[n++] = pool_get(&gpu, POOL_PINNED, rows[i].bytes);
        CHECK_INT(fake_pinned_bytes() - before, rows[i].room); /* the last had to be made */
        CHECK_INT((intptr_t)b[n - 1]->data % 64, 0);
        memset(b[n - 1]->data, 1, (size_t)rows[i].bytes);
        while (n > 0) pool_give_back(&gpu, b[--n]);
    }
}

enum { MIB = 1 << 20, SMALL_MOST = 256 };

static void large_blocks_of_the_gpu_are_freed(void) {
    int64_t live = fake_memory_live(), events = fake_events_live();
    pool_block *b = pool_get(&gpu, POOL_DEVICE, (int64_t)SMALL_MOST * MIB + 1);
    CHECK(b != NULL && fake_memory_live() == live + 1);
    if (!b) return;
    use(&gpu, b);
    pool_give_back(&gpu, b); /* waits, as the stream still has it */
    CHECK(fake_stream_is_idle(gpu.stream));
    CHECK_INT(fake_memory_live(), live);
    CHECK_INT(fake_events_live(), events);
}

/* In multiples of 64 MiB. Each that comes back is the next one's, which waits for it, and is replaced where it is too
 * small. */
static void two_large_pinned_blocks_are_kept(void) {
    static const struct {
        int64_t wanted, is; /* MiB */
        int is_new;
    } rows[] = {{300, 320, 1}, {257, 320, 0}, {320, 320, 0}, {321, 384, 1}, {300, 384, 0}};
    int64_t before = fake_pinned_bytes();
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        fake_calls_forget();
        pool_block *b = pool_get(&gpu, POOL_PINNED, rows[i].wanted * MIB);
        CHECK_INT(fake_calls_count("cuMemHostAlloc"), rows[i].is_new);
        CHECK_INT(fake_pinned_bytes() - before, rows[i].is * MIB);
        use(&gpu, b);
        pool_give_back(&gpu, b);
    }
    pool_block *three[3];
    for (int i = 0; i < 3; i++) three[i] = pool_get(&gpu, POOL_PINNED, (int64_t)300 * MIB);
    CHECK_INT(fake_pinned_bytes() - before, (384 + 2 * 320) * (int64_t)MIB);
    for (int i = 0; i < 3; i++) pool_give_back(&gpu, three[i]);
    CHECK_INT(fake_pinned_bytes() - before, (384 + 320) * (int64_t)MIB);
}

static void devices_share_nothing(void) {
    CHECK_INT(fake_context_push(fake_context_get(1)), 0);
    for (pool_kind kind = 0; kind <= POOL_DEVICE; kind++) {
        pool_block *here = pool_get(&gpu, kind, 100);
        pool_give_back(&other_gpu, NULL);
        pool_block *there = pool_get(&other_gpu, kind, 100);
        CHECK(there != NULL && there->device == 1);
        pool_give_back(&other_gpu, there);
        CHECK_INT(fake_context_pop(NULL), 0);
        pool_give_back(&gpu, here);
        for (int i = 0; i < 100; i++) {
            pool_block *b = pool_get(&gpu, kind, 100);
            CHECK_INT(b->device, 0);
            CHECK(b != there);
            pool_give_back(&gpu, b);
        }
        CHECK_INT(fake_context_push(fake_context_get(1)), 0);
        CHECK(pool_get(&other_gpu, kind, 100) == there);
        pool_give_back(&other_gpu, there);
    }
    CHECK_INT(fake_context_pop(NULL), 0);
    CHECK_STR(complaint(), "");
}

static void no_memory_is_a_sentence(void) {
    static const struct {
        const char *function;
        pool_kind kind;
        const char *sentence;
    } rows[] = {
        {"cuMemHostAlloc", POOL_PINNED,
         "there are no 65536 bytes of pinned memory of the host for a call: cuMemHostAlloc of the CUDA driver returned "
         "error code 2, CUDA_ERROR_OUT_OF_MEMORY: out of memory"},
        {"cuMemAlloc_v2", POOL_DEVICE,
         "there are no 65536 bytes of memory of the GPU for a call: cuMemAlloc_v2 of the CUDA driver returned error "
         "code 2, CUDA_ERROR_OUT_OF_MEMORY: out of memory"},
        {"cuEventCreate", POOL_PINNED,
         "cuEventCreate of the CUDA driver returned error code 2, CUDA_ERROR_OUT_OF_MEMORY: out of memory"},
        {"cuEventCreate", POOL_DEVICE,
         "cuEventCreate of the CUDA driver returned error code 2, CUDA_ERROR_OUT_OF_MEMORY: out of memory"},
    };
    fake_fail_may_pass(1);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int64_t pinned = fake_pinned_live(), live = fake_memory_live(), events = fake_events_live();
        CHECK_INT(fake_fail(rows[i].function, 1, FAKE_OUT_OF_MEMORY), 0);
        CHECK(pool_get(&gpu, rows[i].kind, 65536) == NULL);
        CHECK_STR(error_get(), rows[i].sentence);
        CHECK_INT(fake_pinned_live(), pinned);
        CHECK_INT(fake_memory_live(), live);
        CHECK_INT(fake_events_live(), events);
    }
    for (pool_kind kind = 0; kind <= POOL_DEVICE; kind++) {
        pool_block *b = pool_get(&gpu, kind, 65536);
        CHECK(b != NULL);
        pool_give_back(&gpu, b);
    }
    CHECK_STR(complaint(), "");
}

/* The host's own memory needs no GPU: what was given back is there at once. */
static void memory_of_the_host_is_kept(void) {
    int64_t calls = fake_calls_count(NULL);
    pool_block *first = pool_get(NULL, POOL_HOST, 100), *second = pool_get(NULL, POOL_HOST, PAGE);
    CHECK(first && second && first != second);
    memset(first->data, 1, PAGE);
    memset(second->data, 2, PAGE);
    pool_give_back(NULL, first);
    CHECK(pool_get(NULL, POOL_HOST, 1) == first);
    pool_block *larger = pool_get(NULL, POOL_HOST, PAGE + 1);
    CHECK(larger && larger != first && larger != second);
    memset(larger->data, 3, 2 * PAGE);
    pool_give_back(NULL, larger);
    pool_give_back(NULL, first);
    pool_give_back(NULL, second);
    pool_give_back(NULL, pool_get(NULL, POOL_HOST, (INT64_C(1) << 28) + 1)); /* too large to keep */
    pool_give_back(NULL, NULL);
    CHECK(pool_get(NULL, POOL_HOST, INT64_C(1) << 56) == NULL);
    CHECK_STR(error_get(), "there are no 72057594037927936 bytes of memory for a call: malloc returned NULL");
    CHECK_INT(fake_calls_count(NULL), calls);
}

static scene s;
static int64_t fails; /* which call of cuMemHostAlloc */

static void run_without_memory(void) {
    (void)fake_fail("cuMemHostAlloc", fails, FAKE_OUT_OF_MEMORY);
    (void)call_run(&s.c);
}

/* An allreduce of this array on a new communicator. */
static void call_open(int ranks, void *array, int64_t items) {
    gpu_mpi_ranks = ranks;
    scene_open(&s, 1, 1);
    scene_call(&s, "allreduce", mpixla_comm_register(fake->handle(fake->comm_new(0, ranks, 0)), "new"), 0);
    for (int side = 0; side < 2; side++) {
        scene_buffer(&s, side, 0, FFI_S32, items, SCENE_SENT);
        s.c.sides[side].buffers[0].data = array;
    }
}

/* A call of many ranks ends the job, since the others wait for this one. One of a rank alone says the same, and the
 * next one works. */
static void calls_say_that_there_is_no_memory(void) {
    for (int large = 0; large < 2; large++) /* two blocks: one of them is there */
        for (int nth = 1; nth <= 1 + large; nth++) {
            int64_t items = large ? 1 << 23 : 1 << 17;
            void *array = fake_memory_alloc((size_t)items * 4);
            mpixla_gpu_piece_set(large ? 1 << (22 + nth) : 1 << 30); /* sizes that nobody has had */
            fails = nth;
            call_open(FIXTURE_SIZE, array, items);
            const scarce_end end = scarce_run(run_without_memory);
            CHECK_INT(end.status, 1);
            CHECK_IN(end.told, "bytes of pinned memory of the host for a call: cuMemHostAlloc of the CUDA driver");
            CHECK_IN(end.told, "The other ranks of communicator 'new' wait for this one");
            CHECK_INT(gpu_drain(), 0);
            scene_close(&s);
            call_open(1, array, items);
            int64_t pinned = fake_pinned_live(), events = fake_events_live();
            run_without_memory();
            CHECK_IN(s.c.message, "bytes of pinned memory of the host for a call: cuMemHostAlloc of the CUDA driver");
            CHECK_INT(s.c.code, FFI_ABORTED);
            CHECK_INT(fake_pinned_live(), pinned + nth - 1); /* what it got is kept */
            CHECK_INT(fake_events_live(), events + nth - 1);
            CHECK_INT(gpu_drain(), 0);
            CHECK_STR(call_run(&s.c), "");
            CHECK_INT(fake_pinned_live(), pinned + 1 + large);
            CHECK_INT(gpu_drain(), 0);
            CHECK_STR(complaint(), "");
            scene_close(&s);
            fake_memory_free(array);
            mpixla_gpu_piece_set(GPU_PIECE);
            gpu_mpi_ranks = FIXTURE_SIZE;
        }
}

/* What the stream cannot tell of is waited for. */
static void blocks_without_an_event_are_freed(void) {
    pool_block *b = pool_get(&gpu, POOL_PINNED, 100);
    int64_t pinned = fake_pinned_live(), events = fake_events_live();
    use(&gpu, b);
    CHECK_INT(fake_fail("cuEventRecord", 1, FAKE_INVALID_HANDLE), 0);
    pool_give_back(&gpu, b);
    CHECK(fake_stream_is_idle(gpu.stream));
    CHECK_INT(fake_pinned_live(), pinned - 1);
    CHECK_INT(fake_events_live(), events - 1);
    CHECK_STR(complaint(), "");
}

static int64_t calls_of(const char *const *functions, size_t n) {
    int64_t count = 0;
    for (size_t i = 0; i < n; i++) count += fake_calls_count(functions[i]);
    return count;
}

/* After a few rounds a program gets all that it needs from the pool, though its stream is late. */
static void nothing_is_allocated_on_the_steady_path(void) {
    static const char *const allocate[] = {"cuMemHostAlloc", "cuMemFreeHost", "cuMemAlloc_v2",
                                           "cuMemFree_v2",   "cuEventCreate", "cuEventDestroy_v2"};
    for (int i = 0; i < scene_step_count; i++) {
        int64_t before = 0;
        for (int round = 0; round < 120; round++) {
            scene_open(&s, 1, round);
            gpu_mpi_reset(round);
            if (round == 20) fake_calls_forget();
            if (round == 21) before = fake_calls_count(NULL);
            CHECK_STR(scene_run(&s, &scene_steps[i]), "");
            if (round % 4 == 0) CHECK_INT(gpu_drain(), 0); /* XLA does it now and then */
            CHECK_INT(gpu_drain(), 0);
            scene_close(&s);
        }
        CHECK_INT(calls_of(allocate, sizeof allocate / sizeof allocate[0]), 0);
        CHECK_INT(fake_calls_count(NULL), 100 * before);
    }
}

/* The same where the stream is never run but by the library. */
static void a_late_stream_needs_no_more(void) {
    scene_open(&s, 1, 1);
    for (int round = 0; round < 200; round++) {
        if (round == 100) fake_calls_forget();
        gpu_mpi_reset(round);
        for (int i = 0; i < scene_step_count; i++) CHECK_STR(scene_run(&s, &scene_steps[i]), "");
    }
    CHECK_INT(fake_calls_count("cuMemHostAlloc"), 0);
    CHECK_INT(fake_calls_count("cuEventCreate"), 0);
    CHECK_INT(gpu_drain(), 0);
    CHECK_STR(complaint(), "");
    scene_close(&s);
}

static void *get_and_give(void *argument) {
    device mine = gpu;
    (void)argument;
    CHECK_INT(fake_context_push(fake_context_get(0)), 0);
    mine.stream = fake_stream_take(0);
    for (int i = 0; i < 500; i++) {
        pool_block *b[3];
        for (int k = 0; k < 3; k++) {
            b[k] = pool_get(&mine, POOL_PINNED, 5 * PAGE);
            memset(b[k]->data, i + k, 64);
        }
        for (int k = 0; k < 3; k++) {
            for (int byte = 0; byte < 64; byte++) CHECK_INT(b[k]->data[byte], (char)(i + k));
            pool_give_back(&mine, b[k]);
        }
    }
    drain(&mine);
    fake_stream_give(mine.stream);
    CHECK_INT(fake_context_pop(NULL), 0);
    return NULL;
}

/* Nobody has another's block, and none is lost. */
static void threads_share_blocks(void) {
    enum { THREADS = 4, BLOCKS = 64 };
    pool_block *b[BLOCKS];
    threads_run(THREADS, get_and_give);
    int64_t blocks = 0, before = fake_pinned_live();
    while (blocks < BLOCKS && fake_pinned_live() == before) b[blocks++] = pool_get(&gpu, POOL_PINNED, 5 * PAGE);
    CHECK(blocks >= 2 && blocks <= 3 * THREADS + 1); /* the last was made */
    for (int64_t i = 0; i < blocks; i++) pool_give_back(&gpu, b[i]);
}

int main(int argc, char **argv) {
    setenv("MPIXLA_FAKE_DEVICE_COUNT", "2", 1);
    gpu_start(argc, argv);
    gpu = (device){.driver = driver_get(), .stream = gpu_stream, .number = 0};
    other_gpu = (device){.driver = driver_get(), .stream = fake_stream_take(1), .number = 1};
    CHECK_INT(fake_context_push(fake_context_get(0)), 0);
    memory = fake_memory_alloc(16);
    a_block_is_kept_back_while_the_stream_has_it();
    a_block_waits_for_its_own_stream();
    sizes_are_kept_apart();
    large_blocks_of_the_gpu_are_freed();
    two_large_pinned_blocks_are_kept();
    devices_share_nothing();
    no_memory_is_a_sentence();
    memory_of_the_host_is_kept();
    blocks_without_an_event_are_freed();
    threads_share_blocks();
    CHECK_INT(gpu_drain(), 0);
    CHECK_INT(fake_context_pop(NULL), 0);
    calls_say_that_there_is_no_memory();
    nothing_is_allocated_on_the_steady_path();
    a_late_stream_needs_no_more();
    return check_failures();
}
