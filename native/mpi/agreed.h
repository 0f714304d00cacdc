/* The least and the greatest of a number that each rank of a communicator has, and so whether it is the same on all:
 * MPI_MAX over (h, ~h), since all h are equal iff max(h) == ~max(~h).
 */
#ifndef MPIXLA_NATIVE_AGREED_H
#define MPIXLA_NATIVE_AGREED_H

#include "mpixla.h"

typedef struct agreed {
    uint64_t least, greatest;
} agreed;

/* Finds the least and the greatest of the ranks' numbers, in a collective call. Returns 0 or MPI's error code; with a
 * code `*found` is this rank's own number. */
int agreed_find(mpixla_handle comm, uint64_t number, agreed *found);

/* The two parts of agreed_find, for a caller that makes the reduction itself (MPI_MAX of uint64): fills the words that
 * this rank sends, and reads the result. */
enum { AGREED_WORDS = 2 };
void agreed_fill(uint64_t words[AGREED_WORDS], uint64_t number);
agreed agreed_read(const uint64_t words[AGREED_WORDS]);

/* Returns whether all ranks have the same number. */
static inline int agreed_is_same(agreed a) {
    return a.least == a.greatest;
}

#endif
