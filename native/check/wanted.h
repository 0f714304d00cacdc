/* What a rank wants of a collective call, as far as the other ranks must want the same: to be compared, and in words.
 */
#ifndef MPIXLA_NATIVE_WANTED_H
#define MPIXLA_NATIVE_WANTED_H

#include "call/frame.h"
#include "call/site.h"

/* Numbers that are equal on all ranks that want the same; -1 where the call has no such thing. */
typedef struct wanted_facts {
    uint64_t operation; /* made of the operation's name (base/number.h) */
    int64_t dtype;      /* XLA's number */
    int64_t items;      /* as in call_facts */
    uint64_t reduction; /* made of its name: user-made ones, which have other numbers on other ranks, are all one; 0:
                         * none */
    int64_t root, reverse;
    uint64_t parts; /* made of the rows of each rank, or of the arrays of a call of many; 0: there are none */
    int64_t site;   /* of the line; 0: lines are not compared */
} wanted_facts;

/* What may differ, a bit each. */
enum {
    WANTED_OPERATION = 1,
    WANTED_DTYPE = 2,
    WANTED_ITEMS = 4,
    WANTED_REDUCTION = 8,
    WANTED_ROOT = 16,
    WANTED_DIRECTION = 32,
    WANTED_PARTS = 64,
    WANTED_LINE = 128
};

/* The same with words, as it is sent to other ranks. */
typedef struct wanted {
    wanted_facts facts;
    int32_t starts; /* whether the call starts a request */
    char call[320]; /* "MPI_Bcast of 3 items of float32 with root 0" */
    char line[SITE_TEXT_BYTES];
} wanted;

/* Of a call; with `lines` its line is one of them. */
wanted_facts wanted_facts_of(const frame *f, int lines);

/* One number for all of them: where the facts differ so does the number, but for one case in 2^64. */
uint64_t wanted_hash(const wanted_facts *facts);

/* What differs, as a set of the bits above. */
int wanted_differ(const wanted_facts *a, const wanted_facts *b);

/* Writes such a set, as in "the operation and the root", into `text` of this size. */
void wanted_name(int differences, char *text, size_t bytes);

/* What this rank wants of the call, with all bytes set, as they are sent; `lines` as above. */
void wanted_fill(wanted *w, const frame *f, int lines);

#endif
