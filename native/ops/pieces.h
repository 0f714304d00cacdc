/* Pieces of an array, all items that have certain indices on one axis, and messages in which they are packed; and whole
 * arrays. The array is in the host's memory or a GPU's; so is the message.
 */
#ifndef MPIXLA_NATIVE_PIECES_H
#define MPIXLA_NATIVE_PIECES_H

#include "call/frame.h"
#include "device/device.h"
#include "mpi/dtype.h"

/* Sizes are in bytes. */
typedef struct pieces {
    char *first;
    int64_t number, size, distance;
    const dtype_entry *dtype;
} pieces;

/* Those with `width` indices from `at` on, which counts from the end if it is negative. */
pieces pieces_of(const ffi_buffer *array, int64_t axis, int64_t width, int64_t at);

/* Where arrays and messages lie. */
typedef struct pieces_place {
    const device *device; /* has the arrays; NULL: all is in the host's memory */
    int on_host;          /* a message is in pinned memory */
    int64_t room;         /* pieces_add: behind a message by so many bytes is room for another */
} pieces_place;

/* Each returns 0 or REFUSED. On a GPU the stream is given what is to be done; whoever reads or writes a
 * message on the host waits for it first. */
typedef int pieces_action(const pieces_place *place, pieces p, char *message);
pieces_action pieces_pack;   /* writes the message */
pieces_action pieces_unpack; /* reads it */
pieces_action pieces_add;   /* adds it, which is on the host, to the pieces; of a type that pieces_check_adding takes */
pieces_action pieces_clear; /* makes the pieces zeros; there is no message */

/* The results of a call of MANY become what its operands are, where XLA has not given them the operands' memory: 0 or
 * REFUSED. */
int pieces_results_fill(const frame *f);

/* Whether items of the type can be added: 0 or REFUSED. */
int pieces_check_adding(const dtype_entry *dtype);

#endif
