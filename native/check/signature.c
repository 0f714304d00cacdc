#include "check/signature.h"

#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/text.h"
#include "mpi/reduction.h"

/* Returns the hash of an attribute that is an array; 0 if the call does not have it. */
static int64_t signature_array_hash(const frame *f, int attribute) {
    const frame_array *a = &f->arrays[attribute];
    return frame_has(f, attribute) ? (int64_t)hash_bytes(a->items, (size_t)a->size * sizeof *a->items) : 0;
}

/* Returns the data type, combined with the size of a pair, or the hash of the types of all arrays; -1 if the call has
 * none. */
static int64_t signature_types_hash(const frame *f) {
    const dtype_entry *dtype = facts_type(&f->facts);
    if (f->facts.row->counts != MANY) return dtype ? dtype->number + 256 * frame_pair_bytes(f) : -1;
    uint64_t n = 0;
    for (int64_t i = frame_buffer_next(f->operands, 0); i < f->operands->size;
         i = frame_buffer_next(f->operands, i + 1))
        n = hash_combine(n, (uint64_t)((const ffi_buffer *)f->operands->buffers[i])->dtype);
    return (int64_t)n;
}

int64_t signature_shape_hash(const frame_buffer *b, int64_t first_axis) {
    uint64_t n = 1;
    for (int64_t i = first_axis; i < b->axes; i++)
        if (b->dims[i] != 1) n = hash_combine(n, (uint64_t)b->dims[i]);
    return (int64_t)(n | 1); /* never 0 */
}

void signature_shape_describe(const frame_buffer *b, int64_t first_axis, char *text, size_t bytes) {
    size_t used = text_add(text, bytes, 0, "(");
    for (int64_t i = first_axis; i < b->axes; i++)
        used = text_add(text, bytes, used, i == first_axis ? "%lld" : ", %lld", (long long)b->dims[i]);
    (void)text_add(text, bytes, used, b->axes - first_axis == 1 ? ",)" : ")");
}

/* Returns the buffer whose shape must be equal on all ranks, and sets `*first` to the first axis that must: 1 if the
 * call counts rows. NULL if the call has no such buffer, or if shapes may differ, as of blocks of a halo. */
static const frame_buffer *signature_shape_buffer(const frame *f, int64_t *first) {
    const frame_shape *row = f->facts.row;
    const int is_received =
        (row->counts == SCATTERED || row->counts == SCATTERED_ROWS) && row->send != MPIXLA_EVERYWHERE;
    const frame_buffer *b = f->send.dtype && !is_received ? &f->send : &f->recv;
    *first = frame_has_rows(f);
    return row->counts == MANY || frame_has(f, ATTRIBUTE_BACK) || !b->dtype ? NULL : b;
}

/* Returns the hash of the shape that must be equal on all ranks; 0 if there is none. */
static int64_t signature_call_shape_hash(const frame *f) {
    int64_t first = 0;
    const frame_buffer *b = signature_shape_buffer(f, &first);
    return b ? signature_shape_hash(b, first) : 0;
}

/* Appends the shape that must be equal on all ranks, " of shape (2, 3)"; nothing if there is none. Returns the new
 * length. */
static size_t signature_add_shape(const frame *f, char *text, size_t bytes, size_t used) {
    char shape[96];
    int64_t first = 0;
    const frame_buffer *b = signature_shape_buffer(f, &first);
    if (!b || signature_packed_hash(f)) return used; /* the shapes of packed arrays are in the line of the site */
    signature_shape_describe(b, first, shape, sizeof shape);
    return text_add(text, bytes, used, " of shape %s", shape);
}

signature_facts signature_facts_of(const frame *f, unsigned details) {
    return (signature_facts){.of = {[SIGNATURE_OPERATION] = (int64_t)hash_text(f->facts.row->op_name),
                                    [SIGNATURE_DTYPE] = signature_types_hash(f),
                                    [SIGNATURE_ITEMS] = f->facts.items,
                                    [SIGNATURE_SHAPE] = details & SIGNATURE_SHAPES ? signature_call_shape_hash(f) : 0,
                                    [SIGNATURE_COUNTS] = signature_array_hash(f, ATTRIBUTE_COUNTS),
                                    [SIGNATURE_PARTS] = signature_packed_hash(f),
                                    [SIGNATURE_WIDTH] = signature_array_hash(f, ATTRIBUTE_WIDTH),
                                    [SIGNATURE_REDUCTION] = frame_has(f, ATTRIBUTE_OP)
                                                                ? (int64_t)hash_text(reduction_name(f->facts.reduction))
                                                                : 0,
                                    [SIGNATURE_ROOT] = frame_has(f, ATTRIBUTE_ROOT) ? f->facts.root : -1,
                                    [SIGNATURE_DIRECTION] = f->facts.reverse,
                                    [SIGNATURE_LINE] = details & SIGNATURE_LINES ? f->facts.site : 0}};
}

uint64_t signature_hash(const signature_facts *facts) {
    return hash_bytes(facts, sizeof *facts);
}

