#include "test/gpu/fake_context.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test/gpu/fake_calls.h"

enum { DEPTH = 32 };

static char contexts[FAKE_DEVICES]; /* their addresses are the handles */

static _Thread_local int stack[DEPTH];
static _Thread_local int depth;
static _Thread_local int chosen; /* HIP's */

int fake_devices(void) {
    int64_t count = fake_setting("MPIXLA_FAKE_DEVICE_COUNT", 1);
    return count < 0 ? 0 : count > FAKE_DEVICES ? FAKE_DEVICES : (int)count;
}

int fake_is_hip(void) {
    const char *platform = getenv("MPIXLA_FAKE_DEVICE_PLATFORM");
    return platform && strcmp(platform, "ROCM") == 0;
}

driver_uuid fake_device_uuid(int device) {
    driver_uuid uuid = {.bytes = "fake GPU"};
    int32_t process = fake_setting("MPIXLA_FAKE_DEVICE_SHARED", 0) ? 0 : (int32_t)getpid(), ordinal = device;
    memcpy(uuid.bytes + 8, &process, sizeof process);
    memcpy(uuid.bytes + 12, &ordinal, sizeof ordinal);
    return uuid;
}

driver_context fake_context_get(int device) {
    return device >= 0 && device < fake_devices() ? &contexts[device] : NULL;
}

int fake_context_device(driver_context context) {
    for (int i = 0; i < fake_devices(); i++)
        if (context == &contexts[i]) return i;
    return -1;
}

int fake_context_push(driver_context context) {
    int device = fake_context_device(context);
    if (device < 0) return FAKE_INVALID_CONTEXT;
    if (depth == DEPTH) {
        fake_complain("a thread has %d contexts on top of one another", depth);
        return FAKE_INVALID_VALUE;
    }
    stack[depth++] = device;
    return FAKE_SUCCESS;
}

int fake_context_pop(driver_context *context) {
    if (depth == 0) {
        fake_complain("a context was popped from a thread that has none");
        return FAKE_INVALID_CONTEXT;
    }
    depth--;
    if (context) *context = &contexts[stack[depth]];
    return FAKE_SUCCESS;
}

int fake_context_current(void) {
    if (fake_is_hip()) return chosen;
    return depth > 0 ? stack[depth - 1] : -1;
}

int fake_context_set(int device) {
    if (!fake_context_get(device)) return FAKE_INVALID_DEVICE;
    chosen = device;
    return FAKE_SUCCESS;
}

int fake_context_depth(void) {
    return depth;
}
