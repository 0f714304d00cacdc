/* Each rank hashes all its arrays, and one reduction tells all ranks whether the hashes are equal. Only if they differ
 * do the ranks compare the hashes array by array to find the first array that differs, and then its entries: all ranks
 * know that the hashes differ, so all take part.
 *
 * All ranks make the call, so a local failure ends the job (job.h).
 */
#include "ops/replicated.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/output.h"
#include "base/text.h"
#include "call/site.h"
#include "device/pool.h"
#include "mpi/agreed.h"
#include "mpi/job.h"
#include "ops/pieces.h"

enum { BLOCK_BYTES = 1 << 12, TEXT_BYTES = 448, VALUE_BYTES = 64, ITEM_BYTES = 16, SHOWN = 6 };

/* An array of this rank, with its entries in the host's memory. Its owner calls replicated_array_release. */
typedef struct replicated_array {
    const ffi_buffer *buffer; /* NULL: behind the last array */
    const dtype_entry *dtype;
    const char *data;
    int64_t bytes;
    pool_block *block; /* has a copy of the entries of an array in a GPU's memory; else NULL */
} replicated_array;

/* The description of an array that ranks exchange; all zeros if a rank does not have the array. */
typedef struct replicated_leaf {
    uint64_t name;         /* the number of its site */
    uint64_t kind;         /* hash of its data type and shape */
    uint64_t data;         /* hash of its entries */
    char text[TEXT_BYTES]; /* its name; in the second exchange the difference, "" for none */
} replicated_leaf;

/* Returns the hash of an array's bytes. Four hashes are independent of each other, so that the processor overlaps them.
 */
static uint64_t replicated_hash(const char *data, int64_t bytes) {
    uint64_t lanes[4] = {1, 2, 3, 4}, words[4];
    int64_t at = 0;
    for (; at + (int64_t)sizeof words <= bytes; at += (int64_t)sizeof words) {
        memcpy(words, data + at, sizeof words);
        for (int i = 0; i < 4; i++) lanes[i] = hash_combine(lanes[i], words[i]);
    }
    uint64_t n = hash_bytes(data + at, (size_t)(bytes - at));
    for (int i = 0; i < 4; i++) n = hash_combine(n, lanes[i]);
    return hash_combine(n, (uint64_t)bytes);
}

/* Arrays */

/* Returns the first operand from place `*i` on that is no token, and sets `*i` behind it; NULL behind the last. */
static const ffi_buffer *replicated_operand_next(const frame *f, int64_t *i) {
    *i = frame_buffer_next(f->operands, *i);
    return *i < f->operands->size ? f->operands->buffers[(*i)++] : NULL;
}

static void replicated_array_release(const frame *f, const replicated_array *a) {
    if (a->block) pool_give_back(frame_array_device(f), a->block);
}

/* Sets `*a` to the next array of the call from operand `*i` on, with a copy of its entries if they are on a GPU, and
 * sets `*i` behind it; a->buffer is NULL behind the last. Returns 0; without memory it ends the job, or returns REFUSED
 * on one rank (job_fail). The caller releases the array. */
static int replicated_array_fetch(const frame *f, int64_t *i, replicated_array *a) {
    const device *gpu = frame_array_device(f);
    *a = (replicated_array){.buffer = replicated_operand_next(f, i)};
    if (!a->buffer) return 0;
    a->dtype = dtype_find(a->buffer->dtype);
    a->data = a->buffer->data;
    a->bytes = frame_ffi_buffer_bytes(a->buffer);
    if (!gpu || a->bytes == 0) return 0;
    a->block = pool_get(gpu, POOL_PINNED, a->bytes);
    if (a->block && device_copy_out(gpu, a->block->data, a->data, a->bytes) == 0 && device_wait(gpu) == 0) {
        a->data = a->block->data;
        return 0;
    }
    replicated_array_release(f, a);
    a->block = NULL;
    return job_fail(f->facts.communicator);
}

/* Sets `*a` to the next array of the call, number k, and `one` to its description, without its name's text. Returns as
 * replicated_array_fetch. */
static int replicated_leaf_next(const frame *f, int64_t *i, int64_t k, replicated_array *a, replicated_leaf *one) {
    memset(one, 0, sizeof *one); /* all bytes travel */
    int code = replicated_array_fetch(f, i, a);
    if (code != 0 || !a->buffer) return code;
    one->name = (uint64_t)f->arrays[ATTRIBUTE_LEAVES].items[k];
    one->kind = hash_combine((uint64_t)a->buffer->dtype,
                             hash_bytes(a->buffer->dims, (size_t)a->buffer->rank * sizeof *a->buffer->dims));
    one->data = replicated_hash(a->data, a->bytes);
    return 0;
}

