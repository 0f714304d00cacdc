/* Reductions of the 16- and 8-bit floats, which MPI does not have: SUM, PROD, MAX and MIN as operations of our own.
 *
 * Each pair is combined in float and rounded to nearest, ties to even, as NumPy does with ml_dtypes. MAX and MIN give
 * NaN where either is NaN. As with float32, XLA's threads flush what is subnormal in float to zero.
 */
#ifndef MPIXLA_NATIVE_FLOAT_REDUCE_H
#define MPIXLA_NATIVE_FLOAT_REDUCE_H

#include "mpi/mpi.h"

/* Called by mpixla_start: makes the operations. Returns 0, or -1 with error_set. */
int float_reduce_start(const mpi_library *mpi);

/* Our operation for this element type (XLA's number) and predefined reduction (its number), or NULL where there is
 * none: then MPI's own applies. */
const mpixla_handle *float_reduce_find(int ffi_dtype, int64_t reduction);

#endif
