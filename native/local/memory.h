/* The common part of segments and pairs: a state that says whether the shared memory is broken, and how a rank waits
 * for another one's write. */
#ifndef MPIXLA_NATIVE_MEMORY_H
#define MPIXLA_NATIVE_MEMORY_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/process.h"
#include "call/frame.h"

enum { MEMORY_LINE = 64 /* of the processor's cache, at least */, MEMORY_PAGE = 4096, MEMORY_WHY_BYTES = 1024 };

/* The state, which lies in the memory itself. All zeros: the memory is whole. */
typedef struct memory_state {
    _Atomic uint64_t broken; /* the rank that broke it and the error class, in one number; 0: it is whole */
    atomic_int has_why;      /* `why` is written */
    char why[MEMORY_WHY_BYTES];
} memory_state;

/* Marks the memory as broken by this rank, unless it is already. Every memory_check of any rank fails from then on.
 * `loss` is the error class by which MPI says that a process has died (mpi/loss.h), or 0: then `why` is the reason, a
 * sentence. Any thread may call it. */
void memory_break(memory_state *s, int rank, int loss, const char *why);

/* Marks the memory as broken by a call that has failed on this rank with this code: other ranks may wait for a write,
 * or count on a read, that will not happen. */
void memory_break_by_call(memory_state *s, const frame *f, int code);

/* Marks `s` as broken for the same reason as `from`, if `from` is broken. Returns whether it is. */
int memory_break_copy(memory_state *s, const memory_state *from);

/* Returns 0 if the memory is whole; else the error class with which it was broken, or REFUSED with error_set: the rank
 * and the reason, and what to do. Any thread may call it. */
int memory_check(const memory_state *s, const comm_entry *c);

/* Limits of the number of spins: how often a wait reads before it yields the processor. Each rank adapts its own. */
enum { MEMORY_SPINS_LEAST = 4, MEMORY_SPINS_MOST = 2048 };

/* Pauses the processor between two spins. */
static inline void memory_spin_pause(void) {
#ifdef __x86_64__
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Yields the processor, and adapts the number of spins: fewer if another thread has run meanwhile, which may be that of
 * the rank that is waited for. Neither the number of processors nor this thread's affinity says so, since containers
 * have quotas. */
void memory_yield(int *spins);

/* Makes one pause in a wait for another rank, between two reads of shared memory after the spins; `turn` counts these
 * pauses from 0. Yields the processor in all turns but the first, drives MPI's progress in every eighth, and always
 * looks whether the communicator was freed. Returns 0; MPI's error code; REFUSED if it was freed. */
int memory_wait(const comm_entry *c, unsigned turn);

/* Returns whether a wait should call memory_process_check in this turn. */
int memory_process_check_is_due(unsigned turn);

/* Returns 0 if the other rank's process is alive. If it has ended, returns the error class by which MPI says so
 * (mpi/loss.h), or REFUSED with error_set if this MPI has none; before a caller believes that it must read the
 * process's last writes once more. */
int memory_process_check(const comm_entry *c, int rank, const process_id *process);

#endif
