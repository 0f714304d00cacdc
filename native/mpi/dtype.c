#include "mpi/dtype.h"

#include <string.h>

#include "base/error.h"
#include "xla/xla_ffi.h"

static const mpixla_dtype_row rows[] = {
#define MPIXLA_DTYPE(ffi, name, itemsize, mpi_name, kind, nccl) {name, mpi_name, kind, itemsize},
#include "tables/dtypes.def"
#undef MPIXLA_DTYPE
};

static const int numbers[] = {
#define MPIXLA_DTYPE(ffi, name, itemsize, mpi_name, kind, nccl) ffi,
#include "tables/dtypes.def"
#undef MPIXLA_DTYPE
};

enum { ROWS = sizeof rows / sizeof rows[0], NUMBERS = 64 };

/* Indexed by XLA's number. Written by mpixla_datatype_bind before the first handler runs, read-only after. */
static dtype_entry entries[NUMBERS];

/* Returns the rows of dtypes.def, with their number and size. */
const mpixla_dtype_row *mpixla_dtype_table(size_t *count, size_t *row_size) {
    *count = ROWS;
    if (row_size) *row_size = sizeof rows[0];
    return rows;
}

/* Sets the handle of an MPI datatype for all element types whose row names it. Returns 0 or REFUSED. */
int mpixla_datatype_bind(const char *mpi_name, mpixla_handle handle) {
    int matches = 0;
    for (size_t i = 0; i < ROWS; i++) {
        if (strcmp(rows[i].mpi_name, mpi_name) != 0) continue;
        entries[numbers[i]] = (dtype_entry){.row = &rows[i], .handle = handle, .number = numbers[i], .bound = 1};
        matches++;
    }
    return matches ? 0 : error_set("no row of native/tables/dtypes.def uses the MPI datatype %s", mpi_name);
}

const dtype_entry *dtype_find(int ffi_dtype) {
    if (ffi_dtype >= 0 && ffi_dtype < NUMBERS && entries[ffi_dtype].bound) return &entries[ffi_dtype];
    return error_null("XLA's element type number %d has no MPI datatype bound to it", ffi_dtype);
}

dtype_received dtype_receive(const dtype_entry *dtype, int64_t items, int64_t most) {
    const int64_t itemsize = dtype->row->itemsize;
    if (items > most / itemsize) return (dtype_received){items, dtype->handle};
    return (dtype_received){items * itemsize, entries[FFI_U8].handle};
}
