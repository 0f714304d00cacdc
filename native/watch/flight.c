#include "watch/flight.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "base/clock.h"
#include "base/list.h"
#include "base/pause.h"
#include "base/thread.h"

static list flights = {.item_size = sizeof(flight), .items_name = "threads that communicate"};
static _Thread_local flight *own;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key; /* with flight_place_free as its destructor */
static int no_key;        /* there is none: places stay taken, which costs their memory and no more */

/* Frees the place of a thread that ends. */
static void flight_place_free(void *place) {
    atomic_store(&((flight *)place)->taken, 0);
}

static void flight_key_create(void) {
    no_key = pthread_key_create(&key, flight_place_free);
}

/* Returns a free place for the calling thread, or a new one; NULL with error_set without memory. */
static flight *flight_place_acquire(void) {
    int64_t count = atomic_load(&flights.count);
    for (int64_t i = 0; i < count; i++) {
        flight *f = list_find(&flights, i);
        int free_ = 0;
        if (!atomic_compare_exchange_strong(&f->taken, &free_, 1)) continue;
        atomic_store(&f->is_front_end, thread_is_front_end());
        return f;
    }
    const flight made = {.taken = 1, .is_front_end = thread_is_front_end()};
    int64_t number = list_append(&flights, &made);
    return number < 0 ? NULL : list_find(&flights, number);
}

flight *flight_of_thread(void) {
    if (own) return own;
    own = flight_place_acquire();
    pthread_once(&once, flight_key_create);
    pause_counter_set(own ? &own->pauses : NULL);
    if (own && !no_key) (void)pthread_setspecific(key, own);
    return own;
}

int64_t flight_now(void) {
#ifdef CLOCK_MONOTONIC_COARSE /* Linux: a fifth of the time */
    return clock_read(CLOCK_MONOTONIC_COARSE);
#else
    return clock_now();
#endif
}

/* Writes the record of a call, as a seqlock does: each word is atomic, and a reader knows by the thread's number of
 * calls whether the words belong together. */
static void flight_record_write(atomic_int_least64_t *words, const call_facts *facts) {
    const char *bytes = (const char *)facts;
    int64_t word;
    atomic_thread_fence(memory_order_release); /* a reader of a word sees all earlier calls counted */
#if defined(__GNUC__) && !defined(__clang__)   /* which unrolls it anyway */
#pragma GCC unroll 16
#endif
    for (int i = 0; i < FLIGHT_WORDS - 1; i++) {
        memcpy(&word, bytes + sizeof word * (size_t)i, sizeof word);
        atomic_store_explicit(&words[i], word, memory_order_relaxed);
    }
    atomic_store_explicit(&words[FLIGHT_WORDS - 1], flight_now(), memory_order_relaxed);
}

/* Copies a record word by word; the caller checks whether it was overwritten meanwhile. */
static void flight_record_read(flight_record *r, atomic_int_least64_t *words) {
    int64_t values[FLIGHT_WORDS];
    for (int i = 0; i < FLIGHT_WORDS; i++) values[i] = atomic_load_explicit(&words[i], memory_order_relaxed);
    memcpy(r, values, sizeof *r);
}

int flight_records_read(int64_t thread, flight_record records[FLIGHT_KEPT]) {
    flight *f = list_find(&flights, thread);
    int found = 0;
    if (!f) return 0;
    int64_t newest = atomic_load_explicit(&f->entered, memory_order_acquire);
    for (int64_t n = newest; n > 0 && n > newest - FLIGHT_KEPT; n--) {
        flight_record_read(&records[found], f->last[n % FLIGHT_KEPT]);
        atomic_thread_fence(memory_order_acquire);
        /* The thread writes a record before it counts it. */
        if (atomic_load_explicit(&f->entered, memory_order_relaxed) < n + FLIGHT_KEPT - 1) found++;
    }
    return found;
}

void flight_enter(flight *mine, flight_call *call, const call_facts *facts) {
    int64_t entered = atomic_load_explicit(&mine->entered, memory_order_relaxed);
    call->facts = facts;
    atomic_init(&call->started, NULL);
    call->outer = atomic_load_explicit(&mine->call, memory_order_relaxed);
    flight_record_write(mine->last[(entered + 1) % FLIGHT_KEPT], facts);
    atomic_store_explicit(&mine->entered, entered + 1, memory_order_release);
    atomic_store_explicit(&mine->call, call, memory_order_release);
}

/* Publishes that the thread ends its call, and waits until no reader copies it. Dekker: either the reader finds no
 * call, or this function waits until it has read, as all four accesses are sequentially consistent. */
void flight_leave(flight *mine, flight_call *call) {
    atomic_store(&mine->call, call->outer);
    while (atomic_load(&mine->readers)) sched_yield();
}

int flight_view_read(int64_t thread, flight_view *view) {
    flight *f = list_find(&flights, thread);
    atomic_fetch_add(&f->readers, 1);
    const flight_call *call = atomic_load(&f->call);
    if (call) {
        const call_facts *started = atomic_load_explicit(&call->started, memory_order_acquire);
        *view = (flight_view){.entered = atomic_load(&f->entered), .facts = *call->facts, .waits = started != NULL};
        if (started) view->started = *started;
    }
    atomic_fetch_sub(&f->readers, 1);
    return call != NULL;
}

void flight_describe(const flight_view *view, char *text, size_t bytes) {
    facts_describe(&view->facts, view->waits ? &view->started : NULL, 1, text, bytes);
}

int64_t flight_count(void) {
    int64_t count = atomic_load(&flights.count), in_call = 0;
    for (int64_t i = 0; i < count; i++) in_call += flight_moment_read(i).in_call;
    return in_call;
}

int64_t flight_threads(void) {
    return atomic_load(&flights.count);
}

flight_moment flight_moment_read(int64_t thread) {
    flight *f = list_find(&flights, thread);
    return (flight_moment){.entered = atomic_load(&f->entered),
                           .in_call = atomic_load(&f->call) != NULL,
                           .is_front_end = atomic_load_explicit(&f->is_front_end, memory_order_relaxed),
                           .pauses = atomic_load_explicit(&f->pauses, memory_order_relaxed)};
}

flight_clock *flight_clock_of(int64_t thread) {
    return &((flight *)list_find(&flights, thread))->clock;
}
