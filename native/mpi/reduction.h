/* Reductions by number: the predefined ones first, one for each row of reductions.def, then user-made ones. */
#ifndef MPIXLA_NATIVE_REDUCTION_H
#define MPIXLA_NATIVE_REDUCTION_H

#include "mpixla.h"

/* Variables that are looked at to see whether a user-made reduction was freed. */
enum { REDUCTION_KEPT = 4 };

/* The handle of the reduction with this number, or NULL with error_set if there is none, or if it was freed. Takes no
 * lock. */
const mpixla_handle *reduction_find(int64_t id);

/* The handle of a predefined one by its name in reductions.def, which must be there. */
const mpixla_handle *reduction_named(const char *name);

/* Whether it is one of reductions.def. */
int reduction_is_predefined(int64_t id);

/* Whether it reduces pairs of a value and a place (pair_reduce.h). */
int reduction_is_of_pairs(int64_t id);

/* Whether MPI, or a function of ours, has it for items of this type (XLA's number). User-made ones take any. */
int reduction_takes(int64_t id, int ffi_dtype);

/* Its name for messages. */
const char *reduction_name(int64_t id);

#endif
