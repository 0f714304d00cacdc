/* What a rank wants of a collective call, as far as the other ranks must want the same: to be compared, and in words.
 */
#ifndef MPIXLA_NATIVE_WANTED_H
#define MPIXLA_NATIVE_WANTED_H

#include "call/frame.h"
#include "call/site.h"

/* Numbers that are equal on all ranks that want the same; -1 where the call has no such thing. */
typedef enum wanted_fact {
    WANTED_OPERATION, /* made of the operation's name (base/hash.h) */
    WANTED_DTYPE,     /* XLA's number; of a call of many arrays one made of theirs */
    WANTED_ITEMS,     /* as in call_facts */
    WANTED_SHAPE,     /* made of the shape that must be the same on all ranks; 0: none must, or it is not compared */
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

/* What is compared besides all else. */
enum { WANTED_LINES = 1, WANTED_SHAPES = 2 };

/* Facts that differ, a bit each: */
enum { WANTED_OTHER_OPERATION = 1 << WANTED_OPERATION, WANTED_OTHER_LINE = 1 << WANTED_LINE };

/* The same with words, as it is sent to other ranks. */
typedef struct wanted {
    wanted_facts facts;
    int32_t starts;    /* whether the call starts a request */
    int32_t is_shared; /* whether several threads of the rank make collective calls on the communicator */
    char call[384];    /* "MPI_Bcast of 3 items of float32 with root 0" */
    char line[SITE_TEXT_BYTES];
} wanted;

/* A hash of a buffer's shape from this axis on, and the shape in words: "(2, 3)". Axes of length 1 are left out of the
 * hash: they say nothing of where an item is. */
int64_t wanted_shape_number(const frame_buffer *b, int64_t first_axis);
void wanted_shape_describe(const frame_buffer *b, int64_t first_axis, char *text, size_t bytes);

/* The number made of what travels as one array; 0: nothing is known of it. */
static inline int64_t wanted_parts(const frame *f) {
    return frame_has(f, ATTRIBUTE_PACKED) ? f->attributes[ATTRIBUTE_PACKED] : 0;
}

/* Of a call; `details` say whether its line and shape are among them. */
wanted_facts wanted_facts_of(const frame *f, unsigned details);

/* One number for all of them: where the facts differ so does the number, but for one case in 2^64. */
uint64_t wanted_hash(const wanted_facts *facts);

/* What differs, as a set of the bits above. */
int wanted_differ(const wanted_facts *a, const wanted_facts *b);

/* Writes such a set, as in "the operation and the root", into `text` of this size. */
void wanted_name(int differences, char *text, size_t bytes);

/* What this rank wants of the call, with all bytes set, as they are sent; `details` as above. */
void wanted_fill(wanted *w, const frame *f, unsigned details);

#endif
