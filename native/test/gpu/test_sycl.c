/* SYCL as a driver, and handlers on a SYCL queue. The library is dpctl's, on whichever device the filter names, or the
 * fake GPU's, which has the same functions.
 *
 *   test_sycl FAKE_MPI LIBRARY host sycl [FILTER]
 */
#include <dlfcn.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/loader.h"
#include "device/device.h"
#include "device/pool.h"
#include "device/sycl.h"
#include "test/gpu/gpu_check.h"
#include "test/gpu/gpu_scene.h"

/* What a program has that makes queues itself, as XLA does. */
static struct {
    void *(*selector_make)(const char *filter);
    void *(*device_make)(void *selector);
    void *(*queue_make)(void *device, void *handler, int properties);
    void *(*device_alloc)(size_t bytes, void *queue);
    void (*memory_free)(void *memory, void *queue);
    void (*queue_wait)(void *queue);
} real;
static const loader_row real_functions[] = {
    {"DPCTLFilterSelector_Create", 0 * sizeof(void *)}, {"DPCTLDevice_CreateFromSelector", 1 * sizeof(void *)},
    {"DPCTLQueue_CreateForDevice", 2 * sizeof(void *)}, {"DPCTLmalloc_device", 3 * sizeof(void *)},
    {"DPCTLfree_with_queue", 4 * sizeof(void *)},       {"DPCTLQueue_Wait", 5 * sizeof(void *)}};

static void *queue, *other_queue; /* of one device */

static void *real_alloc(size_t bytes) {
    return real.device_alloc(bytes, queue);
}

static void real_release(void *memory) {
    real.memory_free(memory, queue);
}

static int real_wait(void) {
    real.queue_wait(queue);
    return 0;
}

/* Makes the queues: in order, as XLA's. */
static void queues_make(const char *library, const char *filter) {
    static gpu_real in_place = {.alloc = real_alloc, .release = real_release, .wait = real_wait};
    enum { IN_ORDER = 1 << 1, PROFILING = 1 << 0 };
    if (!filter) {
        queue = gpu_stream;
        other_queue = fake_stream_take(0);
        return;
    }
    void *loaded = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    const char *missing = loaded ? loader_functions(loaded, real_functions, 6, &real) : dlerror();
    void *device = missing ? NULL : real.device_make(real.selector_make(filter));
    if (device) queue = real.queue_make(device, NULL, IN_ORDER | PROFILING);
    if (device) other_queue = real.queue_make(device, NULL, IN_ORDER | PROFILING);
    if (!queue || !other_queue) {
        fprintf(stderr, "there is no queue of a device %s: %s\n", filter, missing ? missing : "SYCL has none");
        exit(2);
    }
    in_place.stream = queue;
    gpu_in_place = &in_place;
}

/* A call on one of the queues. */
static void *queue_of_call;

static ffi_error *stream_get(ffi_stream_get_args *args) {
    args->stream = queue_of_call;
    return NULL;
}

static device enter(void *its_queue) {
    static ffi_api api = {.struct_size = sizeof api, .stream_get = stream_get};
    static ffi_call_frame frame = {.struct_size = sizeof frame, .api = &api, .context = &frame};
    device d;
    queue_of_call = its_queue;
    const int code = device_enter(&d, &frame);
    CHECK_INT(code, 0);
    if (code != 0) {
        printf("%s\n", error_get());
        exit(1);
    }
    return d;
}

static void all_functions_are_bound(void) {
    const driver *d = driver_get();
    CHECK(d && d->platform == DRIVER_SYCL);
    if (!d) exit(1);
    CHECK_STR(d->platform_name, "SYCL");
    for (int i = 0; i < DRIVER_FUNCTIONS; i++) {
        void *function;
        if (!d->functions[i].name) continue;
        memcpy(&function, (const char *)d + d->functions[i].place, sizeof function);
        CHECK(function != NULL);
    }
    CHECK(d->queue_enter != NULL && d->context_push == NULL && d->make_current == NULL);
    CHECK_INT(DRIVER_CALL(d, init, 0), 0);
}

/* Queues of one device and context share memory and events, so they have one number. */
static void queues_of_a_device_have_its_number(void) {
    device first = enter(queue);
    device_leave(&first);
    device second = enter(other_queue);
    device_leave(&second);
    CHECK(first.stream == queue && second.stream == other_queue);
    CHECK_INT(first.number, second.number);
    CHECK(first.number >= 0);
}

enum { BYTES = 1 << 16, LINES = 16, LINE_BYTES = 24, NEAR = 32, FAR = 100 };

static unsigned char content(int i, int seed) {
    return (unsigned char)(i * 7 + i / 256 + seed);
}

