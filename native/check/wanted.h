/* What a rank wants of a collective call, as far as the other ranks must want the same: to be compared, and in words.
 */
#ifndef MPIXLA_NATIVE_WANTED_H
#define MPIXLA_NATIVE_WANTED_H

#include "call/frame.h"
#include "call/site.h"

/* Numbers that are the same on every rank that wants the same; -1 where the call has no such thing. */
typedef struct wanted_facts {
    uint64_t operation; /* of its row's name */
    int64_t dtype;      /* XLA's number */
    int64_t items;      /* that must be as many on every rank */
    uint64_t reduction; /* of its name: user-made ones, which have other numbers on other ranks, are one; 0: none */
    int64_t root, reverse;
    uint64_t parts; /* of the rows of each rank, or of the arrays of a call of many */
    int64_t site;
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

/* The same for other ranks to read, of fixed size. */
typedef struct wanted {
    wanted_facts facts;
    int32_t starts; /* the call starts a request */
    char call[320]; /* "MPI_Bcast of 3 items of float32 with root 0" */
    char line[SITE_TEXT_BYTES];
} wanted;

/* `lines` says whether the site counts; else it is left out. */
wanted_facts wanted_facts_of(const frame *f, int lines);

/* One number for all of it: ranks that differ have different ones, but for one case in 2^64. */
uint64_t wanted_hash(const wanted_facts *facts);

/* What differs. */
int wanted_differ(const wanted_facts *a, const wanted_facts *b);

/* The set of what differs, as "the operation and the root", into `text` of this size. */
void wanted_name(int differences, char *text, size_t bytes);

/* What this rank wants of the call, with all bytes written; `lines` as above. */
void wanted_fill(wanted *w, const frame *f, int lines);

#endif
