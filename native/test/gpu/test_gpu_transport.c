/* What MPI is given when arrays are on a GPU: large calls in pieces, exactly which, and what is under way meanwhile;
 * requests, and messages to oneself; and that a failure in the middle leaves nothing behind. And which copies exact
 * sums make.
 */
#include <stdlib.h>

#include "exact/exact_sum.h"
#include "ops/request.h"
#include "test/gpu/fake_context.h"
#include "test/gpu/fake_memory.h"
#include "test/gpu/fake_pinned.h"
#include "test/gpu/gpu_check.h"
#include "test/gpu/gpu_scene.h"
#include "watch/flight.h"

enum { CALLS = 256, IN_PIECE = GPU_PIECE / 4 };

/* The calls of MPI since notes_start. */
static struct {
    char text[64];
    const void *send, *recv;
    int64_t driver_calls; /* were made before */
    int64_t watched;      /* the items of the call, as who watches sees it */
} notes[CALLS];
static int noted;

static int64_t items_watched(void) {
    flight_view view;
    for (int64_t i = 0; i < flight_threads(); i++)
        if (flight_view_read(i, &view)) return view.facts.items;
    return -1;
}

static void note(void) {
    if (noted == CALLS) return;
    snprintf(notes[noted].text, sizeof notes[noted].text, "%.63s", fake->call);
    notes[noted].send = fake->send;
    notes[noted].recv = fake->recv;
    notes[noted].watched = items_watched();
    notes[noted++].driver_calls = fake_calls_count(NULL);
}

static void notes_start(void) {
    noted = 0;
    gpu_mpi_watch = note;
    fake_calls_forget();
}

static scene on_host, on_device;
static int seed;

static void both_open(void) {
    scene_open(&on_host, 0, ++seed);
    scene_open(&on_device, 1, seed);
}

static void both_close(void) {
    gpu_recover();
    scene_close(&on_host);
    scene_close(&on_device);
}

static void both_are_equal(void) {
    CHECK_INT(gpu_drain(), 0);
    CHECK_STR(complaint(), "");
    const char *array = scenes_differ(&on_host, &on_device);
    CHECK_STR(array ? array : "", "");
}

/* A reduction, or a bcast, of `items` of the large arrays; `root` is the number of whoever has it. */
static void large_make(scene *s, const char *op, int64_t comm, int64_t items, int in_place) {
    scene_call(s, op, comm, 0);
    if (s->c.frame.args.size > 0) scene_buffer(s, CALL_OPERANDS, 0, FFI_S32, items, SCENE_LARGE);
    if (s->c.frame.rets.size > 0)
        scene_buffer(s, CALL_RESULTS, 0, FFI_S32, items, in_place ? SCENE_LARGE : SCENE_LARGE_REDUCED);
}

static const char *large_run(scene *s, const char *op, int64_t comm, int64_t items, int in_place) {
    gpu_mpi_reset(seed);
    large_make(s, op, comm, items, in_place);
    return call_run(&s->c);
}

static const struct {
    const char *op;
    int64_t comm;
    const char *function, *rest; /* of MPI's call, before and behind the count */
    int sends, receives;
} splits[] = {
    {"allreduce", FIXTURE_RANK0, "MPI_Allreduce", "t4 op 100 c2", 1, 1},
    {"allreduce", FIXTURE_RANK2, "MPI_Allreduce", "t4 op 100 c3", 1, 1},
    {"bcast", FIXTURE_RANK0, "MPI_Bcast", "t4 root 0 c2", 1, 0},
    {"bcast", FIXTURE_RANK2, "MPI_Bcast", "t4 root 0 c3", 0, 1},
    {"reduce", FIXTURE_RANK0, "MPI_Reduce", "t4 op 100 root 0 c2", 1, 1},
    {"reduce", FIXTURE_RANK2, "MPI_Reduce", "t4 op 100 root 0 c3", 1, 0},
    {"scan", FIXTURE_RANK2, "MPI_Scan", "t4 op 100 c3", 1, 1},
};
enum { SPLITS_TESTED = sizeof splits / sizeof splits[0] };

