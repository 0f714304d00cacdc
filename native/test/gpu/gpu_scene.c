#include "test/gpu/gpu_scene.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "helpers/helper.h"
#include "test/gpu/fake_calls.h"
#include "test/gpu/fake_context.h"
#include "test/gpu/fake_driver.h"
#include "test/gpu/fake_memory.h"

fake_stream *gpu_stream;
const gpu_real *gpu_in_place;

/* MPI */

static uint64_t sent;
static int32_t next;

void gpu_mpi_reset(int seed) {
    sent = 0;
    next = 1000000 * seed + 500000;
    fake->missing = 0;
    fake->posted = 0;
    for (int i = 0; i < FAKE_MESSAGES; i++) fake->messages[i].waited = 1;
}

uint64_t gpu_mpi_sent(void) {
    return sent;
}

static void add_up(const void *data, int64_t n) {
    const uint32_t *items = fake_memory_engine(data);
    for (int64_t i = 0; i < n; i++) sent = sent * 1000003 + (uint64_t)items[i];
}

static void count_on(void *data, int64_t n) {
    int32_t *items = fake_memory_engine(data);
    for (int64_t i = 0; i < n; i++) items[i] = next++;
}

static void reduce(const void *from, void *to, int64_t n) {
    const uint32_t *in = fake_memory_engine((intptr_t)from == FAKE_IN_PLACE ? to : from);
    uint32_t *out = fake_memory_engine(to);
    for (int64_t i = 0; i < n; i++) out[i] = 3 * in[i] + 1;
}

static int starts(const char *function) {
    return strncmp(fake->call, function, strlen(function)) == 0;
}

static int64_t number_behind(const char *text, const char *mark) {
    const char *found = text ? strstr(text, mark) : NULL;
    return found ? strtoll(found + strlen(mark), NULL, 10) : -1;
}

void (*gpu_mpi_watch)(void);
void (*gpu_mpi_agree)(int64_t bytes);
int gpu_mpi_ranks = FIXTURE_SIZE;

static int is_on_gpu(const void *memory) {
    return fake_memory_engine(memory) != memory;
}

/* Runs inside of each call of MPI's that moves data. */
static void answer(void) {
    if (gpu_mpi_watch) gpu_mpi_watch();
    if ((is_on_gpu(fake->send) || is_on_gpu(fake->recv)) && !fake_stream_is_idle(gpu_stream))
        fake_complain("%s was given memory of a GPU whose stream still had work", fake->call);
    int64_t n = number_behind(fake->call, " "), type = number_behind(fake->call, " t");
    int64_t words = type == FFI_U8 ? n / 4 : n;
    int is_root = number_behind(fake->call, " c") == FIXTURE_RANK0 + 1; /* of those that have one */
    if (starts("MPI_Barrier")) {
        sent = 2 * sent + (uint64_t)fake_stream_is_idle(gpu_stream);
    } else if (starts("MPI_Allgather")) {
        for (int i = 0; i < gpu_mpi_ranks && type == FFI_U8; i++)
            memcpy((char *)fake->recv + i * n, fake->send, (size_t)n);
        if (gpu_mpi_agree) gpu_mpi_agree(n);
    } else if (starts("MPI_Allreduce") && type == FFI_U64) { /* which no program's here is */
        const int64_t bytes = n * (int64_t)sizeof(uint64_t);
        memcpy(fake->recv, fake->send, (size_t)bytes);
        if (gpu_mpi_agree) gpu_mpi_agree(bytes);
    } else if (starts("MPI_Allreduce") || starts("MPI_Scan") || (starts("MPI_Reduce ") && is_root) ||
               starts("MPI_Iallreduce")) {
        reduce(fake->send, fake->recv, words);
    } else if (starts("MPI_Bcast") && type == FFI_U8) {
        if (gpu_mpi_agree) gpu_mpi_agree(n);
    } else if (starts("MPI_Bcast")) {
        if (is_root)
            add_up(fake->send, words);
        else
            count_on(fake->recv, words);
    } else if (starts("MPI_Send ") || starts("MPI_Reduce ") || starts("MPI_Isend")) {
        add_up(fake->send, words);
    } else if (starts("MPI_Recv") || starts("MPI_Irecv")) {
        fake->arrived = n - 4 * fake->missing;
        count_on(fake->recv, words - fake->missing);
    } else if (starts("MPI_Sendrecv")) {
        const char *received = strchr(fake->call, ',') + 1;
        int64_t in = number_behind(received, " "), bytes = number_behind(received, " t") == FFI_U8;
        if (number_behind(fake->call, "-> ") != FAKE_PROC_NULL) add_up(fake->send, words);
        fake->arrived = in;
        if (number_behind(received, "<- ") != FAKE_PROC_NULL) count_on(fake->recv, bytes ? in / 4 : in);
    }
}

