/* A communicator's entry is attached to it as an MPI attribute. That gives two things for free: the number of a
 * communicator that is known already, and a callback when it is freed, through any object and language.
 * MPI_Finalize frees MPI_COMM_SELF first of all, so its callback tells that MPI is gone.
 */
#include "mpi/comm.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/feature.h"
#include "base/hash.h"
#include "base/list.h"
#include "base/text.h"
#include "base/thread.h"

static list comms = {.item_size = sizeof(comm_entry), .items_name = "communicators"};
static pthread_mutex_t registering = PTHREAD_MUTEX_INITIALIZER;
static mpi_library *mpi;
static atomic_int is_finalized;

void mpixla_forked(void) {
    (void)feature_set(FEATURE_FORKED, 1);
}

/* Returns why MPI can no longer be used; NULL if it can. */
static const char *comm_unusable_reason(void) {
    if (features_get() & FEATURE_FORKED)
        return "this process was forked from one that runs MPI, which cannot be used in both";
    return atomic_load(&is_finalized) ? "MPI is finalized" : NULL;
}

/* Returns what the user is to do instead, to stand at the end of the error; "" if there is nothing. */
static const char *comm_unusable_advice(void) {
    return features_get() & FEATURE_FORKED
               ? ". Start processes with multiprocessing's start method 'spawn' (docs/sharp_bits.md, Do not fork)"
               : "";
}

int comm_state_check(void) {
    const char *why = comm_unusable_reason();
    return why ? error_set("%s, so no communicator can be used any more%s", why, comm_unusable_advice()) : 0;
}

static void (*_Atomic slot_free[COMM_SLOTS])(void *value);

void comm_slot_destructor_set(comm_slot slot, void (*freed)(void *value)) {
    atomic_store(&slot_free[slot], freed);
}

/* Frees the values attached to a communicator, in the order of the slots, by their destructors. */
static void comm_slots_free(comm_entry *entry) {
    for (int i = 0; i < COMM_SLOTS; i++) {
        void *value = atomic_exchange(&entry->attached[i], NULL);
        void (*freed)(void *) = atomic_load(&slot_free[i]);
        if (value && freed) freed(value);
    }
}

/* Marks a communicator as freed, and, while MPI can be used, frees the values attached to it and the communicators
 * derived from it; MPI calls this when it is freed. `value` is the entry's number plus one, since NULL would look like
 * "no value". */
static void comm_freed_callback(void *value) {
    comm_entry *entry = list_find(&comms, (int64_t)(intptr_t)value - 1);
    if (!entry) return;
    atomic_store(&entry->alive, 0);
    if (!comm_unusable_reason()) comm_slots_free(entry);
    if (entry->handle == mpi->facts.comm_self) atomic_store(&is_finalized, 1);
    /* In MPI_Finalize there is no need to, and no other process that would join in. */
    for (int i = 0; i < COMM_DERIVED; i++)
        if (atomic_exchange(&entry->derived[i].made, 0) && !comm_unusable_reason())
            (void)mpi->comm_free(entry->derived[i].handle);
}

/* How many communicators there are of each kind. With the lock `registering`. */
typedef struct kind_count {
    struct kind_count *next; /* of this place */
    uint64_t kind;
    int64_t communicators;
} kind_count;
enum { KIND_PLACES = 4096 };
static kind_count *kinds[KIND_PLACES];

/* Returns the counter of the communicators of a kind, made if there is none; NULL with error_set without memory. The
 * caller holds the lock. */
static kind_count *comm_kind_find(uint64_t kind) {
    kind_count **at = &kinds[hash_combine(kind, 0) % KIND_PLACES];
    while (*at && (*at)->kind != kind) at = &(*at)->next;
    if (*at) return *at;
    kind_count *made = calloc(1, sizeof *made);
    if (!made) return error_null("out of memory for one more kind of communicator");
    made->kind = kind;
    *at = made;
    return made;
}

/* Sets a communicator's job-wide id from its members and its name: when it is registered, and again when its members
 * are known. Returns 0 or REFUSED. The caller holds the lock. */
