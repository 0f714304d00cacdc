/* Finding the driver and NCCL, which happens once in a process: each situation has one of its own.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/error.h"
#include "device/driver.h"
#include "device/nccl.h"
#include "mpixla.h"
#include "test/gpu/fake_context.h"
#include "test/gpu/fake_stream.h"
#include "test/gpu/gpu_check.h"
#include "test/run.h"

static const char *other_library, *gpu_library;

static void in_a_process(void (*run)(void)) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        unsetenv("MPIXLA_HIP_LIBRARY");
        unsetenv("MPIXLA_RCCL_LIBRARY");
        unsetenv("MPIXLA_SYCL_LIBRARY");
        setenv("MPIXLA_CUDA_LIBRARY", gpu_library, 1);
        setenv("MPIXLA_NCCL_LIBRARY", gpu_library, 1);
        run();
        fflush(stdout);
        _exit(atomic_load(&check_failed) != 0);
    }
    CHECK_INT(process_end(child), 0);
}

/* With the name of a file in it. */
__attribute__((format(printf, 1, 0))) static void check_error(const char *format, const char *file) {
    char expected[512];
    snprintf(expected, sizeof expected, format, file);
    CHECK_STR(error_get(), expected);
}

static void no_driver(void) {
    setenv("MPIXLA_CUDA_LIBRARY", "/nowhere/libcuda.so", 1);
    setenv("MPIXLA_HIP_LIBRARY", "/nowhere/libamdhip64.so", 1);
    for (int i = 0; i < 2; i++) {
        (void)error_set("before");
        CHECK(driver_get() == NULL);
        CHECK(strncmp(error_get(), "no driver of a GPU can be loaded (CUDA: /nowhere/libcuda.so: ", 61) == 0);
        CHECK_IN(error_get(), "; ROCm: /nowhere/libamdhip64.so: ");
        CHECK_IN(error_get(), "; SYCL: dpctl and JAX's plugin, which it is for, are not both installed)");
        CHECK(error_get()[strlen(error_get()) - 1] == ')');
        setenv("MPIXLA_CUDA_LIBRARY", gpu_library, 1); /* nobody looks again */
    }
    CHECK_INT(mpixla_gpu_is_possible(), 0);
    CHECK_INT(mpixla_gpu_count("CUDA"), 0);
}

/* Without the variables, or with empty ones. There may be a driver. */
static void the_systems_driver(void) {
    setenv("MPIXLA_CUDA_LIBRARY", "", 1);
    setenv("MPIXLA_HIP_LIBRARY", "", 1);
    const driver *d = driver_get();
    if (d) {
        CHECK_IN(d->file, d->platform == DRIVER_CUDA ? "libcuda.so.1" : "libamdhip64.so");
    } else {
        CHECK_IN(error_get(), "CUDA: libcuda.so.1: ");
        CHECK_IN(error_get(), "ROCm: libamdhip64.so");
    }
}

static void a_driver_without_a_function(void) {
    setenv("MPIXLA_CUDA_LIBRARY", other_library, 1);
    CHECK(driver_get() == NULL);
    check_error("the CUDA driver (%s) has no function cuInit: it is older than mpixla can use. Install a newer driver",
                other_library);
    CHECK_INT(mpixla_gpu_is_possible(), 0);
}

/* ROCm's comes next. */
static void a_hip_driver_without_a_function(void) {
    setenv("MPIXLA_CUDA_LIBRARY", "/nowhere/libcuda.so", 1);
    setenv("MPIXLA_HIP_LIBRARY", other_library, 1);
    CHECK(driver_get() == NULL);
    check_error("the ROCm driver (%s) has no function hipInit: it is older than mpixla can use. Install a newer driver",
                other_library);
}

static void the_driver_of_the_variable(void) {
    const driver *d = driver_get();
    CHECK(d != NULL);
    if (!d) return;
    CHECK_INT(d->platform, DRIVER_CUDA);
    CHECK_STR(d->platform_name, "CUDA");
    CHECK_STR(d->file, gpu_library);
    CHECK(driver_get() == d);
    CHECK_INT(fake_calls_count("cuInit"), 0); /* nothing is initialized */
    CHECK_INT(mpixla_gpu_is_possible(), 1);
    CHECK_INT(fake_calls_count("cuInit"), 0);
    for (int i = 0; i < DRIVER_FUNCTIONS; i++)
        CHECK((d->functions[i].name != NULL) ==
              (i != DRIVER_FUNCTION_stream_device && i != DRIVER_FUNCTION_current_device &&
               i != DRIVER_FUNCTION_make_current && i != DRIVER_FUNCTION_queue_enter &&
               i != DRIVER_FUNCTION_queue_leave));
    CHECK(d->stream_device == NULL && d->make_current == NULL && d->stream_context != NULL);
    CHECK_STR(d->functions[DRIVER_FUNCTION_copy_in].name, "cuMemcpyHtoDAsync_v2");
}

