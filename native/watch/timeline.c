/* An atomic number counts the records and gives each its place in memory, where calls write it. A thread writes new
 * and changed records to the file: so calls make no system call, and none of their stores is to a page of the file, for
 * which a full disk, or another process that has made the file shorter, may have no room (SIGBUS).
 */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS, madvise; NOLINT(*-reserved-identifier,cert-*): the C library's name for it \
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

#include "base/clock.h"
#include "base/error.h"
#include "base/output.h"
#include "base/system.h"
#include "base/thread.h"

enum { PATH_BYTES = 4096, MODE = 0644, NUMBERS = 1 << 16 /* a power of two; at most half of them are used */ };
enum { STACK_BYTES = 1 << 17 };
/* Records: that may change at a time, and that are written at a time. */
enum { OPEN = 1024, RECORDS = TIMELINE_CHUNK / TIMELINE_RECORD_BYTES };
#define PERIOD_NS INT64_C(50000000) /* nanoseconds between two writes to the file */

/* The value of `used` once the file takes no more records: greater than any room, and so far from SIZE_MAX that calls
 * which still count up do not reach it. */
static const size_t CLOSED = SIZE_MAX / 2;

struct timeline {
    atomic_size_t used; /* records that have a place, including those that are being written */
    size_t room;        /* records within the limit */
    timeline_header *header;
    timeline_record *records;
    atomic_int is_shown;
    pthread_mutex_t lock; /* for all that follows */
    pthread_cond_t changed;
    int is_broken;      /* nothing more can be written */
    size_t limit;       /* bytes of the file, and of the memory */
    size_t last;        /* records that have a place, once there are no more */
    size_t written;     /* records that are in the file; */
    size_t open[OPEN];  /* the records in the file that may still change, in their order, */
    size_t in_open;     /* and how many */
    size_t freed;       /* bytes at the beginning that are in the file for good, and not in memory any more */
    int file;           /* -1: it is closed */
    atomic_int is_kept; /* a thread writes it */
    timeline_record copy[RECORDS]; /* to be written */
    timeline *earlier; /* the one that was opened before: none is ever freed, as late calls may write to it */
    char path[PATH_BYTES], hidden[PATH_BYTES + sizeof((timeline_header *)0)->job + sizeof "..new"];
    pthread_mutex_t numbering; /* for new numbers */
    size_t numbered;
    _Atomic(const void *) keys[NUMBERS]; /* the key of each number, by number */
};

static _Atomic(timeline *) newest;

/* Writes bytes to a place in the file. Returns 0, or errno. */
static int timeline_write(const timeline *t, const void *bytes, size_t size, size_t at) {
    const char *next = bytes;
    while (size > 0) {
        ssize_t done = pwrite(t->file, next, size, (off_t)at);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return done < 0 ? errno : EIO;
        next += done;
        at += (size_t)done;
        size -= (size_t)done;
    }
    return 0;
}

/* Returns where a record begins in the file. */
static size_t timeline_record_offset(size_t record) {
    return TIMELINE_HEADER_BYTES + record * TIMELINE_RECORD_BYTES;
}

/* Copies a record that a call may be writing: if the copy has a kind, it has all that was written before the kind. */
__attribute__((no_sanitize("thread"))) static void timeline_record_copy(timeline_record *to,
                                                                        const timeline_record *from) {
    const uint64_t *source = (const void *)from;
    uint64_t *copy = (void *)to;
    for (size_t i = 0; i < TIMELINE_RECORD_BYTES / sizeof *copy; i++)
        copy[i] = __atomic_load_n(&source[i], __ATOMIC_ACQUIRE);
}

/* Writes records `from` to `to` - 1 to the file. The caller holds the lock. Returns 0, or errno. */
static int timeline_records_write(timeline *t, size_t from, size_t to) {
    for (size_t n; from < to; from += n) {
        n = to - from < RECORDS ? to - from : RECORDS;
        for (size_t i = 0; i < n; i++) timeline_record_copy(&t->copy[i], &t->records[from + i]);
        const int failed = timeline_write(t, t->copy, n * TIMELINE_RECORD_BYTES, timeline_record_offset(from));
        if (failed) return failed;
    }
    return 0;
}

/* Takes no more records from now on. The caller holds the lock. */
static void timeline_records_close(timeline *t) {
    size_t used = atomic_exchange(&t->used, CLOSED);
    if (used < CLOSED) t->last = used < t->room ? used : t->room;
}

/* Ends the trace of this process for the reason that is given (printf's format), which goes into the file's header and
 * to standard error; does nothing if it has ended. The caller holds the lock. */
__attribute__((format(printf, 2, 3))) static void timeline_stop(timeline *t, const char *format, ...) {
    va_list arguments;
    if (*t->header->stopped) return;
    timeline_records_close(t);
    va_start(arguments, format);
    (void)vsnprintf(t->header->stopped, sizeof t->header->stopped, format, arguments);
    va_end(arguments);
    (void)timeline_write(t, t->header, sizeof *t->header, 0);
    output_print("mpixla: rank %d: the trace %s ends here, and the program goes on: %s\n", t->header->rank, t->path,
                 t->header->stopped);
}