static int comm_key_set(comm_entry *entry) {
    const int *members = atomic_load(&entry->members);
    const uint64_t of_name = (UINT64_C(1) << COMM_KEY_MEMBERS) - (UINT64_C(1) << COMM_KEY_NAME);
    uint64_t kind = hash_combine(1, (uint64_t)entry->size);
    if (members) kind = hash_combine(kind, hash_bytes(members, (size_t)entry->size * sizeof *members));
    kind = kind << COMM_KEY_MEMBERS | (hash_text(entry->name) & of_name);
    if (kind == atomic_load(&entry->kind)) return 0;
    kind_count *all = comm_kind_find(kind), *old = entry->kind != 0 ? comm_kind_find(entry->kind) : NULL;
    if (!all) return REFUSED;
    if (old) old->communicators--;
    const uint64_t before = (uint64_t)all->communicators++ & ((UINT64_C(1) << COMM_KEY_NAME) - 1);
    atomic_store(&entry->kind, kind);
    atomic_store(&entry->key, (int64_t)(kind | before));
    return 0;
}

/* Registers a new communicator, and stores its number as an attribute of it. Returns the number or REFUSED. The caller
 * holds the lock. */
static int64_t comm_append(mpixla_handle handle, const char *name) {
    int inter = 0, rank = 0, size = 0;
    if (mpi->comm_test_inter(handle, &inter) != 0)
        return error_set("MPI does not know this communicator: it was freed, or it belongs to another MPI");
    if (inter)
        return error_set(
            "this is an inter-communicator, which mpixla does not take: merge it with Merge(), and pass the "
            "intra-communicator that this gives");
    if (mpi->comm_rank(handle, &rank) != 0 || mpi->comm_size(handle, &size) != 0)
        return error_set("MPI_Comm_rank or MPI_Comm_size failed on this communicator");
    comm_entry entry = {.handle = handle, .alive = 1, .rank = rank, .size = size};
    if (topology_read(mpi, handle, rank, &entry.topology)) return REFUSED;
    snprintf(entry.name, sizeof entry.name, "%s", name && *name ? name : "unnamed");
    text_clean(entry.name);
    int64_t id = list_append(&comms, &entry);
    if (id < 0) return REFUSED;
    comm_entry *made = list_find(&comms, id);
    made->number = id;
    if (comm_key_set(made)) {
        atomic_store(&made->alive, 0);
        return REFUSED;
    }
    if (mpi->comm_set_attr(handle, mpi->keyval, (void *)(intptr_t)(id + 1)) != 0) {
        atomic_store(&made->alive, 0);
        return error_set("MPI_Comm_set_attr failed on this communicator");
    }
    return id;
}

int comm_start(mpi_library *library) {
    mpi = library;
    if (mpi->keyval_create(comm_freed_callback, &mpi->keyval) != 0) return error_set("MPI_Comm_create_keyval failed");
    return comm_append(mpi->facts.comm_self, "MPI_COMM_SELF") < 0 ? REFUSED : 0;
}

/* Returns the number of a communicator, and registers it if it is new; REFUSED if MPI does not know it, it is an
 * inter-communicator, or MPI can no longer be used. `name` is copied. Takes a lock. */
int64_t mpixla_comm_register(mpixla_handle handle, const char *name) {
    if (!mpi_get()) return error_set("mpixla_start has not been called");
    if (comm_state_check()) return REFUSED;
    void *value = NULL;
    int known = 0;
    int64_t id;
    pthread_mutex_lock(&registering);
    if (mpi->comm_get_attr(handle, mpi->keyval, (void *)&value, &known) != 0)
        id = error_set("MPI does not know this communicator: it was freed, or it belongs to another MPI");
    else
        id = known ? (int64_t)(intptr_t)value - 1 : comm_append(handle, name);
    pthread_mutex_unlock(&registering);
    return id;
}

/* Sets the ranks in MPI_COMM_WORLD of a communicator's members (copied), unless they are set, and its job-wide id from
 * them. Returns 0 or REFUSED. */
int mpixla_comm_members_set(int64_t id, const int *world_ranks) {
    comm_entry *entry = list_find(&comms, id);
    if (!entry) return error_set("communicator number %lld is not registered in this process", (long long)id);
    int *members = calloc((size_t)entry->size, sizeof *members);
    if (!members) return error_set("out of memory for the ranks of communicator '%s'", entry->name);
    memcpy(members, world_ranks, (size_t)entry->size * sizeof *members);
    const int *none = NULL;
    pthread_mutex_lock(&registering);
    if (!atomic_compare_exchange_strong(&entry->members, &none, members)) free(members);
    const int failed = comm_key_set(entry);
    pthread_mutex_unlock(&registering);
    return failed;
}

/* Sets `*rank` to the rank that is `disp` steps away in one direction, as topology_shift. Returns 0, or REFUSED if
 * there is no such direction. */
