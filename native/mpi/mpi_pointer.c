/* MPI calls where handles are pointers: Open MPI and the standard ABI of MPI 5. */
#define HANDLE void *
#define NARROW(h) (void *)(uintptr_t)(h)
#define WIDEN(h) (mpixla_handle)(uintptr_t)(h)
#define BIND mpi_pointer_bind
#include "mpi/mpi_calls.inc"
