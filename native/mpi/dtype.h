/* Element types: XLA's number to MPI's datatype. */
#ifndef MPIXLA_NATIVE_DTYPE_H
#define MPIXLA_NATIVE_DTYPE_H

#include "mpixla.h"

typedef struct dtype_entry {
    const mpixla_dtype_row *row;
    mpixla_handle handle; /* of the MPI datatype; valid once `bound` */
    int number;           /* XLA's */
    int bound;
} dtype_entry;

/* The entry for XLA's number, or NULL (with error_set) where MPI cannot move such elements. */
const dtype_entry *dtype_find(int ffi_dtype);

#endif
