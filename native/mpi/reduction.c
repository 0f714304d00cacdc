#include "mpi/reduction.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/error.h"
#include "base/list.h"
#include "mpi/mpi.h"
#include "xla/xla_ffi.h"

static const mpixla_reduction_row rows[] = {
#define MPIXLA_REDUCTION(name, kinds, nccl) {name, kinds},
#include "tables/reductions.def"
#undef MPIXLA_REDUCTION
};

enum { ROWS = sizeof rows / sizeof rows[0] };

static struct {
    mpixla_handle handle;
    int bound;
    uint64_t takes; /* bit n: type number n */
} predefined[ROWS];

/* A user-made reduction. MPI has no callback for its end, and uses its handle again; but the function that frees it
 * clears the variable that has the handle. */
typedef struct user_made {
    mpixla_handle handle;
    _Atomic(const void *) kept[REDUCTION_KEPT]; /* such variables, NULL after the last */
} user_made;

static list user_mades = {.item_size = sizeof(user_made), .items_name = "user-made reductions"};
static pthread_mutex_t registering = PTHREAD_MUTEX_INITIALIZER;

/* Returns the number of the row with this name; ROWS if there is none. */
static int64_t reduction_row_find(const char *name) {
    int64_t i = 0;
    while (i < ROWS && strcmp(rows[i].name, name) != 0) i++;
    return i;
}

const mpixla_handle *reduction_named(const char *name) {
    return reduction_find(reduction_row_find(name));
}

/* Returns the rows of reductions.def, with their number and size. */
const mpixla_reduction_row *mpixla_reduction_table(size_t *count, size_t *row_size) {
    *count = ROWS;
    if (row_size) *row_size = sizeof rows[0];
    return rows;
}

/* Returns a bit for each element type whose kind is among `kinds`. */
static uint64_t reduction_types(const char *kinds) {
    uint64_t types = 0;
#define MPIXLA_DTYPE(ffi, name, itemsize, mpi_name, kind, nccl) \
    if (strstr(kinds, kind)) types |= UINT64_C(1) << (ffi);
#include "tables/dtypes.def"
#undef MPIXLA_DTYPE
    return types;
}

/* Sets the handle of a predefined reduction. Returns 0, or REFUSED for a name that reductions.def does not have. */
int mpixla_reduction_bind(const char *name, mpixla_handle handle) {
    int64_t i = reduction_row_find(name);
    if (i == ROWS) return error_set("no row of native/tables/reductions.def is called %s", name);
    predefined[i].handle = handle;
    predefined[i].takes = reduction_types(rows[i].kinds);
    predefined[i].bound = 1;
    return 0;
}

/* Returns the MPI_Op in a variable of MPI's type, widened. */
static mpixla_handle reduction_handle_read(const void *kept) {
    int number = 0;
    void *pointer = NULL;
    if (mpi_get()->facts.handle_size == (int64_t)sizeof number) {
        memcpy(&number, kept, sizeof number);
        return (mpixla_handle)(int64_t)number;
    }
    memcpy(&pointer, kept, sizeof pointer);
    return (mpixla_handle)(intptr_t)pointer;
}

/* Returns whether a user-made reduction was not freed: each variable that is kept still has its handle; 1 if none is
 * kept. */
static int reduction_handle_is_alive(const user_made *r) {
    for (int i = 0; i < REDUCTION_KEPT; i++) {
        const void *kept = atomic_load_explicit(&r->kept[i], memory_order_acquire);
        if (!kept) return 1;
        if (reduction_handle_read(kept) != r->handle) return 0;
    }
    return 1;
}

static user_made *reduction_user_made_find(int64_t id) {
    return id >= ROWS ? list_find(&user_mades, id - ROWS) : NULL;
}

int mpixla_reduction_is_alive(int64_t id) {
    const user_made *r = reduction_user_made_find(id);
    return r ? reduction_handle_is_alive(r) : id >= 0 && id < ROWS && predefined[id].bound;
}

/* Registers a user-made reduction, unless its handle is registered and was not freed since, and returns its number,
 * which follows those of the predefined ones. Returns REFUSED, with error_set, if the list cannot take it. Takes a
 * lock. */
int64_t mpixla_reduction_register(mpixla_handle handle) {
    pthread_mutex_lock(&registering);
    int64_t count = atomic_load(&user_mades.count), id = 0;
    for (; id < count; id++) {
        const user_made *r = list_find(&user_mades, id);
        if (r->handle == handle && reduction_handle_is_alive(r)) break;
    }
    if (id == count) id = list_append(&user_mades, &(user_made){.handle = handle});
    pthread_mutex_unlock(&registering);
    return id < 0 ? id : id + ROWS;
}

/* Adds a variable of the front end that has the reduction's handle, by which its end is noticed. Returns whether there
 * was place for it, or REFUSED. */
int mpixla_reduction_keep(int64_t id, const void *kept) {
    user_made *r = reduction_user_made_find(id);
    if (!r) return error_set("reduction number %lld is not user-made", (long long)id);
    for (int i = 0; i < REDUCTION_KEPT; i++) {
        const void *nothing = NULL;
        if (atomic_compare_exchange_strong(&r->kept[i], &nothing, kept) || nothing == kept) return 1;
    }
    return 0;
}

const mpixla_handle *reduction_find(int64_t id) {
    if (id >= 0 && id < ROWS && predefined[id].bound) return &predefined[id].handle;
    const user_made *r = reduction_user_made_find(id);
    if (r && reduction_handle_is_alive(r)) return &r->handle;
    if (r)
        return error_null(
            "the user-made reduction was freed after this program was traced; trace the program again with a reduction "
            "that exists");
    return error_null(
        "reduction number %lld is not registered in this process; a program that was exported needs its user-made "
        "reductions passed to an operation here first, in the same order, as docs/other_tools.md says",
        (long long)id);
}

int reduction_is_predefined(int64_t id) {
    return id >= 0 && id < ROWS;
}

int reduction_is_of_pairs(int64_t id) {
    return id >= 0 && id < ROWS && strcmp(rows[id].kinds, "pair") == 0;
}

int reduction_takes(int64_t id, int ffi_dtype) {
    return id < 0 || id >= ROWS || !predefined[id].bound || (predefined[id].takes >> ffi_dtype & 1U) != 0;
}

const char *reduction_name(int64_t id) {
    return id >= 0 && id < ROWS ? rows[id].name : "a user-made reduction";
}
