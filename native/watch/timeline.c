/* An atomic number counts the records and gives each its place. A lock is taken only to make the file longer, to give
 * it its name, and to end it.
 */
#include "watch/timeline.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/output.h"

enum { PATH_BYTES = 4096, MODE = 0644, NUMBERS = 1 << 16 /* a power of two; at most half of them are used */ };

/* What `used` is once the file takes no more records: greater than any room, and so far from SIZE_MAX that those who
 * still count up do not reach it. */
static const size_t CLOSED = SIZE_MAX / 2;

struct timeline {
    atomic_size_t used; /* records that have a place, including those that are being written */
    atomic_size_t room; /* records that the file can hold at its length */
    timeline_header *header;
    timeline_record *records;
    atomic_int is_shown;
    pthread_mutex_t lock; /* for all that follows */
    size_t length, limit; /* of the file; `limit` bytes are mapped */
    int file;             /* -1: it is closed */
    timeline *earlier;    /* the one that was opened before: none is ever freed, as late calls may write to it */
    char path[PATH_BYTES], hidden[PATH_BYTES + sizeof((timeline_header *)0)->job + sizeof "..new"];
    pthread_mutex_t numbering; /* for new numbers */
    size_t numbered;
    _Atomic(const void *) keys[NUMBERS]; /* what has a number, at that place */
};

static _Atomic(timeline *) newest;

/* Makes the file longer by zeros. Returns 0, or errno, and the file is as long as before then. */
static int lengthen(timeline *t) {
    static const char zeros[TIMELINE_CHUNK];
    size_t done = 0;
    while (done < sizeof zeros) {
        ssize_t written = pwrite(t->file, zeros, sizeof zeros - done, (off_t)(t->length + done));
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) {
            int why = written < 0 ? errno : EIO;
            (void)!ftruncate(t->file, (off_t)t->length);
            return why;
        }
        done += (size_t)written;
    }
    t->length += sizeof zeros;
    atomic_store_explicit(&t->room, (t->length - TIMELINE_HEADER_BYTES) / TIMELINE_RECORD_BYTES, memory_order_release);
    return 0;
}

/* With the lock: from now on no record gets a place. Returns how many have one in the file. */
static size_t records_stop(timeline *t) {
    size_t used = atomic_exchange(&t->used, CLOSED), room = atomic_load(&t->room);
    return used < room ? used : room;
}

/* With the lock: the file gets no longer, and says why. */
__attribute__((format(printf, 2, 3))) static void stop(timeline *t, const char *format, ...) {
    char why[sizeof t->header->stopped];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(why, sizeof why, format, arguments);
    va_end(arguments);
    (void)records_stop(t);
    memcpy(t->header->stopped + 1, why + 1, strlen(why));
    atomic_signal_fence(memory_order_seq_cst);
    t->header->stopped[0] = why[0]; /* last: before, it is no text */
    output_print("mpixla: rank %d: the trace %s ends here, and the program goes on: %s\n", t->header->rank, t->path,
                 why);
}

/* With the lock: makes room, or stops. */
static void grow(timeline *t) {
    if (t->length + TIMELINE_CHUNK > t->limit) {
        stop(t, "the file has reached its limit of %zu MiB (MPIXLA_TRACE_LIMIT)", t->limit >> 20);
        return;
    }
    int failed = lengthen(t);
    if (failed) stop(t, "the file cannot be made longer: %s", strerror(failed));
}

/* Whether there is room for this record, now that others may have made it. */
static int make_room(timeline *t, size_t record) {
    pthread_mutex_lock(&t->lock);
    while (record >= atomic_load(&t->room) && atomic_load(&t->used) < CLOSED) grow(t);
    pthread_mutex_unlock(&t->lock);
    return record < atomic_load(&t->room);
}

timeline_record *timeline_add(timeline *t) {
    size_t record = atomic_fetch_add_explicit(&t->used, 1, memory_order_relaxed);
    if (record >= CLOSED) return NULL;
    if (record >= atomic_load_explicit(&t->room, memory_order_acquire) && !make_room(t, record)) return NULL;
    return t->records + record;
}

void timeline_add_parts(timeline *t, uint32_t kind, uint32_t number, const void *bytes, size_t size) {
    const char *next = bytes;
    for (size_t left = size; left > 0;) {
        timeline_record *r = timeline_add(t);
        if (!r) return;
        size_t part = left < sizeof r->of.part.bytes ? left : sizeof r->of.part.bytes;
        memcpy(r->of.part.bytes, next, part);
        r->of.part.used = (uint32_t)part;
        r->number = number;
        timeline_publish(r, kind);
        next += part;
        left -= part;
    }
}

