/* Where an event is to go, an atomic number says; a lock is taken to make the file longer, and to end it.
 *
 * Blanks behind the closing bracket are JSON, too. So the file is made longer first, then gets a new bracket at its
 * end, and then loses the old one: two bytes, one right after the other.
 */
#include "watch/timeline.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

enum { BLOCK = 4096, MODE = 0644 };

/* `used` of a file that takes no more: beyond any room, and far from what would be no number. */
static const size_t CLOSED = SIZE_MAX / 2;

/* Makes the file longer by blanks: 0, or errno. What a full disk leaves half done is JSON as well. */
static int lengthen(timeline *t, size_t to) {
    char blanks[BLOCK];
    memset(blanks, ' ', sizeof blanks);
    while (t->length < to) {
        size_t bytes = to - t->length < BLOCK ? to - t->length : BLOCK;
        ssize_t written = pwrite(t->file, blanks, bytes, (off_t)t->length);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return written < 0 ? errno : EIO;
        t->length += (size_t)written;
    }
    return 0;
}

/* The place of the closing bracket, which has a line of its own, while the file takes events. */
static size_t bracket_of(size_t length) {
    return length - 2;
}

static void bracket_put(timeline *t) {
    t->data[t->length - 3] = '\n';
    t->data[t->length - 1] = '\n';
    t->data[bracket_of(t->length)] = ']';
}

static void room_give(timeline *t) {
    atomic_store_explicit(&t->room, bracket_of(t->length) - TIMELINE_RESERVE, memory_order_release);
}

static int grow(timeline *t) {
    size_t before = t->length, to = before + TIMELINE_CHUNK;
    if (to > t->limit) {
        (void)snprintf(t->why, sizeof t->why, "the file has reached its limit of %zu MiB (MPIXLA_TRACE_LIMIT)",
                       t->limit >> 20);
        return -1;
    }
    int failed = lengthen(t, to);
    if (failed) {
        (void)snprintf(t->why, sizeof t->why, "the file cannot be made longer: %s", strerror(failed));
        t->length = before; /* where the bracket is */
        return -1;
    }
    bracket_put(t);
    memset(t->data + before - 3, ' ', 3);
    room_give(t);
    return 0;
}

/* No event comes after this. Returns the end of those that there are. */
static size_t take_no_more(timeline *t) {
    return atomic_exchange(&t->used, CLOSED);
}

/* With the lock: the last event, into the room that is kept for it. */
static void stop(timeline *t) {
    size_t end = take_no_more(t);
    char event[TIMELINE_RESERVE];
    int bytes =
        snprintf(event, sizeof event,
                 ",\n{\"ph\":\"M\",\"name\":\"mpixla_stopped\",\"pid\":%d,\"args\":{\"why\":\"%s\"}}", t->pid, t->why);
    memcpy(t->data + end, event, (size_t)bytes);
    t->end = end + (size_t)bytes;
    (void)fprintf(stderr, "mpixla: rank %d: the trace %s ends here, and the program goes on: %s\n", t->pid, t->path,
                  t->why);
}

/* The place for an event, or 0. */
static size_t reserve(timeline *t, size_t bytes) {
    size_t at = atomic_load_explicit(&t->used, memory_order_relaxed);
    for (;;) {
        if (at >= CLOSED) return 0;
        if (at + bytes <= atomic_load_explicit(&t->room, memory_order_acquire)) {
            if (atomic_compare_exchange_weak(&t->used, &at, at + bytes)) return at;
            continue;
        }
        pthread_mutex_lock(&t->lock);
        at = atomic_load(&t->used);
        if (at < CLOSED && at + bytes > atomic_load(&t->room) && grow(t)) stop(t);
        pthread_mutex_unlock(&t->lock);
        at = atomic_load(&t->used);
    }
}

void timeline_show(timeline *t) {
    char hidden[TIMELINE_PATH_BYTES + 8];
    if (atomic_load_explicit(&t->named, memory_order_relaxed) || atomic_exchange(&t->named, 1)) return;
    (void)snprintf(hidden, sizeof hidden, "%s.new", t->path);
    if (rename(hidden, t->path) != 0)
        (void)fprintf(stderr, "mpixla: rank %d: the trace stays %s, as it cannot be renamed: %s\n", t->pid, hidden,
                      strerror(errno));
}

char *timeline_add(timeline *t, const char *event, size_t bytes) {
    size_t at = reserve(t, bytes);
    if (at == 0) return NULL;
    /* The kernel brings the memory now, and not while the event is half copied: a process is killed when it does. */
    ((volatile char *)t->data)[at] = ' ';
    ((volatile char *)t->data)[at + bytes - 1] = ' ';
    memcpy(t->data + at, event, bytes);
    return t->data + at;
}

static int give_up(timeline *t, const char *hidden, const char *what) {
    int why = errno;
    if (t->file >= 0) {
        (void)close(t->file);
        (void)unlink(hidden);
    }
    t->file = -1;
    return error_set("the trace %s cannot be %s: %s", t->path, what, strerror(why));
}

int timeline_open(timeline *t, const char *path, size_t limit, int pid, const char *first, size_t bytes) {
    char hidden[TIMELINE_PATH_BYTES + 8];
    size_t least = bytes + BLOCK + TIMELINE_RESERVE;
    if (strlen(path) >= sizeof t->path) return error_set("the path of a trace is too long: %s", path);
    *t = (timeline){.limit = limit, .file = -1, .pid = pid, .lock = PTHREAD_MUTEX_INITIALIZER};
    (void)snprintf(t->path, sizeof t->path, "%s", path);
    (void)snprintf(hidden, sizeof hidden, "%s.new", path);
    if (limit < TIMELINE_CHUNK || limit < least)
        return error_set("a trace takes at least %d KiB, but its limit is %zu KiB", TIMELINE_CHUNK >> 10, limit >> 10);
    t->file = open(hidden, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, MODE);
    if (t->file < 0) return give_up(t, hidden, "made");
    errno = lengthen(t, TIMELINE_CHUNK);
    if (errno) return give_up(t, hidden, "written");
    void *data = mmap(NULL, limit, PROT_READ | PROT_WRITE, MAP_SHARED, t->file, 0);
    if (data == MAP_FAILED) return give_up(t, hidden, "mapped into memory");
    t->data = data;
    t->data[0] = '[';
    t->data[1] = '\n';
    memcpy(t->data + 2, first, bytes);
    bracket_put(t);
    atomic_store(&t->used, bytes + 2);
    room_give(t);
    return 0;
}

int timeline_close(timeline *t) {
    if (t->file < 0 || !t->data) return 0;
    pthread_mutex_lock(&t->lock);
    size_t used = take_no_more(t), end = used < CLOSED ? used : t->end;
    memcpy(t->data + end, "\n]", 2);
    t->data[bracket_of(t->length)] = ' ';
    t->data[end + 2] = '\n';
    /* Blanks that stay do no harm. The memory stays mapped: calls may still end, and say so in it. */
    if (ftruncate(t->file, (off_t)(end + 3)) != 0) t->data[t->length - 1] = '\n';
    (void)close(t->file);
    t->file = -1;
    if (!atomic_load(&t->named)) {
        char hidden[TIMELINE_PATH_BYTES + 8];
        (void)snprintf(hidden, sizeof hidden, "%s.new", t->path);
        (void)unlink(hidden);
    }
    pthread_mutex_unlock(&t->lock);
    return *t->why ? error_set("the trace %s is not complete: %s", t->path, t->why) : 0;
}