/* Returns the hash of the name, the kind and the entries of an array. */
static uint64_t replicated_leaf_hash(const replicated_leaf *one) {
    return hash_combine(hash_combine(one->name, one->kind), one->data);
}

/* Words */

/* Writes a value as text: "5", "-2.5", "0.5-1j", "True"; a float of less than 32 bits as "0x3e80". */
static void replicated_value_format(const dtype_entry *dtype, const char *value, char text[VALUE_BYTES]) {
    const char *kind = dtype->row->kind;
    const int bytes = (int)dtype->row->itemsize, unused = bytes < 8 ? 64 - 8 * bytes : 0;
    const int is_float = strcmp(kind, "float") == 0, is_complex = strcmp(kind, "complex") == 0;
    const int is_narrow = bytes == (is_complex ? 8 : 4), digits = is_narrow ? 9 : 17;
    uint64_t bits = 0; /* all machines that XLA has are little-endian */
    double x[2] = {0};
    float narrow[2] = {0};
    memcpy(&bits, value, bytes < 8 ? (size_t)bytes : 8);
    memcpy(is_narrow ? (void *)narrow : x, value, (size_t)bytes);
    for (int i = 0; i < 2 && is_narrow; i++) x[i] = (double)narrow[i];
    if (is_complex)
        snprintf(text, VALUE_BYTES, "%.*g%+.*gj", digits, x[0], digits, x[1]);
    else if (is_float && bytes >= 4)
        snprintf(text, VALUE_BYTES, "%.*g", digits, x[0]);
    else if (is_float)
        snprintf(text, VALUE_BYTES, "0x%0*" PRIx64, 2 * bytes, bits);
    else if (strcmp(kind, "bool") == 0)
        snprintf(text, VALUE_BYTES, "%s", bits ? "True" : "False");
    else if (dtype->row->name[0] == 'u')
        snprintf(text, VALUE_BYTES, "%" PRIu64, bits);
    else
        snprintf(text, VALUE_BYTES, "%" PRId64, (int64_t)(bits << unused) >> unused);
}

/* Writes the difference of an array from the array of rank `reference`: "differs from rank 0 in 1 of 6 entries, first
 * at [1, 2]: 0.25, where rank 0 has 0.5". */
static void replicated_difference_format(const replicated_array *a, int64_t differing, int64_t first,
                                         const char *theirs, int reference, char text[TEXT_BYTES]) {
    int64_t below = a->bytes / a->dtype->row->itemsize, rest = first;
    char texts[2][VALUE_BYTES];
    replicated_value_format(a->dtype, a->data + first * a->dtype->row->itemsize, texts[0]);
    replicated_value_format(a->dtype, theirs, texts[1]);
    size_t used = text_add(text, TEXT_BYTES, 0, "differs from rank %d in %lld of %lld entries", reference,
                           (long long)differing, (long long)below);
    for (int64_t axis = 0; axis < a->buffer->rank; axis++) {
        below /= a->buffer->dims[axis];
        used = text_add(text, TEXT_BYTES, used, axis == 0 ? ", first at [%lld" : ", %lld", (long long)(rest / below));
        rest %= below;
    }
    (void)text_add(text, TEXT_BYTES, used, "%s: %s, where rank %d has %s%s", a->buffer->rank > 0 ? "]" : "", texts[0],
                   reference, texts[1], strcmp(texts[0], texts[1]) == 0 ? " of other bits" : "");
}

/* Collective functions: each returns 0 or an error code. */

/* Gathers the descriptions of one array from all ranks, by rank. Collective. Returns 0 or an error code. */
static int replicated_leaves_gather(const frame *f, const replicated_leaf *mine, replicated_leaf *all) {
    const mpixla_handle byte = dtype_find(FFI_U8)->handle;
    const int64_t bytes = (int64_t)sizeof *mine;
    int code = mpi_get()->small->allgather(mine, bytes, byte, all, bytes, byte, f->facts.communicator->handle);
    for (int i = 0; i < f->size; i++) all[i].text[TEXT_BYTES - 1] = '\0';
    return code;
}

/* Finds the arrays that are not equal on all ranks: sets `*differing` to their number, and `*first` and `*mine` to the
 * first of them and its description. If ranks have different numbers of arrays, the end of the shortest list counts as
 * one. Collective. Returns 0 or an error code. The caller releases `*first`. */
