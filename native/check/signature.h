/* Describes what must be equal on all ranks of a collective call, as numbers that are compared and as text. */
#ifndef MPIXLA_NATIVE_SIGNATURE_H
#define MPIXLA_NATIVE_SIGNATURE_H

#include "call/frame.h"
#include "call/site.h"

/* Numbers that must be equal on all ranks; -1 if the call has no such property. */
typedef enum signature_fact {
    SIGNATURE_OPERATION, /* hash of the operation's name (base/hash.h) */
    SIGNATURE_DTYPE,     /* XLA's number; of a call of many arrays the hash of their numbers */
    SIGNATURE_ITEMS,     /* as in call_facts */
    SIGNATURE_SHAPE,  /* hash of the shape that must be equal on all ranks; 0: there is none, or shapes are not compared
                       */
    SIGNATURE_COUNTS, /* hash of the rows of each rank; 0: there are none */
    SIGNATURE_PARTS,  /* hash of the arrays that are packed into one, such as leaves of a pytree; 0: unknown */
    SIGNATURE_WIDTH,  /* hash of a halo's widths; 0: there are none */
    SIGNATURE_REDUCTION, /* hash of its name, which is the same for all user-made ones: their numbers differ by rank; 0:
                         none */
    SIGNATURE_ROOT,
    SIGNATURE_DIRECTION, /* 1: ranks are in reverse order */
    SIGNATURE_LINE,      /* its site; 0: lines are not compared */
    SIGNATURE_FACTS
} signature_fact;
typedef struct signature_facts {
    int64_t of[SIGNATURE_FACTS];
} signature_facts;

/* Details: properties that are compared only on request. */
enum { SIGNATURE_LINES = 1, SIGNATURE_SHAPES = 2 };

/* Bits of signature_differences */
enum { SIGNATURE_OTHER_OPERATION = 1 << SIGNATURE_OPERATION, SIGNATURE_OTHER_LINE = 1 << SIGNATURE_LINE };

/* The numbers and the text of a call, as they are sent to other ranks. */
typedef struct signature {
    signature_facts facts;
    int32_t starts;    /* whether the call starts a request */
    int32_t is_shared; /* whether several threads of the rank make collective calls on the communicator */
    char call[384];    /* "MPI_Bcast of 3 items of float32 with root 0" */
    char line[SITE_TEXT_BYTES];
} signature;

/* Returns the hash of a buffer's shape from this axis on; never 0. Skips axes of length 1, which do not change the
 * order of items. */
int64_t signature_shape_hash(const frame_buffer *b, int64_t first_axis);

/* Writes a buffer's shape from this axis on as text, "(2, 3)". */
void signature_shape_describe(const frame_buffer *b, int64_t first_axis, char *text, size_t bytes);

/* Returns the hash of the arrays that are packed into one, such as leaves of a pytree; 0: unknown. */
static inline int64_t signature_packed_hash(const frame *f) {
    return frame_has(f, ATTRIBUTE_PACKED) ? f->attributes[ATTRIBUTE_PACKED] : 0;
}

/* Returns the numbers of a call that are compared; `details`: SIGNATURE_LINES, SIGNATURE_SHAPES. */
signature_facts signature_facts_of(const frame *f, unsigned details);

/* Returns the hash of a call's numbers. */
uint64_t signature_hash(const signature_facts *facts);

/* Returns the set of properties in which two calls differ, as bits 1 << signature_fact. */
int signature_differences(const signature_facts *a, const signature_facts *b);

/* Writes a set of properties as text, "the operation and the root". */
void signature_differences_describe(int differences, char *text, size_t bytes);

/* Fills `w`, the numbers and the text of a call of this rank. All bytes are set, since all are sent. `details` as in
 * signature_facts_of. */
void signature_fill(signature *w, const frame *f, unsigned details);

#endif
