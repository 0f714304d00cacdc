/* Handlers of exact sums (exact/exact_sum.h) along the last axis; the numbers along it are a line. "exact_add" sums
 * each line, or the products of two arrays' lines, into the words of an accumulator; "exact_round" rounds accumulators
 * to numbers. Between the two the words of all ranks are added, as integers, so in any order.
 *
 * Numbers in a GPU's memory are copied to the host, a piece at a time, and added there.
 */
#include <stddef.h>
#include <string.h>

#include "base/error.h"
#include "device/pool.h"
#include "exact/exact_sum.h"
#include "helpers/helper.h"

enum { ARRAYS = 2, PIECE_BYTES = 1 << 22 /* copied from a GPU at once, of each array */ };

/* The operands, `lines` lines of `line` numbers in each of n arrays, and the result. */
typedef struct exact_lines {
    const char *data[ARRAYS];
    char *result;
    int64_t lines, line;
    int n, dtype, words;
} exact_lines;

static int64_t exact_itemsize(int dtype) {
    return dtype == FFI_F32 ? (int64_t)sizeof(float) : (int64_t)sizeof(double);
}

/* Returns the kind of accumulator that has so many words. */
static exact_kind exact_kind_of_words(int words) {
    return words == exact_words(EXACT_PRODUCTS) ? EXACT_PRODUCTS : EXACT_NUMBERS;
}

/* Reads array i, which must have an axis. Returns 0 or REFUSED. */
static int exact_array_read(helper_array *a, const ffi_buffers *given, int64_t i) {
    if (helper_array_read(a, given, i, "of an exact sum")) return REFUSED;
    return a->buffer->rank > 0 ? 0 : error_set("array %lld of an exact sum has no axes", (long long)i);
}

/* Reads and checks the operands and the result of exact_add, and sets `*r`. Returns 0 or REFUSED. */
static int exact_add_read(exact_lines *r, const ffi_call_frame *call) {
    helper_array result, array;
    if (call->args.size < 1 || call->args.size > ARRAYS || call->rets.size != 1)
        return error_set("an exact sum takes 1 array or 2, and gives 1");
    if (exact_array_read(&result, &call->rets, 0)) return REFUSED;
    *r = (exact_lines){.n = (int)call->args.size, .result = result.buffer->data, .lines = result.lines};
    for (int i = 0; i < r->n; i++) {
        if (exact_array_read(&array, &call->args, i)) return REFUSED;
        const ffi_buffer *b = array.buffer;
        if (i == 0) r->dtype = b->dtype, r->line = array.line;
        if ((b->dtype != FFI_F32 && b->dtype != FFI_F64) || b->dtype != r->dtype || array.lines != r->lines ||
            array.line != r->line)
            return error_set("the arrays of an exact sum are float32 or float64, of one type and shape");
        r->data[i] = b->data;
    }
    r->words = exact_words(r->n == 2 && r->dtype == FFI_F64 ? EXACT_PRODUCTS : EXACT_NUMBERS);
    if (result.buffer->dtype == FFI_S64 && result.line == r->words) return 0;
    return error_set("an exact sum gives %d int64 for each line", r->words);
}

/* Adds n numbers, or n products of numbers, to an accumulator. */
static void exact_add_numbers(exact_sum *s, const exact_lines *r, const char *x, const char *y, int64_t n) {
    if (r->n == 1 && r->dtype == FFI_F32)
        exact_add_f32(s, (const float *)(const void *)x, n);
    else if (r->n == 1)
        exact_add_f64(s, (const double *)(const void *)x, n);
    else if (r->dtype == FFI_F32)
        exact_add_products_f32(s, (const float *)(const void *)x, (const float *)(const void *)y, n);
    else
        exact_add_products_f64(s, (const double *)(const void *)x, (const double *)(const void *)y, n);
}

