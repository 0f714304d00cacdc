#include "local/hold.h"

#include <sched.h>

#include "base/error.h"

/* Sentinels for a communicator's slot, beside NULL and a value. If the program frees the communicator while a call owns
 * the value, the slot is emptied, and the call frees the value when it gives it back. */
static char unshared, /* these ranks cannot share memory */
    in_use,           /* a call owns the value */
    contested, /* as in_use, and a call of another thread was refused meanwhile, which other ranks may have made */
    looked_at; /* hold_check has the value for a moment */

/* Returns whether the slot has memory, and no sentinel. */
static int hold_is_value(const void *s) {
    return s && s != &unshared && s != &in_use && s != &contested && s != &looked_at;
}

void hold_free(const hold *h, void *value) {
    if (hold_is_value(value)) h->free(value);
}

static _Atomic(void *) *hold_slot(const hold *h, comm_entry *c) {
    return &c->attached[h->slot];
}

/* Sets the error for two threads that make collective calls on one communicator at a time. Returns REFUSED. */
static int hold_two_threads_refuse(const comm_entry *c) {
    return error_set(
        "two threads make collective calls on communicator '%s' at the same time: give each thread a communicator of "
        "its own",
        c->name);
}

void hold_release(const hold *h, comm_entry *c, void *given) {
    void *taken = &in_use;
    if (atomic_compare_exchange_strong(hold_slot(h, c), &taken, given)) return;
    if (taken == &contested) {
        if (hold_is_value(given))
            memory_break(h->state(given), c->rank, 0, "two threads of it made collective calls at the same time");
        if (atomic_compare_exchange_strong(hold_slot(h, c), &taken, given)) return;
    }
    hold_free(h, given);
}

int hold_acquire(const hold *h, comm_entry *c, void **taken) {
    void *found = atomic_load(hold_slot(h, c));
    *taken = NULL;
    do {
        while (found == &looked_at) {
            sched_yield();
            found = atomic_load(hold_slot(h, c));
        }
        if (found == &unshared) return 0;
    } while (!atomic_compare_exchange_weak(hold_slot(h, c), &found,
                                           found == &in_use || found == &contested ? &contested : &in_use));
    if (found == &in_use || found == &contested) return hold_two_threads_refuse(c);
    *taken = found;
    if (found) return 0;
    const int code = h->make(c, taken);
    if (code == 0 && *taken) return 0;
    hold_release(h, c, code == 0 ? &unshared : *taken); /* broken, if there was memory for it */
    *taken = NULL;
    return code;
}

int hold_check(const hold *h, comm_entry *c) {
    void *found = atomic_load_explicit(hold_slot(h, c), memory_order_relaxed), *taken = &looked_at;
    if (!hold_is_value(found) || !atomic_compare_exchange_strong(hold_slot(h, c), &found, &looked_at)) return 0;
    const int code = h->check(found);
    if (!atomic_compare_exchange_strong(hold_slot(h, c), &taken, found)) hold_free(h, found);
    return code;
}
