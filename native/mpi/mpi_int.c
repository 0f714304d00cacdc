/* MPI calls where handles are ints: MPICH and its ABI family (Intel MPI, Cray MPICH, MVAPICH). */
#define HANDLE int
#define NARROW(h) (int)(h)
#define WIDEN(h) (mpixla_handle)(h)
#define BIND mpi_int_bind
#include "mpi/mpi_calls.inc"
