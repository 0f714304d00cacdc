/* The optional features of the library that are on, one bit each. A call reads all bits at once. */
#ifndef MPIXLA_NATIVE_FEATURE_H
#define MPIXLA_NATIVE_FEATURE_H

#include <stdatomic.h>

enum {
    FEATURE_WORKERS = 1,    /* calls are made by threads of the library's own (call/worker.h) */
    FEATURE_CHECKS = 2,     /* calls are compared between ranks (check/check.h) */
    FEATURE_GPUS = 4,       /* some rank may have a GPU (routes/plan.h) */
    FEATURE_LOG = 8,        /* debug lines (watch/log.h) */
    FEATURE_TRACE = 16,     /* the timeline (watch/trace.h) */
    FEATURE_UNPRINTED = 32, /* there are failures that were neither seen nor printed (watch/failure.h) */
    /* This process was forked from one that runs MPI (mpixla_forked): all calls are refused, and what Python calls all
     * the same takes no lock, since one that another thread held at the fork is held for ever. */
    FEATURE_FORKED = 64
};

extern atomic_uint features_on;

static inline unsigned features_get(void) {
    return atomic_load_explicit(&features_on, memory_order_relaxed);
}

/* Switches a feature on or off. Returns whether it was on. A caller in several threads needs a lock of its own. */
int feature_set(unsigned feature, int on);

#endif
