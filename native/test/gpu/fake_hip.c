/* What HIP's driver has and CUDA's has not; its other functions are those of the fake CUDA by other names, which the
 * linker gives them (CMakeLists.txt). A thread's GPU is the context on top, and the first one where there is none.
 */
#include "test/gpu/fake_context.h"
#include "test/gpu/fake_stream.h"
#include "test/gpu/gpu_types.h"

#define MPIXLA_DRIVER_HIP(name, hip, prototype) FAKE_API int hip prototype;
#include "tables/driver_functions.def"
#undef MPIXLA_DRIVER_HIP

int hipStreamGetDevice(driver_stream handle, int *device) {
    const fake_stream *stream = fake_stream_find(handle);
    if (!stream) return FAKE_INVALID_HANDLE;
    *device = fake_stream_device(stream);
    return FAKE_SUCCESS;
}

int hipGetDevice(int *device) {
    int code = fake_context_depth() > 0 ? FAKE_SUCCESS : fake_context_push(fake_context_get(0));
    *device = fake_context_current();
    return code;
}

int hipSetDevice(int device) {
    driver_context context = fake_context_get(device);
    if (!context) return FAKE_INVALID_DEVICE;
    if (fake_context_depth() > 0) (void)fake_context_pop(NULL);
    return fake_context_push(context);
}
