/* Each rank makes one number of all its arrays, and one reduction tells whether all have the same number. Only where
 * they have not do arrays travel: then all ranks know that they differ, and find out together where.
 */
#include "ops/replicated.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "call/site.h"
#include "check/wanted.h"
#include "device/pool.h"
#include "mpi/reduction.h"

enum { BLOCK_BYTES = 1 << 16, SHAPE_BYTES = 96, VALUE_BYTES = 16 };

/* An array, as far as it must be the same; and what the other ranks are told of it. */
typedef struct leaf {
    int64_t number, dtype; /* of its name; XLA's */
    uint64_t dims, data;   /* made of them */
    int64_t items;
    char name[SITE_TEXT_BYTES], shape[SHAPE_BYTES];
} leaf;

typedef struct array {
    const char *data; /* in the host's memory */
    int64_t bytes;
    pool_block *block; /* which has them, if the array is a GPU's */
} array;

/* A rank's entries that are not those of the rank that all are compared with. */
typedef struct finding {
    int64_t differ, first; /* how many, and the first of them */
    char mine[VALUE_BYTES], theirs[VALUE_BYTES];
} finding;

/* Four numbers at once, as each step waits for the one before it. */
static uint64_t number_of(const char *data, int64_t bytes) {
    uint64_t lanes[4] = {1, 2, 3, 4}, words[4];
    int64_t at = 0;
    for (; at + (int64_t)sizeof words <= bytes; at += (int64_t)sizeof words) {
        memcpy(words, data + at, sizeof words);
        for (int i = 0; i < 4; i++) lanes[i] = wanted_mix(lanes[i], words[i]);
    }
    uint64_t n = wanted_number(data + at, (size_t)(bytes - at));
    for (int i = 0; i < 4; i++) n = wanted_mix(n, lanes[i]);
    return wanted_mix(n, (uint64_t)bytes);
}

/* Arrays */

static int out_of_memory(void) {
    (void)error_set("out of memory for a comparison of arrays between ranks");
    return MPI_REFUSED;
}

static const ffi_buffer *next(const frame *c, int64_t *i) {
    *i = frame_next(c->operands, *i);
    return *i < c->operands->size ? c->operands->buffers[(*i)++] : NULL;
}

static int64_t bytes_of(const ffi_buffer *b) {
    int64_t bytes = dtype_find(b->dtype)->row->itemsize;
    for (int64_t i = 0; i < b->rank; i++) bytes *= b->dims[i];
    return bytes;
}

static int64_t count_arrays(const frame *c) {
    int64_t n = 0;
    for (int64_t i = 0; next(c, &i);) n++;
    return n;
}

/* The results, which XLA gives their operands' memory where it can. */
static int give_back(const frame *c) {
    for (int64_t i = 0, j = 0;; j++) {
        const ffi_buffer *in = next(c, &i);
        if (!in) return 0;
        j = frame_next(c->results, j);
        const ffi_buffer *out = c->results->buffers[j];
        int64_t bytes = bytes_of(in);
        if (in->data == out->data || bytes == 0) continue;
        if (!c->device)
            memcpy(out->data, in->data, (size_t)bytes);
        else if (device_copy_within(c->device, out->data, in->data, bytes))
            return MPI_REFUSED;
    }
}

static int bring(const frame *c, array *all, int64_t n) {
    for (int64_t i = 0, k = 0; k < n; k++) {
        const ffi_buffer *b = next(c, &i);
        all[k] = (array){.data = b->data, .bytes = bytes_of(b)};
        if (!c->device || all[k].bytes == 0) continue;
        all[k].block = pool_get(c->device, POOL_PINNED, all[k].bytes);
        if (!all[k].block || device_copy_out(c->device, all[k].block->data, b->data, all[k].bytes)) return MPI_REFUSED;
        all[k].data = all[k].block->data;
    }
    return c->device && device_wait(c->device) ? MPI_REFUSED : 0;
}

