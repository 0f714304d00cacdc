#define _GNU_SOURCE /* dl_iterate_phdr; NOLINT(*-reserved-identifier,cert-*): the C library's name for it */
#include "device/sycl.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/loader.h"

#ifdef __linux__
#include <link.h>
#endif

/* dpctl's functions. */
typedef struct sycl_interface {
#define MPIXLA_SYCL(name, function, result, prototype) result(*name) prototype;
#include "tables/sycl_functions.def"
#undef MPIXLA_SYCL
} sycl_interface;

static const loader_row rows[] = {
#define MPIXLA_SYCL(name, function, result, prototype) {#function, offsetof(sycl_interface, name)},
#include "tables/sycl_functions.def"
#undef MPIXLA_SYCL
};

static sycl_interface dpctl;
static _Thread_local sycl_queue current; /* sycl.h */

/* Errors */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static char libraries[512]; /* the libsycl of this process, if there are several */

#ifdef __linux__
/* Adds a library to the list `*text` if it is a libsycl (for dl_iterate_phdr), and counts it. Returns 0. */
static int sycl_library_list(struct dl_phdr_info *library, size_t size, void *count) {
    const char *name = strrchr(library->dlpi_name, '/');
    const size_t used = strlen(libraries);
    (void)size;
    if (strncmp(name ? name + 1 : library->dlpi_name, "libsycl.so", 10) != 0) return 0;
    snprintf(libraries + used, sizeof libraries - used, "%s%s", used ? " and " : "", library->dlpi_name);
    ++*(int *)count;
    return 0;
}
#endif

/* Lists the libsycl of this process, if there are several. An interface that is linked to another one than JAX's plugin
 * takes the plugin's queue for an object of its own, with another layout. */
static void sycl_libraries_find(void) {
#ifdef __linux__
    int count = 0;
    (void)dl_iterate_phdr(sycl_library_list, &count);
    if (count < 2) libraries[0] = '\0'; /* cppcheck-suppress knownConditionTrueFalse; the callback counts */
#endif
}

/* Sets `*name` to the name of a code, NULL if it has none. Returns 0. */
static int sycl_error_name(int code, const char **name) {
    *name = code == SYCL_FAILED ? "a failure of SYCL" : code == SYCL_LIBRARIES_DIFFER ? "two SYCL libraries" : NULL;
    return 0;
}

/* Sets `*text` to what a code means and what to do, NULL if it is unknown. Returns 0. */
static int sycl_error_text(int code, const char **text) {
    static char differ[sizeof libraries + 256];
    static const char print[] = "DPCTL_VERBOSITY=warning in the environment has dpctl print it";
    if (code == SYCL_LIBRARIES_DIFFER)
        snprintf(differ, sizeof differ,
                 "this process has %s. JAX's plugin and dpctl must use the same: install the dpctl that is linked to "
                 "the plugin's (docs/gpu.md)",
                 libraries);
    *text = code == SYCL_FAILED ? print : code == SYCL_LIBRARIES_DIFFER ? differ : NULL;
    return 0;
}

/* Devices and queues */

static int sycl_init(unsigned flags) {
    return flags == 0 ? 0 : SYCL_FAILED;
}

static int sycl_device_count(int *count) {
    *count = (int)dpctl.devices_count(SYCL_GPU | SYCL_LEVEL_ZERO);
    return 0;
}

/* Only NCCL needs it, which Intel's GPUs do not have. */
static int sycl_device_uuid(driver_uuid *uuid, int device) {
    (void)uuid;
    (void)device;
    return SYCL_FAILED;
}

/* Makes the queue current in this thread, and sets `*number` to a number of its device and context: memory and events
 * of one queue can be used with each queue of the same number. */
static int sycl_queue_enter(driver_stream queue, int *number) {
    pthread_once(&once, sycl_libraries_find);
    if (*libraries) return SYCL_LIBRARIES_DIFFER;
    sycl_device device = dpctl.queue_device(queue);
    sycl_context context = device ? dpctl.queue_context(queue) : NULL;
    if (context) *number = (int)(hash_combine(dpctl.device_hash(device), dpctl.context_hash(context)) & INT32_MAX);
    if (context) dpctl.context_delete(context);
    if (device) dpctl.device_delete(device);
    if (!context) return SYCL_FAILED;
    current = queue;
    return 0;
}

static int sycl_queue_leave(void) {
    current = NULL;
    return 0;
}

static int sycl_stream_synchronize(driver_stream queue) {
    dpctl.queue_wait(queue);
    return 0;
}

/* Memory */

static int sycl_host_alloc(void **memory, size_t bytes, unsigned flags) {
    (void)flags;
    *memory = dpctl.host_alloc(bytes, current);
    return *memory ? 0 : SYCL_FAILED;
}