/* Sums each line (along the last axis) of arrays in the host's memory into the words of an accumulator. */
static void exact_add_on_host(const exact_lines *r) {
    int64_t bytes = r->line * exact_itemsize(r->dtype);
    const char *x = r->data[0], *y = r->data[1]; /* NULL without items; y also with one array */
    exact_environment e;
    exact_environment_set(&e);
    for (int64_t i = 0; i < r->lines; i++) {
        exact_sum s = exact_begin(exact_kind_of_words(r->words), (int64_t *)(void *)r->result + i * r->words);
        if (x && r->line > 0) exact_add_numbers(&s, r, x, y, r->line);
        exact_end(&s);
        if (x) x += bytes;
        if (y) y += bytes;
    }
    exact_environment_restore(&e);
}

/* Copies n numbers of each array, from number `at` on, from the GPU to `pieces`, pinned memory of PIECE_BYTES for each
 * array, and waits for the stream. Returns 0 or REFUSED. */
static int exact_piece_fetch(const device *d, const exact_lines *r, int64_t at, int64_t n, char *pieces) {
    int64_t itemsize = exact_itemsize(r->dtype);
    for (int k = 0; k < ARRAYS && k < r->n; k++)
        if (device_copy_out(d, pieces + (ptrdiff_t)k * PIECE_BYTES, r->data[k] + at * itemsize, n * itemsize))
            return REFUSED;
    return device_wait(d);
}

/* Sums each line (along the last axis) of arrays in a GPU's memory into `words`, on the host, copying the arrays to
 * `pieces` piece by piece; a line may span pieces, and a piece lines. Returns 0 or REFUSED. */
static int exact_add_pieces(const device *d, const exact_lines *r, char *pieces, char *words) {
    int64_t itemsize = exact_itemsize(r->dtype), numbers = r->lines * r->line, at = 0, end = 0; /* of the piece */
    const char *x = pieces;
    for (int64_t i = 0; i < r->lines; i++) {
        exact_sum s = exact_begin(exact_kind_of_words(r->words), (int64_t *)(void *)words + i * r->words);
        for (int64_t n, left = r->line; left > 0; left -= n, at += n, x += n * itemsize) {
            if (at == end) {
                end = numbers - at < PIECE_BYTES / itemsize ? numbers : at + PIECE_BYTES / itemsize;
                x = pieces;
                if (exact_piece_fetch(d, r, at, end - at, pieces)) return REFUSED;
            }
            n = left < end - at ? left : end - at;
            exact_add_numbers(&s, r, x, x + PIECE_BYTES, n);
        }
        exact_end(&s);
    }
    return 0;
}

/* Sums each line (along the last axis) of arrays in a GPU's memory, on the host, and copies the words to the GPU.
 * Returns 0 or REFUSED. */
static int exact_add_on_device(const device *d, const exact_lines *r) {
    int64_t bytes = r->lines * r->words * (int64_t)sizeof(int64_t);
    if (bytes == 0) return 0;
    pool_block *words = pool_get(d, POOL_PINNED, bytes);
    pool_block *pieces = words ? pool_get(d, POOL_PINNED, (int64_t)ARRAYS * PIECE_BYTES) : NULL;
    int failed = !pieces;
    if (!failed) {
        exact_environment e;
        exact_environment_set(&e);
        failed = exact_add_pieces(d, r, pieces->data, words->data);
        exact_environment_restore(&e);
    }
    failed = failed || device_copy_in(d, r->result, words->data, bytes);
    pool_give_back(d, pieces);
    pool_give_back(d, words);
    return failed ? REFUSED : 0;
}

/* Sums each line of an array, or the products of two arrays, into the words of an accumulator. Returns 0 or REFUSED. */
int helper_exact_add(const ffi_call_frame *call, const device *d) {
    exact_lines r = {.n = 0};
    if (exact_add_read(&r, call)) return REFUSED;
    if (d) return exact_add_on_device(d, &r);
    exact_add_on_host(&r);
    return 0;
}

/* Rounding */

/* Sets `*number` to attribute i, a 64-bit integer of this name. Returns 0 or REFUSED. */
static int exact_attribute_read(const ffi_attributes *given, int64_t i, const char *name, int64_t *number) {
    const ffi_scalar *scalar = helper_attribute_is(given, i, name, FFI_ATTRIBUTE_SCALAR) ? given->values[i] : NULL;
    if (!scalar || scalar->dtype != FFI_S64)
        return error_set("the rounding of an exact sum takes '%s', a 64-bit integer, in place %lld", name,
                         (long long)i);
    memcpy(number, scalar->value, sizeof *number);
    return 0;
}