static void describe_all(const frame *c, const array *arrays, leaf *leaves, int64_t n) {
    for (int64_t i = 0, k = 0; k < n; k++) {
        const ffi_buffer *b = next(c, &i);
        leaf *one = &leaves[k];
        memset(one, 0, sizeof *one); /* all bytes travel */
        one->number = c->arrays[ATTRIBUTE_LEAVES].items[k];
        one->dtype = b->dtype;
        snprintf(one->name, sizeof one->name, "%s", site_text(one->number));
        one->items = 1;
        one->dims = wanted_number(b->dims, (size_t)b->rank * sizeof *b->dims);
        one->data = number_of(arrays[k].data, arrays[k].bytes);
        size_t used = text_add(one->shape, SHAPE_BYTES, 0, "(");
        for (int64_t axis = 0; axis < b->rank; axis++) {
            one->items *= b->dims[axis];
            used = text_add(one->shape, SHAPE_BYTES, used, axis == 0 ? "%lld" : ", %lld", (long long)b->dims[axis]);
        }
        (void)text_add(one->shape, SHAPE_BYTES, used, b->rank == 1 ? ",)" : ")");
    }
}

/* Words */

static void describe_bits(const char *value, int64_t bytes, char *text, size_t size) {
    uint64_t bits = 0;
    memcpy(&bits, value, bytes < 8 ? (size_t)bytes : 8);
    snprintf(text, size, "0x%0*" PRIx64, (int)(2 * (bytes < 8 ? bytes : 8)), bits);
}

static void describe_value(const dtype_entry *dtype, const char *value, char *text, size_t size) {
    const char *kind = dtype->row->kind;
    int64_t bytes = dtype->row->itemsize, integer = 0;
    int is_complex = strcmp(kind, "complex") == 0;
    if (is_complex || (strcmp(kind, "float") == 0 && bytes >= 4)) {
        double parts[2];
        if (bytes == (is_complex ? 8 : 4)) {
            float narrow[2];
            memcpy(narrow, value, (size_t)bytes);
            parts[0] = (double)narrow[0];
            parts[1] = is_complex ? (double)narrow[1] : 0;
        } else {
            memcpy(parts, value, (size_t)bytes);
        }
        int digits = bytes == (is_complex ? 8 : 4) ? 9 : 17;
        if (is_complex)
            snprintf(text, size, "%.*g%+.*gj", digits, parts[0], digits, parts[1]);
        else
            snprintf(text, size, "%.*g", digits, parts[0]);
    } else if (strcmp(kind, "integer") == 0 && dtype->row->name[0] == 'i') {
        int8_t tiny;
        int16_t small;
        int32_t medium;
        memcpy(&integer, value, (size_t)bytes);
        memcpy(&tiny, value, 1);
        if (bytes >= 2) memcpy(&small, value, 2);
        if (bytes >= 4) memcpy(&medium, value, 4);
        integer = bytes == 1 ? tiny : bytes == 2 ? small : bytes == 4 ? medium : integer;
        snprintf(text, size, "%" PRId64, integer);
    } else if (strcmp(kind, "integer") == 0) {
        memcpy(&integer, value, (size_t)bytes); /* little-endian, as every machine that XLA has */
        snprintf(text, size, "%" PRIu64, (uint64_t)integer);
    } else if (strcmp(kind, "bool") == 0) {
        snprintf(text, size, "%s", value[0] ? "True" : "False");
    } else {
        describe_bits(value, bytes, text, size);
    }
}

static int has_derivative(const dtype_entry *dtype) {
    return strcmp(dtype->row->kind, "integer") != 0 && strcmp(dtype->row->kind, "bool") != 0;
}

/* "0.25, where rank 0 has 0.5", with the bits where the numbers look the same. */
static size_t add_values(char *text, size_t bytes, size_t used, const dtype_entry *dtype, const finding *one,
                         int reference) {
    char mine[64], theirs[64];
    describe_value(dtype, one->mine, mine, sizeof mine);
    describe_value(dtype, one->theirs, theirs, sizeof theirs);
    if (strcmp(mine, theirs) == 0) {
        describe_bits(one->mine, dtype->row->itemsize, mine, sizeof mine);
        describe_bits(one->theirs, dtype->row->itemsize, theirs, sizeof theirs);
    }
    return text_add(text, bytes, used, "%s, where rank %d has %s", mine, reference, theirs);
}

