/* The tables against the header of a real MPI: it compiles if they agree. Nothing of MPI is linked, as function
 * and object names stand only where they are not evaluated.
 *
 *   TEST_MPI_HEADER   <mpi.h>, or <mpi_abi.h>
 */
#include "check.h"
#include "mpi/mpi.h" /* ours */

#include TEST_MPI_HEADER

/* Our calls pass pointers where MPI takes these. */
_Static_assert(sizeof(MPI_Count) == 8 && (MPI_Count)-1 < 0, "MPI_Count is not a signed 64-bit number");
_Static_assert(sizeof(MPI_Aint) == 8, "MPI_Aint has not 64 bits");
_Static_assert(sizeof(MPI_Status) <= MPI_STATUS_BYTES && _Alignof(MPI_Status) <= 16, "MPI_Status does not fit");
_Static_assert(MPI_MAX_ERROR_STRING <= MPI_ERROR_BYTES, "MPI's error texts do not fit");
_Static_assert(MPI_SUCCESS == 0, "success is not 0");
#define IS_HANDLE(type)                                                                                      \
    _Static_assert(                                                                                          \
        sizeof(type) == sizeof(MPI_Comm) && (sizeof(type) == sizeof(int) || sizeof(type) == sizeof(void *)), \
        #type " is neither an int nor a pointer")
IS_HANDLE(MPI_Comm);
IS_HANDLE(MPI_Datatype);
IS_HANDLE(MPI_Op);
IS_HANDLE(MPI_Request);
IS_HANDLE(MPI_Message);

_Static_assert(_Generic((MPI_Comm)0, int: 1, default: 0) == (sizeof(MPI_Comm) == sizeof(int)),
               "the size of a handle does not tell its kind");

/* Functions */
#define DATATYPE MPI_Datatype
#define OP MPI_Op
#define COMM MPI_Comm
#define COMM_OUT MPI_Comm *
#define OP_OUT MPI_Op *
#define TYPE_OUT MPI_Datatype *
#define TYPES MPI_Datatype const *
#define BYTES MPI_Aint
#define COMBINE MPI_User_function *
#define REQUEST MPI_Request *
#define MESSAGE MPI_Message *
#define STATUS MPI_Status *
#define CONST_STATUS const MPI_Status *
#define REQUEST MPI_Request *
#define LARGE MPI_Count
#define KEYVAL_COPY MPI_Comm_copy_attr_function *
#define KEYVAL_DELETE MPI_Comm_delete_attr_function *
#define SAME_FUNCTION(function, prototype) \
    _Static_assert(_Generic(&function, int(*) prototype: 1, default: 0), #function " has another prototype");

#define COUNT int
#define COUNTS const int *
#define DISPLS const int *
#define MPIXLA_MPI_COUNTED(name, function, function_c, prototype, arguments) SAME_FUNCTION(function, prototype)
#define MPIXLA_MPI_PLAIN(name, function, prototype, arguments) SAME_FUNCTION(function, prototype)
#define MPIXLA_MPI_RAW(function, prototype) SAME_FUNCTION(function, prototype)
#include "tables/mpi_functions.def"
#undef MPIXLA_MPI_COUNTED
#undef MPIXLA_MPI_PLAIN
#undef MPIXLA_MPI_RAW
#undef COUNT
#undef COUNTS
#undef DISPLS

#if MPI_VERSION >= 4
#define COUNT MPI_Count
#define COUNTS const MPI_Count *
#define DISPLS const MPI_Aint *
#define MPIXLA_MPI_COUNTED(name, function, function_c, prototype, arguments) SAME_FUNCTION(function_c, prototype)
#include "tables/mpi_functions.def"
#undef MPIXLA_MPI_COUNTED
#endif

/* What mpi_calls.inc gives MPI_Comm_create_keyval. */
typedef int keyval_copy(MPI_Comm comm, int keyval, void *extra, void *in, void *out, int *flag);
typedef int keyval_delete(MPI_Comm comm, int keyval, void *value, void *extra);
_Static_assert(_Generic((MPI_Comm_copy_attr_function *)0, keyval_copy *: 1, default: 0), "keyval_copy differs");
_Static_assert(_Generic((MPI_Comm_delete_attr_function *)0, keyval_delete *: 1, default: 0), "keyval_delete differs");

#if MPI_VERSION >= 4
typedef void combine_c(void *in, void *inout, MPI_Count *length, MPI_Datatype *type);
_Static_assert(_Generic((MPI_User_function_c *)0, combine_c *: 1, default: 0), "combine_c differs");
SAME_FUNCTION(MPI_Op_create_c, (combine_c * function, int commutes, MPI_Op *op))
#endif

/* Names: CMake writes one line for each that it finds in the tables. */
#define MPI_NAME_DATATYPE(name) \
    _Static_assert(_Generic((name), MPI_Datatype: 1, default: 0), #name " is not a datatype");
#define MPI_NAME_REDUCTION(name) _Static_assert(_Generic((name), MPI_Op: 1, default: 0), #name " is not a reduction");
#include "mpi_names.inc"
#undef MPI_NAME_DATATYPE
#undef MPI_NAME_REDUCTION

/* Were all of them found? */
static const char *const compiled[] = {
#define MPI_NAME_DATATYPE(name) #name,
#define MPI_NAME_REDUCTION(name) #name,
#include "mpi_names.inc"
};

static const char *const needed[] = {
#define MPIXLA_DTYPE(ffi, name, itemsize, mpi_name, kind, nccl) mpi_name,
#define MPIXLA_REDUCTION(name, kinds, nccl) name,
#include "tables/dtypes.def"
#include "tables/reductions.def"
};

int main(void) {
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++) {
        int found = 0;
        for (size_t j = 0; j < sizeof compiled / sizeof compiled[0]; j++) found += strcmp(needed[i], compiled[j]) == 0;
        CHECK_INT(found, 1);
    }
    return check_failures();
}
