/* Reduces pairs of a value and a place (MAXLOC, MINLOC), for any types of the two.
 *
 * Python encodes a pair as bytes of which the greatest, compared as memcmp does, is the one to keep
 * (src/mpixla/core/pairs.py). So there is one operation for each size of a pair, whatever it is made of.
 */
#ifndef MPIXLA_NATIVE_PAIR_REDUCE_H
#define MPIXLA_NATIVE_PAIR_REDUCE_H

#include "mpi/mpi.h"

typedef struct pair_reduction {
    mpixla_handle type; /* of a whole pair, so that MPI never cuts one */
    mpixla_handle op;
} pair_reduction;

/* Makes the operations on pairs with MPI. Called once, by mpixla_start. Returns 0 or REFUSED. */
int pair_reduce_start(const mpi_library *mpi);

/* Returns the reduction for pairs of so many bytes, with its MPI datatype, which is made when it is first needed; NULL
 * with error_set if there is none. `byte` is MPI's datatype of a byte. Takes a lock. */
const pair_reduction *pair_reduce_find(const mpi_library *mpi, int64_t bytes, mpixla_handle byte);

#endif
