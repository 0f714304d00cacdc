#include "test/gpu/fake_event.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "test/gpu/fake_calls.h"

/* A destroyed event stays in the list, so that its handle is never used again. */
typedef struct event {
    struct event *next;
    int is_live, device, asked;
    fake_stream *stream; /* NULL: never recorded */
    uint64_t until;
} event;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static event *events;
static atomic_llong live;

/* With the lock held. */
static event *find(driver_event handle) {
    event *e = events;
    while (e && !(e->is_live && e == handle)) e = e->next;
    return e;
}

int fake_event_create(driver_event *handle, int device) {
    event *e = calloc(1, sizeof *e);
    if (!e) return FAKE_OUT_OF_MEMORY;
    e->is_live = 1;
    e->device = device;
    pthread_mutex_lock(&lock);
    e->next = events;
    events = e;
    live++;
    pthread_mutex_unlock(&lock);
    *handle = e;
    return FAKE_SUCCESS;
}

int fake_event_record(driver_event handle, fake_stream *stream) {
    uint64_t until = fake_stream_added(stream);
    pthread_mutex_lock(&lock);
    event *e = find(handle);
    int code = !e || e->device != fake_stream_device(stream) ? FAKE_INVALID_HANDLE : FAKE_SUCCESS;
    if (code == FAKE_SUCCESS) {
        e->stream = stream;
        e->until = until;
        e->asked = 0;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

/* What the event stands for, and how often it was asked with this time. */
static int look(driver_event handle, event *seen) {
    pthread_mutex_lock(&lock);
    event *e = find(handle);
    if (e) {
        e->asked++;
        *seen = *e;
    }
    pthread_mutex_unlock(&lock);
    return e ? FAKE_SUCCESS : FAKE_INVALID_HANDLE;
}

int fake_event_query(driver_event handle) {
    event seen;
    int code = look(handle, &seen);
    if (code != FAKE_SUCCESS || !seen.stream || fake_stream_has_run(seen.stream, seen.until)) return code;
    return seen.asked > FAKE_EVENT_PATIENCE ? fake_stream_run(seen.stream, seen.until) : FAKE_NOT_READY;
}

int fake_event_synchronize(driver_event handle) {
    event seen;
    int code = look(handle, &seen);
    return code == FAKE_SUCCESS && seen.stream ? fake_stream_run(seen.stream, seen.until) : code;
}

int fake_event_destroy(driver_event handle) {
    pthread_mutex_lock(&lock);
    event *e = find(handle);
    if (e) {
        e->is_live = 0;
        live--;
    }
    pthread_mutex_unlock(&lock);
    return e ? FAKE_SUCCESS : FAKE_INVALID_HANDLE;
}

int64_t fake_events_live(void) {
    return atomic_load(&live);
}
