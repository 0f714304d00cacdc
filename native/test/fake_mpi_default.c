/* A fake of every function of mpi_functions.def that fake_mpi.c does not define: it counts as a call and succeeds. So a
 * new row there needs nothing here; a test that looks at a function's arguments needs one in fake_mpi.c.
 */
#include <stddef.h>
#include <stdint.h>

#include "fake_mpi.h"

extern fake_mpi fake;

#ifdef FAKE_POINTER_HANDLES
typedef void *HANDLE;
#else
typedef int HANDLE;
#endif

#define DATATYPE HANDLE
#define OP HANDLE
#define COMM HANDLE
#define COMM_OUT HANDLE *
#define OP_OUT HANDLE *
#define TYPE_OUT HANDLE *
#define TYPES HANDLE const *
#define BYTES intptr_t
#define COMBINE void *
#define STATUS void *
#define CONST_STATUS const void *
#define REQUEST HANDLE *
#define MESSAGE HANDLE *
#define LARGE int64_t
#define KEYVAL_COPY void *
#define KEYVAL_DELETE void *

#pragma GCC diagnostic ignored "-Wunused-parameter"

#define FAKE(function, prototype)                  \
    __attribute__((weak)) int function prototype;  \
    __attribute__((weak)) int function prototype { \
        fake.calls++;                              \
        return fake_result(#function);             \
    }
#define COUNT int
#define COUNTS const int *
#define DISPLS const int *
#define MPIXLA_MPI_COUNTED(name, function, function_c, prototype, arguments) FAKE(function, prototype)
#define MPIXLA_MPI_PLAIN(name, function, prototype, arguments) FAKE(function, prototype)
#define MPIXLA_MPI_RAW(function, prototype) FAKE(function, prototype)
#include "tables/mpi_functions.def"
#undef MPIXLA_MPI_COUNTED
#undef MPIXLA_MPI_PLAIN
#undef MPIXLA_MPI_RAW
#undef COUNT
#undef COUNTS
#undef DISPLS
#ifndef FAKE_NO_LARGE_COUNTS
#define COUNT int64_t
#define COUNTS const int64_t *
#define DISPLS const int64_t *
#define MPIXLA_MPI_COUNTED(name, function, function_c, prototype, arguments) FAKE(function_c, prototype)
#include "tables/mpi_functions.def"
#endif
