/* FFI handlers that call no MPI, but belong to calls that do. */
#ifndef MPIXLA_NATIVE_HELPER_H
#define MPIXLA_NATIVE_HELPER_H

#include "mpixla.h"
#include "xla/xla_ffi.h"

/* An array that a handler gets, as lines along its last axis; without axes it is one line of one item. */
typedef struct helper_array {
    const ffi_buffer *buffer;
    int64_t lines, line; /* how many, and of how many items */
    int64_t bytes;
} helper_array;

/* Reads array i of those that are given, which the message of a failure says are there for this ("to pack"). Returns 0
 * or REFUSED. */
int helper_array_read(helper_array *a, const ffi_buffers *given, int64_t i, const char *what);

/* Makes a token of an array, or an array of a token (order.c), on any device. */
ffi_error *mpixla_order(ffi_call_frame *call);

/* The exact sum of each line of an array, as words, and rounded (exact.c). */
ffi_error *mpixla_exact_add_host(ffi_call_frame *call);
ffi_error *mpixla_exact_round_host(ffi_call_frame *call);
ffi_error *mpixla_exact_add_device(ffi_call_frame *call);
ffi_error *mpixla_exact_round_device(ffi_call_frame *call);

/* Puts several arrays into one, and takes them out again (pack.c). */
ffi_error *mpixla_pack_host(ffi_call_frame *call);
ffi_error *mpixla_unpack_host(ffi_call_frame *call);
ffi_error *mpixla_pack_device(ffi_call_frame *call);
ffi_error *mpixla_unpack_device(ffi_call_frame *call);

/* Gives this rank, or one that is some steps from it (rank.c). */
ffi_error *mpixla_rank_host(ffi_call_frame *call);
ffi_error *mpixla_rank_device(ffi_call_frame *call);

#endif
