/* Maps element types of XLA to MPI datatypes. */
#ifndef MPIXLA_NATIVE_DTYPE_H
#define MPIXLA_NATIVE_DTYPE_H

#include "mpixla.h"

typedef struct dtype_entry {
    const mpixla_dtype_row *row;
    mpixla_handle handle; /* of the MPI datatype; valid once `bound` */
    int number;           /* XLA's */
    int bound;
} dtype_entry;

/* Returns the entry for XLA's number; NULL with error_set if MPI cannot move such elements. */
const dtype_entry *dtype_find(int ffi_dtype);

/* Count and datatype for a receive. */
typedef struct dtype_received {
    int64_t count;
    mpixla_handle type;
} dtype_received;

/* Returns count and datatype to receive so many items: as bytes, unless these are more than `most` (mpi_bytes_limit). A
 * message has no whole number of items if sender and receiver disagree on the data type: MPICH would abort the job, but
 * accepts it as bytes. A receive that is posted early cannot probe the size of its message. */
dtype_received dtype_receive(const dtype_entry *dtype, int64_t items, int64_t most);

#endif