/* The place of this key, or the free place where it belongs; `*there` is what is in it. Place 0 is never used. */
static uint16_t place_find(timeline *t, const void *key, const void **there) {
    size_t i = (size_t)((uint64_t)(uintptr_t)key * UINT64_C(0x9E3779B97F4A7C15) >> 32);
    for (;; i++) {
        i &= NUMBERS - 1;
        if (i == 0) continue;
        *there = atomic_load_explicit(&t->keys[i], memory_order_acquire);
        if (*there == key || !*there) return (uint16_t)i;
    }
}

/* A record cannot do without the number of its communicator or line. */
static void stop_without_numbers(timeline *t) {
    pthread_mutex_lock(&t->lock);
    if (atomic_load(&t->used) < CLOSED)
        stop(t, "it has named as many source lines and communicators as it can (%d)", NUMBERS / 2);
    pthread_mutex_unlock(&t->lock);
}

uint16_t timeline_number(timeline *t, const void *key, timeline_definition *define) {
    const void *there;
    uint16_t number = place_find(t, key, &there);
    if (there) return number;
    pthread_mutex_lock(&t->numbering);
    number = place_find(t, key, &there);
    if (!there && t->numbered == NUMBERS / 2) {
        stop_without_numbers(t);
        number = 0;
    } else if (!there) {
        t->numbered++;
        define(t, number, key);
        atomic_store_explicit(&t->keys[number], key, memory_order_release);
    }
    pthread_mutex_unlock(&t->numbering);
    return number;
}

void timeline_show(timeline *t) {
    if (atomic_load_explicit(&t->is_shown, memory_order_relaxed)) return;
    pthread_mutex_lock(&t->lock);
    if (t->file >= 0 && !atomic_exchange(&t->is_shown, 1) && rename(t->hidden, t->path) != 0)
        output_print("mpixla: rank %d: the trace stays %s, as it cannot be renamed: %s\n", t->header->rank, t->hidden,
                     strerror(errno));
    pthread_mutex_unlock(&t->lock);
}

/* Undoes what timeline_open has done so far; `what` could not be done with the file, as errno says. */
static timeline *give_up(timeline *t, const char *what) {
    int why = errno;
    if (t->file >= 0) {
        (void)close(t->file);
        (void)unlink(t->hidden);
    }
    (void)error_set("the trace %s cannot be %s: %s", t->path, what, strerror(why));
    free(t);
    return NULL;
}

timeline *timeline_open(const char *path, size_t limit, const timeline_header *header) {
    if (strlen(path) >= PATH_BYTES) return error_null("the path of a trace is too long: %s", path);
    if (limit < TIMELINE_CHUNK)
        return error_null("a trace takes at least %d KiB, but its limit is %zu KiB", TIMELINE_CHUNK >> 10, limit >> 10);
    timeline *t = calloc(1, sizeof *t);
    if (!t) return error_null("out of memory for the trace %s", path);
    t->limit = limit;
    pthread_mutex_init(&t->lock, NULL);
    pthread_mutex_init(&t->numbering, NULL);
    (void)snprintf(t->path, sizeof t->path, "%s", path);
    (void)snprintf(t->hidden, sizeof t->hidden, "%s.%s.new", path, header->job);
    t->file = open(t->hidden, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, MODE);
    if (t->file < 0) return give_up(t, "made");
    errno = lengthen(t);
    if (errno) return give_up(t, "written");
    char *data = mmap(NULL, limit, PROT_READ | PROT_WRITE, MAP_SHARED, t->file, 0);
    if (data == MAP_FAILED) return give_up(t, "mapped into memory");
    t->header = (timeline_header *)data;
    t->records = (timeline_record *)(data + TIMELINE_HEADER_BYTES);
    *t->header = *header;
    t->earlier = atomic_exchange(&newest, t);
    return t;
}

int timeline_close(timeline *t) {
    pthread_mutex_lock(&t->lock);
    if (t->file >= 0) {
        size_t end = TIMELINE_HEADER_BYTES + records_stop(t) * TIMELINE_RECORD_BYTES;
        (void)!ftruncate(t->file, (off_t)end); /* zeros that stay do no harm */
        (void)close(t->file);
        t->file = -1;
        if (!atomic_load(&t->is_shown)) (void)unlink(t->hidden);
    }
    pthread_mutex_unlock(&t->lock);
    return *t->header->stopped ? error_set("the trace %s is not complete: %s", t->path, t->header->stopped) : 0;
}
