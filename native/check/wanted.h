/* What a rank wants of a collective call, as far as the other ranks must want the same: to be compared, and in words.
 */
#ifndef MPIXLA_NATIVE_WANTED_H
#define MPIXLA_NATIVE_WANTED_H

#include "call/frame.h"
#include "call/site.h"

/* Numbers that are equal on all ranks that want the same; -1 where the call has no such thing. */
typedef enum wanted_fact {
    WANTED_OPERATION, /* made of the operation's name (base/number.h) */
    WANTED_DTYPE,     /* XLA's number; of a call of many arrays one made of theirs */
    WANTED_ITEMS,     /* as in call_facts */
    WANTED_COUNTS,    /* made of the rows of each rank; 0: there are none */
    WANTED_PARTS,     /* made of what travels as one array, such as leaves of a pytree; 0: nothing is known of it */
    WANTED_WIDTH,     /* made of a halo's widths; 0: there are none */
    WANTED_REDUCTION, /* made of its name: user-made ones, which have other numbers on other ranks, are all one; 0:
                       * none */
    WANTED_ROOT,
    WANTED_DIRECTION, /* whether the ranks count from the last one */
    WANTED_LINE,      /* its site; 0: lines are not compared */
    WANTED_FACTS
} wanted_fact;
typedef struct wanted_facts {
    int64_t of[WANTED_FACTS];
} wanted_facts;

/* Facts that differ, a bit each: */
enum { WANTED_OTHER_OPERATION = 1 << WANTED_OPERATION, WANTED_OTHER_LINE = 1 << WANTED_LINE };

/* The same with words, as it is sent to other ranks. */
typedef struct wanted {
    wanted_facts facts;
    int32_t starts;    /* whether the call starts a request */
    int32_t is_shared; /* whether several threads of the rank make collective calls on the communicator */
    char call[320];    /* "MPI_Bcast of 3 items of float32 with root 0" */
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
