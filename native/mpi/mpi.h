/* Calls the MPI of this process, through one set of prototypes for all kinds of handles.
 *
 * Handles are widened to mpixla_handle and counts are 64-bit everywhere above this layer. Nothing else in the
 * library knows whether an MPI_Comm is an int (MPICH and its family) or a pointer (Open MPI, the MPI-5 ABI).
 */
#ifndef MPIXLA_NATIVE_MPI_H
#define MPIXLA_NATIVE_MPI_H

#include "base/error.h"
#include "mpixla.h"

/* Room for any MPI's MPI_Status and error text, bytes; mpixla_start checks that it is enough. */
enum { MPI_STATUS_BYTES = 128, MPI_ERROR_BYTES = 2048 };

/* An MPI_Request of either kind, which only MPI reads. */
typedef union mpi_request {
    int number;
    void *pointer;
} mpi_request;

/* Reduces items of `in` into `inout`: as many as mpi_length says. */
typedef void mpi_combine(void *in, void *inout, const void *length, void *type);

/* MPI's functions as the rest of the library calls them, made of mpi_functions.def: handles are widened, counts have 64
 * bits, and a REQUEST is the address of an mpi_request. Each returns 0 or an error code (base/error.h): REFUSED is that
 * of a large call which this MPI does not have. Counts and displacements of several parts (parts.h) are ints for the
 * small calls and int64_ts for the large ones. */
#define COUNT int64_t
#define COUNTS const void *
#define DISPLS const void *
#define LARGE int64_t
#define DATATYPE mpixla_handle
#define OP mpixla_handle
#define COMM mpixla_handle
#define STATUS void *
#define CONST_STATUS const void *
#define REQUEST void *
#define MESSAGE void *
typedef struct mpi_counted {
#define MPIXLA_MPI_COUNTED(name, function, function_c, prototype, arguments) int(*name) prototype;
#include "tables/mpi_functions.def"
#undef MPIXLA_MPI_COUNTED
} mpi_counted;

typedef struct mpi_library {
    mpixla_mpi_facts facts;      /* `library` is NULL here */
    const mpi_counted *small;    /* for counts up to count_limit */
    const mpi_counted *large;    /* for greater ones */
    _Atomic int64_t count_limit; /* elements */
    int world_rank;              /* this process in MPI_COMM_WORLD */
    int long_lengths;            /* whether op_create makes reductions of counts beyond int */
    int has_tool;                /* a tool intercepts calls (mpixla_mpi_tool) */
    int keyval;                  /* marks communicators with their registry entry */
#define MPIXLA_MPI_PLAIN(name, function, prototype, arguments) int(*name) prototype;
#include "tables/mpi_functions.def"
#undef MPIXLA_MPI_PLAIN
    /* Makes a commutative reduction. */
    int (*op_create)(mpi_combine *combine, mpixla_handle *op);
    /* Makes and commits a type of `n` elements of `type`. */
    int (*type_repeat)(int n, mpixla_handle type, mpixla_handle *repeated);
    /* Makes a communicator of the same processes with their ranks in reverse order. All of them must call it. */
    int (*comm_reverse)(mpixla_handle comm, int rank, mpixla_handle *reversed);
    /* MPI_Comm_dup: all its processes must call it. */
    int (*comm_duplicate)(mpixla_handle comm, mpixla_handle *copy);
    int (*comm_free)(mpixla_handle comm);
    /* Ends all calls on the communicator, everywhere; NULL: this MPI does not go on without a process. */
    int (*comm_revoke)(mpixla_handle comm);
    /* Makes a keyval whose value is not copied to duplicates and whose `drop` runs when a communicator that
     * has it is freed. */
    int (*keyval_create)(void (*drop)(void *value), int *keyval);
} mpi_library;
#undef COUNT
#undef COUNTS
#undef DISPLS
#undef LARGE
#undef DATATYPE
#undef OP
#undef COMM
#undef STATUS
#undef CONST_STATUS
#undef REQUEST
#undef MESSAGE

/* The connected MPI, or NULL before mpi_publish. */
const mpi_library *mpi_get(void);

/* Finds the MPI of this process and its functions; NULL with error_set on failure. The caller starts the parts of the
 * library that need MPI, and then calls mpi_publish: from then on mpi_get returns it. */
mpi_library *mpi_connect(const mpixla_mpi_facts *facts);
void mpi_publish(void);

/* Fill `library` with the functions for one kind of handle, found by dlsym in `scope`. Return the name of a function
 * that is missing, or NULL. */
const char *mpi_int_bind(mpi_library *library, void *scope);
const char *mpi_pointer_bind(mpi_library *library, void *scope);

/* Sets the error "`function` returned error code `code`": MPI's text, the description of the call, and `more`. Returns
 * REFUSED. */
int mpi_error_set(const char *function, int code, const char *call, const char *more);

/* Returns the number of items from the `length` argument of an mpi_combine: an int, or 64 bits if this MPI has
 * reductions of large counts. */
int64_t mpi_length(const void *length);

/* Returns the greatest number of bytes that dtype_receive may receive as bytes: 0 with a tool, which may compare the
 * datatypes of both ends. */
static inline int64_t mpi_bytes_limit(const mpi_library *which) {
    return which->has_tool ? 0 : which->count_limit;
}

/* Return the source or the tag in a status. */
int mpi_source_of(const void *status);
int mpi_tag_of(const void *status);

/* Gets the number of bytes of a message from its status. Returns MPI's code. */
int mpi_bytes_of(const void *status, int64_t *bytes);

/* Returns whether MPI has ended the request, also by failing. */
int mpi_request_is_done(mpi_request *request);

/* Drives MPI's progress engine by MPI_Iprobe. Returns MPI's code, which may say that a process has died. */
int mpi_progress(mpixla_handle comm);

/* Returns the error class of an error code of MPI; 0 and REFUSED unchanged. */
int mpi_error_class(int code);

#endif
