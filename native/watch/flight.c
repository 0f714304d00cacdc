#include "watch/flight.h"

#include <pthread.h>
#include <sched.h>

#include "base/list.h"

static list flights = {.item_size = sizeof(flight), .what = "threads that communicate"};
static _Thread_local flight *own;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key; /* its only use is that a thread that ends gives its place back */
static int no_key;

static void thread_end(void *place) {
    atomic_store(&((flight *)place)->taken, 0);
}

static void key_create(void) {
    no_key = pthread_key_create(&key, thread_end);
}

static flight *place_take(void) {
    int64_t count = atomic_load(&flights.count);
    for (int64_t i = 0; i < count; i++) {
        flight *f = list_find(&flights, i);
        int free_ = 0;
        if (atomic_compare_exchange_strong(&f->taken, &free_, 1)) return f;
    }
    const flight made = {.taken = 1};
    int64_t number = list_append(&flights, &made);
    return number < 0 ? NULL : list_find(&flights, number);
}

flight *flight_mine(void) {
    if (own) return own;
    own = place_take();
    pthread_once(&once, key_create);
    /* Without the key the place stays taken, which costs its memory and no more. */
    if (own && !no_key) (void)pthread_setspecific(key, own);
    return own;
}

const frame *flight_enter(flight *mine, const frame *call) {
    const frame *outer = atomic_load_explicit(&mine->call, memory_order_relaxed);
    int64_t entered = atomic_load_explicit(&mine->entered, memory_order_relaxed);
    atomic_store_explicit(&mine->entered, entered + 1, memory_order_relaxed);
    atomic_store_explicit(&mine->call, call, memory_order_release);
    return outer;
}

/* Either the one who looks finds no call, or this waits until it has looked: both orders are of one total order. */
void flight_leave(flight *mine, const frame *outer) {
    atomic_store(&mine->call, outer);
    while (atomic_load(&mine->looked_at)) sched_yield();
}

static const frame *look_begin(flight *f) {
    atomic_fetch_add(&f->looked_at, 1);
    return atomic_load(&f->call);
}

static void look_end(flight *f) {
    atomic_fetch_sub(&f->looked_at, 1);
}

int64_t flight_count(void) {
    int64_t count = atomic_load(&flights.count), in_call = 0;
    for (int64_t i = 0; i < count; i++) in_call += atomic_load(&((flight *)list_find(&flights, i))->call) != NULL;
    return in_call;
}

int flight_look(flight_seen *seen, int most) {
    int64_t count = atomic_load(&flights.count);
    int found = 0;
    for (int64_t i = 0; i < count && found < most; i++) {
        flight *f = list_find(&flights, i);
        if (look_begin(f)) seen[found++] = (flight_seen){.thread = i, .entered = atomic_load(&f->entered)};
        look_end(f);
    }
    return found;
}

int flight_lasts(const flight_seen *seen, char *text, size_t bytes) {
    flight *f = list_find(&flights, seen->thread);
    const frame *call = look_begin(f);
    int lasts = call && atomic_load(&f->entered) == seen->entered;
    if (lasts) frame_describe(call, 1, text, bytes);
    look_end(f);
    return lasts;
}