static void calls_are_in_pieces(int i, int64_t items, int in_place) {
    both_open();
    CHECK_STR(large_run(&on_host, splits[i].op, splits[i].comm, items, in_place), "");
    notes_start();
    CHECK_STR(large_run(&on_device, splits[i].op, splits[i].comm, items, in_place), "");
    gpu_mpi_watch = NULL;
    CHECK_INT(noted, items <= IN_PIECE ? 1 : (items + IN_PIECE - 1) / IN_PIECE);
    for (int k = 0; k < noted; k++) {
        char expected[64];
        int64_t n = items - k * IN_PIECE, in_pieces = items > IN_PIECE;
        if (n > IN_PIECE) n = IN_PIECE;
        snprintf(expected, sizeof expected, "%s %lld %s", splits[i].function, (long long)n, splits[i].rest);
        CHECK_STR(notes[k].text, expected);
        CHECK_INT(notes[k].watched, items); /* a piece is nobody else's matter: the other ranks may be at another one */
        int both = splits[i].sends && splits[i].receives, is_bcast = strcmp(splits[i].op, "bcast") == 0;
        if (!is_bcast) CHECK_INT((intptr_t)notes[k].send == FAKE_IN_PLACE, both && (in_pieces || in_place));
        /* The memory is the host's, and not that of the call before. */
        CHECK(fake_memory_engine(notes[k].send) == notes[k].send && fake_memory_engine(notes[k].recv) == notes[k].recv);
        if (k > 0 && splits[i].receives) CHECK(notes[k].recv != notes[k - 1].recv);
        if (k > 1 && splits[i].receives) CHECK(notes[k].recv == notes[k - 2].recv);
    }
    both_are_equal();
    both_close();
}

static void large_calls_are_in_pieces(void) {
    static const int64_t items[] = {1, IN_PIECE - 1, IN_PIECE, IN_PIECE + 1, 2 * IN_PIECE, 3 * IN_PIECE - 1, 97, 100};
    for (int i = 0; i < SPLITS_TESTED; i++)
        for (size_t k = 0; k < sizeof items / sizeof items[0]; k++)
            for (int in_place = 0; in_place < 2; in_place++) calls_are_in_pieces(i, items[k], in_place);
}

/* How many of the first `n` driver calls that were noted are of this function. */
static int64_t count_of(const char *function, int64_t n) {
    int64_t count = 0;
    fake_noted call;
    for (int64_t i = 0; i < n; i++)
        if (fake_calls_read(i, &call) == 0) count += strcmp(call.function, function) == 0;
    return count;
}

/* When MPI gets a piece, the next one is on its way already, and nobody has waited for more than this one. */
static void pieces_overlap(void) {
    enum { PIECES = 6 };
    both_open();
    notes_start();
    CHECK_STR(large_run(&on_device, "allreduce", FIXTURE_RANK0, PIECES * IN_PIECE, 0), "");
    gpu_mpi_watch = NULL;
    CHECK_INT(noted, PIECES);
    for (int k = 0; k < noted; k++) {
        CHECK_INT(count_of("cuMemcpyDtoHAsync_v2", notes[k].driver_calls), k + 2 < PIECES ? k + 2 : PIECES);
        CHECK_INT(count_of("cuEventSynchronize", notes[k].driver_calls), k + 1);
        CHECK_INT(count_of("cuMemcpyHtoDAsync_v2", notes[k].driver_calls), k);
    }
    CHECK_INT(fake_calls_count("cuStreamSynchronize"), 0);
    CHECK_INT(fake_calls_count("cuMemcpyHtoDAsync_v2"), PIECES);
    CHECK(!fake_stream_is_idle(gpu_stream));
    both_close();
}