/* Returns whether the record changes no more. */
static int timeline_record_is_final(const timeline_record *r) {
    uint32_t kind = atomic_load_explicit(&r->kind, memory_order_acquire);
    return kind != TIMELINE_NOTHING &&
           (kind != TIMELINE_CALL || atomic_load_explicit(&r->of.call.state, memory_order_acquire) != TIMELINE_OPEN);
}

/* Writes again the records that were open, and keeps those that are not final yet. It looks whether a record is final
 * before it copies the record, so that the copy is final, too. The caller holds the lock. Returns 0, or errno. */
static int timeline_open_records_write(timeline *t) {
    size_t kept = 0;
    int failed = 0;
    for (size_t i = 0; i < t->in_open; i++) {
        const size_t record = t->open[i];
        const int is_final = timeline_record_is_final(&t->records[record]);
        if (!failed) failed = timeline_records_write(t, record, record + 1);
        if (!is_final) t->open[kept++] = record;
    }
    t->in_open = kept;
    return failed;
}

/* Writes the records that are not in the file; more open ones than `open` has room for wait until the next time. The
 * caller holds the lock. Returns 0, or errno. */
static int timeline_new_records_write(timeline *t) {
    const size_t from = t->written, used = atomic_load(&t->used);
    size_t to = from;
    const size_t end = used >= CLOSED ? t->last : used < t->room ? used : t->room;
    for (; to < end; to++) {
        if (timeline_record_is_final(&t->records[to])) continue;
        if (t->in_open == OPEN) break;
        t->open[t->in_open++] = to;
    }
    if (to == from) return 0;
    t->written = to;
    return timeline_records_write(t, from, to);
}

/* Gives back the memory of records that are final and in the file. The caller holds the lock. */
static void timeline_memory_free(timeline *t) {
    const size_t first = t->in_open > 0 ? t->open[0] : t->written;
    const size_t end = timeline_record_offset(first) / TIMELINE_CHUNK * TIMELINE_CHUNK;
    if (t->freed == 0) t->freed = TIMELINE_CHUNK; /* the header stays */
    if (end <= t->freed) return;
    (void)madvise((char *)t->header + t->freed, end - t->freed, MADV_DONTNEED);
    t->freed = end;
}

/* Writes new and changed records to the file, and frees their memory; ends the trace, which is printed, if that fails
 * or another process has made the file shorter. The caller holds the lock. */
static void timeline_file_update(timeline *t) {
    struct stat found;
    if (t->file < 0 || t->is_broken) return;
    if (fstat(t->file, &found) == 0 && (size_t)found.st_size < timeline_record_offset(t->written)) {
        t->is_broken = 1;
        timeline_stop(t, "it has been made shorter by another process");
        return;
    }
    int failed = timeline_open_records_write(t);
    if (!failed) failed = timeline_new_records_write(t);
    t->is_broken = failed != 0;
    if (failed)
        timeline_stop(t, "the file cannot be written: %s", strerror(failed));
    else
        timeline_memory_free(t);
}

void timelines_flush(void) {
    for (timeline *t = atomic_load(&newest); t; t = t->earlier) {
        pthread_mutex_lock(&t->lock);
        timeline_file_update(t);
        pthread_mutex_unlock(&t->lock);
    }
}

/* Updates the file of a timeline that has no thread yet, every PERIOD_NS, until the file is closed. Takes the lock for
 * each update. */
static void *timeline_thread_run(void *nothing) {
    timeline *t = atomic_load(&newest);
    while (atomic_exchange(&t->is_kept, 1)) t = t->earlier;
    pthread_mutex_lock(&t->lock);
    while (t->file >= 0) {
        timeline_file_update(t);
        (void)system_condition_wait(&t->changed, &t->lock, clock_now() + PERIOD_NS);
    }
    pthread_mutex_unlock(&t->lock);
    return nothing;
}

/* Ends the trace, as the file has reached its limit, and prints so. Takes the lock. */
static void timeline_stop_at_limit(timeline *t) {
    pthread_mutex_lock(&t->lock);
    if (t->file >= 0)
        timeline_stop(t, "the file has reached its limit of %zu MiB (MPIXLA_TRACE_LIMIT)", t->limit >> 20);
    pthread_mutex_unlock(&t->lock);
}

