/* The calls that go through NCCL: exactly which functions with which arguments, written down by an NCCL that does
 * nothing else; then, with the fake one and one rank, that calls follow one another without waiting, and what happens
 * when NCCL fails.
 */
#include <stdarg.h>
#include <stdlib.h>

#include "device/device.h"
#include "neighbours/exchange.h"
#include "neighbours/halo.h"
#include "routes/gpu.h"
#include "routes/nccl_calls.h"
#include "routes/routes.h"
#include "test/gpu/fake_context.h"
#include "test/gpu/fake_driver.h"
#include "test/gpu/fake_memory.h"
#include "test/gpu/fake_nccl.h"
#include "test/gpu/gpu_check.h"
#include "test/gpu/gpu_scene.h"

/* Writing down */

static call c;
static device gpu;
static char text[2048];
static int made, failing; /* calls, and which of them fails, from 1; 0: none */
static int group_depth;
static char comm_handle;

__attribute__((format(printf, 1, 2))) static int wrote(const char *format, ...) {
    va_list arguments;
    size_t used = strlen(text);
    va_start(arguments, format);
    vsnprintf(text + used, sizeof text - used, format, arguments);
    va_end(arguments);
    return ++made == failing ? 3 : 0;
}

/* "recv+8": where it is in the call's buffers. */
static const char *place(const void *memory) {
    static char texts[4][32];
    static int next;
    const char *m = memory;
    char *t = texts[next++ % 4];
    if (!m)
        snprintf(t, 32, "none");
    else if (m >= c.recv && m < c.recv + CALL_BYTES)
        snprintf(t, 32, "recv+%d", (int)(m - c.recv));
    else if (m >= c.send && m < c.send + CALL_BYTES)
        snprintf(t, 32, "send+%d", (int)(m - c.send));
    else
        snprintf(t, 32, "elsewhere");
    return t;
}

static void check(nccl_comm comm, driver_stream stream) {
    CHECK(comm == &comm_handle);
    CHECK(stream == gpu.stream);
}

#define L(n) (long long)(n)

static int w_all_reduce(const void *from, void *to, size_t count, int type, int op, nccl_comm comm,
                        driver_stream stream) {
    check(comm, stream);
    return wrote("all_reduce %s %s %lld t%d op%d;", place(from), place(to), L(count), type, op);
}

static int w_reduce(const void *from, void *to, size_t count, int type, int op, int root, nccl_comm comm,
                    driver_stream stream) {
    check(comm, stream);
    return wrote("reduce %s %s %lld t%d op%d root%d;", place(from), place(to), L(count), type, op, root);
}

static int w_reduce_scatter(const void *from, void *to, size_t count, int type, int op, nccl_comm comm,
                            driver_stream stream) {
    check(comm, stream);
    return wrote("reduce_scatter %s %s %lld t%d op%d;", place(from), place(to), L(count), type, op);
}

static int w_broadcast(const void *from, void *to, size_t count, int type, int root, nccl_comm comm,
                       driver_stream stream) {
    check(comm, stream);
    return wrote("broadcast %s %s %lld t%d root%d;", place(from), place(to), L(count), type, root);
}

static int w_all_gather(const void *from, void *to, size_t count, int type, nccl_comm comm, driver_stream stream) {
    check(comm, stream);
    return wrote("all_gather %s %s %lld t%d;", place(from), place(to), L(count), type);
}

/* Messages are bytes. */
static int w_send(const void *from, size_t count, int type, int peer, nccl_comm comm, driver_stream stream) {
    check(comm, stream);
    CHECK_INT(type, NCCL_UINT8);
    CHECK_INT(group_depth, 1);
    return wrote("%s %lld>%d;", place(from), L(count), peer);
}

static int w_recv(void *to, size_t count, int type, int peer, nccl_comm comm, driver_stream stream) {
    check(comm, stream);
    CHECK_INT(type, NCCL_UINT8);
    CHECK_INT(group_depth, 1);
    return wrote("%s %lld<%d;", place(to), L(count), peer);
}

static int w_group_start(void) {
    int code = wrote("[");
    if (code == 0) group_depth++;
    return code;
}

static int w_group_end(void) {
    group_depth--;
    return wrote("]");
}

static const char *w_error_text(int code) {
    return code == 3 ? "the text of 3" : NULL;
}

static const char *w_last_error(nccl_comm comm) {
    CHECK(comm == &comm_handle);
    return "and more";
}