/* The GPU */

void gpu_start(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "pass a fake MPI, the fake GPU and a transport\n");
        exit(2);
    }
    int is_rocm = argc > 4 && strcmp(argv[4], "rocm") == 0, is_sycl = argc > 4 && strcmp(argv[4], "sycl") == 0;
    setenv("MPIXLA_CUDA_LIBRARY", is_rocm || is_sycl ? "/nowhere" : argv[2], 1);
    setenv("MPIXLA_HIP_LIBRARY", is_rocm ? argv[2] : "/nowhere", 1);
    if (is_sycl) setenv("MPIXLA_SYCL_LIBRARY", argv[2], 1);
    if (is_rocm) setenv("MPIXLA_FAKE_DEVICE_PLATFORM", "ROCM", 1);
    setenv(is_rocm ? "MPIXLA_RCCL_LIBRARY" : "MPIXLA_NCCL_LIBRARY", argv[2], 1);
    fixture_start(argc, argv);
    if (cuInit(0) || mpixla_gpu_transport_set(argv[3])) exit(2);
    mpixla_gpu_piece_set(GPU_PIECE);
    gpu_stream = fake_stream_take(0);
    fake->during = answer;
    fake->done = 1;
    gpu_mpi_reset(0);
}

int gpu_drain(void) {
    return gpu_in_place ? gpu_in_place->wait() : fake_stream_run(gpu_stream, fake_stream_added(gpu_stream));
}

void gpu_recover(void) {
    char text[1024];
    fake_fail_nothing();
    (void)gpu_drain();
    while (fake_context_depth() > 0) (void)fake_context_pop(NULL);
    while (fake_complaint_take(text, sizeof text)) continue;
}

int64_t gpu_calls_list(gpu_noted *calls, int64_t most) {
    fake_noted noted;
    int64_t count = fake_calls_count(NULL);
    for (int64_t i = 0; i < count; i++) {
        if (i >= most || fake_calls_read(i, &noted) != 0) exit(2);
        calls[i] = (gpu_noted){.function = noted.function, .nth = 1};
        for (int64_t k = 0; k < i; k++) calls[i].nth += strcmp(calls[k].function, noted.function) == 0;
    }
    return count;
}

static ffi_error *stream_get(ffi_stream_get_args *args) {
    args->stream = gpu_in_place ? gpu_in_place->stream : gpu_stream;
    return NULL;
}

/* Scenes */