static int replicated_leaves_find(const frame *f, replicated_array *first, replicated_leaf *mine, int64_t *differing) {
    const mpixla_handle comm = f->facts.communicator->handle;
    const uint64_t n = (uint64_t)f->arrays[ATTRIBUTE_LEAVES].size;
    agreed leaves, numbers;
    int code = agreed_find(comm, n, &leaves);
    const uint64_t fewest = leaves.least < n ? leaves.least : n;
    *first = (replicated_array){.buffer = NULL};
    *differing = 0;
    for (int64_t i = 0, k = 0; code == 0 && (uint64_t)k <= fewest; k++) {
        replicated_array a;
        replicated_leaf one;
        if (replicated_leaf_next(f, &i, k, &a, &one)) return REFUSED;
        code = agreed_find(comm, replicated_leaf_hash(&one), &numbers);
        if (code == 0 && !agreed_is_same(numbers) && (*differing)++ == 0) {
            *first = a;
            *mine = one;
        } else {
            replicated_array_release(f, &a);
        }
    }
    return code;
}

/* Returns whether two arrays have the same name, data type and shape. */
static int replicated_kind_is_same(const replicated_leaf *a, const replicated_leaf *b) {
    return a->name == b->name && a->kind == b->kind;
}

/* Returns whether the arrays of all ranks have the same name, data type and shape. */
static int replicated_kinds_are_same(int size, const replicated_leaf *all) {
    int one_kind = 1;
    for (int i = 1; i < size; i++) one_kind = one_kind && replicated_kind_is_same(&all[i], &all[0]);
    return one_kind;
}

/* Returns the first rank whose array equals that of most ranks. */
static int replicated_reference_find(int size, const replicated_leaf *all) {
    int best = 0, most = 0;
    for (int i = 0; i < size; i++) {
        int same = 0;
        for (int j = 0; j < size; j++) same += replicated_leaf_hash(&all[i]) == replicated_leaf_hash(&all[j]);
        if (same <= most) continue;
        best = i;
        most = same;
    }
    return best;
}

/* Compares this rank's array entry by entry with that of the rank `reference`, which broadcasts it block by block, and
 * writes the difference to `text`, "" for none. The arrays have one shape and data type. Collective. Returns 0 or MPI's
 * error code. */
static int replicated_entries_compare(const frame *f, const replicated_array *a, int reference, char text[TEXT_BYTES]) {
    const mpixla_handle byte = dtype_find(FFI_U8)->handle;
    const int64_t item = a->dtype->row->itemsize;
    char block[BLOCK_BYTES], theirs[ITEM_BYTES] = "";
    int64_t differing = 0, first = 0;
    for (int64_t at = 0; at < a->bytes; at += BLOCK_BYTES) {
        const int64_t bytes = a->bytes - at < BLOCK_BYTES ? a->bytes - at : BLOCK_BYTES;
        if (reference == f->facts.communicator->rank) memcpy(block, a->data + at, (size_t)bytes);
        int code = mpi_get()->small->bcast(block, bytes, byte, reference, f->facts.communicator->handle);
        if (code != 0) return code;
        for (int64_t i = 0; i < bytes; i += item) {
            /* A block holds whole items. NOLINTNEXTLINE(clang-analyzer-security.ArrayBound) */
            if (memcmp(block + i, a->data + at + i, (size_t)item) == 0 || differing++ > 0) continue;
            first = (at + i) / item;
            memcpy(theirs, block + i, (size_t)item);
        }
    }
    text[0] = '\0';
    if (differing > 0) replicated_difference_format(a, differing, first, theirs, reference, text);
    return 0;
}

/* Writes the difference between this rank's array and that of the rank `reference` to `text`; "" for none. Entries are
 * compared only if the arrays of all ranks have the same name, data type and shape. Collective. Returns 0 or MPI's
 * error code. */
static int replicated_leaf_compare(const frame *f, const replicated_array *a, const replicated_leaf *all, int reference,
                                   char text[TEXT_BYTES]) {
    const replicated_leaf *mine = &all[f->facts.communicator->rank];
    if (a->dtype && replicated_kinds_are_same(f->size, all)) return replicated_entries_compare(f, a, reference, text);
    const int is_named_alike = mine->name == all[reference].name;
    text[0] = '\0';
    if (!replicated_kind_is_same(mine, &all[reference]))
        (void)text_add(text, TEXT_BYTES, 0, "has %s", is_named_alike ? "it in another shape or data type" : mine->text);
    return 0;
}

/* Prints a difference on rank 0 of the communicator, if it is the first of its source line. Returns 0. */
static int replicated_difference_print(const frame *f, const char *text) {
    if (f->facts.communicator->rank != 0 || !site_mark_new(f->facts.site)) return 0;
    output_print(
        "mpixla: %s\nThis is no error while all ranks go on, as where each rank has a limit of its own. It is told "
        "once for each loop.\n",
        text);
    return 0;
}

