#include "local/memory.h"

#include <sched.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/error.h"
#include "call/site.h"
#include "mpi/loss.h"
#include "mpi/mpi.h"

enum {
    UNWANTED_NS = 1000, /* a sched_yield that takes less time has found no other thread that wants the processor */
    YIELDS = 8,         /* between two calls of MPI */
    YIELDS_LONG = 4096, /* between two looks at the process that is waited for */
    YIELDS_FOR_WHY = 1000
};

/* Failures: the rank that broke the memory and one, and `loss` of memory_break in the upper half. */

void memory_break(memory_state *s, int rank, int loss, const char *why) {
    uint64_t whole = 0;
    const uint64_t broken = (uint64_t)(uint32_t)loss << 32 | (uint32_t)(rank + 1);
    if (!atomic_compare_exchange_strong(&s->broken, &whole, broken)) return;
    snprintf(s->why, sizeof s->why, "%.*s", MEMORY_WHY_BYTES - 1, why);
    atomic_store_explicit(&s->has_why, 1, memory_order_release);
}

void memory_break_by_call(memory_state *s, const frame *f, int code) {
    const int class = mpi_error_class(code), rank = f->facts.communicator->rank;
    char why[ERROR_BYTES];
    if (code == REFUSED) {
        const char *line = site_text(f->facts.site);
        snprintf(why, sizeof why, *line ? "%s (at %s)" : "%s", error_get(), line);
    } else {
        char call[512];
        frame_describe(f, call, sizeof call);
        (void)mpi_error_set(f->facts.row->mpi_name, code, call, "");
        snprintf(why, sizeof why, "%s", error_get());
    }
    memory_break(s, rank, loss_is_error(class) ? class : 0, why);
}

/* Returns the reason that memory_break was given; "" if the rank that broke the memory has not written it after
 * YIELDS_FOR_WHY yields. */
static const char *memory_reason_read(const memory_state *s) {
    for (int i = 0; i < YIELDS_FOR_WHY; i++) {
        if (atomic_load_explicit(&s->has_why, memory_order_acquire)) return s->why;
        sched_yield();
    }
    return "";
}

int memory_break_copy(memory_state *s, const memory_state *from) {
    const uint64_t broken = atomic_load_explicit(&from->broken, memory_order_acquire);
    if (broken != 0) memory_break(s, (int)(uint32_t)broken - 1, (int)(broken >> 32), memory_reason_read(from));
    return broken != 0;
}

int memory_check(const memory_state *s, const comm_entry *c) {
    const uint64_t broken = atomic_load_explicit(&s->broken, memory_order_acquire);
    if (broken == 0) return 0;
    const int loss = (int)(broken >> 32), rank = (int)(uint32_t)broken - 1;
    if (loss != 0) return loss;
    const char *why = memory_reason_read(s);
    return error_set(
        "no collective call can be made on communicator '%s' any more, since one has failed on rank %d before all "
        "ranks had its data%s%.*s. Go on with another communicator, which comm.Dup() gives if all "
        "ranks call it, or end the program",
        c->name, rank, *why ? ": " : "", MEMORY_WHY_BYTES, why);
}

/* Waiting */

void memory_yield(int *spins) {
    const int64_t before = clock_now();
    sched_yield();
    const int is_wanted = clock_now() - before >= UNWANTED_NS;
    if (is_wanted && *spins > MEMORY_SPINS_LEAST) *spins /= 2;
    if (!is_wanted && *spins < MEMORY_SPINS_MOST) *spins *= 2;
}

int memory_wait(const comm_entry *c, unsigned turn) {
    if (turn > 0) sched_yield();
    if (!atomic_load(&c->alive))
        return error_set(
            "the communicator was freed while this call waited for other ranks; block on its result before "
            "comm.Free()");
    return turn % YIELDS == YIELDS - 1 ? mpi_progress(c->handle) : 0;
}

int memory_process_check_is_due(unsigned turn) {
    return turn % YIELDS_LONG == YIELDS_LONG - 1;
}

int memory_process_check(const comm_entry *c, int rank, const process_id *process) {
    if (process_state_read(process) != PROCESS_GONE) return 0;
    const int class = loss_error_class();
    if (class > 0) return class;
    return error_set(
        "the process of rank %d of communicator '%s' (number %lld) has ended while this rank waited for it", rank,
        c->name, (long long)process->number);
}
