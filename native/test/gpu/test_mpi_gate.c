/* The gate to MPI: when it opens, and what goes through. MPI is a fake; so are the GPU and its stream, which this
 * program has through its library, as the gate has them.
 *
 *   test_mpi_gate GATE FAKE_GPU FAKE_MPI FAKE_MPI_WITHOUT_LARGE_COUNTS
 */
#include <dlfcn.h>
#include <stdlib.h>

#include "test/call.h"
#include "test/check.h"
#include "test/fake_mpi.h"
#include "test/gpu/gpu_types.h"
#include "test/gpu/seam_rows.h"

static void *gate, *gpu;
static fake_mpi *mpi;

static void find(void *library, const char *name, void *into) {
    void *found = dlsym(library, name);
    if (!found) {
        printf("there is no %s\n", name);
        exit(2);
    }
    memcpy(into, &found, sizeof found);
}

static int (*is_open)(void);
static int (*fill)(void *memory, unsigned char value, size_t bytes, driver_stream stream);
static int (*stream_synchronize)(driver_stream stream);
static int (*stream_context)(driver_stream stream, driver_context *context);
static int (*context_push)(driver_context context);
static int (*context_pop)(driver_context *context);

/* MPI as a program with int handles has it, through the gate. */
static int (*send)(const void *b, int n, int type, int dest, int tag, int comm);
static int (*sendrecv_large)(const void *s, int64_t sn, int st, int dest, int sendtag, void *r, int64_t rn, int rt,
                             int source, int recvtag, int comm, void *status);
static int (*isend)(const void *b, int n, int type, int dest, int tag, int comm, int *request);
static int (*wait)(int *request, void *status);
static int (*comm_rank)(int comm, int *rank);

static int was_open;

static void note(void) {
    was_open = is_open();
}

static int handle(int number) {
    return (int)mpi->handle(number);
}

static void buffer_send(void) {
    static char buffer[16];
    was_open = -1;
    CHECK_INT(send(buffer, 3, handle(11), 1, 7, handle(FAKE_WORLD)), 0);
}

static int runs;

/* What a device handler may do, one after the other. */
static ffi_error *handler(ffi_call_frame *frame) {
    ffi_stream_get_args args = {.struct_size = sizeof args, .context = frame->context};
    driver_context context;
    int request, other, rank;
    fake_status status;
    void *result = ((ffi_buffer *)frame->rets.buffers[0])->data;
    runs++;
    CHECK(frame->api->stream_get(&args) == NULL);
    CHECK_INT(stream_context(args.stream, &context), 0);
    CHECK_INT(context_push(context), 0);
    buffer_send(); /* the operand has not arrived */
    CHECK_INT(was_open, 0);
    CHECK_INT(stream_synchronize(args.stream), 0);
    CHECK(!is_open());
    buffer_send();
    CHECK_INT(was_open, 1);
    CHECK(!is_open());
    CHECK_INT(isend(result, 1, handle(11), 1, 7, handle(FAKE_WORLD), &request), 0);
    CHECK(is_open());
    CHECK_INT(isend(result, 1, handle(11), 1, 7, handle(FAKE_WORLD), &other), 0);
    CHECK_INT(comm_rank(handle(FAKE_WORLD), &rank), 0);
    CHECK(is_open());
    CHECK_INT(wait(&request, &status), 0);
    CHECK(is_open());
    CHECK_INT(wait(&other, &status), 0);
    CHECK(!is_open());
    CHECK_INT(isend(result, 1, handle(11), 1, 7, handle(FAKE_WORLD), &request), 0);
    CHECK(is_open());
    CHECK_INT(fill(result, 1, 1, args.stream), 0);
    CHECK(!is_open());
    buffer_send(); /* the fill is late */
    CHECK_INT(was_open, 0);
    CHECK_INT(stream_synchronize(args.stream), 0);
    CHECK_INT(context_pop(NULL), 0);
    CHECK_INT(isend(result, 1, handle(11), 1, 7, handle(FAKE_WORLD), &request), 0);
    CHECK(is_open());
    return NULL;
}

static ffi_error *no_stream(ffi_stream_get_args *args) {
    args->stream = NULL;
    return NULL;
}

static void it_opens_while_the_stream_is_idle(void) {
    static call c;
    call_make(&c, "barrier", 0, 0);
    for (int side = 0; side < 2; side++) call_insert(&c, side, 0, FFI_F32, 4, side ? c.recv : c.send);
    c.api.stream_get = no_stream;
    c.frame.context = &c;
    ffi_handler *(*wrapper)(const char *target);
    int (*handler_set)(const char *target, ffi_handler *device_handler);
    find(gpu, "seam_wrapper", &wrapper);
    find(gpu, "seam_handler_set", &handler_set);
    CHECK_INT(handler_set("mpixla_send", handler), 0);
    c.handler = wrapper("mpixla_send");
    CHECK_STR(call_run_unseen(&c), "");
    CHECK_INT(runs, 1);
    CHECK(!is_open());
}

static void calls_go_through(void) {
    char out[16] = "", in[16] = "";
    fake_status status;
    was_open = -1;
    CHECK_INT(
        sendrecv_large(out, INT64_C(1) << 40, handle(11), 1, 7, in, 5, handle(12), 2, 8, handle(FAKE_WORLD), &status),
        0);
    CHECK_INT(was_open, 0); /* outside of a handler */
    CHECK_STR(mpi->call, "MPI_Sendrecv_c 1099511627776 t11 -> 1 tag 7, 5 t12 <- 2 tag 8 c0");
    CHECK(mpi->send == out && mpi->recv == in && mpi->status == &status);
    mpi->failing[0] = "MPI_Send";
    mpi->code = 0x105;
    CHECK_INT(send(out, 1, handle(11), 1, 7, handle(FAKE_WORLD)), 0x105);
    mpi->failing[0] = NULL;
}

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    gate = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    gpu = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
    void *large = dlopen(argv[3], RTLD_NOW | RTLD_LOCAL), *small = dlopen(argv[4], RTLD_NOW | RTLD_LOCAL);
    const char *(*start)(const char *mpi, const char *fake_gpu);
    if (!gate || !gpu || !large || !small) {
        printf("%s\n", dlerror());
        return 2;
    }
    find(gate, "mpi_gate_start", &start);
    CHECK_IN(start("/nothing.so", argv[2]), "/nothing.so is not loaded");
    CHECK_IN(start(argv[3], argv[4]), "is not the fake GPU");
    CHECK_IN(start(argv[4], argv[2]), "_c; the gate needs one with large counts");
    CHECK(start(argv[3], argv[2]) == NULL);
    mpi = dlsym(large, "fake");
    mpi->during = note;
    find(gpu, "fake_memory_is_open", &is_open);
    find(gpu, "cuMemsetD8Async", &fill);
    find(gpu, "cuStreamSynchronize", &stream_synchronize);
    find(gpu, "cuStreamGetCtx", &stream_context);
    find(gpu, "cuCtxPushCurrent_v2", &context_push);
    find(gpu, "cuCtxPopCurrent_v2", &context_pop);
    find(gate, "MPI_Send", &send);
    find(gate, "MPI_Sendrecv_c", &sendrecv_large);
    find(gate, "MPI_Isend", &isend);
    find(gate, "MPI_Wait", &wait);
    find(gate, "MPI_Comm_rank", &comm_rank);
    calls_go_through();
    it_opens_while_the_stream_is_idle();
    int (*cuda_support)(void);
    find(gate, "MPIX_Query_cuda_support", &cuda_support);
    CHECK_INT(cuda_support(), 1);
    return check_failures();
}
