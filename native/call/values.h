/* Reads the numbers of a call that a program computes: ranks, tags and rows. The program passes them in one operand
 * behind all others, int32 or int64: the numbers of each attribute that has the text "operand", in the order of the
 * attributes.
 */
#ifndef MPIXLA_NATIVE_VALUES_H
#define MPIXLA_NATIVE_VALUES_H

#include "call/facts.h"
#include "device/device.h"
#include "xla/xla_ffi.h"

typedef struct values {
    int64_t *numbers;
    int64_t n;
} values;

/* Returns whether the text of an attribute says that its numbers are in that operand. */
int values_are_in_operand(const ffi_bytes *text);

/* Reads the numbers of the call that its program has computed, from the operand behind all others, and removes that
 * from `given`. The operand's memory is this GPU's, or the host's for NULL. The numbers belong to the calling thread,
 * and last until it reads others. Only the row and the communicator of `call` are used. Returns 0, or REFUSED for
 * wrong operands. Without memory, or if a copy from the GPU fails, it ends the job if the call is collective, else it
 * returns REFUSED (facts_fail). */
int values_operand_read(values *v, ffi_buffers *given, const device *gpu, const call_facts *call);

#endif
