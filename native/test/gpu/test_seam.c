/* Device handlers behind the seam: right ones, and each mistake seen. */
#include "test/call.h"
#include "test/gpu/fake_driver.h"
#include "test/gpu/fake_memory.h"
#include "test/gpu/fake_nccl.h"
#include "test/gpu/fake_pinned.h"
#include "test/gpu/fake_stream.h"
#include "test/gpu/gpu_check.h"
#include "test/gpu/seam_rows.h"
#include "test/run.h"

enum { ITEMS = 4, BUFFERS = 4 };

static ffi_error *stream_get_of_the_cpu(ffi_stream_get_args *args) {
    args->stream = NULL;
    return NULL;
}

/* A call with float32 operands and results of ITEMS. */
typedef struct seam_call {
    call of;
    float data[2][BUFFERS][ITEMS];
} seam_call;

static void make(seam_call *c, int operands, int results) {
    call_make(&c->of, "barrier", 0, 0);
    c->of.api.stream_get = stream_get_of_the_cpu;
    c->of.frame.context = c;
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < (side ? results : operands); i++) {
            call_insert(&c->of, side, i, FFI_F32, ITEMS, c->data[side][i]);
            for (int k = 0; k < ITEMS; k++) c->data[side][i][k] = side ? -1.0f : (float)(10 * i + k);
        }
}

/* The error's message, or "". */
static const char *run(seam_call *c, ffi_handler *handler) {
    CHECK_INT(seam_handler_set("mpixla_allreduce", handler), 0);
    c->of.handler = seam_wrapper("mpixla_allreduce");
    (void)call_run_unseen(&c->of);
    CHECK_INT(fake_memory_live(), 0);
    return c->of.message;
}

static void *stream_of(const ffi_call_frame *frame) {
    ffi_stream_get_args args = {.struct_size = sizeof args, .context = frame->context};
    CHECK(frame->api->stream_get(&args) == NULL);
    return args.stream;
}

static void *operand(const ffi_call_frame *frame, int i) {
    return ((ffi_buffer *)frame->args.buffers[i])->data;
}

static void *result(const ffi_call_frame *frame, int i) {
    return ((ffi_buffer *)frame->rets.buffers[i])->data;
}

/* What a handler below does wrong. */
static enum { NOTHING, WAITS_NOT_BEFORE, FREES_TOO_EARLY, FORGETS_CONTEXT, FORGETS_GROUP, WRITES_OPERAND } mistake;

/* Ten times the first operand is the first result. */
static ffi_error *tenfold(ffi_call_frame *frame) {
    enum { BYTES = ITEMS * sizeof(float) };
    void *stream = stream_of(frame), *memory;
    driver_context context;
    CHECK_INT(cuStreamGetCtx(stream, &context), 0);
    CHECK_INT(cuCtxPushCurrent_v2(context), 0);
    CHECK_INT(cuMemHostAlloc(&memory, BYTES, 0), 0);
    float *mirror = memory;
    cuMemcpyDtoHAsync_v2(mirror, operand(frame, 0), BYTES, stream);
    if (mistake != WAITS_NOT_BEFORE) cuStreamSynchronize(stream);
    for (int i = 0; i < ITEMS; i++) mirror[i] *= 10;
    if (mistake == WRITES_OPERAND) cuMemsetD8Async(operand(frame, 0), 1, 1, stream);
    cuMemcpyHtoDAsync_v2(result(frame, 0), mirror, BYTES, stream);
    if (mistake != FREES_TOO_EARLY) cuStreamSynchronize(stream);
    if (mistake == FORGETS_GROUP) ncclGroupStart();
    cuMemFreeHost(mirror);
    if (mistake != FORGETS_CONTEXT) cuCtxPopCurrent_v2(NULL);
    return NULL;
}