timeline_record *timeline_add(timeline *t) {
    size_t record = atomic_fetch_add_explicit(&t->used, 1, memory_order_relaxed);
    if (record < t->room) return t->records + record;
    if (record < CLOSED) timeline_stop_at_limit(t);
    return NULL;
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

/* Returns the number of a key, or the free one that it can have; sets `*there` to the key at that number, or NULL.
 * Number 0 is never used. */
static uint16_t timeline_key_find(timeline *t, const void *key, const void **there) {
    size_t i = (size_t)((uint64_t)(uintptr_t)key * UINT64_C(0x9E3779B97F4A7C15) >> 32);
    for (;; i++) {
        i &= NUMBERS - 1;
        if (i == 0) continue;
        *there = atomic_load_explicit(&t->keys[i], memory_order_acquire);
        if (*there == key || !*there) return (uint16_t)i;
    }
}

/* Ends the trace, as a record needs the number of its communicator or line, and there are no more numbers; prints so.
 * Takes the lock. */
static void timeline_stop_at_numbers(timeline *t) {
    pthread_mutex_lock(&t->lock);
    if (t->file >= 0) {
        timeline_stop(t, "it has named as many source lines and communicators as it can (%d)", NUMBERS / 2);
    }
    pthread_mutex_unlock(&t->lock);
}

uint16_t timeline_number_of(timeline *t, const void *key, timeline_definition *define) {
    const void *there;
    uint16_t number = timeline_key_find(t, key, &there);
    if (there) return number;
    pthread_mutex_lock(&t->numbering);
    number = timeline_key_find(t, key, &there);
    if (!there && t->numbered == NUMBERS / 2) {
        timeline_stop_at_numbers(t);
        number = 0;
    } else if (!there) {
        t->numbered++;
        define(t, number, key);
        atomic_store_explicit(&t->keys[number], key, memory_order_release);
    }
    pthread_mutex_unlock(&t->numbering);
    return number;
}

void timeline_file_rename(timeline *t) {
    if (atomic_load_explicit(&t->is_shown, memory_order_relaxed)) return;
    pthread_mutex_lock(&t->lock);
    if (t->file >= 0 && !atomic_exchange(&t->is_shown, 1) && rename(t->hidden, t->path) != 0)
        output_print("mpixla: rank %d: the trace stays %s, as it cannot be renamed: %s\n", t->header->rank, t->hidden,
                     strerror(errno));
    pthread_mutex_unlock(&t->lock);
}

/* Closes and removes the file of a timeline that could not be opened, frees the timeline, and sets the error "the trace
 * cannot be `label`", with the reason in errno. Returns NULL. */
static timeline *timeline_open_fail(timeline *t, const char *label) {
    int why = errno;
    if (t->file >= 0) {
        (void)close(t->file);
        (void)unlink(t->hidden);
    }
    if (t->header) (void)munmap(t->header, t->limit);
    (void)error_set("the trace %s cannot be %s: %s", t->path, label, strerror(why));
    free(t);
    return NULL;
}

timeline *timeline_open(const char *path, size_t limit, const timeline_header *header) {
    if (strlen(path) >= PATH_BYTES) return error_null("the path of a trace is too long: %s", path);
    if (limit < TIMELINE_CHUNK)
        return error_null("a trace takes at least %d KiB, but its limit is %zu KiB", TIMELINE_CHUNK >> 10, limit >> 10);
    timeline *t = calloc(1, sizeof *t);
    if (!t) return error_null("out of memory for the trace %s", path);
    if (system_condition_make(&t->changed)) {
        free(t);
        return NULL;
    }
    t->limit = limit;
    t->room = (limit - TIMELINE_HEADER_BYTES) / TIMELINE_RECORD_BYTES;
    pthread_mutex_init(&t->lock, NULL);
    pthread_mutex_init(&t->numbering, NULL);
    (void)snprintf(t->path, sizeof t->path, "%s", path);
    (void)snprintf(t->hidden, sizeof t->hidden, "%s.%s.new", path, header->job);
    t->file = open(t->hidden, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, MODE);
    if (t->file < 0) return timeline_open_fail(t, "made");
    errno = timeline_write(t, header, sizeof *header, 0);
    if (errno) return timeline_open_fail(t, "written");
    char *data = mmap(NULL, limit, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) return timeline_open_fail(t, "kept in memory");
    t->header = (timeline_header *)data;
    t->records = (timeline_record *)(data + TIMELINE_HEADER_BYTES);
    *t->header = *header;
    t->earlier = atomic_load(&newest);
    /* From here on the thread of an earlier file, which may start late, can take it. */
    while (!atomic_compare_exchange_weak(&newest, &t->earlier, t)) {
    }
    if (thread_start(timeline_thread_run, STACK_BYTES, "that writes the trace")) {
        (void)timeline_close(t);
        return NULL;
    }
    return t;
}

int timeline_close(timeline *t) {
    pthread_mutex_lock(&t->lock);
    if (t->file >= 0) {
        timeline_records_close(t);
        timeline_file_update(t);
        (void)close(t->file);
        t->file = -1;
        if (!atomic_load(&t->is_shown)) (void)unlink(t->hidden);
        (void)pthread_cond_broadcast(&t->changed);
    }
    pthread_mutex_unlock(&t->lock);
    return *t->header->stopped ? error_set("the trace %s is not complete: %s", t->path, t->header->stopped) : 0;
}
