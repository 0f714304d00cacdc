/* What the ranks of a communicator find out together about a number that each of them has: the least and the greatest,
 * and so whether all have the same. MPI finds the greatest of the number, and of its complement.
 */
#ifndef MPIXLA_NATIVE_AGREED_H
#define MPIXLA_NATIVE_AGREED_H

#include "mpixla.h"

typedef struct agreed {
    uint64_t least, greatest;
} agreed;

/* Finds it in a collective call, which all ranks make. Returns 0 or MPI's error code, with which `*found` is what this
 * rank has itself. */
int agreed_find(mpixla_handle comm, uint64_t number, agreed *found);

/* For whoever makes that call himself, a reduction by MPI_MAX of uint64: fills the words that this rank gives, and
 * reads those that it gets. */
enum { AGREED_WORDS = 2 };
void agreed_fill(uint64_t words[AGREED_WORDS], uint64_t number);
agreed agreed_read(const uint64_t words[AGREED_WORDS]);

/* Returns whether all ranks have the same number. */
static inline int agreed_is_same(agreed a) {
    return a.least == a.greatest;
}

#endif
