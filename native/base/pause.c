#include "base/pause.h"

#include <stddef.h>

#include "base/clock.h"

static _Thread_local atomic_int *pauses;
static _Thread_local int64_t waited, began; /* nanoseconds */

void pause_count_in(atomic_int *place) {
    pauses = place;
}

static void turn(void) {
    if (pauses) atomic_fetch_add_explicit(pauses, 1, memory_order_relaxed);
}

void pause_begin(void) {
    turn();
    began = clock_now();
}

void pause_end(void) {
    waited += clock_now() - began;
    turn();
}

int64_t pause_total(void) {
    return waited;
}