/* "[1, 2]" */
static size_t add_index(char *text, size_t bytes, size_t used, const ffi_buffer *b, int64_t entry) {
    int64_t below = 1;
    for (int64_t axis = 0; axis < b->rank; axis++) below *= b->dims[axis];
    used = text_add(text, bytes, used, "[");
    for (int64_t axis = 0; axis < b->rank; axis++) {
        below /= b->dims[axis];
        used = text_add(text, bytes, used, axis == 0 ? "%lld" : ", %lld", (long long)(entry / below));
        entry %= below;
    }
    return text_add(text, bytes, used, "]");
}

/* A leaf's name is who asks and what it is: "assert_replicated: leaf ['w']". */
static const char *behind_who_asks(const char *name) {
    const char *end = strstr(name, ": ");
    return end ? end + 2 : name;
}

static int is_asked_by_program(const frame *c) {
    static const char checked_mode[] = "MPIXLA_CHECK: ";
    return strncmp(site_text(c->arrays[ATTRIBUTE_LEAVES].items[0]), checked_mode, sizeof checked_mode - 1) != 0;
}

static size_t add_head(const frame *c, char *text, size_t bytes) {
    const char *who = is_asked_by_program(c) ? "assert_replicated" : "MPIXLA_CHECK";
    return text_add(text, bytes, 0, "r%d | %s: ", mpi_get()->world_rank, who);
}

static size_t add_place(const frame *c, char *text, size_t bytes, size_t used) {
    const char *line = site_text(c->site);
    used = text_add(text, bytes, used, " on all ranks of communicator '%s'", c->communicator->name);
    return *line ? text_add(text, bytes, used, ", at %s", line) : used;
}

static const char *name_of(const leaf *one) {
    return one->name[0] ? behind_who_asks(one->name) : "an array";
}

/* Comparing, all ranks together. Each returns MPI's error code, or MPI_REFUSED with error_set. */

static int gather(const frame *c, const void *mine, void *all, int64_t bytes) {
    mpixla_handle byte = dtype_find(FFI_U8)->handle;
    return mpi_get()->small->allgather(mine, bytes, byte, all, bytes, byte, c->communicator->handle);
}

static int are_equal(const frame *c, uint64_t number, int *equal) {
    uint64_t mine[2] = {number, ~number}, most[2] = {number, ~number};
    int code = mpi_get()->small->allreduce(mine, most, 2, dtype_find(FFI_U64)->handle, *reduction_named("MPI_MAX"),
                                           c->communicator->handle);
    *equal = most[0] == ~most[1];
    return code;
}

/* The first rank whose array most ranks have. */
static int reference_of(int size, const leaf *all, int64_t n, int64_t k) {
    int best = 0, most = 0;
    for (int i = 0; i < size; i++) {
        int same = 0;
        for (int j = 0; j < size; j++) same += all[i * n + k].data == all[j * n + k].data;
        if (same <= most) continue;
        best = i;
        most = same;
    }
    return best;
}

/* Compares this rank's array with that of the rank `reference`, which sends it to all block by block. */
static int find_entries(const frame *c, const array *a, int64_t item, int reference, finding *mine) {
    mpixla_handle byte = dtype_find(FFI_U8)->handle;
    char *block = malloc(BLOCK_BYTES);
    int code = 0, is_mine = reference == c->communicator->rank;
    memset(mine, 0, sizeof *mine);
    if (!block) return out_of_memory();
    for (int64_t at = 0; at < a->bytes && code == 0; at += BLOCK_BYTES) {
        int64_t bytes = a->bytes - at < BLOCK_BYTES ? a->bytes - at : BLOCK_BYTES;
        if (is_mine) memcpy(block, a->data + at, (size_t)bytes);
        code = mpi_get()->small->bcast(block, bytes, byte, reference, c->communicator->handle);
        for (int64_t i = 0; code == 0 && i < bytes; i += item) {
            /* A block holds whole items. NOLINTNEXTLINE(clang-analyzer-security.ArrayBound) */
            if (memcmp(block + i, a->data + at + i, (size_t)item) == 0) continue;
            if (mine->differ++ > 0) continue;
            mine->first = (at + i) / item;
            memcpy(mine->mine, a->data + at + i, (size_t)item);
            memcpy(mine->theirs, block + i, (size_t)item);
        }
    }
    free(block);
    return code;
}

