/* Registers communicators: each has a number, and an entry that lives as long as the library. */
#ifndef MPIXLA_NATIVE_COMM_H
#define MPIXLA_NATIVE_COMM_H

#include <stdatomic.h>

#include "mpi/mpi.h"
#include "mpi/topology.h"

enum { COMM_NAME_BYTES = 64 };

/* Communicators that the library makes of another: of the same processes with their ranks in reverse order, and a
 * duplicate, on which the library's messages do not meet the program's. */
enum { COMM_REVERSED, COMM_PRIVATE, COMM_DERIVED };

/* Slots of a communicator, one for each file that keeps something for it; NULL at first. */
typedef enum comm_slot {
    COMM_SLOT_END,      /* of MPI_COMM_SELF: the first work when MPI_Finalize begins (watch/deadline.c) */
    COMM_SLOT_LEFTOVER, /* of MPI_COMM_SELF: and then, when all processes have come there (watch/leftover.h) */
    COMM_SLOT_PROGRESS, /* of MPI_COMM_SELF: last, as until then messages must move (mpi/progress.h) */
    COMM_SLOT_PLAN,     /* of the routes for GPUs (routes/plan.h) */
    COMM_SLOT_LOCAL,    /* memory that its ranks share (local/local.h) */
    COMM_SLOT_PAIRS,    /* memory that neighbours share (local/pairs.h) */
    COMM_SLOT_LOSS,     /* the program has heard that a process of it died (watch/failure.h) */
    COMM_SLOTS
} comm_slot;

typedef struct comm_entry {
    mpixla_handle handle;
    atomic_int alive; /* set to 0 by MPI when the communicator is freed */
    struct {
        _Atomic mpixla_handle handle;
        atomic_int made;
    } derived[COMM_DERIVED];              /* made of this one, and freed with it */
    _Atomic(void *) attached[COMM_SLOTS]; /* comm_attached and comm_attach */
    atomic_int_least64_t collectives;     /* calls of all ranks so far */
    _Atomic(const void *) caller;         /* the front end's thread that has made the last one; NULL: none has */
    atomic_int is_shared;                 /* several of its threads have made some */
    _Atomic(const int *) members;         /* the ranks in MPI_COMM_WORLD of its processes; NULL: unknown */
    _Atomic uint64_t kind;                /* hash of its members, and in lower bits of its name: see comm_keys_alike */
    atomic_int_least64_t key; /* a job-wide id without communication: `kind`, and the number of communicators of that
                               * kind before. Equal on all members only if they register these in the same order */
    atomic_int_least64_t
        agreed;     /* a job-wide id that the members have agreed on with their first comparison; 0: none */
    int64_t number; /* in this process */
    int rank;
    int size;
    const topology *topology; /* NULL: it has none */
    char name[COMM_NAME_BYTES];
} comm_entry;

/* Returns the job-wide id of a communicator, by which ranks name it to each other. */
static inline int64_t comm_key(const comm_entry *entry) {
    int64_t agreed = atomic_load(&entry->agreed);
    return agreed ? agreed : atomic_load(&entry->key);
}

/* Returns whether two keys are of communicators with the same members. They may be one communicator, which ranks
 * register in different orders or under different names. */
enum { COMM_KEY_NAME = 20, COMM_KEY_MEMBERS = 32 }; /* the bits where these begin */
static inline int comm_keys_alike(int64_t a, int64_t b) {
    return ((uint64_t)a ^ (uint64_t)b) >> COMM_KEY_MEMBERS == 0;
}

static inline void *comm_attached(const comm_entry *entry, comm_slot slot) {
    return atomic_load_explicit(&entry->attached[slot], memory_order_acquire);
}
static inline void comm_attach(comm_entry *entry, comm_slot slot, void *value) {
    atomic_store_explicit(&entry->attached[slot], value, memory_order_release);
}

/* Registers the destructor of a slot: when a communicator is freed, `freed` gets the value attached to it, unless that
 * is NULL. Slots are freed in their order, while MPI can still be used, and before the derived communicators.
 * MPI_COMM_SELF is freed when MPI_Finalize begins. */
void comm_slot_destructor_set(comm_slot slot, void (*freed)(void *value));

/* Makes the keyval by which communicators know their entries, and registers MPI_COMM_SELF as number 0. Called once, by
 * mpixla_start. Returns 0 or REFUSED. */
int comm_start(mpi_library *library);

/* Returns the communicator with this number. NULL with error_set if there is none, if it was freed, or once MPI is
 * finalized. Takes no lock. */
comm_entry *comm_find(int64_t id);

/* Returns the communicator with this number, also one that was freed; NULL if there is none. */
comm_entry *comm_find_any(int64_t id);

/* Returns the number of communicators, freed ones included. Their numbers are below it. */
int64_t comm_count_all(void);

/* Notes that the calling thread, one of the front end's, makes a collective call on the communicator: reports tell if
 * several threads do, in whatever order. XLA's threads, which take over from each other, do not count. */
void comm_caller_note(comm_entry *entry);
extern _Thread_local char comm_thread; /* whose address tells threads apart */

/* Counts a collective call. Returns the number of calls before. One thread at a time uses a communicator. */
static inline int64_t comm_count(comm_entry *entry) {
    if (atomic_load_explicit(&entry->caller, memory_order_relaxed) != &comm_thread) comm_caller_note(entry);
    int64_t so_far = atomic_load_explicit(&entry->collectives, memory_order_relaxed);
    atomic_store_explicit(&entry->collectives, so_far + 1, memory_order_relaxed);
    return so_far;
}

/* Returns whether it is known which ranks of MPI_COMM_WORLD its members are (mpixla_comm_members_set). */
static inline int comm_members_are_known(const comm_entry *entry) {
    return atomic_load_explicit(&entry->members, memory_order_acquire) != NULL;
}

/* Returns the rank in MPI_COMM_WORLD of one of its ranks. While its members are unknown that is a guess, the same rank:
 * good enough for words, but no ground to end a job. */
static inline int64_t comm_world_rank(const comm_entry *entry, int64_t rank) {
    const int *members = atomic_load_explicit(&entry->members, memory_order_acquire);
    return members ? members[rank] : rank;
}

/* Returns 0 if communicators can be used; REFUSED once MPI is finalized, or in a forked process (FEATURE_FORKED). Takes
 * no lock. */
int comm_state_check(void);

/* Returns whether a shift can have so many numbers: pairs, at most one for each dimension. */
enum { COMM_SHIFT_NUMBERS = 64 };
static inline int comm_is_shift(int64_t size) {
    return size >= 0 && size <= COMM_SHIFT_NUMBERS && size % 2 == 0;
}

/* Sets `*rank` to the rank that is away from this one by `steps`, pairs of direction and displacement; MPIXLA_PROC_NULL
 * beyond a wall. `size` must satisfy comm_is_shift. Returns 0 or REFUSED. */
int comm_shift(const comm_entry *entry, const int64_t *steps, int64_t size, int64_t *rank);

/* Sets `*derived` to the reversed communicator or the duplicate of another one (`which` is COMM_REVERSED or
 * COMM_PRIVATE), which is made the first time, in a collective call. It is freed with `entry`. Returns 0 or an error
 * code. */
int comm_derive(comm_entry *entry, int which, mpixla_handle *derived);

#endif