static const nccl writer = {.all_reduce = w_all_reduce,
                            .reduce = w_reduce,
                            .reduce_scatter = w_reduce_scatter,
                            .broadcast = w_broadcast,
                            .all_gather = w_all_gather,
                            .send = w_send,
                            .recv = w_recv,
                            .group_start = w_group_start,
                            .group_end = w_group_end,
                            .error_text = w_error_text,
                            .last_error = w_last_error};

static plan through_nccl = {.nccl = &writer, .nccl_comm = &comm_handle};
static gpu_call on_gpu = {.plan = &through_nccl};
static frame f;

static void read_frame(const char *op) {
    CHECK_INT(frame_read(&f, call_shape(op), &c.frame, NULL), 0);
    f.gpu = &on_gpu.of_frame;
    on_gpu.of_frame = (frame_gpu){.device = gpu, .has_arrays = 1};
    f.route = &route_nccl;
    text[0] = '\0';
    made = group_depth = 0;
}

static const struct {
    const char *op;
    int (*run)(frame *f);
    const char *on_rank0, *on_rank2; /* the root is 0; there are 4 ranks with 3 items of float32 each */
} calls[] = {
    {"allgather", nccl_allgather, "all_gather send+0 recv+0 12 t1;", "all_gather send+0 recv+0 12 t1;"},
    {"allreduce", nccl_allreduce, "all_reduce send+0 recv+0 3 t7 op0;", "all_reduce send+0 recv+0 3 t7 op0;"},
    {"alltoall", nccl_parts,
     "[send+0 12>0;recv+0 12<0;send+12 12>1;recv+12 12<1;send+24 12>2;recv+24 12<2;send+36 12>3;recv+36 12<3;]",
     "[send+0 12>0;recv+0 12<0;send+12 12>1;recv+12 12<1;send+24 12>2;recv+24 12<2;send+36 12>3;recv+36 12<3;]"},
    {"bcast", nccl_bcast, "broadcast send+0 send+0 12 t1 root0;", "broadcast recv+0 recv+0 12 t1 root0;"},
    {"gather", nccl_parts, "[send+0 12>0;recv+0 12<0;recv+12 12<1;recv+24 12<2;recv+36 12<3;]", "[send+0 12>0;]"},
    {"reduce", nccl_reduce, "reduce send+0 recv+0 3 t7 op0 root0;", "reduce send+0 none 3 t7 op0 root0;"},
    {"reduce_scatter", nccl_reduce_scatter, "reduce_scatter send+0 recv+0 3 t7 op0;",
     "reduce_scatter send+0 recv+0 3 t7 op0;"},
    {"scatter", nccl_parts, "[send+0 12>0;recv+0 12<0;send+12 12>1;send+24 12>2;send+36 12>3;]", "[recv+0 12<0;]"},
    {"exchange", exchange, "[recv+8 4<1;recv+0 8<2;send+4 8>2;send+0 4>1;]",
     "[recv+8 4<1;recv+0 8<2;send+4 8>2;send+0 4>1;]"},
};
enum { CALLS = sizeof calls / sizeof calls[0] };

static void each_gives_nccl_its_calls(void) {
    for (int i = 0; i < CALLS; i++)
        for (int rank = 0; rank <= 2; rank += 2) {
            call_make(&c, calls[i].op, rank ? FIXTURE_RANK2 : FIXTURE_RANK0, 0);
            read_frame(calls[i].op);
            CHECK_INT(nccl_supports(&f), 1);
            CHECK_INT(calls[i].run(&f), 0);
            CHECK_STR(text, rank ? calls[i].on_rank2 : calls[i].on_rank0);
            CHECK_INT(group_depth, 0);
        }
}

