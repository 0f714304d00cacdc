/* NCCL's types and reductions, as it numbers them. */
#ifndef MPIXLA_TEST_FAKE_REDUCE_H
#define MPIXLA_TEST_FAKE_REDUCE_H

#include "test/gpu/gpu_types.h"

enum { FAKE_SUM, FAKE_PROD, FAKE_MAX, FAKE_MIN, FAKE_REDUCTIONS };

/* The bytes of a type; 0 if there is none with this number. */
size_t fake_reduce_itemsize(int type);
const char *fake_reduce_type_name(int type);
const char *fake_reduce_op_name(int op);

/* Reduces `in` into `inout`. In a maximum or minimum a number wins over NaN, as on a GPU; floats of two bytes are
 * rounded in each step. */
void fake_reduce(void *inout, const void *in, size_t count, int type, int op);

#endif