static void errors_in_words(void) {
    const driver *d = driver_get();
    CHECK_INT(driver_check(d, DRIVER_FUNCTION_fill, 0), 0);
    CHECK_INT(driver_check(d, DRIVER_FUNCTION_fill, 700), -1);
    CHECK_STR(
        error_get(),
        "cuMemsetD8Async of the CUDA driver returned error code 700, CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory "
        "access was encountered");
    CHECK_INT(driver_check(d, DRIVER_FUNCTION_context_push, 12345), -1);
    CHECK_STR(error_get(),
              "cuCtxPushCurrent_v2 of the CUDA driver returned error code 12345, an error without a name: "
              "the driver says no more");
    int count;
    CHECK_INT(DRIVER_CALL(d, device_count, &count), -1); /* nobody has initialized it */
    CHECK_STR(error_get(),
              "cuDeviceGetCount of the CUDA driver returned error code 3, CUDA_ERROR_NOT_INITIALIZED: "
              "initialization error");
    CHECK_IN(complaint(), "before cuInit");
}

static void gpus_are_counted(void) {
    setenv("MPIXLA_FAKE_DEVICE_COUNT", "3", 1);
    fake_fail_may_pass(1);
    CHECK_INT(fake_fail("cuInit", 1, 100), 0);
    CHECK_INT(mpixla_gpu_count("CUDA"), 0);
    CHECK_STR(mpixla_last_error(),
              "cuInit of the CUDA driver returned error code 100, CUDA_ERROR_NO_DEVICE: no "
              "capable device is detected");
    CHECK_INT(mpixla_gpu_count("CUDA"), 3);
    CHECK_INT(mpixla_gpu_count("ROCm"), 0);
    CHECK_INT(fake_fail("cuDeviceGetCount", 1, 999), 0);
    CHECK_INT(mpixla_gpu_count("CUDA"), 0);
}

/* SYCL's is looked for last, and only in the file that the user or the front end names. */
static void only_sycl(const char *file) {
    setenv("MPIXLA_CUDA_LIBRARY", "/nowhere/libcuda.so", 1);
    setenv("MPIXLA_HIP_LIBRARY", "/nowhere/libamdhip64.so", 1);
    if (file) setenv("MPIXLA_SYCL_LIBRARY", file, 1);
}

static void a_sycl_without_a_function(void) {
    only_sycl(other_library);
    CHECK(driver_get() == NULL);
    check_error(
        "the SYCL driver (%s) has no function DPCTLDeviceMgr_GetNumDevices: it is older than mpixla can use. "
        "Install a newer driver",
        other_library);
}

static void the_sycl_that_is_added(void) {
    only_sycl(NULL);
    mpixla_sycl_file_add(gpu_library);
    const driver *d = driver_get();
    CHECK(d && d->platform == DRIVER_SYCL);
    if (d) CHECK_STR(d->file, gpu_library);
    setenv("MPIXLA_FAKE_DEVICE_COUNT", "3", 1);
    CHECK_INT(mpixla_gpu_count("SYCL"), 3);
    CHECK_INT(mpixla_gpu_count("CUDA"), 0);
    CHECK(nccl_get(DRIVER_SYCL) == NULL);
    CHECK_STR(error_get(), "there is no NCCL for Intel's GPUs");
}

