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

/* How MPI is told to receive so many items. */
typedef struct dtype_received {
    int64_t count;
    mpixla_handle type;
} dtype_received;

/* As bytes, unless they are more than `most` (mpi_most_bytes). A message need not have a whole number of items, if its
 * sender and its receiver disagree on the data type: as bytes MPI takes it all the same, where MPICH would end the job.
 * A receive that is posted before its message has come cannot ask for the message's size first. */
dtype_received dtype_receive(const dtype_entry *dtype, int64_t items, int64_t most);

#endif