static const struct {
    const char *name;
    size_t bytes, compared;
} arrays[SCENE_ARRAYS] = {
#define ARRAY(name, items) [SCENE_##name] = {#name, (items) * sizeof(int32_t), (items) * sizeof(int32_t)}
    ARRAY(SENT, SCENE_ITEMS),
    ARRAY(REDUCED, SCENE_ITEMS),
    ARRAY(TEMPLATE, SCENE_ITEMS),
    ARRAY(RECEIVED, SCENE_ITEMS),
    ARRAY(SHORT, SCENE_ITEMS),
    ARRAY(AGAIN, SCENE_ITEMS),
    ARRAY(WITH_STATUS, SCENE_ITEMS),
    ARRAY(WITH_NUMBERS, SCENE_ITEMS),
    ARRAY(NUMBERS, 3),
    ARRAY(WAITED, SCENE_ITEMS),
    ARRAY(BLOCK, SCENE_ROWS *SCENE_COLUMNS),
    ARRAY(OTHER_BLOCK, SCENE_ROWS *SCENE_COLUMNS),
    ARRAY(LARGE, SCENE_LARGE_ITEMS),
    ARRAY(LARGE_REDUCED, SCENE_LARGE_ITEMS),
    ARRAY(LARGE_SPREAD, SCENE_LARGE_ITEMS),
    ARRAY(LARGE_SCANNED, SCENE_LARGE_ITEMS),
    ARRAY(WIDE, SCENE_LINES * 5),
    ARRAY(NARROW, SCENE_LINES * 3),
    ARRAY(PACKED, SCENE_LINES * 8),
    ARRAY(UNPACKED, SCENE_LINES * 5),
    ARRAY(OTHER_UNPACKED, SCENE_LINES * 3),
    ARRAY(EXCHANGED, 3),
    ARRAY(RANK, 1),
    [SCENE_STATUS] = {"STATUS", sizeof(fake_status), offsetof(fake_status, error)},
    [SCENE_ID] = {"ID", 2 * sizeof(float), 0}, /* each start has another */
    [SCENE_OTHER_ID] = {"OTHER_ID", 2 * sizeof(float), 0},
#undef ARRAY
};

/* Memory of the GPU, or of the host. */
static void *array_alloc(int on_device, size_t bytes) {
    if (!on_device) return malloc(bytes);
    return gpu_in_place ? gpu_in_place->alloc(bytes) : fake_memory_alloc(bytes);
}

static void array_free(int on_device, void *array) {
    if (!on_device)
        free(array);
    else if (gpu_in_place)
        gpu_in_place->release(array);
    else
        (void)fake_memory_free(array);
}

void scene_open(scene *s, int on_device, int seed) {
    *s = (scene){.on_device = on_device};
    for (int i = 0; i < SCENE_ARRAYS; i++) {
        size_t bytes = arrays[i].bytes;
        int32_t *content = s->contents[i] = malloc(bytes);
        s->arrays[i] = array_alloc(on_device, bytes);
        if (!content || !s->arrays[i]) exit(2);
        for (size_t k = 0; k < bytes / sizeof *content; k++) content[k] = (int32_t)(1000000 * seed + 1000 * i + (int)k);
        if (on_device && !gpu_in_place) {
            const fake_work arrive = {
                .to = s->arrays[i], .from = content, .width = bytes, .height = 1, .is_trusted = 1};
            if (fake_stream_add(gpu_stream, &arrive)) exit(2);
        } else {
            memcpy(s->arrays[i], content, bytes);
        }
    }
}

void scene_close(scene *s) {
    for (int i = 0; i < SCENE_ARRAYS; i++) {
        array_free(s->on_device, s->arrays[i]);
        free(s->contents[i]);
    }
}

const char *scenes_differ(const scene *on_host, const scene *on_device) {
    for (int i = 0; i < SCENE_ARRAYS; i++)
        if (memcmp(on_host->arrays[i], fake_memory_engine(on_device->arrays[i]), arrays[i].compared) != 0)
            return arrays[i].name;
    return NULL;
}

/* Calls */

static ffi_handler *handler_in(const mpixla_op_row *table, size_t rows, const char *op, int on_device) {
    for (size_t i = 0; i < rows; i++)
        if (strcmp(table[i].name, op) == 0)
            return (ffi_handler *)(on_device ? table[i].device_handler : table[i].host_handler);
    return NULL;
}

static void nothing(void *data) {
    (void)data;
}

/* On a GPU, something is always before a call that has not been done. */
static void call_finish(scene *s, ffi_handler *handler) {
    const fake_work work = {.call = nothing};
    if (s->on_device && !gpu_in_place && fake_stream_add(gpu_stream, &work)) exit(2);
    s->c.handler = handler;
    s->c.api.stream_get = stream_get;
    s->c.frame.context = s;
}

void scene_call(scene *s, const char *op, int64_t comm, int64_t root) {
    size_t rows;
    const mpixla_op_row *table = mpixla_op_table(&rows, NULL);
    call_make(&s->c, op, comm, root);
    call_finish(s, handler_in(table, rows, op, s->on_device));
}