/* All ranks mean the same arrays, and this is the first one that has other entries on some. */
static int tell_entries(const frame *c, const array *a, const ffi_buffer *b, int size, const leaf *all, int64_t n,
                        int64_t k) {
    enum { SHOWN = 6 };
    const dtype_entry *dtype = dtype_find(b->dtype);
    int reference = reference_of(size, all, n, k);
    finding mine, *findings = malloc((size_t)size * sizeof *findings);
    int code = findings ? find_entries(c, a, dtype->row->itemsize, reference, &mine) : out_of_memory();
    if (code == 0) code = gather(c, &mine, findings, (int64_t)sizeof mine);
    if (code == 0) {
        char text[ERROR_BYTES];
        int shown = 0;
        size_t used = add_head(c, text, sizeof text);
        used = text_add(text, sizeof text, used, "%s, of shape %s and data type %s, is not the same", name_of(&all[k]),
                        all[k].shape, dtype->row->name);
        used = add_place(c, text, sizeof text, used);
        used = text_add(text, sizeof text, used, ":");
        for (int i = 0; i < size; i++) {
            const finding *one = &findings[i];
            if (one->differ == 0 || ++shown > SHOWN) continue;
            used = text_add(text, sizeof text, used, "\n  rank %d differs from rank %d in %lld of %lld entr%s%s", i,
                            reference, (long long)one->differ, (long long)all[k].items, all[k].items == 1 ? "y" : "ies",
                            b->rank > 0 ? ", first at " : "");
            if (b->rank > 0) used = add_index(text, sizeof text, used, b, one->first);
            used = text_add(text, sizeof text, used, ": ");
            used = add_values(text, sizeof text, used, dtype, one, reference);
        }
        if (shown > SHOWN) used = text_add(text, sizeof text, used, "\n  and %d more ranks", shown - SHOWN);
        int64_t others = 0;
        for (int64_t l = k + 1; l < n; l++) {
            int differs = 0;
            for (int i = 1; i < size; i++) differs |= all[i * n + l].data != all[l].data;
            others += differs;
        }
        if (others > 0)
            used = text_add(text, sizeof text, used, "\n%lld array%s after it %s not the same either.",
                            (long long)others, others == 1 ? "" : "s", others == 1 ? "is" : "are");
        if (is_asked_by_program(c) && has_derivative(dtype))
            (void)text_add(text, sizeof text, used,
                           "\nIf this is a gradient: mpixla.pvary(parameters), in the function that is differentiated, "
                           "adds up those of all ranks (docs/derivatives.md).");
        (void)error_set("%s", text);
        code = MPI_REFUSED;
    }
    free(findings);
    return code;
}

/* Ranks have other arrays in the k-th place. */
static int tell_kinds(const frame *c, int size, const leaf *all, int64_t n, int64_t k) {
    enum { SHOWN = 6 };
    char text[ERROR_BYTES];
    int is_structure = 0, shown = 0;
    for (int i = 1; i < size; i++) is_structure |= all[i * n + k].number != all[k].number;
    size_t used = add_head(c, text, sizeof text);
    used = is_structure
               ? text_add(text, sizeof text, used, "the tree does not have the same structure")
               : text_add(text, sizeof text, used, "%s does not have the same shape and data type", name_of(&all[k]));
    used = add_place(c, text, sizeof text, used);
    used = text_add(text, sizeof text, used, ":");
    for (int i = 0; i < size; i++) {
        const leaf *one = &all[i * n + k];
        int known = 0;
        for (int j = 0; j < i; j++)
            known |= all[j * n + k].number == one->number && all[j * n + k].dtype == one->dtype &&
                     all[j * n + k].dims == one->dims;
        if (known || ++shown > SHOWN) continue;
        const dtype_entry *dtype = dtype_find((int)one->dtype);
        used = text_add(text, sizeof text, used, "\n  rank %d has", i);
        if (is_structure) used = text_add(text, sizeof text, used, " %s,", name_of(one));
        used =
            text_add(text, sizeof text, used, " shape %s and data type %s", one->shape, dtype ? dtype->row->name : "?");
    }
    (void)error_set("%s", text);
    return MPI_REFUSED;
}

