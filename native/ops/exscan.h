/* Exclusive scans, whose result MPI leaves open on the first rank. */
#ifndef MPIXLA_NATIVE_EXSCAN_H
#define MPIXLA_NATIVE_EXSCAN_H

#include "call/frame.h"

/* On the first rank every item of the result becomes that of the attribute "fill": two 64-bit integers whose bytes
 * begin with the item's. So the program is the same on every rank. Returns 0 or an error code. */
int exscan(const frame *f);

/* The part of it that is not MPI's. */
void exscan_fill(const frame *f);

#endif