/* Memory goes to the device, within it, and back, in the order in which the copies were put on the queue. */
static void memory_is_copied(void) {
    const device d = enter(queue);
    void *host = NULL, *back = NULL, *here = NULL, *there = NULL;
    CHECK_INT(DRIVER_CALL(d.driver, host_alloc, &host, BYTES, DRIVER_HOST_PORTABLE), 0);
    CHECK_INT(DRIVER_CALL(d.driver, host_alloc, &back, BYTES, DRIVER_HOST_PORTABLE), 0);
    CHECK_INT(DRIVER_CALL(d.driver, device_alloc, &here, BYTES), 0);
    CHECK_INT(DRIVER_CALL(d.driver, device_alloc, &there, BYTES), 0);
    unsigned char *out = host, *in = back;
    for (int i = 0; i < BYTES; i++) out[i] = content(i, 3);
    CHECK_INT(device_copy_in(&d, here, host, BYTES), 0);
    CHECK_INT(device_copy_within(&d, there, here, BYTES), 0);
    CHECK_INT(device_clear(&d, here, BYTES), 0); /* after it was read */
    CHECK_INT(device_copy_out(&d, back, there, BYTES), 0);
    CHECK_INT(device_wait(&d), 0);
    CHECK(memcmp(host, back, BYTES) == 0);

    const device_lines far_lines = {here, FAR, 0}, near_lines = {back, NEAR, 1};
    memset(back, 0, BYTES);
    CHECK_INT(device_copy_in(&d, here, host, BYTES), 0);
    CHECK_INT(device_copy_lines(&d, near_lines, far_lines, LINES, LINE_BYTES), 0);
    CHECK_INT(device_clear_lines(&d, far_lines, LINES, LINE_BYTES), 0);
    CHECK_INT(device_copy_out(&d, in + BYTES / 2, here, LINES * FAR), 0);
    CHECK_INT(device_wait(&d), 0);
    for (int i = 0; i < LINES * FAR; i++) {
        const int line = i / FAR, at = i % FAR;
        CHECK_INT(in[BYTES / 2 + i], at < LINE_BYTES ? 0 : content(i, 3));
        if (at < LINE_BYTES) CHECK_INT(in[line * NEAR + at], content(i, 3));
    }
    CHECK_INT(d.driver->host_free(host), 0);
    CHECK_INT(d.driver->host_free(back), 0);
    CHECK_INT(d.driver->device_free(here), 0);
    CHECK_INT(d.driver->device_free(there), 0);
    device_leave(&d);
}

/* An event stands for the place where it was recorded last. */
static void events_are_reached(void) {
    const device d = enter(queue);
    void *event = NULL, *host = NULL, *memory = NULL;
    CHECK_INT(DRIVER_CALL(d.driver, event_create, &event, DRIVER_EVENT_NO_TIMING), 0);
    CHECK_INT(d.driver->event_query(event), 0);
    CHECK_INT(DRIVER_CALL(d.driver, event_synchronize, event), 0);
    CHECK_INT(DRIVER_CALL(d.driver, host_alloc, &host, BYTES, 0), 0);
    CHECK_INT(DRIVER_CALL(d.driver, device_alloc, &memory, BYTES), 0);
    for (int round = 0; round < 3; round++) {
        memset(host, round, BYTES);
        CHECK_INT(device_copy_in(&d, memory, host, BYTES), 0);
        CHECK_INT(DRIVER_CALL(d.driver, event_record, event, d.stream), 0);
        const int code = d.driver->event_query(event);
        CHECK(code == 0 || code == DRIVER_NOT_READY);
        CHECK_INT(device_wait_for(&d, event), 0);
        CHECK_INT(d.driver->event_query(event), 0);
    }
    CHECK_INT(device_wait(&d), 0);
    CHECK_INT(DRIVER_CALL(d.driver, event_destroy, event), 0);
    CHECK_INT(d.driver->host_free(host), 0);
    CHECK_INT(d.driver->device_free(memory), 0);
    device_leave(&d);
}

static void failures_are_told(void) {
    const device d = enter(queue);
    void *memory = NULL;
    CHECK_INT(DRIVER_CALL(d.driver, device_alloc, &memory, SIZE_MAX / 4), REFUSED);
    CHECK_STR(
        error_get(),
        "DPCTLmalloc_device of the SYCL driver returned error code 1, a failure of SYCL: DPCTL_VERBOSITY=warning in "
        "the environment has dpctl print it");
    CHECK(pool_get(&d, POOL_DEVICE, INT64_MAX / 4) == NULL);
    CHECK_IN(error_get(), " bytes of memory of the GPU for a call: DPCTLmalloc_device of the SYCL driver");
    device_leave(&d);
}

/* All steps of a scene, some of which wait for nothing of those before, give the same on a queue as on the host. */
static void handlers_run_on_a_queue(void) {
    static scene on_host, on_device;
    for (int seed = 1; seed < 6; seed++) {
        uint64_t sent[2];
        for (int there = 0; there < 2; there++) {
            scene *s = there ? &on_device : &on_host;
            scene_open(s, there, seed);
            gpu_mpi_reset(seed);
            for (int i = 0; i < scene_step_count; i++) CHECK_STR(scene_run(s, &scene_steps[i]), "");
            sent[there] = gpu_mpi_sent();
        }
        CHECK_INT(gpu_drain(), 0);
        CHECK(sent[0] == sent[1]);
        const char *array = scenes_differ(&on_host, &on_device);
        CHECK_STR(array ? array : "", "");
        scene_close(&on_host);
        scene_close(&on_device);
    }
}

int main(int argc, char **argv) {
    setenv("MPIXLA_FAKE_DEVICE_PLATFORM", "ONEAPI", 1);
    gpu_start(argc, argv);
    queues_make(argv[2], argc > 5 ? argv[5] : NULL);
    all_functions_are_bound();
    queues_of_a_device_have_its_number();
    memory_is_copied();
    events_are_reached();
    failures_are_told();
    handlers_run_on_a_queue();
    CHECK_STR(complaint(), "");
    return check_failures();
}