static int tell_numbers(const frame *c, int size, const int64_t *numbers) {
    char text[ERROR_BYTES];
    size_t used = add_head(c, text, sizeof text);
    used = text_add(text, sizeof text, used, "the tree does not have the same structure");
    used = add_place(c, text, sizeof text, used);
    for (int i = 0; i < size && i < 16; i++)
        used = text_add(text, sizeof text, used, "%s rank %d has %lld leaves", i == 0 ? ":" : ",", i,
                        (long long)numbers[i]);
    (void)error_set("%s", text);
    return MPI_REFUSED;
}

static int tell(const frame *c, const array *arrays, const leaf *mine, int64_t n) {
    const int size = c->size;
    int64_t *numbers = malloc((size_t)size * sizeof *numbers);
    leaf *all = malloc((size_t)size * (size_t)n * sizeof *all);
    if (!numbers || !all) {
        free(numbers);
        free(all);
        return out_of_memory();
    }
    const int64_t leaves = n;
    int code = gather(c, &leaves, numbers, (int64_t)sizeof leaves);
    for (int i = 1; code == 0 && i < size; i++)
        if (numbers[i] != numbers[0]) code = tell_numbers(c, size, numbers);
    if (code == 0) code = gather(c, mine, all, n * (int64_t)sizeof *mine);
    int64_t buffer = 0;
    for (int64_t k = 0; code == 0 && k < n; k++) {
        const ffi_buffer *b = next(c, &buffer);
        int kinds = 0, entries = 0;
        for (int i = 1; i < size; i++) {
            const leaf *one = &all[i * n + k], *first = &all[k];
            kinds |= one->number != first->number || one->dtype != first->dtype || one->dims != first->dims;
            entries |= one->data != first->data;
        }
        if (kinds)
            code = tell_kinds(c, size, all, n, k);
        else if (entries)
            code = tell_entries(c, &arrays[k], b, size, all, n, k);
    }
    free(numbers);
    free(all);
    return code;
}

static int refuse_names(int64_t arrays, int64_t names) {
    (void)error_set("assert_replicated of %lld arrays got %lld names", (long long)arrays, (long long)names);
    return MPI_REFUSED;
}

int assert_replicated(const frame *c) {
    int64_t n = count_arrays(c);
    if (n == 0 || c->arrays[ATTRIBUTE_LEAVES].size != n) return refuse_names(n, c->arrays[ATTRIBUTE_LEAVES].size);
    array *arrays = calloc((size_t)n, sizeof *arrays);
    leaf *leaves = calloc((size_t)n, sizeof *leaves);
    int code = arrays && leaves ? give_back(c) : out_of_memory(), equal = 1;
    if (code == 0) code = bring(c, arrays, n);
    if (code == 0) {
        describe_all(c, arrays, leaves, n);
        uint64_t number = (uint64_t)n;
        for (int64_t k = 0; k < n; k++) {
            number = wanted_mix(number, (uint64_t)leaves[k].number);
            number = wanted_mix(number, (uint64_t)leaves[k].dtype);
            number = wanted_mix(wanted_mix(number, leaves[k].dims), leaves[k].data);
        }
        code = are_equal(c, number, &equal);
    }
    if (code == 0 && !equal) code = tell(c, arrays, leaves, n);
    for (int64_t k = 0; arrays && k < n; k++) pool_give_back(c->device, arrays[k].block);
    free(arrays);
    free(leaves);
    return code;
}