static void a_handler_finds_its_buffers(void) {
    static seam_call c;
    int64_t calls = seam_calls();
    make(&c, 1, 1);
    CHECK_STR(run(&c, tenfold), "");
    for (int i = 0; i < ITEMS; i++) CHECK_INT(c.data[1][0][i], 10 * i);
    CHECK_INT(seam_calls(), calls + 1);
    c.of.sides[1].pointers[0] = c.of.sides[0].pointers[0]; /* in place */
    CHECK_STR(run(&c, tenfold), "");
    for (int i = 0; i < ITEMS; i++) CHECK_INT(c.data[0][0][i], 10 * i);
}

static void mistakes_are_seen(void) {
    static seam_call c;
    static const struct {
        int mistake;
        const char *message;
    } rows[] = {
        {FREES_TOO_EARLY, "mpixla_allreduce, on the fake GPU: when the stream came to it, the source"},
        {FORGETS_CONTEXT, "pushed more contexts than it popped"},
        {FORGETS_GROUP, "started a group of NCCL's and did not end it"},
        {WRITES_OPERAND, "operand 0, which is no result, was changed"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        mistake = rows[i].mistake;
        make(&c, 1, 1);
        CHECK_IN(run(&c, tenfold), rows[i].message);
    }
    mistake = WAITS_NOT_BEFORE; /* wrong values: the operand arrives late, and so does the copy */
    make(&c, 1, 1);
    run(&c, tenfold);
    CHECK(c.data[1][0][2] != 20);
    mistake = NOTHING;
    CHECK_INT(fake_fail("cuStreamSynchronize", 2, 700), 0);
    make(&c, 1, 1);
    CHECK_IN(run(&c, tenfold), "nobody minded");
    CHECK_INT(fake_pinned_live(), 0);
}

/* Looks at the engine's side of the buffers. */
static ffi_error *look(ffi_call_frame *frame) {
    const unsigned char *late = fake_memory_engine(operand(frame, 0));
    CHECK(operand(frame, 0) == operand(frame, 1));
    CHECK(operand(frame, 0) == result(frame, 0));
    CHECK(operand(frame, 2) == NULL);
    CHECK(result(frame, 1) != operand(frame, 0));
    CHECK(fake_memory_wrong(result(frame, 1), ITEMS * sizeof(float)) == NULL);
    CHECK(fake_memory_wrong(result(frame, 1), ITEMS * sizeof(float) + 1) != NULL);
    CHECK_INT(late[0], FAKE_FRESH); /* the operand is not there yet */
    return NULL;
}

static void buffers_may_share_memory_and_have_none(void) {
    static seam_call c;
    make(&c, 4, 2);
    c.of.sides[0].buffers[1].data = c.of.sides[1].buffers[0].data = c.data[0][0];
    call_count_set(&c.of, CALL_OPERANDS, 2, 0);
    call_dtype_set(&c.of, CALL_OPERANDS, 3, FFI_TOKEN);
    c.of.sides[0].buffers[3].rank = 0;
    CHECK_STR(run(&c, look), "");
    for (int i = 0; i < ITEMS; i++) CHECK_INT(c.data[0][0][i], i);
    for (int i = 0; i < (int)sizeof c.data[1][1]; i++) CHECK_INT(((unsigned char *)c.data[1][1])[i], FAKE_FRESH);
}

/* What XLA has beyond what is declared. */
typedef struct longer_api {
    ffi_api api;
    void *more[4];
} longer_api;

static ffi_error *look_at_the_frame(ffi_call_frame *frame) {
    const seam_call *mine = frame->context;
    CHECK_INT(frame->api->struct_size, sizeof(longer_api));
    CHECK(((void *const *)(frame->api + 1))[3] == mine);
    CHECK(((ffi_buffer *)frame->args.buffers[0])->data == mine->data[0][0]); /* a token */
    ffi_stream_get_args args = {.struct_size = sizeof args, .context = (void *)(uintptr_t)&args};
    frame->api->stream_get(&args);
    CHECK(args.stream == NULL);
    return NULL;
}

static void the_frame_is_xlas(void) {
    static seam_call c;
    make(&c, 1, 0);
    call_dtype_set(&c.of, CALL_OPERANDS, 0, FFI_TOKEN);
    longer_api longer = {.api = c.of.api, .more[3] = &c};
    longer.api.struct_size = sizeof longer;
    c.of.frame.api = &longer.api;
    CHECK_IN(run(&c, look_at_the_frame), "asked for with another context");
    longer.api.struct_size = offsetof(ffi_api, stream_get);
    CHECK_IN(run(&c, look_at_the_frame), "does not know this version");
}

static ffi_error *complain_and_fail(ffi_call_frame *frame) {
    ffi_error_create_args args = {.struct_size = sizeof args, .message = "its own"};
    fake_complain("the fake's");
    return frame->api->error_create(&args);
}

static ffi_error *answer(ffi_call_frame *frame) {
    CHECK(frame->api->stream_get == stream_get_of_the_cpu);
    if (frame->extension_start) ((ffi_metadata_extension *)frame->extension_start)->metadata->traits = 5;
    return NULL;
}

static void what_is_no_call_is_passed_on(void) {
    static seam_call c;
    ffi_metadata metadata = {.struct_size = sizeof metadata};
    ffi_metadata_extension extension = {.base = {.type = FFI_EXTENSION_METADATA}, .metadata = &metadata};
    make(&c, 1, 1);
    CHECK_STR(run(&c, complain_and_fail), "its own");
    CHECK_STR(complaint(), "");
    c.of.frame.extension_start = &extension.base;
    CHECK_STR(run(&c, answer), "");
    CHECK_INT(metadata.traits, 5);
    c.of.frame.extension_start = NULL;
    c.of.frame.stage = 0;
    CHECK_STR(run(&c, answer), "");
    c.of.frame.stage = FFI_STAGE_EXECUTE;
    CHECK_IN(run(&c, NULL), "no device handler for mpixla_allreduce");
}

static void targets_are_those_of_the_tables(void) {
    static const char *const targets[] = {
#define MPIXLA_OP(name, ...) "mpixla_" #name,
#include "tables/ops.def"
        "mpixla_exact_add", "mpixla_exact_round", "mpixla_order", "mpixla_pack", "mpixla_rank", "mpixla_unpack"};
    enum { TARGETS = sizeof targets / sizeof targets[0] };
    for (int i = 0; i < TARGETS; i++)
        for (int j = 0; j < TARGETS; j++) CHECK((seam_wrapper(targets[i]) == seam_wrapper(targets[j])) == (i == j));
    CHECK(seam_wrapper("mpixla_nothing") == NULL);
    CHECK_INT(seam_handler_set("mpixla_nothing", tenfold), -1);
}

/* Two calls that are in the handler at once, each with a stream of its own. */
static pthread_barrier_t both;
static void *streams[2];

static ffi_error *meet(ffi_call_frame *frame) {
    int number = (int)((seam_call *)frame->context)->data[0][0][0];
    streams[number] = stream_of(frame);
    pthread_barrier_wait(&both);
    return tenfold(frame);
}

static seam_call calls[2];

static void *run_in_a_thread(void *number) {
    seam_call *c = &calls[(intptr_t)number];
    CHECK(seam_wrapper("mpixla_send")(&c->of.frame) == NULL);
    return NULL;
}

static void threads_do_not_wait_for_each_other(void) {
    CHECK_INT(seam_handler_set("mpixla_send", meet), 0);
    pthread_barrier_init(&both, NULL, 2);
    for (int i = 0; i < 2; i++) {
        make(&calls[i], 1, 1);
        calls[i].data[0][0][0] = (float)i;
    }
    threads_run(2, run_in_a_thread);
    CHECK(streams[0] != streams[1]);
    CHECK_INT(calls[1].data[1][0][0], 10);
    CHECK_INT(calls[1].data[1][0][3], 30);
    pthread_barrier_destroy(&both);
}

int main(void) {
    a_handler_finds_its_buffers();
    mistakes_are_seen();
    buffers_may_share_memory_and_have_none();
    the_frame_is_xlas();
    what_is_no_call_is_passed_on();
    targets_are_those_of_the_tables();
    threads_do_not_wait_for_each_other();
    return check_failures();
}
