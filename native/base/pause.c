#include "base/pause.h"

#include <stddef.h>

#include "base/clock.h"

static _Thread_local atomic_int *pauses;
static _Thread_local int64_t waited, began; /* nanoseconds */

void pause_counter_set(atomic_int *place) {
    pauses = place;
}

/* Adds one to the thread's counter, if it has one. */
static void pause_counter_advance(void) {
    if (pauses) atomic_fetch_add_explicit(pauses, 1, memory_order_relaxed);
}

void pause_begin(void) {
    pause_counter_advance();
    began = clock_now();
}

void pause_end(void) {
    waited += clock_now() - began;
    pause_counter_advance();
}

int64_t pause_total(void) {
    return waited;
}