static int comm_shift_dimension(const comm_entry *entry, int64_t direction, int64_t disp, int64_t *rank) {
    const topology *t = entry->topology;
    if (topology_shift(t, entry->rank, entry->size, direction, disp, rank)) return 0;
    if (!t || t->dimensions < 0)
        return error_set(
            "a shift has direction %lld, but communicator '%s' is not Cartesian: its ranks are one ring, whose "
            "direction is 0",
            (long long)direction, entry->name);
    return error_set("a shift has direction %lld, but communicator '%s' has %d dimensions, which count from 0",
                     (long long)direction, entry->name, t->dimensions);
}

int comm_shift(const comm_entry *entry, const int64_t *steps, int64_t size, int64_t *rank) {
    int64_t here = entry->rank, to = here, there = 0;
    for (int64_t i = 0; i < size; i += 2) {
        for (int64_t j = 0; j < i; j += 2)
            if (steps[j] == steps[i])
                return error_set("a shift has direction %lld twice; give the sum of both", (long long)steps[i]);
        if (comm_shift_dimension(entry, steps[i], steps[i + 1], &there)) return REFUSED;
        to = to == MPIXLA_PROC_NULL || there == MPIXLA_PROC_NULL ? MPIXLA_PROC_NULL : to + (there - here);
    }
    *rank = to;
    return 0;
}

/* Sets `*rank` to the rank that is some steps away in each direction, MPIXLA_PROC_NULL beyond a wall: `steps` has
 * `size` numbers, pairs of direction and displacement. Returns 0 or REFUSED. */
int mpixla_comm_shift(int64_t id, const int64_t *steps, int64_t size, int64_t *rank) {
    const comm_entry *entry = comm_find(id);
    if (!entry) return REFUSED;
    if (!comm_is_shift(size))
        return error_set("a shift has pairs of numbers, at most %d numbers in all, but this one has %lld",
                         COMM_SHIFT_NUMBERS, (long long)size);
    return comm_shift(entry, steps, size, rank);
}

int mpixla_comm_is_alive(int64_t id) {
    comm_entry *entry = list_find(&comms, id);
    return entry && atomic_load(&entry->alive) && !comm_unusable_reason();
}

int mpixla_comm_place(int64_t id, int *rank, int *size) {
    if (!mpi_get()) return error_set("mpixla is not started in this process");
    const mpixla_handle world = mpi_get()->facts.comm_world;
    const comm_entry *entry = id == MPIXLA_WORLD ? NULL : comm_find(id);
    if (entry) {
        *rank = entry->rank;
        *size = entry->size;
        return 0;
    }
    if (id != MPIXLA_WORLD) return REFUSED;
    const int code = mpi_get()->comm_rank(world, rank);
    return code != 0 || mpi_get()->comm_size(world, size) != 0
               ? error_set("MPI does not tell the place of this process in MPI_COMM_WORLD")
               : 0;
}

_Thread_local char comm_thread;

void comm_caller_note(comm_entry *entry) {
    if (!thread_is_front_end()) return;
    if (atomic_exchange(&entry->caller, &comm_thread) != NULL) atomic_store(&entry->is_shared, 1);
}

int64_t comm_count_all(void) {
    return atomic_load(&comms.count);
}

comm_entry *comm_find_any(int64_t id) {
    return list_find(&comms, id);
}

comm_entry *comm_find(int64_t id) {
    comm_entry *entry = list_find(&comms, id);
    if (!entry)
        return error_null(
            "communicator number %lld is not registered in this process; a program that was exported needs its "
            "communicators passed to an operation here first, in the same order, as docs/other_tools.md says",
            (long long)id);
    const char *why = comm_unusable_reason();
    if (why)
        return error_null("%s, so communicator '%s' can no longer be used%s", why, entry->name, comm_unusable_advice());
    if (!atomic_load(&entry->alive))
        return error_null(
            "communicator '%s' was freed after this program was traced; trace the program again with a "
            "communicator that exists, or, if the call was made before comm.Free(), block on its result before that",
            entry->name);
    return entry;
}

int comm_derive(comm_entry *entry, int which, mpixla_handle *derived) {
    if (!atomic_load(&entry->derived[which].made)) {
        mpixla_handle made = 0;
        int code = which == COMM_REVERSED ? mpi->comm_reverse(entry->handle, entry->rank, &made)
                                          : mpi->comm_duplicate(entry->handle, &made);
        if (code != 0) return code;
        entry->derived[which].handle = made;
        atomic_store(&entry->derived[which].made, 1);
    }
    *derived = entry->derived[which].handle;
    return 0;
}
