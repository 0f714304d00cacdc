/* Each rank makes one number of all its arrays, and one reduction tells whether all have the same number. Only where
 * they have not do the ranks look for the first array that differs, one after another, and then compare that one: all
 * know that they differ, so all take part.
 *
 * The row is entered by all ranks, so whatever fails on this one alone ends the job (job.h).
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

enum { BLOCK_BYTES = 1 << 12, WORDS_BYTES = 448, VALUE_BYTES = 64, ITEM_BYTES = 16, SHOWN = 6 };

/* An array of this rank's, with its entries in the host's memory. */
typedef struct array {
    const ffi_buffer *buffer; /* NULL: this rank has no more */
    const dtype_entry *dtype;
    const char *data;
    int64_t bytes;
    pool_block *block; /* which has them, if the array is a GPU's */
} array;

/* What ranks tell each other of an array; of one that a rank does not have, zeros. */
typedef struct leaf {
    uint64_t name;           /* its number */
    uint64_t kind;           /* made of its data type and shape */
    uint64_t data;           /* made of its entries */
    char words[WORDS_BYTES]; /* what it is called, and then how it differs */
} leaf;

/* Four numbers at once, as each step waits for the one before it. */
static uint64_t number_of(const char *data, int64_t bytes) {
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

/* The first operand from place `*i` on that is no token, and NULL behind the last. */
static const ffi_buffer *operand_next(const frame *f, int64_t *i) {
    *i = frame_next(f->operands, *i);
    return *i < f->operands->size ? f->operands->buffers[(*i)++] : NULL;
}

static void array_release(const frame *f, const array *a) {
    if (a->block) pool_give_back(frame_array_device(f), a->block);
}

/* The next array, to be released. Returns 0, or as job_fail. */
static int array_bring(const frame *f, int64_t *i, array *a) {
    const device *gpu = frame_array_device(f);
    *a = (array){.buffer = operand_next(f, i)};
    if (!a->buffer) return 0;
    a->dtype = dtype_find(a->buffer->dtype);
    a->data = a->buffer->data;
    a->bytes = frame_bytes(a->buffer);
    if (!gpu || a->bytes == 0) return 0;
    a->block = pool_get(gpu, POOL_PINNED, a->bytes);
    if (a->block && device_copy_out(gpu, a->block->data, a->data, a->bytes) == 0 && device_wait(gpu) == 0) {
        a->data = a->block->data;
        return 0;
    }
    array_release(f, a);
    a->block = NULL;
    return job_fail(f->facts.communicator);
}

/* The next array, number k, and what there is to tell of it. Returns as array_bring. */
static int leaf_next(const frame *f, int64_t *i, int64_t k, array *a, leaf *one) {
    memset(one, 0, sizeof *one); /* all bytes travel */
    int code = array_bring(f, i, a);
    if (code != 0 || !a->buffer) return code;
    one->name = (uint64_t)f->arrays[ATTRIBUTE_LEAVES].items[k];
    one->kind = hash_combine((uint64_t)a->buffer->dtype,
                             hash_bytes(a->buffer->dims, (size_t)a->buffer->rank * sizeof *a->buffer->dims));
    one->data = number_of(a->data, a->bytes);
    return 0;
}

static uint64_t leaf_number(const leaf *one) {
    return hash_combine(hash_combine(one->name, one->kind), one->data);
}

/* Words */

/* "5", "-2.5", "0.5-1j", "True"; a float of less than 32 bits as "0x3e80". */
static void value_words(const dtype_entry *dtype, const char *value, char text[VALUE_BYTES]) {
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

/* "differs from rank 0 in 1 of 6 entries, first at [1, 2]: 0.25, where rank 0 has 0.5" */
static void difference_words(const array *a, int64_t differing, int64_t first, const char *theirs, int reference,
                             char words[WORDS_BYTES]) {
    int64_t below = a->bytes / a->dtype->row->itemsize, rest = first;
    char texts[2][VALUE_BYTES];
    value_words(a->dtype, a->data + first * a->dtype->row->itemsize, texts[0]);
    value_words(a->dtype, theirs, texts[1]);
    size_t used = text_add(words, WORDS_BYTES, 0, "differs from rank %d in %lld of %lld entries", reference,
                           (long long)differing, (long long)below);
    for (int64_t axis = 0; axis < a->buffer->rank; axis++) {
        below /= a->buffer->dims[axis];
        used = text_add(words, WORDS_BYTES, used, axis == 0 ? ", first at [%lld" : ", %lld", (long long)(rest / below));
        rest %= below;
    }
    (void)text_add(words, WORDS_BYTES, used, "%s: %s, where rank %d has %s%s", a->buffer->rank > 0 ? "]" : "", texts[0],
                   reference, texts[1], strcmp(texts[0], texts[1]) == 0 ? " of other bits" : "");
}

/* The ranks together: each returns 0 or an error code. */

static int leaves_gather(const frame *f, const leaf *mine, leaf *all) {
    const mpixla_handle byte = dtype_find(FFI_U8)->handle;
    const int64_t bytes = (int64_t)sizeof *mine;
    int code = mpi_get()->small->allgather(mine, bytes, byte, all, bytes, byte, f->facts.communicator->handle);
    for (int i = 0; i < f->size; i++) all[i].words[WORDS_BYTES - 1] = '\0';
    return code;
}

/* Looks for the arrays that are not the same on all ranks, up to the end of the rank that has the fewest: how many
 * there are, and the first, to be released. */
static int leaves_find(const frame *f, array *first, leaf *mine, int64_t *differing) {
    const mpixla_handle comm = f->facts.communicator->handle;
    const uint64_t n = (uint64_t)f->arrays[ATTRIBUTE_LEAVES].size;
    agreed leaves, numbers;
    int code = agreed_find(comm, n, &leaves);
    const uint64_t fewest = leaves.least < n ? leaves.least : n;
    *first = (array){.buffer = NULL};
    *differing = 0;
    for (int64_t i = 0, k = 0; code == 0 && (uint64_t)k <= fewest; k++) {
        array a;
        leaf one;
        if (leaf_next(f, &i, k, &a, &one)) return REFUSED;
        code = agreed_find(comm, leaf_number(&one), &numbers);
        if (code == 0 && !agreed_is_same(numbers) && (*differing)++ == 0) {
            *first = a;
            *mine = one;
        } else {
            array_release(f, &a);
        }
    }
    return code;
}

static int are_of_one_kind(const leaf *a, const leaf *b) {
    return a->name == b->name && a->kind == b->kind;
}

static int are_all_of_one_kind(int size, const leaf *all) {
    int one_kind = 1;
    for (int i = 1; i < size; i++) one_kind = one_kind && are_of_one_kind(&all[i], &all[0]);
    return one_kind;
}

/* The first rank that has what most ranks have. */
static int reference_of(int size, const leaf *all) {
    int best = 0, most = 0;
    for (int i = 0; i < size; i++) {
        int same = 0;
        for (int j = 0; j < size; j++) same += leaf_number(&all[i]) == leaf_number(&all[j]);
        if (same <= most) continue;
        best = i;
        most = same;
    }
    return best;
}

/* Of arrays of one kind: the rank `reference` sends its own to all, block by block. */
static int entries_compare(const frame *f, const array *a, int reference, char words[WORDS_BYTES]) {
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
    words[0] = '\0';
    if (differing > 0) difference_words(a, differing, first, theirs, reference, words);
    return 0;
}

/* What this rank has in place of what the rank `reference` has, into `words`; "" for the same. Only arrays of one kind
 * are compared entry by entry. */
static int leaf_compare(const frame *f, const array *a, const leaf *all, int reference, char words[WORDS_BYTES]) {
    const leaf *mine = &all[f->facts.communicator->rank];
    if (a->dtype && are_all_of_one_kind(f->size, all)) return entries_compare(f, a, reference, words);
    const int is_named_alike = mine->name == all[reference].name;
    words[0] = '\0';
    if (!are_of_one_kind(mine, &all[reference]))
        (void)text_add(words, WORDS_BYTES, 0, "has %s",
                       is_named_alike ? "it in another shape or data type" : mine->words);
    return 0;
}

/* Writes that arrays differ, on the communicator's first rank, once for each line. Returns 0. */
static int difference_tell(const frame *f, const char *text) {
    if (f->facts.communicator->rank != 0 || !site_is_new(f->facts.site)) return 0;
    output_print(
        "mpixla: %s\nThis is no error while all ranks go on, as where each rank has a limit of its own. It is told "
        "once for each loop.\n",
        text);
    return 0;
}

/* Returns REFUSED, or 0 where a difference is only told. */
static int report(const frame *f, const array *a, const char *what, const leaf *all, int64_t others) {
    const char *line = site_text(f->facts.site), *kind = a->dtype ? a->dtype->row->kind : "";
    const int is_checked = f->attributes[ATTRIBUTE_CHECKED] != REPLICATED_ASSERTED;
    char text[ERROR_BYTES];
    int shown = 0;
    size_t used = text_add(text, sizeof text, 0,
                           "r%d | %s: %s is not the same on all ranks of communicator '%s'%s%s:", mpi_get()->world_rank,
                           is_checked ? "MPIXLA_CHECK" : "assert_replicated", what, f->facts.communicator->name,
                           *line ? ", at " : "", line);
    for (int i = 0; i < f->size; i++)
        if (all[i].words[0] && ++shown <= SHOWN)
            used = text_add(text, sizeof text, used, "\n  rank %d %s", i, all[i].words);
    if (shown > SHOWN) used = text_add(text, sizeof text, used, "\n  and %d more ranks", shown - SHOWN);
    if (others > 0)
        used = text_add(text, sizeof text, used, "\nArrays after it that are not the same either: %lld.",
                        (long long)others);
    if (!is_checked && are_all_of_one_kind(f->size, all) &&
        (strcmp(kind, "float") == 0 || strcmp(kind, "complex") == 0))
        (void)text_add(text, sizeof text, used,
                       "\nIf this is a gradient: mpixla.pvary(parameters), in the function that is differentiated, "
                       "adds up those of all ranks (docs/derivatives.md).");
    return f->attributes[ATTRIBUTE_CHECKED] == REPLICATED_TOLD ? difference_tell(f, text) : error_set("%s", text);
}

/* All ranks know that some array differs. */
static int refuse(const frame *f) {
    array first;
    leaf mine = {.name = 0}, *all = calloc((size_t)f->size, sizeof *all);
    int64_t differing;
    if (!all) {
        (void)error_set("out of memory for what ranks say of an array that they compare");
        return job_fail(f->facts.communicator);
    }
    int code = leaves_find(f, &first, &mine, &differing);
    const char *name = first.buffer ? site_text((int64_t)mine.name) : "the end of the tree";
    snprintf(mine.words, sizeof mine.words, "%s", *name ? name : "an array");
    if (code == 0) code = leaves_gather(f, &mine, all);
    if (code == 0 && differing > 0) {
        const int reference = reference_of(f->size, all);
        const leaf wanted = all[reference];
        code = leaf_compare(f, &first, all, reference, mine.words);
        if (code == 0) code = leaves_gather(f, &mine, all);
        if (code == 0) code = report(f, &first, wanted.words, all, differing - 1);
    }
    array_release(f, &first);
    free(all);
    return code;
}

int assert_replicated(const frame *f) {
    const frame_array *names = &f->arrays[ATTRIBUTE_LEAVES];
    int64_t n = 0;
    for (int64_t i = 0; operand_next(f, &i);) n++;
    if (names->size != n) {
        return error_set("assert_replicated of %lld arrays got %lld names", (long long)n, (long long)names->size);
    }
    if (pieces_results_fill(f)) return job_fail(f->facts.communicator);
    int code = 0;
    agreed numbers;
    uint64_t number = (uint64_t)n;
    for (int64_t i = 0, k = 0; k < n && code == 0; k++) {
        array a;
        leaf one;
        code = leaf_next(f, &i, k, &a, &one);
        number = hash_combine(number, leaf_number(&one));
        array_release(f, &a);
    }
    if (code == 0) code = agreed_find(f->facts.communicator->handle, number, &numbers);
    return code != 0 || agreed_is_same(numbers) ? code : refuse(f);
}