int signature_differences(const signature_facts *a, const signature_facts *b) {
    int differences = 0;
    for (int i = 0; i < SIGNATURE_FACTS; i++) differences |= (a->of[i] != b->of[i]) << i;
    return differences;
}

/* Text */

void signature_differences_describe(int differences, char *text, size_t bytes) {
    static const char *const names[SIGNATURE_FACTS] = {"the operation", "the data type", "the count", "the shape",
                                                       "the counts",    "the parts",     "the width", "the reduction",
                                                       "the root",      "the direction", "the line"};
    /* Differences that follow from others are no information: all from the operation, the shape from the count. */
    if (differences & SIGNATURE_OTHER_OPERATION) differences &= SIGNATURE_OTHER_OPERATION | SIGNATURE_OTHER_LINE;
    if (differences & 1 << SIGNATURE_ITEMS) differences &= ~(1 << SIGNATURE_SHAPE);
    size_t used = 0;
    if (bytes > 0) text[0] = '\0';
    for (int i = 0; i < SIGNATURE_FACTS; i++) {
        if (!(differences >> i & 1)) continue;
        differences &= ~(1 << i);
        used = text_add(text, bytes, used, "%s%s", used == 0 ? "" : differences ? ", " : " and ", names[i]);
    }
}

/* Appends a list of numbers: " with counts 1, 2 and 3 more", where `label` is "with counts". Returns the new length. */
static size_t signature_add_list(char *text, size_t bytes, size_t used, const char *label, const frame_array *list) {
    enum { SHOWN = 12 };
    used = text_add(text, bytes, used, " %s", label);
    for (int64_t i = 0; i < list->size && i < SHOWN; i++)
        used = text_add(text, bytes, used, "%s%lld", i == 0 ? " " : ", ", (long long)list->items[i]);
    return list->size > SHOWN ? text_add(text, bytes, used, " and %lld more", (long long)list->size - SHOWN) : used;
}

/* Appends the data types of a call of many arrays: " of float32, int32 with width 1, 1". Returns the new length. */
static size_t signature_add_arrays(const frame *f, char *text, size_t bytes, size_t used) {
    int64_t number = 0;
    used = text_add(text, bytes, used, " of");
    for (int64_t i = frame_buffer_next(f->operands, 0); i < f->operands->size;
         i = frame_buffer_next(f->operands, i + 1), number++) {
        const dtype_entry *dtype = dtype_find(((const ffi_buffer *)f->operands->buffers[i])->dtype);
        used = text_add(text, bytes, used, "%s%s", number == 0 ? " " : ", ", dtype ? dtype->row->name : "?");
    }
    return frame_has(f, ATTRIBUTE_WIDTH)
               ? signature_add_list(text, bytes, used, "with width", &f->arrays[ATTRIBUTE_WIDTH])
               : used;
}

/* Writes the call as text: "MPI_Bcast of 3 items of float32 with root 0". */
static void signature_describe(const frame *f, unsigned details, char *text, size_t bytes) {
    const dtype_entry *dtype = facts_type(&f->facts);
    const int has_op = frame_has(f, ATTRIBUTE_OP), has_root = frame_has(f, ATTRIBUTE_ROOT);
    size_t used = text_add(text, bytes, 0, "%s", f->facts.row->counts == MANY ? f->facts.row->op_name : frame_name(f));
    if (f->facts.row->counts == MANY)
        used = signature_add_arrays(f, text, bytes, used);
    else if (frame_pair_bytes(f) > 0)
        used = text_add(text, bytes, used, " of %lld pair%s of %lld bytes", (long long)f->facts.items,
                        f->facts.items == 1 ? "" : "s", (long long)frame_pair_bytes(f));
    else if (f->facts.items >= 0)
        used = text_add(text, bytes, used, " of %s%lld item%s of %s", frame_has_rows(f) ? "rows of " : "",
                        (long long)f->facts.items, f->facts.items == 1 ? "" : "s", dtype->row->name);
    else if (dtype)
        used = text_add(text, bytes, used, " of %s", dtype->row->name);
    if (details & SIGNATURE_SHAPES) used = signature_add_shape(f, text, bytes, used);
    if (has_op) used = text_add(text, bytes, used, " with op %s", reduction_name(f->facts.reduction));
    if (has_root) used = text_add(text, bytes, used, "%s root %d", has_op ? " and" : " with", f->root);
    if (f->facts.reverse) used = text_add(text, bytes, used, " from the last rank");
    if (frame_has(f, ATTRIBUTE_COUNTS))
        (void)signature_add_list(text, bytes, used, has_op || has_root ? "and counts" : "with counts",
                                 &f->arrays[ATTRIBUTE_COUNTS]);
}

void signature_fill(signature *w, const frame *f, unsigned details) {
    memset(w, 0, sizeof *w); /* all bytes travel */
    w->facts = signature_facts_of(f, details);
    w->starts = f->facts.row->request == MPIXLA_STARTS;
    w->is_shared = atomic_load(&f->facts.communicator->is_shared);
    signature_describe(f, details, w->call, sizeof w->call);
    snprintf(w->line, sizeof w->line, "%s", site_text(f->facts.site));
}