void scene_buffer(scene *s, int side, int position, int dtype, int64_t count, int array) {
    const ffi_buffers *given = side == CALL_OPERANDS ? &s->c.frame.args : &s->c.frame.rets;
    if (position >= given->size) call_insert(&s->c, side, position, dtype, count, NULL);
    call_count_set(&s->c, side, position, count);
    call_dtype_set(&s->c, side, position, dtype);
    s->c.sides[side].buffers[position].data = s->arrays[array];
}

static void operand(scene *s, int position, int64_t count, int array) {
    scene_buffer(s, CALL_OPERANDS, position, FFI_S32, count, array);
}

static void result(scene *s, int position, int64_t count, int array) {
    scene_buffer(s, CALL_RESULTS, position, FFI_S32, count, array);
}

static void start(scene *s, const char *op, int id) {
    scene_call(s, op, FIXTURE_RANK0, 0);
    scene_buffer(s, CALL_RESULTS, 0, FFI_F32, 2, id);
}

static void wait_for(scene *s, const char *op, int id) {
    scene_call(s, op, FIXTURE_RANK0, 0);
    scene_buffer(s, CALL_OPERANDS, 0, FFI_F32, 2, id);
}

void scene_help(scene *s, const char *name) {
    size_t rows;
    const mpixla_helper_row *table = mpixla_helper_table(&rows, NULL);
    call_make(&s->c, "barrier", FIXTURE_RANK0, 0);
    for (size_t i = 0; i < rows; i++)
        if (strcmp(table[i].name, name) == 0)
            call_finish(s, (ffi_handler *)(s->on_device ? table[i].device_handler : table[i].host_handler));
}

/* Steps */

static const char *recv_with_status(scene *s) {
    scene_call(s, "recv", FIXTURE_RANK0, 0);
    operand(s, 0, SCENE_ITEMS, SCENE_RECEIVED);
    result(s, 0, SCENE_ITEMS, SCENE_WITH_STATUS);
    scene_buffer(s, CALL_RESULTS, 1, FFI_U8, sizeof(fake_status), SCENE_STATUS);
    call_attribute_set(&s->c, "status", MPIXLA_STATUS_RESULT);
    fake->missing = 2;
    const char *sentence = call_run(&s->c);
    fake->missing = 0;
    return sentence;
}

static const char *recv_with_numbers(scene *s) {
    scene_call(s, "recv", FIXTURE_RANK0, 0);
    operand(s, 0, SCENE_ITEMS, SCENE_RECEIVED);
    result(s, 0, SCENE_ITEMS, SCENE_WITH_NUMBERS);
    scene_buffer(s, CALL_RESULTS, 1, FFI_S32, 3, SCENE_NUMBERS);
    call_attribute_set(&s->c, "status", MPIXLA_STATUS_NUMBERS);
    return call_run(&s->c);
}

static const char *isend(scene *s) {
    start(s, "isend", SCENE_ID);
    operand(s, 0, SCENE_ITEMS, SCENE_REDUCED);
    return call_run(&s->c);
}

static const char *irecv(scene *s) {
    start(s, "irecv", SCENE_OTHER_ID);
    operand(s, 0, SCENE_ITEMS, SCENE_TEMPLATE);
    return call_run(&s->c);
}

static const char *wait_send(scene *s) {
    wait_for(s, "wait_send", SCENE_ID);
    return call_run(&s->c);
}

static const char *wait_recv(scene *s) {
    wait_for(s, "wait_recv", SCENE_OTHER_ID);
    operand(s, 1, SCENE_ITEMS, SCENE_SHORT);
    result(s, 0, SCENE_ITEMS, SCENE_WAITED);
    fake->missing = 4 * 4; /* bytes, of items of 4 */
    const char *sentence = call_run(&s->c);
    fake->missing = 0;
    return sentence;
}

static const char *requests(scene *s) {
    const char *sentence = irecv(s);
    if (!*sentence) sentence = isend(s);
    if (!*sentence) sentence = wait_recv(s);
    return *sentence ? sentence : wait_send(s);
}

