/* Makes exclusive scans, whose result on the first rank MPI leaves undefined. */
#ifndef MPIXLA_NATIVE_EXSCAN_H
#define MPIXLA_NATIVE_EXSCAN_H

#include "call/frame.h"

/* Calls MPI_Exscan, and exscan_fill on the first rank. Returns 0 or an error code. */
int exscan(const frame *f);

/* Sets every item of the result, on the first rank only, to the item of the attribute "fill": two 64-bit integers whose
 * bytes begin with the item's. So the program is the same on every rank. */
void exscan_fill(const frame *f);

#endif