/* Reads and checks the operands, attributes and result of exact_round, and sets `r` and `form`. The attribute "largest"
 * has the bits of a float64. Returns 0 or REFUSED. */
static int exact_round_read(exact_lines *r, exact_form *form, const ffi_call_frame *call) {
    int64_t digits = 0, largest = 0, lowest = 0;
    helper_array words, values;
    if (exact_attribute_read(&call->attrs, 0, "digits", &digits) ||
        exact_attribute_read(&call->attrs, 1, "largest", &largest) ||
        exact_attribute_read(&call->attrs, 2, "lowest", &lowest))
        return REFUSED;
    if (digits < 1 || digits > 53 || lowest < -1074 || lowest > 0)
        return error_set("an exact sum cannot be rounded to %lld digits from 2^%lld on", (long long)digits,
                         (long long)lowest);
    *form = (exact_form){.digits = (int)digits, .lowest = (int)lowest};
    memcpy(&form->largest, &largest, sizeof largest);
    if (exact_array_read(&words, &call->args, 0) || exact_array_read(&values, &call->rets, 0)) return REFUSED;
    const ffi_buffer *from = words.buffer, *to = values.buffer;
    int has_words = words.line == exact_words(EXACT_NUMBERS) || words.line == exact_words(EXACT_PRODUCTS);
    if (from->dtype != FFI_S64 || !has_words || (to->dtype != FFI_F32 && to->dtype != FFI_F64) ||
        words.lines != values.lines || values.line != 1)
        return error_set(
            "the rounding of an exact sum takes int64 words, and gives a float32 or float64 for each line");
    *r = (exact_lines){
        .data = {from->data}, .result = to->data, .lines = words.lines, .dtype = to->dtype, .words = (int)words.line};
    return 0;
}

/* Rounds all accumulators in `from` to numbers in `to`; both are in the host's memory. */
static void exact_round_on_host(const exact_lines *r, const exact_form *form, const char *from, char *to) {
    int64_t words[EXACT_WORDS_MOST];
    size_t bytes = (size_t)r->words * sizeof *words;
    exact_environment e;
    exact_environment_set(&e);
    for (int64_t i = 0; i < r->lines; i++, from += bytes) {
        memcpy(words, from, bytes);
        double value = exact_round(exact_kind_of_words(r->words), words, form);
        float narrow = (float)value;
        if (r->dtype == FFI_F32)
            memcpy(to + i * (int64_t)sizeof narrow, &narrow, sizeof narrow);
        else
            memcpy(to + i * (int64_t)sizeof value, &value, sizeof value);
    }
    exact_environment_restore(&e);
}

/* Copies the words from the GPU, which waits for the stream, rounds them on the host, and copies the numbers to the
 * GPU. Returns 0 or REFUSED. */
static int exact_round_on_device(const device *d, const exact_lines *r, const exact_form *form) {
    int64_t bytes = r->lines * r->words * (int64_t)sizeof(int64_t), given = r->lines * exact_itemsize(r->dtype);
    if (r->lines == 0) return 0;
    pool_block *from = pool_get(d, POOL_PINNED, bytes), *to = from ? pool_get(d, POOL_PINNED, given) : NULL;
    int failed = !to || device_copy_out(d, from->data, r->data[0], bytes) || device_wait(d);
    if (!failed) {
        exact_round_on_host(r, form, from->data, to->data);
        failed = device_copy_in(d, r->result, to->data, given);
    }
    pool_give_back(d, from);
    pool_give_back(d, to);
    return failed ? REFUSED : 0;
}

/* Rounds the words of each accumulator to a number. Returns 0 or REFUSED. */
int helper_exact_round(const ffi_call_frame *call, const device *d) {
    exact_lines r = {.n = 0};
    exact_form form = {.digits = 0};
    if (exact_round_read(&r, &form, call)) return REFUSED;
    if (d) return exact_round_on_device(d, &r, &form);
    exact_round_on_host(&r, &form, r.data[0], r.result);
    return 0;
}