static const char *halo(scene *s, const char *op, int in, int out, const int64_t low[2], const int64_t high[2]) {
    static int64_t dims[2] = {SCENE_ROWS, SCENE_COLUMNS};
    static const int64_t axes[] = {0, 1}, width[] = {1, 1};
    scene_call(s, op, FIXTURE_RANK0, 0);
    operand(s, 0, 0, in);
    result(s, 0, 0, out);
    for (int side = 0; side < 2; side++) {
        s->c.sides[side].buffers[0].rank = 2;
        s->c.sides[side].buffers[0].dims = dims;
    }
    call_list_set(&s->c, "axes", axes, 2);
    call_grid_set(FIXTURE_RANK0, 2, low, high);
    call_list_set(&s->c, "width", width, 2);
    return call_run(&s->c);
}

static const char *halo_exchange_(scene *s) {
    static const int64_t low[] = {1, 2}, high[] = {3, 2};
    return halo(s, "halo_exchange", SCENE_BLOCK, SCENE_BLOCK, low, high);
}

/* In the second dimension with itself, and into other memory. */
static const char *halo_with_itself(scene *s) {
    static const int64_t low[] = {MPIXLA_PROC_NULL, 0}, high[] = {3, 0};
    return halo(s, "halo_exchange", SCENE_BLOCK, SCENE_OTHER_BLOCK, low, high);
}

static const char *halo_transpose_(scene *s) {
    static const int64_t low[] = {1, 2}, high[] = {3, 2};
    return halo(s, "halo_transpose", SCENE_BLOCK, SCENE_BLOCK, low, high);
}

static const char *halo_transpose_with_itself(scene *s) {
    static const int64_t low[] = {0, 2}, high[] = {0, MPIXLA_PROC_NULL};
    return halo(s, "halo_transpose", SCENE_OTHER_BLOCK, SCENE_OTHER_BLOCK, low, high);
}

static const char *send_to_itself(scene *s) {
    scene_call(s, "send", FIXTURE_RANK0, 0);
    operand(s, 0, SCENE_ITEMS, SCENE_RECEIVED);
    call_attribute_set(&s->c, "dest", 0);
    return call_run(&s->c);
}

static const char *exchange_(scene *s) {
    static const int64_t sources[] = {2, MPIXLA_PROC_NULL}, tags[] = {5, 6};
    scene_call(s, "exchange", FIXTURE_RANK0, 0);
    operand(s, 0, 3, SCENE_SENT);
    result(s, 0, 3, SCENE_EXCHANGED);
    call_edges_set(FIXTURE_RANK0, 0, 2, sources, tags);
    return call_run(&s->c);
}

static void lines_set(scene *s, int side, int position, int array, int64_t *dims) {
    scene_buffer(s, side, position, FFI_S32, 0, array);
    s->c.sides[side].buffers[position].rank = 2;
    s->c.sides[side].buffers[position].dims = dims;
}

static int64_t wide[] = {SCENE_LINES, 5}, narrow[] = {SCENE_LINES, 3}, both[] = {SCENE_LINES, 8};

static const char *pack(scene *s) {
    scene_help(s, "pack");
    lines_set(s, CALL_OPERANDS, 0, SCENE_WIDE, wide);
    lines_set(s, CALL_OPERANDS, 1, SCENE_NARROW, narrow);
    lines_set(s, CALL_RESULTS, 0, SCENE_PACKED, both);
    return call_run(&s->c);
}

static const char *own_rank(scene *s) {
    scene_help(s, "rank");
    call_attribute_insert(&s->c, 1, "shift", 0);
    s->c.attributes.types[1] = FFI_ATTRIBUTE_ARRAY;
    s->c.attributes.value_pointers[1] = &s->c.attributes.arrays[0];
    call_array_set(&s->c, 0, 2, (const int64_t[]){0, 1});
    scene_buffer(s, CALL_RESULTS, 0, FFI_S32, 1, SCENE_RANK);
    s->c.sides[CALL_RESULTS].buffers[0].rank = 0;
    return call_run(&s->c);
}

