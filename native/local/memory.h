/* What all memory has that ranks share: whether it is whole, and waits for what other ranks write to it. */
#ifndef MPIXLA_NATIVE_MEMORY_H
#define MPIXLA_NATIVE_MEMORY_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/process.h"
#include "call/frame.h"

enum { MEMORY_LINE = 64 /* of the processor's cache, at least */, MEMORY_PAGE = 4096, MEMORY_WHY_BYTES = 1024 };

/* Lies in the memory. All zeros: the memory is whole. */
typedef struct memory_state {
    _Atomic uint64_t broken; /* by whom and by which error class, in one number that ranks read at once; 0: by nobody */
    atomic_int has_why;      /* is set after `why` was written */
    char why[MEMORY_WHY_BYTES];
} memory_state;

/* Marks the memory as broken by this rank, unless it is already. Every memory_check of any rank fails from then on.
 * `loss` is the error class by which MPI says that a process has died (mpi/loss.h), or 0: then `why` is the reason, a
 * sentence. Any thread may call it. */
void memory_break(memory_state *s, int rank, int loss, const char *why);

/* The same for a call that has failed with this code: the other ranks may count on what this one has not written, or
 * not read. */
void memory_fail(memory_state *s, const frame *f, int code);

/* Breaks it by what has broken other memory, if that is broken: returns whether it is. */
int memory_spread(memory_state *s, const memory_state *from);

/* 0 if the memory is whole. Else the error class that it was broken with, or REFUSED after error_set, which says what
 * has broken it, and what to do. Any thread may call it. */
int memory_check(const memory_state *s, const comm_entry *c);

/* How often a wait looks before it gives the processor away: of all ranks, each sets its own. */
enum { MEMORY_SPINS_LEAST = 4, MEMORY_SPINS_MOST = 2048 };

/* Between two such looks. */
static inline void memory_breathe(void) {
#ifdef __x86_64__
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Gives the processor away, and sets how often the next wait looks before that: less often where another thread has
 * had the processor meanwhile, as it may be that of the rank that is waited for. Neither the number of processors nor
 * this thread's affinity tells: containers have quotas. */
void memory_yield(int *spins);

/* After that, between two looks, `turn` times so far: gives the processor away, but for the first time, and calls MPI
 * now and then. Returns 0, a code of MPI's, or REFUSED when the communicator is freed. */
int memory_wait(const comm_entry *c, unsigned turn);

/* Whether the process of a rank that is waited for is to be looked at in this turn; and 0 unless it has ended. What the
 * process wrote before must be looked at once more before the code is believed. */
int memory_looks(unsigned turn);
int memory_process_check(const comm_entry *c, int rank, const process_id *process);

#endif
