/* Describes what must be equal on all ranks of a collective call, as numbers that are compared and as text. */
#ifndef MPIXLA_NATIVE_WANTED_H
#define MPIXLA_NATIVE_WANTED_H

#include "call/frame.h"
#include "call/site.h"

/* Numbers that must be equal on all ranks; -1 if the call has no such property. */
typedef enum wanted_fact {
    WANTED_OPERATION, /* hash of the operation's name (base/hash.h) */
    WANTED_DTYPE,     /* XLA's number; of a call of many arrays the hash of their numbers */
    WANTED_ITEMS,     /* as in call_facts */
    WANTED_SHAPE,  /* hash of the shape that must be equal on all ranks; 0: there is none, or shapes are not compared */
    WANTED_COUNTS, /* hash of the rows of each rank; 0: there are none */
    WANTED_PARTS,  /* hash of the arrays that are packed into one, such as leaves of a pytree; 0: unknown */
    WANTED_WIDTH,  /* hash of a halo's widths; 0: there are none */
    WANTED_REDUCTION, /* hash of its name, which is the same for all user-made ones: their numbers differ by rank; 0:
                         none */
    WANTED_ROOT,
    WANTED_DIRECTION, /* 1: ranks are in reverse order */
    WANTED_LINE,      /* its site; 0: lines are not compared */
    WANTED_FACTS
} wanted_fact;
typedef struct wanted_facts {
    int64_t of[WANTED_FACTS];
} wanted_facts;

/* Details: properties that are compared only on request. */
enum { WANTED_LINES = 1, WANTED_SHAPES = 2 };

/* Bits of wanted_differ */
enum { WANTED_OTHER_OPERATION = 1 << WANTED_OPERATION, WANTED_OTHER_LINE = 1 << WANTED_LINE };

/* The numbers and the text of a call, as they are sent to other ranks. */
typedef struct wanted {
    wanted_facts facts;
    int32_t starts;    /* whether the call starts a request */
    int32_t is_shared; /* whether several threads of the rank make collective calls on the communicator */
    char call[384];    /* "MPI_Bcast of 3 items of float32 with root 0" */
    char line[SITE_TEXT_BYTES];
} wanted;

/* Returns the hash of a buffer's shape from this axis on; never 0. Skips axes of length 1, which do not change the
 * order of items. */
int64_t wanted_shape_hash(const frame_buffer *b, int64_t first_axis);

/* Writes a buffer's shape from this axis on as text, "(2, 3)". */
void wanted_shape_describe(const frame_buffer *b, int64_t first_axis, char *text, size_t bytes);

/* Returns the hash of the arrays that are packed into one, such as leaves of a pytree; 0: unknown. */
static inline int64_t wanted_parts(const frame *f) {
    return frame_has(f, ATTRIBUTE_PACKED) ? f->attributes[ATTRIBUTE_PACKED] : 0;
}

/* Returns the numbers of a call; `details`: WANTED_LINES, WANTED_SHAPES. */
wanted_facts wanted_facts_of(const frame *f, unsigned details);

/* Returns the hash of the numbers. */
uint64_t wanted_hash(const wanted_facts *facts);

/* Returns the set of properties that differ, as bits 1 << wanted_fact. */
int wanted_differ(const wanted_facts *a, const wanted_facts *b);

/* Writes a set of properties as text, "the operation and the root". */
void wanted_name(int differences, char *text, size_t bytes);

/* Fills `w` for a call of this rank. All bytes are set, since all are sent. `details` as in wanted_facts_of. */
void wanted_fill(wanted *w, const frame *f, unsigned details);

#endif