/* Makes the report of the first array that differs, `label`; `others` more differ. Returns REFUSED with the report as
 * the error, or, for REPLICATED_PRINTED, 0 after rank 0 has printed it. */
static int replicated_report(const frame *f, const replicated_array *a, const char *label, const replicated_leaf *all,
                             int64_t others) {
    const char *line = site_text(f->facts.site), *kind = a->dtype ? a->dtype->row->kind : "";
    const int is_checked = f->attributes[ATTRIBUTE_CHECKED] != REPLICATED_ASSERTED;
    char text[ERROR_BYTES];
    int shown = 0;
    size_t used = text_add(text, sizeof text, 0,
                           "r%d | %s: %s is not the same on all ranks of communicator '%s'%s%s:", mpi_get()->world_rank,
                           is_checked ? "MPIXLA_CHECK" : "assert_replicated", label, f->facts.communicator->name,
                           *line ? ", at " : "", line);
    for (int i = 0; i < f->size; i++)
        if (all[i].text[0] && ++shown <= SHOWN)
            used = text_add(text, sizeof text, used, "\n  rank %d %s", i, all[i].text);
    if (shown > SHOWN) used = text_add(text, sizeof text, used, "\n  and %d more ranks", shown - SHOWN);
    if (others > 0)
        used = text_add(text, sizeof text, used, "\nArrays after it that are not the same either: %lld.",
                        (long long)others);
    if (!is_checked && replicated_kinds_are_same(f->size, all) &&
        (strcmp(kind, "float") == 0 || strcmp(kind, "complex") == 0))
        (void)text_add(text, sizeof text, used,
                       "\nIf this is a gradient: mpixla.pvary(parameters), in the function that is differentiated, "
                       "adds up the gradients of all ranks (docs/derivatives.md).");
    return f->attributes[ATTRIBUTE_CHECKED] == REPLICATED_PRINTED ? replicated_difference_print(f, text)
                                                                  : error_set("%s", text);
}

/* Finds the first array that differs between ranks, compares its entries, and sets the report as the error; for
 * REPLICATED_PRINTED rank 0 prints it instead. Returns REFUSED; 0 if it is printed or no single array differs; or an
 * error code; without memory it ends the job, or returns REFUSED on one rank (job_fail). Collective: all ranks call it
 * if their hashes of all arrays differ. */
static int replicated_refuse(const frame *f) {
    replicated_array first;
    replicated_leaf mine = {.name = 0}, *all = calloc((size_t)f->size, sizeof *all);
    int64_t differing;
    if (!all) {
        (void)error_set("out of memory for the report of an array that differs between ranks");
        return job_fail(f->facts.communicator);
    }
    int code = replicated_leaves_find(f, &first, &mine, &differing);
    const char *name = first.buffer ? site_text((int64_t)mine.name) : "the end of the tree";
    snprintf(mine.text, sizeof mine.text, "%s", *name ? name : "an array");
    if (code == 0) code = replicated_leaves_gather(f, &mine, all);
    if (code == 0 && differing > 0) {
        const int reference = replicated_reference_find(f->size, all);
        const replicated_leaf wanted = all[reference];
        code = replicated_leaf_compare(f, &first, all, reference, mine.text);
        if (code == 0) code = replicated_leaves_gather(f, &mine, all);
        if (code == 0) code = replicated_report(f, &first, wanted.text, all, differing - 1);
    }
    replicated_array_release(f, &first);
    free(all);
    return code;
}

int assert_replicated(const frame *f) {
    const frame_array *names = &f->arrays[ATTRIBUTE_LEAVES];
    int64_t n = 0;
    for (int64_t i = 0; replicated_operand_next(f, &i);) n++;
    if (names->size != n) {
        return error_set("assert_replicated of %lld arrays got %lld names", (long long)n, (long long)names->size);
    }
    if (pieces_operands_copy(f)) return job_fail(f->facts.communicator);
    int code = 0;
    agreed numbers;
    uint64_t number = (uint64_t)n;
    for (int64_t i = 0, k = 0; k < n && code == 0; k++) {
        replicated_array a;
        replicated_leaf one;
        code = replicated_leaf_next(f, &i, k, &a, &one);
        number = hash_combine(number, replicated_leaf_hash(&one));
        replicated_array_release(f, &a);
    }
    if (code == 0) code = agreed_find(f->facts.communicator->handle, number, &numbers);
    return code != 0 || agreed_is_same(numbers) ? code : replicated_refuse(f);
}