/* MPI's counts are those of a piece. */
static void pieces_have_small_counts(void) {
    int64_t before = mpixla_count_limit_set(IN_PIECE);
    notes_start();
    both_open();
    CHECK_STR(large_run(&on_host, "allreduce", FIXTURE_RANK0, 40, 0), "");
    CHECK_STR(notes[0].text, "MPI_Allreduce_c 40 t4 op 100 c2");
    CHECK_STR(large_run(&on_device, "allreduce", FIXTURE_RANK0, 40, 0), "");
    CHECK_STR(notes[1].text, "MPI_Allreduce 16 t4 op 100 c2");
    CHECK_STR(notes[3].text, "MPI_Allreduce 8 t4 op 100 c2");
    mpixla_count_limit_set(IN_PIECE - 1);
    CHECK_STR(large_run(&on_device, "allreduce", FIXTURE_RANK0, 40, 0), "");
    CHECK_STR(notes[4].text, "MPI_Allreduce_c 16 t4 op 100 c2");
    CHECK_STR(notes[6].text, "MPI_Allreduce 8 t4 op 100 c2");
    gpu_mpi_watch = NULL;
    both_close();
    mpixla_count_limit_set(before);
}

/* A communicator whose ranks agree, in their next call, on pieces of so many bytes. */
static int64_t comm_with_pieces(int64_t bytes, int *number) {
    *number = fake->comm_new(0, FIXTURE_SIZE, 0);
    mpixla_gpu_piece_set(bytes);
    int64_t comm = mpixla_comm_register(fake->handle(*number), "pieces");
    both_open();
    CHECK_STR(large_run(&on_device, "allreduce", comm, 1, 0), "");
    both_close();
    mpixla_gpu_piece_set(GPU_PIECE);
    return comm;
}

/* Pieces have whole items, and at least one. */
static void pieces_have_whole_items(void) {
    static const struct {
        int64_t bytes, items, pieces;
        const char *first;
    } rows[] = {
        {66, 40, 3, "MPI_Allreduce 16 "}, {4, 40, 40, "MPI_Allreduce 1 "}, {3, 40, 40, "MPI_Allreduce 1 "},
        {7, 7, 7, "MPI_Allreduce 1 "},    {8, 7, 4, "MPI_Allreduce 2 "},   {159, 40, 2, "MPI_Allreduce 39 "},
        {160, 40, 1, "MPI_Allreduce 40"}, {3, 1, 1, "MPI_Allreduce 1 "},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int number;
        int64_t comm = comm_with_pieces(rows[i].bytes, &number);
        both_open();
        CHECK_STR(large_run(&on_host, "allreduce", comm, rows[i].items, 0), "");
        notes_start();
        CHECK_STR(large_run(&on_device, "allreduce", comm, rows[i].items, 0), "");
        gpu_mpi_watch = NULL;
        CHECK_INT(noted, rows[i].pieces);
        CHECK(strncmp(notes[0].text, rows[i].first, strlen(rows[i].first)) == 0);
        both_are_equal();
        both_close();
        CHECK_INT(fake->comm_free(number), 0);
    }
}

/* MPI fails with the first, the second and the last piece. */
static void a_failure_in_the_middle_is_told(void) {
    for (int i = 0; i < SPLITS_TESTED; i++)
        for (int spared = 0; spared < 4; spared++) {
            int64_t items = 4 * IN_PIECE;
            both_open();
            CHECK_STR(large_run(&on_host, splits[i].op, splits[i].comm, items, 0), "");
            CHECK_STR(large_run(&on_device, splits[i].op, splits[i].comm, items, 0), "");
            both_are_equal();
            int64_t blocks = fake_pinned_live();
            fixture_fail(splits[i].function, 0xa06);
            fake->spared = spared;
            notes_start();
            CHECK_IN(large_run(&on_device, splits[i].op, splits[i].comm, items, 0), " returned error code 6: the fake");
            gpu_mpi_watch = NULL;
            fixture_fail(NULL, 0);
            CHECK_IN(on_device.c.message, splits[i].function);
            CHECK_IN(on_device.c.message, " with 64 items");
            CHECK_INT(on_device.c.code, FFI_INTERNAL);
            CHECK_INT(noted, spared + 1);
            CHECK_INT(mpixla_calls_in_flight(), 0);
            CHECK_INT(gpu_drain(), 0);
            CHECK_STR(large_run(&on_device, splits[i].op, splits[i].comm, items, 0), "");
            both_are_equal();
            CHECK_INT(fake_pinned_live(), blocks);
            both_close();
        }
}

