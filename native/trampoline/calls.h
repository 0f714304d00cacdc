/* MPI as XLA calls it for JAX's own collectives: the functions behind the rows of symbols.def.
 *
 * XLA's calls go to the MPItrampoline in jaxlib, and from there to libmpixla_trampoline.so, which has the names that it
 * looks up and these functions. They use mpixla.h and nothing else of the library. Handles are numbers of ours, so that
 * nothing depends on MPI when jaxlib is loaded.
 *
 * XLA asks for a communicator by MPI_Comm_split of MPI_COMM_WORLD, which all processes would have to call, whereas only
 * the members of a clique do. So the front end makes the communicator, and offers it (clique.h) before it runs a
 * program that asks for it.
 */
#ifndef MPIXLA_NATIVE_TRAMPOLINE_CALLS_H
#define MPIXLA_NATIVE_TRAMPOLINE_CALLS_H

#include "mpixla.h"

/* MPItrampoline's handles, as wide as a pointer. Communicators: 1 is MPI_COMM_WORLD, others are the numbers
 * of mpixla_comm_register from 2. */
typedef uintptr_t trampoline_handle;
enum { TRAMPOLINE_WORLD = 1, TRAMPOLINE_COMMS = 2, TRAMPOLINE_UNDEFINED = -32766 };

/* Element types: XLA's numbers (xla/ffi/api/c_api.h), and one for MPI_BYTE, which is U8 too. */
enum {
    TRAMPOLINE_S8 = 2,
    TRAMPOLINE_S16 = 3,
    TRAMPOLINE_S32 = 4,
    TRAMPOLINE_S64 = 5,
    TRAMPOLINE_U8 = 6,
    TRAMPOLINE_U16 = 7,
    TRAMPOLINE_U32 = 8,
    TRAMPOLINE_U64 = 9,
    TRAMPOLINE_F32 = 11,
    TRAMPOLINE_F64 = 12,
    TRAMPOLINE_C64 = 15,
    TRAMPOLINE_C128 = 18,
    TRAMPOLINE_BYTE = 200
};

/* Reductions: rows of reductions.def from 1. */
enum { TRAMPOLINE_SUM = 1, TRAMPOLINE_PROD, TRAMPOLINE_MAX, TRAMPOLINE_MIN };

/* Longest text of an error, with its end: XLA's room for it. */
enum { TRAMPOLINE_TEXT_BYTES = 1024 };

/* Each returns 0 or a positive code, for which trampoline_error_string has a sentence in the same thread. */
#define COMM trampoline_handle
#define TYPE trampoline_handle
#define OP trampoline_handle
#define REQUEST trampoline_handle
#define MPIXLA_ABI_CALL(name, ours, prototype, arguments) int ours prototype;
#include "trampoline/symbols.def"
#undef MPIXLA_ABI_CALL
#undef COMM
#undef TYPE
#undef OP
#undef REQUEST

/* Prints a sentence and aborts the process, as XLA has called a function that has no row: its result would have a type
 * of its own, and XLA may not look at it. */
_Noreturn void trampoline_refuse(const char *name);

#endif
