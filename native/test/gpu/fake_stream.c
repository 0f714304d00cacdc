#include "test/gpu/fake_stream.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/gpu/fake_calls.h"
#include "test/gpu/fake_memory.h"
#include "test/gpu/fake_pinned.h"

struct fake_stream {
    fake_stream *next;
    int device;
    int is_taken;
    pthread_mutex_t lock;    /* of what follows */
    pthread_mutex_t running; /* held by who runs work, which may take long; taken before `lock` */
    fake_work *queue;        /* what was not run yet begins at `first` */
    size_t first, last, room;
    uint64_t added, ran;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static fake_stream *streams;

fake_stream *fake_stream_take(int device) {
    pthread_mutex_lock(&lock);
    fake_stream *s = streams;
    while (s && (s->is_taken || s->device != device)) s = s->next;
    if (!s && (s = calloc(1, sizeof *s))) {
        pthread_mutex_init(&s->lock, NULL);
        pthread_mutex_init(&s->running, NULL);
        s->device = device;
        s->next = streams;
        streams = s;
    }
    if (s) s->is_taken = 1;
    pthread_mutex_unlock(&lock);
    return s;
}

void fake_stream_give(fake_stream *stream) {
    pthread_mutex_lock(&lock);
    stream->is_taken = 0;
    pthread_mutex_unlock(&lock);
}

fake_stream *fake_stream_find(driver_stream handle) {
    pthread_mutex_lock(&lock);
    fake_stream *s = streams;
    while (s && !(s->is_taken && s == handle)) s = s->next;
    pthread_mutex_unlock(&lock);
    return s;
}

int fake_stream_device(const fake_stream *stream) {
    return stream->device;
}

static size_t span(size_t pitch, const fake_work *w) {
    return w->width > 0 && w->height > 0 ? (w->height - 1) * pitch + w->width : 0;
}

static int side_is_wrong(const fake_work *w, const void *side, size_t pitch, const char *name, char *text,
                         size_t bytes) {
    size_t length = span(pitch, w);
    if (fake_memory_engine(side) == side) {
        if (w->is_trusted || fake_pinned_has(side, length)) return 0;
        snprintf(text, bytes, "the %s of a copy, %zu bytes at %p, is host memory that is not pinned, or no longer",
                 name, length, side);
        return 1;
    }
    const char *wrong = fake_memory_wrong(side, length);
    if (wrong) snprintf(text, bytes, "the %s of a copy, %zu bytes at %p, %s", name, length, side, wrong);
    return wrong != NULL;
}

int fake_work_is_wrong(const fake_work *w, char *text, size_t bytes) {
    if (w->call || span(w->to_pitch, w) == 0) return 0;
    return side_is_wrong(w, w->to, w->to_pitch, w->is_fill ? "target" : "destination", text, bytes) ||
           (!w->is_fill && side_is_wrong(w, w->from, w->from_pitch, "source", text, bytes));
}

static int overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes) {
    uintptr_t p = (uintptr_t)a, q = (uintptr_t)b;
    return p < q + b_bytes && q < p + a_bytes;
}

/* With the stream's lock held: nobody but the stream may look at the host memory that this copy will write. */
static void spoil(const fake_stream *s, const fake_work *w) {
    if (w->call || w->is_trusted || span(w->to_pitch, w) == 0 || fake_memory_engine(w->to) != w->to) return;
    for (size_t i = s->first; i < s->last; i++) {
        const fake_work *before = &s->queue[i];
        if (!before->call && !before->is_fill &&
            overlap(before->from, span(before->from_pitch, before), w->to, span(w->to_pitch, w)))
            return;
    }
    for (size_t i = 0; i < w->height; i++) memset((char *)w->to + i * w->to_pitch, FAKE_FRESH, w->width);
}

int fake_stream_add(fake_stream *s, const fake_work *work) {
    int code = 0;
    pthread_mutex_lock(&s->lock);
    if (s->first == s->last) s->first = s->last = 0;
    if (s->last == s->room) {
        size_t more = s->room ? 2 * s->room : 64;
        fake_work *queue = realloc(s->queue, more * sizeof *queue);
        if (queue) {
            s->queue = queue;
            s->room = more;
        } else {
            code = FAKE_OUT_OF_MEMORY;
        }
    }
    if (code == 0) {
        spoil(s, work);
        s->queue[s->last++] = *work;
        s->added++;
    }
    pthread_mutex_unlock(&s->lock);
    return code;
}

uint64_t fake_stream_added(fake_stream *s) {
    pthread_mutex_lock(&s->lock);
    uint64_t added = s->added;
    pthread_mutex_unlock(&s->lock);
    return added;
}

int fake_stream_has_run(fake_stream *s, uint64_t until) {
    pthread_mutex_lock(&s->lock);
    int result = s->ran >= until;
    pthread_mutex_unlock(&s->lock);
    return result;
}

int fake_stream_is_idle(fake_stream *s) {
    return fake_stream_has_run(s, fake_stream_added(s));
}

static int work_run(const fake_work *w) {
    char text[256];
    if (w->call) {
        w->call(w->data);
        return 0;
    }
    if (span(w->to_pitch, w) == 0) return 0;
    if (fake_work_is_wrong(w, text, sizeof text)) {
        fake_complain("when the stream came to it, %s", text);
        return FAKE_ILLEGAL_ADDRESS;
    }
    char *to = fake_memory_engine(w->to);
    const char *from = w->is_fill ? NULL : fake_memory_engine(w->from);
    for (size_t i = 0; i < w->height; i++)
        if (from)
            memmove(to + i * w->to_pitch, from + i * w->from_pitch, w->width);
        else
            memset(to + i * w->to_pitch, w->value, w->width);
    return 0;
}

int fake_stream_run(fake_stream *s, uint64_t until) {
    int code = 0;
    pthread_mutex_lock(&s->running);
    for (;;) {
        fake_work next;
        pthread_mutex_lock(&s->lock);
        int is_there = s->ran < until && s->first < s->last;
        if (is_there) next = s->queue[s->first];
        pthread_mutex_unlock(&s->lock);
        if (!is_there) break;
        int result = work_run(&next);
        if (code == 0) code = result;
        pthread_mutex_lock(&s->lock);
        s->first++;
        s->ran++;
        pthread_mutex_unlock(&s->lock);
    }
    pthread_mutex_unlock(&s->running);
    return code;
}
