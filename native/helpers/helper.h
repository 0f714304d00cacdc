/* FFI handlers that call no MPI, but belong to calls that do. */
#ifndef MPIXLA_NATIVE_HELPER_H
#define MPIXLA_NATIVE_HELPER_H

#include "device/device.h"
#include "mpixla.h"

/* An argument or result of a handler, as lines along its last axis; without axes it is one line of one item. */
typedef struct helper_array {
    const ffi_buffer *buffer;
    int64_t lines, line; /* line: items in a line */
    int64_t bytes;
} helper_array;

/* Reads array i of `given`, and checks its shape. Returns 0 or REFUSED; `label` follows "array 0" in the error message
 * ("to pack"). */
int helper_array_read(helper_array *a, const ffi_buffers *given, int64_t i, const char *label);

/* Returns whether attribute i exists, and has this name and this type (FFI_ATTRIBUTE_...). */
int helper_attribute_is(const ffi_attributes *given, int64_t i, const char *name, int type);

/* The work of a helper, on arrays in this GPU's memory, or the host's for NULL. Returns 0 or REFUSED. */
typedef int helper_work(const ffi_call_frame *call, const device *d);
helper_work helper_exact_add, helper_exact_round; /* sums each line of an array exactly, into words; rounds words */
helper_work helper_pack, helper_unpack;           /* packs several arrays into one, and unpacks them */
helper_work helper_rank;                          /* returns this rank, or one at a shift from it */

/* The handlers of each helper, for the host's memory and for a GPU's. */
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

/* Turns an array into a token, or a token into an array (order.c), on any device. Returns NULL or XLA's error. */
ffi_error *mpixla_order(ffi_call_frame *call);

#endif
