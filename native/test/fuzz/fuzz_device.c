/* The fuzzer of the handlers for a GPU's memory, on the fake one: the host may not touch that memory, and whatever the
 * stream does beyond an array is noticed.
 *
 *   fuzz_device FAKE_MPI FAKE_GPU TRANSPORT [options of fuzz_main.h]
 */
#include <stdlib.h>

#include "test/fixture.h"
#include "test/fuzz/fuzz_main.h"
#include "test/fuzz/fuzz_run.h"
#include "test/gpu/fake_calls.h"
#include "test/gpu/fake_context.h"
#include "test/gpu/fake_memory.h"
#include "test/gpu/gpu_scene.h"

/* On a GPU an array without bytes may have no memory. */
static void *get(size_t bytes) {
    return bytes > 0 ? fake_memory_alloc(bytes) : NULL;
}

static void give_back(void *memory) {
    if (memory) (void)fake_memory_free(memory);
}

static void *reach(const void *memory) {
    return fake_memory_engine(memory);
}

static ffi_error *stream_get(ffi_stream_get_args *args) {
    args->stream = gpu_stream;
    return NULL;
}

static const char *settle(void) {
    static char text[1024];
    if (fake_context_depth() > 0) return "a handler left a context";
    if (gpu_drain() != 0) return "what a handler left on the stream failed";
    return fake_complaint_take(text, sizeof text) ? text : "";
}

int main(int argc, char **argv) {
    static const fuzz_setting gpu = {get, give_back, reach, stream_get, settle};
    gpu_start(argc, argv);
    fuzz_start(&gpu);
    return fuzz_main(argc - 4, argv + 4);
}