static const char *unpack(scene *s) {
    scene_help(s, "unpack");
    lines_set(s, CALL_OPERANDS, 0, SCENE_PACKED, both);
    lines_set(s, CALL_RESULTS, 0, SCENE_UNPACKED, wide);
    lines_set(s, CALL_RESULTS, 1, SCENE_OTHER_UNPACKED, narrow);
    return call_run(&s->c);
}

const scene_step scene_steps[] = {
    {"recv", 0, .op = "recv", .operands = {SCENE_TEMPLATE}, .result = SCENE_RECEIVED},
    {"recv again", 0, .op = "recv", .operands = {SCENE_TEMPLATE}, .result = SCENE_AGAIN},
    {"recv of less", 0, .op = "recv", .operands = {SCENE_TEMPLATE}, .result = SCENE_SHORT, .missing = 5},
    {"allreduce", 1, .op = "allreduce", .operands = {SCENE_SENT}, .result = SCENE_REDUCED},
    {"requests", 0, .run = requests},
    {"halo_exchange", 1, .run = halo_exchange_},
    {"recv with status", 0, .run = recv_with_status},
    {"recv with numbers", 0, .run = recv_with_numbers},
    {"halo_exchange with itself", 1, .run = halo_with_itself},
    {"allreduce in place", 1, .op = "allreduce", .operands = {SCENE_RECEIVED}, .result = SCENE_RECEIVED},
    {"halo_transpose", 1, .run = halo_transpose_},
    {"halo_transpose with itself", 1, .run = halo_transpose_with_itself},
    {"large allreduce", 1, .op = "allreduce", .operands = {SCENE_LARGE}, .result = SCENE_LARGE_REDUCED},
    {"large bcast off root", 1, .op = "bcast", .is_rank2 = 1, .result = SCENE_LARGE_SPREAD},
    {"large allreduce in place", 1, .op = "allreduce", .operands = {SCENE_LARGE_REDUCED},
     .result = SCENE_LARGE_REDUCED},
    {"large bcast", 1, .op = "bcast", .operands = {SCENE_LARGE_REDUCED}},
    {"large scan", 1, .op = "scan", .is_rank2 = 1, .operands = {SCENE_LARGE_SPREAD}, .result = SCENE_LARGE_SCANNED},
    {"large reduce", 1, .op = "reduce", .operands = {SCENE_LARGE_SCANNED}, .result = SCENE_LARGE},
    {"large reduce off root", 1, .op = "reduce", .is_rank2 = 1, .operands = {SCENE_LARGE}},
    {"send", 0, .op = "send", .operands = {SCENE_WAITED}},
    {"send to itself", 0, .run = send_to_itself},
    {"sendrecv", 0, .op = "sendrecv", .operands = {SCENE_RECEIVED, SCENE_TEMPLATE}, .result = SCENE_SENT},
    {"exchange", 1, .run = exchange_},
    {"barrier", 1, .op = "barrier"},
    {"pack", 0, .run = pack},
    {"rank", 0, .run = own_rank},
    {"unpack", 0, .run = unpack},
};
const int scene_step_count = sizeof scene_steps / sizeof scene_steps[0];

const scene_step *scene_step_find(const char *name) {
    for (int i = 0; i < scene_step_count; i++)
        if (strcmp(scene_steps[i].name, name) == 0) return &scene_steps[i];
    exit(2);
}

static int64_t items_of(int array) {
    return (int64_t)(arrays[array].bytes / sizeof(int32_t));
}

const char *scene_run(scene *s, const scene_step *step) {
    if (step->run) return step->run(s);
    scene_call(s, step->op, step->is_rank2 ? FIXTURE_RANK2 : FIXTURE_RANK0, 0);
    for (int i = 0; i < s->c.frame.args.size; i++) operand(s, i, items_of(step->operands[i]), step->operands[i]);
    if (s->c.frame.rets.size > 0) result(s, 0, items_of(step->result), step->result);
    fake->missing = step->missing;
    const char *sentence = call_run(&s->c);
    fake->missing = 0;
    return sentence;
}