/* Of `counts` rows for the ranks 0 to 3, who have none where that is zero. */
static void parts_are_sized_by_rows(void) {
    static const int64_t counts[] = {1, 0, 2, 3}, others[] = {0, 4, 1, 1};
    static const struct {
        const char *op;
        int (*run)(frame *f);
        int64_t comm, sent, received;
        const char *text;
    } rows[] = {
        {"allgatherv", nccl_parts, FIXTURE_RANK0, 1, 6,
         "[send+0 4>0;recv+0 4<0;send+0 4>1;send+0 4>2;recv+4 8<2;send+0 4>3;recv+12 12<3;]"},
        {"allgatherv", nccl_parts, FIXTURE_RANK2, 2, 6,
         "[send+0 8>0;recv+0 4<0;send+0 8>1;send+0 8>2;recv+4 8<2;send+0 8>3;recv+12 12<3;]"},
        {"gatherv", nccl_parts, FIXTURE_RANK0, 1, 6, "[send+0 4>0;recv+0 4<0;recv+4 8<2;recv+12 12<3;]"},
        {"gatherv", nccl_parts, FIXTURE_RANK2, 2, -1, "[send+0 8>0;]"},
        {"scatterv", nccl_parts, FIXTURE_RANK0, 6, 1, "[send+0 4>0;recv+0 4<0;send+4 8>2;send+12 12>3;]"},
        {"scatterv", nccl_parts, FIXTURE_RANK2, -1, 2, "[recv+0 8<0;]"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        call_make(&c, rows[i].op, rows[i].comm, 0);
        call_array_set(&c, ATTRIBUTE_COUNTS, 4, counts);
        if (rows[i].sent >= 0) call_count_set(&c, CALL_OPERANDS, 0, rows[i].sent);
        if (rows[i].received >= 0) call_count_set(&c, CALL_RESULTS, 0, rows[i].received);
        read_frame(rows[i].op);
        CHECK_INT(rows[i].run(&f), 0);
        CHECK_STR(text, rows[i].text);
    }
    call_make(&c, "alltoallv", FIXTURE_RANK0, 0);
    call_array_set(&c, ATTRIBUTE_SENDCOUNTS, 4, counts);
    call_array_set(&c, ATTRIBUTE_RECVCOUNTS, 4, others);
    for (int side = 0; side < 2; side++) {
        call_count_set(&c, side, 0, 6);
        call_dtype_set(&c, side, 0, FFI_F64);
    }
    read_frame("alltoallv");
    CHECK_INT(nccl_parts(&f), 0);
    CHECK_STR(text, "[send+0 8>0;recv+0 32<1;send+8 16>2;recv+32 8<2;send+24 24>3;recv+40 8<3;]");
}

/* Two ranks' messages meet in the order of their tags, and of the slots where these are equal. */
static void messages_of_an_exchange_are_in_order(void) {
    static const int64_t dests[] = {1, 1, MPIXLA_PROC_NULL, 1, 3}, sendtags[] = {9, 2, 0, 2, 1},
                         sendcounts[] = {1, 2, 1, 3, 1}, offsets[] = {0, 1, 0, 3, 6};
    static const int64_t sources[] = {1, MPIXLA_PROC_NULL, 1, 3}, recvtags[] = {5, 0, 4, 4},
                         recvcounts[] = {2, 3, 1, 1};
    call_make(&c, "exchange", FIXTURE_RANK0, 0);
    call_count_set(&c, CALL_OPERANDS, 0, 7);
    call_count_set(&c, CALL_RESULTS, 0, 7);
    call_edges_set(FIXTURE_RANK0, 1, 5, dests, sendtags);
    call_edges_set(FIXTURE_RANK0, 0, 4, sources, recvtags);
    call_array_set(&c, ATTRIBUTE_SENDCOUNTS, 5, sendcounts);
    call_array_set(&c, ATTRIBUTE_SENDOFFSETS, 5, offsets);
    call_array_set(&c, ATTRIBUTE_RECVCOUNTS, 4, recvcounts);
    int32_t *memory = fake_memory_alloc(7 * sizeof *memory);
    c.sides[CALL_RESULTS].buffers[0].data = memory;
    read_frame("exchange");
    CHECK_INT(exchange(&f), 0);
    CHECK_STR(text,
              "[send+0 4>1;elsewhere 8<1;elsewhere 4<1;elsewhere 4<3;"
              "send+4 8>1;send+12 12>1;send+24 4>3;]");
    /* What comes from nobody becomes zeros, on the stream. */
    const int32_t *engine = fake_memory_engine(memory);
    CHECK(engine[2] != 0);
    CHECK_INT(gpu_drain(), 0);
    for (int i = 0; i < 7; i++) CHECK((engine[i] == 0) == (i >= 2 && i < 5));

    fake_fail_may_pass(1);
    CHECK_INT(fake_fail("cuMemsetD8Async", 1, 700), 0);
    read_frame("exchange");
    CHECK_INT(exchange(&f), REFUSED);
    CHECK_INT(group_depth, 0);
    CHECK_IN(mpixla_last_error(), "returned error code 700");
    fake_fail_may_pass(0);
    fake_memory_free(memory);
}

static void reductions_are_nccls(void) {
    enum { SUM, PROD, MAX, MIN, LAND, BAND = 7, MAXLOC = 10 };
    static const struct {
        int dtype, op;
        const char *text; /* NULL: NCCL does not do it */
    } rows[] = {
        {FFI_F32, SUM, "3 t7 op0"},  {FFI_F32, PROD, "3 t7 op1"}, {FFI_F32, MAX, NULL},
        {FFI_F32, MIN, NULL},        {FFI_F64, SUM, "3 t8 op0"},  {FFI_F64, MAX, NULL},
        {FFI_F16, SUM, "3 t6 op0"},  {FFI_F16, MIN, NULL},        {FFI_BF16, SUM, "3 t9 op0"},
        {FFI_S8, MIN, "3 t0 op3"},   {FFI_U8, MAX, "3 t1 op2"},   {FFI_S16, SUM, NULL},
        {FFI_U16, SUM, NULL},        {FFI_S32, MAX, "3 t2 op2"},  {FFI_U32, MIN, "3 t3 op3"},
        {FFI_S64, SUM, "3 t4 op0"},  {FFI_U64, PROD, "3 t5 op1"}, {FFI_C64, SUM, "6 t7 op0"},
        {FFI_C128, SUM, "6 t8 op0"}, {FFI_C64, PROD, NULL},       {FFI_S32, LAND, NULL},
        {FFI_S32, BAND, NULL},       {FFI_PRED, LAND, NULL},      {FFI_F8E5M2, SUM, NULL},
        {FFI_F8E4M3FN, SUM, NULL},
    };
    static const struct {
        const char *op;
        int (*run)(frame *f);
        const char *before;
    } functions[] = {{"allreduce", nccl_allreduce, "all_reduce send+0 recv+0 "},
                     {"reduce", nccl_reduce, "reduce send+0 recv+0 "},
                     {"reduce_scatter", nccl_reduce_scatter, "reduce_scatter send+0 recv+0 "}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (int k = 0; k < 3; k++) {
            char expected[128] = "";
            call_make(&c, functions[k].op, FIXTURE_RANK0, 0);
            call_attribute_set(&c, "op", rows[i].op);
            for (int side = 0; side < 2; side++) call_dtype_set(&c, side, 0, rows[i].dtype);
            read_frame(functions[k].op);
            CHECK_INT(nccl_supports(&f), rows[i].text != NULL);
            if (!rows[i].text) continue;
            CHECK_INT(functions[k].run(&f), 0);
            snprintf(expected, sizeof expected, "%s%s%s;", functions[k].before, rows[i].text, k == 1 ? " root0" : "");
            CHECK_STR(text, expected);
        }
    /* One of the user's. */
    int64_t own = mpixla_reduction_register(fake->handle(177));
    call_make(&c, "allreduce", FIXTURE_RANK0, 0);
    call_attribute_set(&c, "op", own);
    read_frame("allreduce");
    CHECK_INT(nccl_supports(&f), 0);
    /* What does not reduce takes any type. */
    call_make(&c, "allgather", FIXTURE_RANK0, 0);
    for (int side = 0; side < 2; side++) call_dtype_set(&c, side, 0, FFI_F8E5M2);
    read_frame("allgather");
    CHECK_INT(nccl_supports(&f), 1);
    CHECK_INT(nccl_allgather(&f), 0);
    CHECK_STR(text, "all_gather send+0 recv+0 3 t1;");
}

static void reductions_are_in_place(void) {
    static const char *const ops[] = {"allreduce", "reduce"};
    static const char *const texts[] = {"all_reduce recv+0 recv+0 3 t7 op0;", "reduce recv+0 recv+0 3 t7 op0 root0;"};
    for (int i = 0; i < 2; i++) {
        call_make(&c, ops[i], FIXTURE_RANK0, 0);
        c.sides[CALL_OPERANDS].buffers[0].data = c.recv;
        read_frame(ops[i]);
        CHECK_INT(i ? nccl_reduce(&f) : nccl_allreduce(&f), 0);
        CHECK_STR(text, texts[i]);
    }
}

static void nothing_is_not_sent(void) {
    for (int i = 0; i < CALLS; i++) {
        call_make(&c, calls[i].op, FIXTURE_RANK0, 0);
        if (strcmp(calls[i].op, "exchange") == 0) continue; /* the counts are attributes */
        for (int side = 0; side < 2; side++)
            if ((side ? c.frame.rets.size : c.frame.args.size) > 0) call_count_set(&c, side, 0, 0);
        read_frame(calls[i].op);
        CHECK_INT(calls[i].run(&f), 0);
        CHECK(strcmp(text, "") == 0 || strcmp(text, "[]") == 0);
    }
}

/* Each call of NCCL's fails once. A group is ended, and the first failure is the one that is told. */
static void failures_end_the_group(void) {
    for (int i = 0; i < CALLS; i++)
        for (int calls_made = 0, n = 1; n == 1 || n <= calls_made; n++) {
            call_make(&c, calls[i].op, FIXTURE_RANK0, 0);
            read_frame(calls[i].op);
            CHECK_INT(calls[i].run(&f), 0);
            calls_made = made;
            int is_group = text[0] == '[';
            read_frame(calls[i].op);
            failing = n;
            CHECK_INT(calls[i].run(&f), REFUSED);
            failing = 0;
            CHECK_INT(group_depth, 0);
            CHECK_IN(mpixla_last_error(), " returned error code 3, the text of 3: and more");
            CHECK_IN(mpixla_last_error(), !is_group        ? "nccl"
                                          : n == 1         ? "ncclGroupStart"
                                          : n < calls_made ? (text[strlen(text) - 2] == ';' ? "nccl" : "")
                                                           : "ncclGroupEnd");
            if (is_group && n > 1) CHECK(text[strlen(text) - 1] == ']');
            if (is_group && n > 1) CHECK_INT(made, n < calls_made ? n + 1 : n);
        }
}

/* A halo exchange: both borders of a dimension at once, and where both neighbours are one rank, what it sends first is
 * received first. */
static void halos_are_groups(void) {
    static int64_t dims[2] = {4, 3};
    static const int64_t axes[] = {0, 1}, low[] = {1, 3}, high[] = {2, 3}, width[] = {1, 1};
    call_make(&c, "halo_exchange", FIXTURE_RANK0, 0);
    char *memory = fake_memory_alloc(48);
    for (int side = 0; side < 2; side++) {
        c.sides[side].buffers[0].rank = 2;
        c.sides[side].buffers[0].dims = dims;
        c.sides[side].buffers[0].data = memory;
    }
    call_list_set(&c, "axes", axes, 2);
    call_grid_set(FIXTURE_RANK0, 2, low, high);
    call_list_set(&c, "width", width, 2);
    read_frame("halo_exchange");
    fake_calls_forget();
    CHECK_INT(halo_exchange(&f), 0);
    CHECK_STR(text,
              "[elsewhere 12<1;elsewhere 12>2;elsewhere 12<2;elsewhere 12>1;]"
              "[elsewhere 16<3;elsewhere 16>3;elsewhere 16<3;elsewhere 16>3;]");
    CHECK_INT(fake_calls_count("cuStreamSynchronize"), 0);
    CHECK_INT(fake_calls_count("cuMemcpy2DAsync_v2"), 4); /* the columns, packed and unpacked */
    for (int n = 1; n <= 12; n++) {
        read_frame("halo_exchange");
        failing = n;
        CHECK_INT(halo_exchange(&f), REFUSED);
        failing = 0;
        CHECK_INT(group_depth, 0);
        CHECK_IN(mpixla_last_error(), " returned error code 3, the text of 3: and more");
    }
    CHECK_INT(gpu_drain(), 0);
    CHECK_STR(complaint(), "");
    fake_memory_free(memory);
}

/* With the fake NCCL, on a communicator of one rank */

static scene s;
static int64_t alone;

static const char *run(const char *op, int from, int to, int64_t items, int64_t received) {
    static const int64_t rows[] = {SCENE_ITEMS}, itself[] = {0}, zero[] = {0};
    scene_call(&s, op, alone, 0);
    if (s.c.frame.args.size > 0) scene_buffer(&s, CALL_OPERANDS, 0, FFI_S32, items, from);
    if (s.c.frame.rets.size > 0) scene_buffer(&s, CALL_RESULTS, 0, FFI_S32, received, to);
    for (int sending = 0; sending < 2; sending++) call_edges_set(alone, sending, 1, itself, zero);
    for (int i = 0; i < ATTRIBUTES; i++) {
        if (!s.c.attributes.arrays[i].data) continue;
        int is_count = i == ATTRIBUTE_COUNTS || i == ATTRIBUTE_SENDCOUNTS || i == ATTRIBUTE_RECVCOUNTS;
        call_array_set(&s.c, i, 1, is_count ? rows : zero);
    }
    return call_run(&s.c);
}

static const char *const ops[] = {"allreduce",      "allgather",  "alltoall", "gather",   "reduce",    "scatter",
                                  "reduce_scatter", "allgatherv", "gatherv",  "scatterv", "alltoallv", "exchange"};
enum { OPS = sizeof ops / sizeof ops[0] };

/* Through arrays in turn, so that each call uses what the one before gives. */
static const char *chain(void) {
    static const int arrays[] = {SCENE_SENT, SCENE_REDUCED, SCENE_RECEIVED, SCENE_AGAIN, SCENE_SHORT, SCENE_WAITED};
    for (int i = 0; i < OPS; i++) {
        const char *sentence = run(ops[i], arrays[i % 6], arrays[(i + 1) % 6], SCENE_ITEMS, SCENE_ITEMS);
        if (*sentence) return sentence;
    }
    return run("bcast", arrays[OPS % 6], 0, SCENE_ITEMS, 0);
}

static void chain_is_right(void) {
    CHECK_INT(gpu_drain(), 0);
    CHECK_STR(complaint(), "");
    const int32_t *given = s.contents[SCENE_SENT], *last = fake_memory_engine(s.arrays[SCENE_SENT]);
    const int32_t *middle = fake_memory_engine(s.arrays[SCENE_WAITED]);
    CHECK(memcmp(last, given, SCENE_ITEMS * sizeof *last) == 0);
    CHECK(memcmp(middle, given, SCENE_ITEMS * sizeof *last) == 0);
}

/* Nobody waits. */
static void calls_follow_one_another(void) {
    for (int round = 1; round <= 3; round++) {
        scene_open(&s, 1, round);
        fake_calls_forget();
        CHECK_STR(chain(), "");
        if (round > 1) CHECK_INT(fake_calls_count("cuStreamSynchronize") + fake_calls_count("cuMemcpyDtoHAsync_v2"), 0);
        chain_is_right();
        scene_close(&s);
    }
}

static void each_failure_is_told(void) {
    enum { MOST = 512 };
    static gpu_noted noted[MOST];
    scene_open(&s, 1, 1);
    fake_calls_forget();
    CHECK_STR(chain(), "");
    int64_t count = gpu_calls_list(noted, MOST);
    CHECK(count > OPS * 4);
    chain_is_right();
    scene_close(&s);
    fake_fail_may_pass(1);
    for (int64_t i = 0; i < count; i++) {
        const char *function = noted[i].function;
        int is_nccl = strncmp(function, "nccl", 4) == 0, is_look = strstr(function, "AsyncError") != NULL;
        scene_open(&s, 1, 2);
        CHECK_INT(fake_fail(function, noted[i].nth, is_nccl ? 6 : 700), 0);
        const char *sentence = chain();
        fake_fail_nothing();
        if (strcmp(function, "cuCtxPopCurrent_v2") == 0) {
            CHECK_STR(sentence, "");
        } else if (is_look) {
            CHECK_IN(sentence,
                     "an earlier call through NCCL has failed since, so start the job again: NCCL's error code 6, "
                     "remote process exited or there was a network error");
        } else {
            CHECK_IN(sentence, function);
            CHECK_IN(sentence, is_nccl ? " returned error code 6, remote process exited" : "returned error code 700");
        }
        if (*sentence) CHECK_INT(s.c.code, FFI_ABORTED);
        CHECK_INT(fake_nccl_group_drop(), 0);
        gpu_recover();
        scene_close(&s);
        scene_open(&s, 1, 3);
        CHECK_STR(chain(), "");
        chain_is_right();
        scene_close(&s);
    }
    fake_fail_may_pass(0);
}

/* What goes on is no error. */
static void what_is_in_progress_is_waited_for_by_nobody(void) {
    scene_open(&s, 1, 1);
    fake_fail_may_pass(1);
    CHECK_INT(fake_fail("ncclCommGetAsyncError", 1, NCCL_IN_PROGRESS), 0);
    CHECK_STR(run("allreduce", SCENE_SENT, SCENE_REDUCED, SCENE_ITEMS, SCENE_ITEMS), "");
    fake_fail_may_pass(0);
    CHECK_INT(gpu_drain(), 0);
    scene_close(&s);
}

/* By a thread that watches, and once: not again if a handler has told of one. */
static void failures_are_found_between_calls(void) {
    scene_open(&s, 1, 1);
    fake_fail_may_pass(1);
    CHECK_STR(run("allreduce", SCENE_SENT, SCENE_REDUCED, SCENE_ITEMS, SCENE_ITEMS), "");
    CHECK_INT(plan_nccl_poll(), 0);
    CHECK_INT(fake_fail("ncclCommGetAsyncError", 1, 6), 0);
    CHECK_INT(plan_nccl_poll(), -1);
    CHECK_IN(mpixla_last_error(),
             "an earlier call through NCCL has failed since, so start the job again: NCCL's error");
    CHECK_INT(plan_nccl_poll(), 0);
    CHECK_INT(fake_fail("ncclAllReduce", 1, 6), 0);
    CHECK_IN(run("allreduce", SCENE_SENT, SCENE_REDUCED, SCENE_ITEMS, SCENE_ITEMS),
             "ncclAllReduce returned error code");
    CHECK_INT(fake_fail("ncclCommGetAsyncError", 1, 6), 0);
    CHECK_INT(plan_nccl_poll(), 0);
    fake_fail_nothing();
    fake_fail_may_pass(0);
    CHECK_INT(gpu_drain(), 0);
    scene_close(&s);
}

/* NCCL would wait for ever to destroy it. */
static void what_has_failed_is_aborted(int number) {
    (void)complaint();
    fake_calls_forget();
    CHECK_INT(fake->comm_free(number), 0);
    CHECK_INT(fake_calls_count("ncclCommAbort"), 1);
    CHECK_INT(fake_calls_count("ncclCommDestroy"), 0);
    CHECK_STR(complaint(), "");
    CHECK_INT(fake_comms_live(), 0);
}

/* What NCCL does not do takes the way by the host, on the same communicator and without being asked. */
static void others_go_by_the_host(void) {
    scene_open(&s, 1, 1);
    fake_calls_forget();
    CHECK_STR(run("allreduce", SCENE_SENT, SCENE_REDUCED, SCENE_ITEMS, SCENE_ITEMS), "");
    CHECK_INT(fake_calls_count("ncclAllReduce"), 1);
    CHECK_INT(fake_calls_count("cuMemcpyDtoHAsync_v2"), 0);
    CHECK_STR(run("scan", SCENE_SENT, SCENE_REDUCED, SCENE_ITEMS, SCENE_ITEMS), "");
    CHECK_IN(fake->call, "MPI_Scan 12 t4");
    scene_call(&s, "allreduce", alone, 0);
    for (int side = 0; side < 2; side++)
        scene_buffer(&s, side, 0, FFI_F32, SCENE_ITEMS, side ? SCENE_REDUCED : SCENE_SENT);
    call_attribute_set(&s.c, "op", 2);
    int before = fake->calls;
    CHECK_STR(call_run(&s.c), "");
    CHECK_INT(fake->calls, before + 1);
    CHECK_INT(fake_calls_count("ncclAllReduce"), 1);
    CHECK_INT(gpu_drain(), 0);
    scene_close(&s);
}

int main(int argc, char **argv) {
    gpu_start(argc, argv);
    gpu = (device){.driver = driver_get(), .stream = gpu_stream, .number = 0};
    CHECK_INT(fake_context_push(fake_context_get(0)), 0);
    each_gives_nccl_its_calls();
    parts_are_sized_by_rows();
    messages_of_an_exchange_are_in_order();
    reductions_are_nccls();
    reductions_are_in_place();
    nothing_is_not_sent();
    failures_end_the_group();
    halos_are_groups();
    CHECK_INT(fake_context_pop(NULL), 0);

    gpu_mpi_ranks = 1;
    int number = fake->comm_new(0, 1, 0);
    alone = mpixla_comm_register(fake->handle(number), "alone");
    calls_follow_one_another();
    what_is_in_progress_is_waited_for_by_nobody();
    others_go_by_the_host();
    failures_are_found_between_calls();
    each_failure_is_told();
    what_has_failed_is_aborted(number);
    return check_failures();
}
