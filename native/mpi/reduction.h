/* Registers reductions: the predefined ones have the numbers of the rows of reductions.def, user-made ones later
 * numbers.
 */
#ifndef MPIXLA_NATIVE_REDUCTION_H
#define MPIXLA_NATIVE_REDUCTION_H

#include "mpixla.h"

/* Variables that are looked at to see whether a user-made reduction was freed. */
enum { REDUCTION_KEPT = 4 };

/* Returns the handle of the reduction with this number; NULL with error_set if there is none, or if it was freed. Takes
 * no lock. */
const mpixla_handle *reduction_find(int64_t id);

/* Returns the handle of a predefined reduction by its name, which must be in reductions.def. */
const mpixla_handle *reduction_named(const char *name);

/* Returns whether the reduction is one of reductions.def. */
int reduction_is_predefined(int64_t id);

/* Returns whether the reduction is of pairs of a value and a place (pair_reduce.h). */
int reduction_is_of_pairs(int64_t id);

/* Returns whether MPI or the library has the reduction for this element type (XLA's number). User-made reductions take
 * any type. */
int reduction_takes(int64_t id, int ffi_dtype);

/* Returns the name of the reduction for messages. */
const char *reduction_name(int64_t id);

#endif
