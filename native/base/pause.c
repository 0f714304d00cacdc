#include "base/pause.h"

#include <stddef.h>
#include <time.h>

static _Thread_local atomic_int *pauses;
static _Thread_local int64_t waited, began; /* nanoseconds */

void pause_count_in(atomic_int *place) {
    pauses = place;
}

static void turn(void) {
    if (pauses) atomic_fetch_add_explicit(pauses, 1, memory_order_relaxed);
}

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void pause_begin(void) {
    turn();
    began = now();
}

void pause_end(void) {
    waited += now() - began;
    turn();
}

int64_t pause_total(void) {
    return waited;
}
