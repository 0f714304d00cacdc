/* Packs slices of an array (some indices along one axis) into messages, and unpacks them. Array and message are in the
 * host's memory or in a GPU's.
 */
#ifndef MPIXLA_NATIVE_PIECES_H
#define MPIXLA_NATIVE_PIECES_H

#include "call/frame.h"
#include "device/device.h"
#include "mpi/dtype.h"

/* A slice: `number` contiguous blocks of `size` bytes, `distance` bytes apart. */
typedef struct pieces {
    char *first;
    int64_t number, size, distance;
    const dtype_entry *dtype;
} pieces;

/* Returns the slice of `width` indices, from index `at` on, along an axis of the array; without blocks if it is empty.
 * A negative `at` counts from the end. */
pieces pieces_of(const ffi_buffer *array, int64_t axis, int64_t width, int64_t at);

/* The memory of arrays and messages. */
typedef struct pieces_place {
    const device *device; /* the arrays are in its memory; NULL: all is in the host's memory */
    int on_host;          /* a message is in pinned memory */
    int64_t room; /* pieces_add: distance in bytes from a message to a scratch buffer of its size; may be negative */
} pieces_place;

/* Handles one slice. Returns 0 or REFUSED. On a GPU the work is put on the stream: wait for the stream before a message
 * is read or written on the host. */
typedef int pieces_action(const pieces_place *place, pieces p, char *message);
pieces_action pieces_pack;   /* writes the message */
pieces_action pieces_unpack; /* reads it */
pieces_action pieces_add;    /* adds the message, in the host's memory; the type must pass pieces_add_check */
pieces_action pieces_clear;  /* fills the slice with zeros; there is no message */

/* Copies the operands of a call of MANY to its results, except those to which XLA has given the operands' memory.
 * Returns 0 or REFUSED. */
int pieces_operands_copy(const frame *f);

/* Returns 0 if items of the type can be added, else REFUSED. */
int pieces_add_check(const dtype_entry *dtype);

#endif