/* A library by the name of SYCL's, which has nothing of SYCL. */
static void library_open(const char *folder, const char *name) {
    char path[256], bytes[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *from = fopen(other_library, "rb"), *to = fopen(path, "wb");
    CHECK(from && to);
    if (!from || !to) return;
    for (size_t n; (n = fread(bytes, 1, sizeof bytes, from)) > 0;) CHECK(fwrite(bytes, 1, n, to) == n);
    fclose(from);
    CHECK_INT(fclose(to), 0);
    CHECK(dlopen(path, RTLD_NOW | RTLD_LOCAL) != NULL);
    CHECK_INT(remove(path), 0);
}

/* dpctl's may be another one than the plugin's. */
static void two_sycl_libraries(void) {
    char folder[] = "/tmp/mpixla-sycl-XXXXXX";
    int number = -1;
    only_sycl(gpu_library);
    const driver *d = driver_get();
    CHECK(d && mkdtemp(folder));
    if (!d) return;
    library_open(folder, "libsycl.so.8");
    library_open(folder, "libsycl.so.9");
    CHECK_INT(DRIVER_CALL(d, queue_enter, fake_stream_take(0), &number), -1);
    CHECK_IN(error_get(),
             "DPCTLQueue_GetDevice of the SYCL driver returned error code 2, two SYCL libraries: this process has ");
    CHECK_IN(error_get(), "/libsycl.so.8 and ");
    CHECK_IN(error_get(),
             "/libsycl.so.9. JAX's plugin and dpctl must use the same: install the dpctl that is linked to the "
             "plugin's (docs/gpu.md)");
    CHECK_INT(rmdir(folder), 0);
}

static void one_sycl_library(void) {
    char folder[] = "/tmp/mpixla-sycl-XXXXXX";
    int number = -1;
    only_sycl(gpu_library);
    const driver *d = driver_get();
    CHECK(d && mkdtemp(folder));
    if (!d) return;
    library_open(folder, "libsycl.so.8");
    CHECK_INT(DRIVER_CALL(d, queue_enter, fake_stream_take(0), &number), 0);
    CHECK_INT(rmdir(folder), 0);
}

/* NCCL */

static void no_nccl(void) {
    setenv("MPIXLA_NCCL_LIBRARY", "/nowhere/libnccl.so", 1);
    for (int i = 0; i < 2; i++) {
        CHECK(nccl_get(DRIVER_CUDA) == NULL);
        CHECK(strncmp(error_get(), "NCCL cannot be loaded: /nowhere/libnccl.so: ", 44) == 0);
        setenv("MPIXLA_NCCL_LIBRARY", gpu_library, 1);
    }
}

static void no_rccl(void) {
    setenv("MPIXLA_RCCL_LIBRARY", "/nowhere/librccl.so", 1);
    CHECK(nccl_get(DRIVER_ROCM) == NULL);
    CHECK(strncmp(error_get(), "RCCL cannot be loaded: /nowhere/librccl.so: ", 44) == 0);
}

static void an_nccl_without_a_function(void) {
    setenv("MPIXLA_NCCL_LIBRARY", other_library, 1);
    CHECK(nccl_get(DRIVER_CUDA) == NULL);
    check_error("NCCL (%s) has no function ncclGetVersion: it is too old", other_library);
}

static void an_nccl_that_is_too_old(void) {
    setenv("MPIXLA_FAKE_NCCL_VERSION", "21310", 1);
    CHECK(nccl_get(DRIVER_CUDA) == NULL);
    check_error("NCCL 2.13 (%s) is too old: mpixla takes 2.14 or later", gpu_library);
}

static void an_nccl_that_fails(void) {
    fake_fail_may_pass(1);
    CHECK_INT(fake_fail("ncclGetVersion", 1, 2), 0);
    CHECK(nccl_get(DRIVER_CUDA) == NULL);
    CHECK_IN(error_get(), "ncclGetVersion returned error code 2, unhandled system error");
}

static void the_nccl_of_the_variable(void) {
    mpixla_nccl_file_add("/nowhere/libnccl.so");
    setenv("MPIXLA_FAKE_NCCL_VERSION", "21400", 1);
    const nccl *n = nccl_get(DRIVER_CUDA);
    CHECK(n != NULL && n == nccl_get(DRIVER_CUDA));
    if (!n) return;
    CHECK_STR(n->file, gpu_library);
    CHECK_INT(n->number, 21400);
    CHECK_INT(nccl_check(n, NCCL_FUNCTION_send, NULL, 0), 0);
    CHECK_INT(nccl_check_earlier(n, NULL, NCCL_IN_PROGRESS), 0);
    CHECK_INT(nccl_check(n, NCCL_FUNCTION_send, NULL, NCCL_IN_PROGRESS), -1);
    CHECK_STR(
        error_get(),
        "ncclSend returned before it was done, since NCCL's communicator is nonblocking, which mpixla cannot use: "
        "unset NCCL_COMM_BLOCKING, or set it to 1");
    CHECK_INT(nccl_check(n, NCCL_FUNCTION_send, NULL, 5), -1);
    CHECK_STR(error_get(), "ncclSend returned error code 5, invalid usage (run with NCCL_DEBUG=WARN for details)");
    CHECK_INT(nccl_group_end(n, NULL, 0), -1); /* of no group, which NCCL says more about */
    CHECK_STR(error_get(),
              "ncclGroupEnd returned error code 5, invalid usage (run with NCCL_DEBUG=WARN for details): "
              "ncclGroupEnd without ncclGroupStart");
    CHECK_IN(complaint(), "ncclGroupEnd without ncclGroupStart");
    CHECK_INT(nccl_group_start(n, NULL), 0);
    (void)error_set("the first failure");
    CHECK_INT(nccl_group_end(n, NULL, 1), -1);
    CHECK_STR(error_get(), "the first failure");
}

/* The file that Python knows comes after one that is loaded, and before the system's. */
static void the_nccl_that_is_added(void) {
    setenv("MPIXLA_NCCL_LIBRARY", "", 1);
    mpixla_nccl_file_add(gpu_library);
    const nccl *n = nccl_get(DRIVER_CUDA);
    CHECK(n != NULL);
    if (n) CHECK_STR(n->file, gpu_library);
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    other_library = argv[1];
    gpu_library = argv[2];
    in_a_process(no_driver);
    in_a_process(the_systems_driver);
    in_a_process(a_driver_without_a_function);
    in_a_process(a_hip_driver_without_a_function);
    in_a_process(the_driver_of_the_variable);
    in_a_process(errors_in_words);
    in_a_process(gpus_are_counted);
    in_a_process(a_sycl_without_a_function);
    in_a_process(the_sycl_that_is_added);
    in_a_process(two_sycl_libraries);
    in_a_process(one_sycl_library);
    in_a_process(no_nccl);
    in_a_process(no_rccl);
    in_a_process(an_nccl_without_a_function);
    in_a_process(an_nccl_that_is_too_old);
    in_a_process(an_nccl_that_fails);
    in_a_process(the_nccl_of_the_variable);
    in_a_process(the_nccl_that_is_added);
    return check_failures();
}
