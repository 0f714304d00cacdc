#define _GNU_SOURCE /* MAP_NORESERVE; NOLINT(*-reserved-identifier,cert-*): the C library's name for it */
#include "test/gpu/fake_wire.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "test/gpu/fake_calls.h"

enum { PIPE = 1 << 16, LINE = 64 };

/* Written by one rank and read by one. */
typedef struct wire_pipe {
    _Alignas(LINE) _Atomic uint64_t written;
    _Alignas(LINE) _Atomic uint64_t read;
    char bytes[PIPE];
} wire_pipe;

enum { NO_FAILURE, FAILURE_IS_BEING_WRITTEN, FAILURE };

/* Shared memory is all zeros at first, which is right for each of these. */
typedef struct segment {
    atomic_int size; /* that of who came first */
    atomic_int joined;
    atomic_int failed;
    char failure[WIRE_SENTENCE];
    struct {
        atomic_int is_here, has_left;
        driver_uuid uuid;
    } ranks[WIRE_RANKS];
    wire_pipe pipes[WIRE_RANKS][WIRE_RANKS][WIRE_LANES]; /* from, to; what is not used takes no memory */
} segment;

struct wire {
    segment *shared;
    int size, rank;
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int wire_pause(double *since) {
    if (*since <= 0) *since = now();
    const struct timespec moment = {.tv_nsec = 20000};
    double waited = now() - *since;
    if (waited < 1e-4)
        sched_yield();
    else
        nanosleep(&moment, NULL);
    return waited > 0.5 && waited > (double)fake_setting("MPIXLA_FAKE_DEVICE_TIMEOUT", 60);
}

static segment *map(const char *name, char *text, size_t bytes) {
    int file = shm_open(name, O_CREAT | O_RDWR, 0600);
    segment *s = MAP_FAILED;
    if (file >= 0 && ftruncate(file, (off_t)sizeof *s) == 0)
        s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (s == MAP_FAILED) snprintf(text, bytes, "the shared memory %s: %s", name, strerror(errno));
    if (file >= 0) close(file);
    return s == MAP_FAILED ? NULL : s;
}

/* Waits for the other ranks. Returns 0, or -1 with a sentence. */
static int meet(segment *s, const char *name, int size, int rank, const driver_uuid *uuid, char *text, size_t bytes) {
    int first = 0, absent = 0;
    double since = 0;
    if (!atomic_compare_exchange_strong(&s->size, &first, size) && first != size) {
        snprintf(text, bytes, "rank %d joins a communicator of %d ranks, another rank said %d", rank, size, first);
        return -1;
    }
    if (!atomic_compare_exchange_strong(&s->ranks[rank].is_here, &absent, 1)) {
        snprintf(text, bytes, "two ranks join a communicator as its rank %d", rank);
        return -1;
    }
    s->ranks[rank].uuid = *uuid;
    if (atomic_fetch_add(&s->joined, 1) + 1 == size) shm_unlink(name);
    while (atomic_load(&s->joined) < size && atomic_load(&s->failed) != FAILURE)
        if (wire_pause(&since)) {
            snprintf(text, bytes, "only %d of %d ranks have joined a communicator in time", atomic_load(&s->joined),
                     size);
            return -1;
        }
    if (atomic_load(&s->joined) == size) return 0; /* a failure after that is one of an operation */
    snprintf(text, bytes, "%s", s->failure);
    return -1;
}

wire *wire_join(const char *name, int size, int rank, const driver_uuid *uuid, char *text, size_t bytes) {
    segment *s = map(name, text, bytes);
    if (!s) return NULL;
    wire *w = calloc(1, sizeof *w);
    if (!w) abort();
    *w = (wire){.shared = s, .size = size, .rank = rank};
    if (meet(s, name, size, rank, uuid, text, bytes) == 0) return w;
    wire_fail(w, text);
    shm_unlink(name);
    munmap(s, sizeof *s);
    free(w);
    return NULL;
}

void wire_leave(wire *w) {
    atomic_store(&w->shared->ranks[w->rank].has_left, 1);
}

void wire_free(wire *w) {
    munmap(w->shared, sizeof *w->shared);
    free(w);
}

driver_uuid wire_uuid(const wire *w, int rank) {
    return w->shared->ranks[rank].uuid;
}

size_t wire_write(wire *w, int to, int lane, const void *data, size_t bytes) {
    wire_pipe *p = &w->shared->pipes[w->rank][to][lane];
    uint64_t written = atomic_load_explicit(&p->written, memory_order_relaxed);
    size_t space = PIPE - (size_t)(written - atomic_load_explicit(&p->read, memory_order_acquire));
    size_t place = written % PIPE, moved = bytes < space ? bytes : space;
    size_t straight = moved < PIPE - place ? moved : PIPE - place;
    if (moved == 0) return 0;
    memcpy(p->bytes + place, data, straight);
    memcpy(p->bytes, (const char *)data + straight, moved - straight);
    atomic_store_explicit(&p->written, written + moved, memory_order_release);
    return moved;
}

size_t wire_read(wire *w, int from, int lane, void *data, size_t bytes) {
    wire_pipe *p = &w->shared->pipes[from][w->rank][lane];
    uint64_t read = atomic_load_explicit(&p->read, memory_order_relaxed);
    size_t there = (size_t)(atomic_load_explicit(&p->written, memory_order_acquire) - read);
    size_t place = read % PIPE, moved = bytes < there ? bytes : there;
    size_t straight = moved < PIPE - place ? moved : PIPE - place;
    if (moved == 0) return 0;
    memcpy(data, p->bytes + place, straight);
    memcpy((char *)data + straight, p->bytes, moved - straight);
    atomic_store_explicit(&p->read, read + moved, memory_order_release);
    return moved;
}

int wire_is_read(const wire *w, int to, int lane) {
    const wire_pipe *p = &w->shared->pipes[w->rank][to][lane];
    return atomic_load(&p->read) == atomic_load(&p->written);
}

int wire_has_left(const wire *w, int rank) {
    return atomic_load(&w->shared->ranks[rank].has_left);
}

void wire_fail(wire *w, const char *sentence) {
    int none = NO_FAILURE;
    if (!atomic_compare_exchange_strong(&w->shared->failed, &none, FAILURE_IS_BEING_WRITTEN)) return;
    snprintf(w->shared->failure, sizeof w->shared->failure, "%s", sentence);
    atomic_store(&w->shared->failed, FAILURE);
}

const char *wire_failure(const wire *w) {
    return atomic_load(&w->shared->failed) == FAILURE ? w->shared->failure : NULL;
}
