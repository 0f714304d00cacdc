/* FFI handlers that call no MPI, but belong to calls that do. */
#ifndef MPIXLA_NATIVE_HELPER_H
#define MPIXLA_NATIVE_HELPER_H

#include "device/device.h"
#include "mpixla.h"

/* An array that a handler gets, as lines along its last axis; without axes it is one line of one item. */
typedef struct helper_array {
    const ffi_buffer *buffer;
    int64_t lines, line; /* how many, and of how many items */
    int64_t bytes;
} helper_array;

/* Reads array i of those that are given, which the message of a failure says are there for this ("to pack"). Returns 0
 * or REFUSED. */
int helper_array_read(helper_array *a, const ffi_buffers *given, int64_t i, const char *what);

/* Whether attribute i of those that are given has this name and this type (FFI_ATTRIBUTE_...). */
int helper_attribute_is(const ffi_attributes *given, int64_t i, const char *name, int type);

/* What helpers do, with arrays in this GPU's memory, or the host's for NULL. Each returns 0 or REFUSED. */
typedef int helper_work(const ffi_call_frame *call, const device *d);
helper_work helper_exact_add, helper_exact_round; /* the exact sum of each line of an array, as words; and rounded */
helper_work helper_pack, helper_unpack;           /* puts several arrays into one, and takes them out again */
helper_work helper_rank;                          /* gives this rank, or one that is some steps from it */

/* The handlers of each, for the host's memory and for a GPU's. */
#define MPIXLA_HELPERS(HELPER)                                              \
    HELPER(exact_add, mpixla_exact_add_host, mpixla_exact_add_device)       \
    HELPER(exact_round, mpixla_exact_round_host, mpixla_exact_round_device) \
    HELPER(pack, mpixla_pack_host, mpixla_pack_device)                      \
    HELPER(rank, mpixla_rank_host, mpixla_rank_device)                      \
    HELPER(unpack, mpixla_unpack_host, mpixla_unpack_device)

#define HELPER(name, on_host, on_device)      \
    ffi_error *on_host(ffi_call_frame *call); \
    ffi_error *on_device(ffi_call_frame *call);
MPIXLA_HELPERS(HELPER)
#undef HELPER

/* Makes a token of an array, or an array of a token (order.c), on any device. */
ffi_error *mpixla_order(ffi_call_frame *call);

#endif