static int sycl_device_alloc(driver_memory *memory, size_t bytes) {
    *memory = dpctl.device_alloc(bytes, current);
    return *memory ? 0 : SYCL_FAILED;
}

static int sycl_free(driver_memory memory) {
    dpctl.memory_free(memory, current);
    return 0;
}

/* Deletes the event of work that was given to a queue, for which nobody waits. Returns SYCL_FAILED if there is none. */
static int sycl_work_check(sycl_event event) {
    if (!event) return SYCL_FAILED;
    dpctl.event_delete(event);
    return 0;
}

/* Copies in any direction: SYCL finds out of which kind the memory is. */
static int sycl_copy(void *to, const void *from, size_t bytes, driver_stream queue) {
    return sycl_work_check(dpctl.copy(queue, to, from, bytes));
}

static int sycl_fill(driver_memory memory, unsigned char value, size_t bytes, driver_stream queue) {
    return sycl_work_check(dpctl.fill(queue, memory, value, bytes));
}

/* Returns the memory of one side of a copy of lines, which device.c has begin at x = y = 0. */
static char *sycl_side_memory(const driver_side *side) {
    return (char *)(uintptr_t)(side->kind == DRIVER_HOST ? side->host : side->device);
}

/* Copies line by line, since dpctl has no copy of lines. */
static int sycl_copy_2d(const driver_copy_2d *copy, driver_stream queue) {
    char *to = sycl_side_memory(&copy->to);
    const char *from = sycl_side_memory(&copy->from);
    int code = 0;
    for (size_t i = 0; i < copy->height && code == 0; i++)
        code = sycl_copy(to + i * copy->to.pitch, from + i * copy->from.pitch, copy->width, queue);
    return code;
}

/* Fills line by line, likewise. */
static int sycl_fill_lines(driver_memory memory, size_t pitch, driver_byte value, size_t width, size_t height,
                           driver_stream queue) {
    int code = 0;
    for (size_t i = 0; i < height && code == 0; i++)
        code = sycl_fill((char *)memory + i * pitch, (unsigned char)value, width, queue);
    return code;
}

/* Events: CUDA's can be recorded again and again; each of SYCL's stands for one place in a queue. */

typedef struct sycl_mark {
    sycl_event event; /* NULL before it is recorded */
} sycl_mark;

static int sycl_event_create(driver_event *event, unsigned flags) {
    (void)flags;
    *event = calloc(1, sizeof(sycl_mark));
    return *event ? 0 : SYCL_FAILED;
}

/* Puts a barrier on the queue, and has the event stand for it from now on. */
static int sycl_event_record(driver_event event, driver_stream queue) {
    sycl_mark *mark = event;
    sycl_event reached = dpctl.barrier(queue);
    if (!reached) return SYCL_FAILED;
    if (mark->event) dpctl.event_delete(mark->event);
    mark->event = reached;
    return 0;
}

static int sycl_event_query(driver_event event) {
    const sycl_mark *mark = event;
    return !mark->event || dpctl.event_status(mark->event) == SYCL_COMPLETE ? 0 : DRIVER_NOT_READY;
}

static int sycl_event_synchronize(driver_event event) {
    const sycl_mark *mark = event;
    if (mark->event) dpctl.event_wait(mark->event);
    return 0;
}

/* Deletes the event, and SYCL's of the place where it was recorded last. */
static int sycl_event_destroy(driver_event event) {
    sycl_mark *mark = event;
    if (mark->event) dpctl.event_delete(mark->event);
    free(mark);
    return 0;
}

const char *sycl_bind(driver *d, void *library) {
    static const driver functions = {.platform = DRIVER_SYCL,
                                     .init = sycl_init,
                                     .error_name = sycl_error_name,
                                     .error_text = sycl_error_text,
                                     .device_count = sycl_device_count,
                                     .device_uuid = sycl_device_uuid,
                                     .host_alloc = sycl_host_alloc,
                                     .host_free = sycl_free,
                                     .device_alloc = sycl_device_alloc,
                                     .device_free = sycl_free,
                                     .copy_in = sycl_copy,
                                     .copy_out = sycl_copy,
                                     .copy_within = sycl_copy,
                                     .copy_2d = sycl_copy_2d,
                                     .fill = sycl_fill,
                                     .fill_lines = sycl_fill_lines,
                                     .event_create = sycl_event_create,
                                     .event_record = sycl_event_record,
                                     .event_query = sycl_event_query,
                                     .event_synchronize = sycl_event_synchronize,
                                     .event_destroy = sycl_event_destroy,
                                     .stream_synchronize = sycl_stream_synchronize,
                                     .queue_enter = sycl_queue_enter,
                                     .queue_leave = sycl_queue_leave};
    *d = functions;
    return loader_functions(library, rows, sizeof rows / sizeof rows[0], &dpctl);
}
