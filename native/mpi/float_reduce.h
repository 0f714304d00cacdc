/* Reductions of floats as operations of the library's own: SUM, PROD, MAX and MIN of the 16- and 8-bit ones, which MPI
 * does not have, and MAX and MIN of float32 and float64, for which MPI does not say what becomes of NaNs.
 *
 * SUM and PROD: each pair is combined in float and rounded to nearest, ties to even (of float8_e8m0fnu, whose numbers
 * are powers of two, upwards), as NumPy does with ml_dtypes. As with float32, XLA's threads flush numbers that are
 * subnormal in float to zero.
 *
 * MAX and MIN give NaN where a rank has one, and of zeros with different signs MAX gives +0 and MIN -0. The result is
 * an operand's code as it is (of several NaNs always the same one), in whatever order the operands are combined: every
 * rank has the same bits.
 */
#ifndef MPIXLA_NATIVE_FLOAT_REDUCE_H
#define MPIXLA_NATIVE_FLOAT_REDUCE_H

#include "mpi/mpi.h"

/* Makes the library's operations with MPI. Called once, by mpixla_start. Returns 0 or REFUSED. */
int float_reduce_start(const mpi_library *mpi);

/* Returns the library's operation for an element type (XLA's number) and a predefined reduction (its number); NULL if
 * MPI's own applies. */
const mpixla_handle *float_reduce_find(int ffi_dtype, int64_t reduction);

#endif
