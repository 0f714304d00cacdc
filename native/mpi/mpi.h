/* The MPI of this process: its functions behind one set of prototypes, whatever its handles are.
 *
 * Handles are widened to mpixla_handle and counts are 64-bit everywhere above this layer. Nothing else in the
 * library knows whether an MPI_Comm is an int (MPICH and its family) or a pointer (Open MPI, the MPI-5 ABI).
 */
#ifndef MPIXLA_NATIVE_MPI_H
#define MPIXLA_NATIVE_MPI_H

#include "mpixla.h"

/* Returned by a large-count call where the MPI has no such function: no MPI uses a negative error code. */
enum { MPI_NO_LARGE_COUNT = -1 };

/* Returned for a failure that is not MPI's: error_set has been called. */
enum { MPI_REFUSED = -2 };

/* Room for any MPI's MPI_Status and error text, bytes; mpixla_start checks that it is enough. */
enum { MPI_STATUS_BYTES = 128, MPI_ERROR_BYTES = 2048 };

/* An MPI_Request of either kind, which only MPI reads. */
typedef union mpi_request {
    int number;
    void *pointer;
} mpi_request;

/* The calls, as the rest of the library sees them. Each returns MPI's error code. Counts and displacements of several
 * parts (parts.h) are ints for the small calls and int64_ts for the large ones. */
#define COUNT int64_t
#define COUNTS const void *
#define DISPLS const void *
#define DATATYPE mpixla_handle
#define OP mpixla_handle
#define COMM mpixla_handle
#define STATUS void *
/* The address of an mpi_request. */
#define REQUEST void *
#define MESSAGE void *
typedef struct mpi_counted {
#define MPIXLA_MPI_COUNTED(name, function, function_c, prototype, arguments) int(*name) prototype;
#include "tables/mpi_functions.def"
#undef MPIXLA_MPI_COUNTED
} mpi_counted;
#undef COUNT
#undef COUNTS
#undef DISPLS
#undef DATATYPE
#undef OP
#undef COMM
#undef STATUS
#undef REQUEST
#undef MESSAGE

/* Reduces `*length` items of `in` into `inout`. */
typedef void mpi_combine(void *in, void *inout, int *length, void *type);

typedef struct mpi_library {
    mpixla_mpi_facts facts;      /* `library` is NULL here */
    const mpi_counted *small;    /* for counts up to count_limit */
    const mpi_counted *large;    /* for greater ones */
    _Atomic int64_t count_limit; /* elements */
    int world_rank;              /* this process in MPI_COMM_WORLD */
    int keyval;                  /* marks communicators with their registry entry */

    /* Each takes the address of an mpi_request. */
    int (*cancel)(void *request);
    int (*request_free)(void *request);
    int (*test)(void *request, int *done, void *status);
    int (*wait)(void *request, void *status);
    int (*abort)(mpixla_handle comm, int code);
    int (*barrier)(mpixla_handle comm);
    int (*ibarrier)(mpixla_handle comm, void *request);
    int (*ialltoallv)(const void *s, const int *sn, const int *sd, mpixla_handle st, void *r, const int *rn,
                      const int *rd, mpixla_handle rt, mpixla_handle comm, void *request);
    int (*iprobe)(int source, int tag, mpixla_handle comm, int *there, void *status);
    int (*get_elements)(const void *status, mpixla_handle type, int64_t *n);
    int (*comm_rank)(mpixla_handle comm, int *rank);
    int (*comm_size)(mpixla_handle comm, int *size);
    int (*comm_test_inter)(mpixla_handle comm, int *flag);
    int (*topo_test)(mpixla_handle comm, int *kind);
    int (*cartdim_get)(mpixla_handle comm, int *dimensions);
    int (*cart_get)(mpixla_handle comm, int dimensions, int sizes[], int periods[], int place[]);
    int (*graph_neighbors_count)(mpixla_handle comm, int rank, int *n);
    int (*graph_neighbors)(mpixla_handle comm, int rank, int most, int ranks[]);
    int (*dist_graph_neighbors_count)(mpixla_handle comm, int *sources, int *dests, int *is_weighted);
    int (*dist_graph_neighbors)(mpixla_handle comm, int most_sources, int sources[], int source_weights[],
                                int most_dests, int dests[], int dest_weights[]);
    int (*comm_set_attr)(mpixla_handle comm, int keyval, void *value);
    int (*comm_get_attr)(mpixla_handle comm, int keyval, void *value, int *flag);
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
    int (*error_string)(int code, char *text, int *length);
    int (*error_class)(int code, int *error_class);
} mpi_library;

/* The connected MPI, or NULL before mpi_publish. */
const mpi_library *mpi_get(void);

/* Finds the MPI of this process and its functions. What needs it then starts, and last mpi_publish gives it to all.
 * Returns NULL with error_set on failure. */
mpi_library *mpi_connect(const mpixla_mpi_facts *facts);
void mpi_publish(void);

/* Each fills `library` with the calls for one kind of handle, looking names up with `find`. On failure the
 * name of the missing function is returned, else NULL. */
const char *mpi_int_bind(mpi_library *library, void *(*find)(const char *name));
const char *mpi_pointer_bind(mpi_library *library, void *(*find)(const char *name));

/* The text MPI has for an error code, into `text` of at least facts.max_error_string bytes. */
void mpi_error_describe(const mpi_library *mpi, int code, char *text);

/* What a status says. */
int mpi_source_of(const void *status);
int mpi_tag_of(const void *status);

/* The number that the MPI standard names, for a code that may be any number of the implementation. Of what is no code
 * of MPI's (0, MPI_REFUSED), itself. */
int mpi_error_class(int code);

#endif