/* Of calls that are not in pieces, and of requests, too. */
static void failures_of_mpi_are_told(void) {
    static const struct {
        const char *step, *function;
    } rows[] = {
        {"allreduce", "MPI_Allreduce"},
        {"recv", "MPI_Recv"},
        {"recv of less", "MPI_Get_elements_x"},
        {"recv with status", "MPI_Recv"},
        {"requests", "MPI_Irecv"},
        {"requests", "MPI_Isend"},
        {"requests", "MPI_Wait"},
        {"halo_exchange", "MPI_Irecv"},
        {"halo_exchange", "MPI_Isend"},
        {"halo_exchange", "MPI_Wait"},
        {"halo_transpose", "MPI_Get_elements_x"},
        {"send", "MPI_Send"},
        {"send to itself", "MPI_Isend"},
        {"sendrecv", "MPI_Sendrecv"},
        {"exchange", "MPI_Irecv"},
        {"exchange", "MPI_Wait"},
        {"barrier", "MPI_Barrier"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const scene_step *step = scene_step_find(rows[i].step);
        both_open();
        gpu_mpi_reset(seed);
        CHECK_STR(scene_run(&on_device, step), "");
        CHECK_INT(gpu_drain(), 0);
        int64_t blocks = fake_pinned_live();
        fixture_fail(rows[i].function, 0xa06);
        CHECK_IN(scene_run(&on_device, step), " returned error code 6: the fake MPI's text");
        fixture_fail(NULL, 0);
        CHECK_INT(mpixla_calls_in_flight(), 0);
        CHECK_INT(fake_context_depth(), 0);
        CHECK_INT(gpu_drain(), 0);
        both_close();
        both_open();
        gpu_mpi_reset(seed);
        CHECK_STR(scene_run(&on_host, step), "");
        gpu_mpi_reset(seed);
        CHECK_STR(scene_run(&on_device, step), "");
        both_are_equal();
        CHECK_INT(fake_pinned_live(), blocks);
        both_close();
    }
}

/* What goes to oneself is in memory that is nobody else's until it was received. */
static void messages_to_oneself_are_kept(void) {
    const scene_step *step = scene_step_find("send to itself");
    int32_t sent[SCENE_ITEMS];

    both_open();
    gpu_mpi_reset(seed);
    fake->done = 0;
    notes_start();
    CHECK_STR(scene_run(&on_device, step), "");
    gpu_mpi_watch = NULL;
    CHECK_STR(notes[0].text, "MPI_Isend 12 t4 -> 0 tag 7 c2");
    const void *kept = notes[0].send;
    memcpy(sent, kept, sizeof sent);
    for (int i = 0; i < SCENE_ITEMS; i++) CHECK_INT(sent[i], 1000000 * seed + 1000 * SCENE_RECEIVED + i);
    for (int i = 0; i < 3; i++) CHECK_STR(large_run(&on_device, "allreduce", FIXTURE_RANK0, IN_PIECE, 0), "");
    CHECK(memcmp(sent, kept, sizeof sent) == 0);
    fake->done = 1;
    both_close();
}

/* A wait takes what a start has given, and no memory of a GPU reaches MPI in between. */
static void requests_are_on_the_host(void) {
    const scene_step *step = scene_step_find("requests");
    both_open();
    gpu_mpi_reset(seed);
    notes_start();
    CHECK_STR(scene_run(&on_device, step), "");
    gpu_mpi_watch = NULL;
    CHECK_INT(noted, 2);
    CHECK_STR(notes[0].text, "MPI_Irecv 48 t6 <- 2 tag 8 c2");
    CHECK_STR(notes[1].text, "MPI_Isend 12 t4 -> 1 tag 7 c2");
    for (int i = 0; i < noted; i++) {
        CHECK(fake_memory_engine(notes[i].send) == notes[i].send);
        CHECK(fake_memory_engine(notes[i].recv) == notes[i].recv);
    }
    CHECK_INT(gpu_drain(), 0);
    const int32_t *waited = fake_memory_engine(on_device.arrays[SCENE_WAITED]);
    const float *id = fake_memory_engine(on_device.arrays[SCENE_ID]);
    for (int i = 0; i < SCENE_ITEMS; i++) {
        int arrived = i < SCENE_ITEMS - 4;
        CHECK_INT(waited[i], 1000000 * seed + (arrived ? 500000 : 1000 * SCENE_SHORT) + i);
    }
    CHECK(id[0] >= 1 && id[1] >= 1);
    both_close();
}

/* Of products of two arrays. */
static void exact_sum_of(scene *s, int64_t *dims, void *x, int64_t *result_dims, void *words) {
    scene_help(s, "exact_add");
    for (int i = 0; i < 3; i++) {
        int side = i < 2 ? CALL_OPERANDS : CALL_RESULTS, at = i % 2;
        scene_buffer(s, side, at, FFI_F64, 0, SCENE_SENT);
        ffi_buffer *b = &s->c.sides[side].buffers[at];
        b->rank = 2;
        b->dims = i < 2 ? dims : result_dims;
        b->data = i < 2 ? x : words;
        b->dtype = i < 2 ? FFI_F64 : FFI_S64;
    }
    CHECK_STR(call_run(&s->c), "");
}

/* Many short lines, and parts of long ones. */
static void exact_sums_copy_pieces(void) {
    static const struct {
        int64_t lines, line, pieces; /* of 2^19 numbers */
    } rows[] = {{2000, 3, 1}, {3, 300000, 2}, {1, 1 << 19, 1}, {1, (1 << 19) + 1, 2}, {4, 0, 0}};
    both_open();
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int64_t dims[] = {rows[i].lines, rows[i].line}, result[] = {rows[i].lines, exact_words(EXACT_PRODUCTS)};
        int64_t numbers = dims[0] * dims[1];
        size_t words = (size_t)(result[0] * result[1]) * sizeof(int64_t);
        void *array = fake_memory_alloc((size_t)numbers * sizeof(double)), *there = fake_memory_alloc(words);
        void *here = malloc(words);
        double *x = fake_memory_engine(array);
        for (int64_t k = 0; k < numbers; k++) x[k] = (double)(k % 1000) / 7;
        exact_sum_of(&on_host, dims, x, result, here);
        fake_calls_forget();
        exact_sum_of(&on_device, dims, array, result, there);
        CHECK_INT(fake_calls_count("cuMemcpyDtoHAsync_v2"), 2 * rows[i].pieces);
        CHECK_INT(fake_calls_count("cuStreamSynchronize"), rows[i].pieces);
        CHECK_INT(gpu_drain(), 0);
        CHECK(memcmp(fake_memory_engine(there), here, words) == 0);
        fake_memory_free(array);
        fake_memory_free(there);
        free(here);
    }
    both_close();
}

int main(int argc, char **argv) {
    gpu_start(argc, argv);
    fake_fail_may_pass(1);
    for (int i = 0; i < scene_step_count; i++) { /* the ranks agree */
        both_open();
        CHECK_STR(scene_run(&on_device, &scene_steps[i]), "");
        both_close();
    }
    large_calls_are_in_pieces();
    pieces_overlap();
    pieces_have_small_counts();
    pieces_have_whole_items();
    a_failure_in_the_middle_is_told();
    failures_of_mpi_are_told();
    messages_to_oneself_are_kept();
    requests_are_on_the_host();
    exact_sums_copy_pieces();
    return check_failures();
}
