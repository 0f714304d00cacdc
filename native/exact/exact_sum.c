#include "exact/exact_sum.h"

#include <fenv.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

/* The lower 32 bits of a word are its digit, the upper ones collect carries, which are propagated after at most `room`
 * additions. */
enum { WORD_BITS = 32 };
__extension__ typedef unsigned __int128 exact_wide;
static const int64_t room = (int64_t)1 << 29;

/* The exponent of the lowest bit of a double; and the number of words for sums of 2^64 doubles, or products of doubles.
 */
enum { LOWEST_OF_NUMBERS = -1074, NUMBER_WORDS = 68, PRODUCT_WORDS = 136, FLAG_WORDS = 2 };

/* Counters of FLAG_BITS bits each in one word: how many ranks added a NaN, ...; the sum over ranks is the sum of the
 * words. */
enum { HAS_NAN, HAS_INFINITY, HAS_NEGATIVE_INFINITY };
enum { FLAG_BITS = 21 };

int exact_words(exact_kind kind) {
    return (kind == EXACT_PRODUCTS ? PRODUCT_WORDS : NUMBER_WORDS) + FLAG_WORDS;
}

/* Returns the word of the counters of NaNs and infinities. */
static int64_t *exact_specials(const exact_sum *s) {
    return s->words + s->n;
}

/* Returns the word of two counters: in the lower half the ranks that have added -0.0 alone, in the upper half those
 * that have added another number. */
static int64_t *exact_zeros(const exact_sum *s) {
    return s->words + s->n + 1;
}

/* Sets a counter of this rank to 1. */
static void exact_flag_set(int64_t *word, int flag) {
    if (!((*word >> (flag * FLAG_BITS)) & 1)) *word += (int64_t)1 << (flag * FLAG_BITS);
}

/* Returns the bits of a double. */
static uint64_t exact_bits_of(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Returns the double of these bits. */
static double exact_double_of(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

enum { FRACTION = 52, BIAS = 1023, SPECIAL = 2047 };
static const uint64_t SIGN = (uint64_t)1 << 63;

static int exact_is_negative_zero(double x) {
    return exact_bits_of(x) == SIGN;
}

/* Converts a word with wraparound: words that are no accumulator give a meaningless value, but no undefined behaviour.
 */
static int64_t exact_wrap(uint64_t word) {
    return (int64_t)word;
}

/* Propagates the carries of an accumulator: all words but the last become 0 to 2^32 - 1, and s->room, the number of
 * additions until the next time, is set again. */
static void exact_carry(exact_sum *s) {
    for (int i = 0; i + 1 < s->n; i++) {
        int64_t high = s->words[i] >> WORD_BITS;
        s->words[i + 1] = exact_wrap((uint64_t)s->words[i + 1] + (uint64_t)high);
        s->words[i] = (int64_t)(uint32_t)s->words[i];
    }
    s->room = room;
}

/* Adds +-mantissa * 2^exponent to the accumulator, and propagates its carries once s->room is used up. */
static void exact_bits_add(exact_sum *s, uint64_t mantissa, int exponent, int is_negative) {
    int place = exponent - s->lowest, i = place / WORD_BITS;
    exact_wide value = (exact_wide)mantissa << (place % WORD_BITS);
    for (int k = 0; k < 3; k++, value >>= WORD_BITS) {
        int64_t part = (int64_t)(uint32_t)value;
        s->words[i + k] += is_negative ? -part : part;
    }
    if (--s->room <= 0) exact_carry(s);
}

/* A double as +-mantissa * 2^exponent; is_special: it is a NaN or an infinity. */
typedef struct exact_parts {
    uint64_t mantissa;
    int exponent, is_negative, is_special;
} exact_parts;

/* Returns the mantissa, exponent and sign of a double. */
static exact_parts exact_parts_of(double x) {
    uint64_t bits = exact_bits_of(x), fraction = bits & (((uint64_t)1 << FRACTION) - 1);
    int exponent = (int)(bits >> FRACTION & SPECIAL);
    return (exact_parts){.mantissa = fraction | (exponent ? (uint64_t)1 << FRACTION : 0),
                         .exponent = (exponent ? exponent : 1) - BIAS - FRACTION,
                         .is_negative = (int)(bits >> 63),
                         .is_special = exponent == SPECIAL};
}

/* Counts a NaN or an infinity as one that this rank has added. */
static void exact_special_add(const exact_sum *s, double x) {
    exact_flag_set(exact_specials(s), isnan(x) ? HAS_NAN : x > 0 ? HAS_INFINITY : HAS_NEGATIVE_INFINITY);
}

/* Adds one number to the accumulator. */
static void exact_number_add(exact_sum *s, double x) {
    const exact_parts p = exact_parts_of(x);
    if (p.is_special)
        exact_special_add(s, x);
    else if (p.mantissa)
        exact_bits_add(s, p.mantissa, p.exponent, p.is_negative);
}

/* Adds the exact product of two numbers to the accumulator. */
static void exact_product_add(exact_sum *s, double x, double y) {
    const exact_parts p = exact_parts_of(x), q = exact_parts_of(y);
    int is_negative = p.is_negative ^ q.is_negative;
    exact_wide value = (exact_wide)p.mantissa * q.mantissa;
    if (p.is_special || q.is_special) {
        exact_special_add(s, x * y);
    } else if (value) {
        exact_bits_add(s, (uint64_t)value, p.exponent + q.exponent, is_negative);
        exact_bits_add(s, (uint64_t)(value >> 64), p.exponent + q.exponent + 64, is_negative);
    }
}

/* Blocks
 *
 * Each number of a block is cut into slices of SLICE binary digits, from one above the exponent of the greatest number
 * down. A slice is a multiple of one power of two for all numbers, so the sum of BLOCK slices is exact in double
 * precision. The rest behind a slice is cut again. The rests behind the last slice add up exactly: one slice suffices
 * if the least number is at most REACH exponents below the greatest; each further SLICE exponents need one more. */
enum { BLOCK = 1024, SLICE = 43, FIRST = 41, REACH = 33, GREATEST = 1000 };
enum { MOST_CUTS = 2 + 2100 / SLICE, MOST_LANES = 32 };
/* Returns c with (x + c) - c == x rounded to a multiple of 2^unit. */
static inline double exact_cutter(int unit) {
    return exact_double_of((uint64_t)(unit + FRACTION + BIAS) << FRACTION | (uint64_t)1 << (FRACTION - 1));
}

/* Returns the exponent of the unit of a slice. */
static inline int exact_slice_unit(int greatest, int slice) {
    int unit = greatest - FIRST - slice * SLICE;
    return unit < LOWEST_OF_NUMBERS ? LOWEST_OF_NUMBERS : unit;
}

/* The biased exponents of the greatest number and of the least one that is not 0; both 0 if all are 0. */
typedef struct exact_span {
    int greatest, least;
} exact_span;

/* The functions of exact_blocks.inc, compiled for one instruction set. */
typedef struct exact_code {
    exact_span (*measure)(const double *x, int n);
    void (*cut)(const double *x, int n, int cuts, const double *at, double *sums);
    double (*add_f32)(const float *x, int n);
    int (*multiply)(const double *x, const double *y, double *products, double *errors);
} exact_code;

#define CODE(processor) \
    {exact_measure_##processor, exact_cut_##processor, exact_add_f32_##processor, exact_multiply_##processor}

/* Lengths are multiples of MOST_LANES; arrays are aligned for their items. */
#define FOR
#define LANES 2
#define NAMED(name) exact_##name##_plain
#include "exact/exact_blocks.inc"
#ifdef __x86_64__
#define FOR __attribute__((target("avx2,fma")))
#define LANES 4
#define NAMED(name) exact_##name##_avx2
#include "exact/exact_blocks.inc"
#define FOR __attribute__((target("avx512f,avx512dq,avx512vl,fma")))
#define LANES 8
#define NAMED(name) exact_##name##_avx512
#include "exact/exact_blocks.inc"
#endif

static const exact_code exact_codes[] = {
#ifdef __x86_64__
    CODE(avx512),
    CODE(avx2),
#endif
    CODE(plain),
};
enum { CODES = sizeof exact_codes / sizeof *exact_codes };

/* Returns whether the processor has the instructions of a variant. */
static int exact_code_is_supported(int code) {
#ifdef __x86_64__
    if (code == 0)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl");
    if (code == 1) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    return code < CODES;
}

static const exact_code *_Atomic chosen_code; /* by exact_code_choose; NULL: the first that the processor has */

/* Returns the variant to use: the selected one, or the best that the processor has. */
static const exact_code *exact_code_get(void) {
    const exact_code *one = atomic_load_explicit(&chosen_code, memory_order_relaxed);
    if (one) return one;
    int code = 0;
    while (!exact_code_is_supported(code)) code++;
    return &exact_codes[code];
}

int exact_code_choose(int code) {
    if (code >= CODES || !exact_code_is_supported(code)) return -1;
    atomic_store(&chosen_code, code < 0 ? NULL : &exact_codes[code]);
    return 0;
}

/* Adds a block of n numbers exactly to the accumulator, by slices whose sums are not rounded. `n` is at most BLOCK, and
 * a multiple of MOST_LANES. */
static void exact_block_add(exact_sum *s, const double *x, int n) {
    const exact_code *code = exact_code_get();
    double at[MOST_CUTS], sums[MOST_CUTS + 1];
    exact_span of = code->measure(x, n);
    if (of.greatest == 0 && of.least == 0) return;
    int greatest = of.greatest - BIAS, apart = of.greatest - of.least, cuts = 1;
    if (greatest > GREATEST) {
        for (int i = 0; i < n; i++) exact_number_add(s, x[i]);
        return;
    }
    if (apart > REACH) cuts += (apart - REACH + SLICE - 1) / SLICE;
    for (int i = 0; i < cuts; i++) at[i] = exact_cutter(exact_slice_unit(greatest, i));
    code->cut(x, n, cuts, at, sums);
    for (int i = 0; i <= cuts; i++) exact_number_add(s, sums[i]);
}

/* Adding */

_Static_assert(sizeof(fenv_t) <= sizeof(exact_environment), "there is room for it");

void exact_environment_set(exact_environment *e) {
    fenv_t environment;
    (void)fegetenv(&environment);
    memcpy(e, &environment, sizeof environment);
    (void)fesetenv(FE_DFL_ENV); /* nothing has been rounded in it */
}

void exact_environment_restore(const exact_environment *e) {
    fenv_t environment;
    memcpy(&environment, e, sizeof environment);
    (void)fesetenv(&environment);
}

/* Returns the accumulator of this kind whose words are `words`. */
static exact_sum exact_sum_of(exact_kind kind, int64_t *words) {
    return (exact_sum){.words = words,
                       .n = exact_words(kind) - FLAG_WORDS,
                       .lowest = LOWEST_OF_NUMBERS * (kind == EXACT_PRODUCTS ? 2 : 1),
                       .room = room};
}

/* Returns whether the processor sets FE_INEXACT when it rounds; under valgrind, for one, it does not. */
static int exact_inexact_works(void) {
    enum { UNKNOWN, YES, NO };
    static _Atomic int known;
    int says = atomic_load_explicit(&known, memory_order_relaxed);
    if (says == UNKNOWN) {
        volatile double third = 1;
        third /= 3;
        (void)third; /* Clang does not count that as use */
        says = fetestexcept(FE_INEXACT) ? YES : NO;
        (void)feclearexcept(FE_INEXACT);
        atomic_store_explicit(&known, says, memory_order_relaxed);
    }
    return says == YES;
}

exact_sum exact_begin(exact_kind kind, int64_t *words) {
    memset(words, 0, (size_t)exact_words(kind) * sizeof *words);
    exact_sum s = exact_sum_of(kind, words);
    s.says_rounded = exact_inexact_works();
    return s;
}

void exact_end(exact_sum *s) {
    exact_carry(s);
}

/* Counts one number as -0.0 (`is_one`), or as another number. Call it while exact_zeros_are_open: mostly for the first
 * number only. */
static void exact_zeros_note(const exact_sum *s, int is_one) {
    *exact_zeros(s) = is_one ? 1 : (int64_t)1 << WORD_BITS;
}
/* Returns whether nothing but -0.0 has been added. */
static int exact_zeros_are_open(const exact_sum *s) {
    return !(*exact_zeros(s) >> WORD_BITS);
}

/* Rounds a number of items up to whole vectors; the caller fills the rest with zeros. */
static int exact_whole_vectors(int64_t n) {
    return (int)((n + MOST_LANES - 1) / MOST_LANES * MOST_LANES);
}

/* Adds n numbers, block by block, the last one filled with zeros. */
void exact_add_f64(exact_sum *s, const double *x, int64_t n) {
    double last[BLOCK];
    for (int64_t i = 0; i < n && exact_zeros_are_open(s); i++) exact_zeros_note(s, exact_is_negative_zero(x[i]));
    for (; n >= BLOCK; n -= BLOCK, x += BLOCK) exact_block_add(s, x, BLOCK);
    if (n <= 0) return;
    memcpy(last, x, (size_t)n * sizeof *x);
    for (int i = (int)n; i < exact_whole_vectors(n); i++) last[i] = 0;
    exact_block_add(s, last, exact_whole_vectors(n));
}

/* Adds n floats, as exact_block_add. Mostly their sum in double precision is exact, as FE_INEXACT tells, which is
 * cleared after a sum that is not. */
static void exact_block_add_f32(exact_sum *s, const float *x, int n) {
    double doubles[BLOCK], sum = exact_code_get()->add_f32(x, n);
    if (s->says_rounded && !fetestexcept(FE_INEXACT)) {
        exact_number_add(s, sum);
        return;
    }
    for (int i = 0; i < n; i++) doubles[i] = (double)x[i];
    exact_block_add(s, doubles, n); /* cppcheck-suppress uninitvar ; of n numbers */
    (void)feclearexcept(FE_INEXACT);
}

/* Adds n floats, block by block, the last one filled with zeros. */
void exact_add_f32(exact_sum *s, const float *x, int64_t n) {
    float last[BLOCK];
    for (int64_t i = 0; i < n && exact_zeros_are_open(s); i++)
        exact_zeros_note(s, exact_is_negative_zero((double)x[i]));
    for (; n >= BLOCK; n -= BLOCK, x += BLOCK) exact_block_add_f32(s, x, BLOCK);
    if (n <= 0) return;
    memcpy(last, x, (size_t)n * sizeof *x);
    for (int i = (int)n; i < exact_whole_vectors(n); i++) last[i] = 0;
    exact_block_add_f32(s, last, exact_whole_vectors(n));
}

/* Returns whether the product is -0.0 exactly. One that underflows is not. */
static int exact_product_is_negative_zero(double x, double y) {
    return (x == 0 || y == 0) && exact_is_negative_zero(x * y);
}

/* Adds n products: of each block the rounded products and their errors, where both are exact; else number by number. */
void exact_add_products_f64(exact_sum *s, const double *x, const double *y, int64_t n) {
    double products[BLOCK], errors[BLOCK];
    for (int64_t i = 0; i < n && exact_zeros_are_open(s); i++)
        exact_zeros_note(s, exact_product_is_negative_zero(x[i], y[i]));
    for (; n >= BLOCK; n -= BLOCK, x += BLOCK, y += BLOCK) {
        if (exact_code_get()->multiply(x, y, products, errors)) {
            exact_block_add(s, products, BLOCK);
            exact_block_add(s, errors, BLOCK);
        } else {
            for (int i = 0; i < BLOCK; i++) exact_product_add(s, x[i], y[i]);
        }
    }
    for (int64_t i = 0; i < n; i++) exact_product_add(s, x[i], y[i]);
}

/* Adds n products of two floats each, which are exact in double precision. */
void exact_add_products_f32(exact_sum *s, const float *x, const float *y, int64_t n) {
    double products[BLOCK];
    for (int64_t i = 0; i < n && exact_zeros_are_open(s); i++)
        exact_zeros_note(s, exact_product_is_negative_zero((double)x[i], (double)y[i]));
    for (; n > 0; n -= BLOCK, x += BLOCK, y += BLOCK) {
        int here = n < BLOCK ? (int)n : BLOCK, all = exact_whole_vectors(here);
        for (int i = 0; i < here; i++) products[i] = (double)x[i] * (double)y[i];
        for (int i = here; i < all; i++) products[i] = 0;
        exact_block_add(s, products, all);
    }
}

/* Rounding */

/* The highest three words of a value, in units of 2^exponent; is_more: a lower word is not 0. */
typedef struct exact_window {
    exact_wide value;
    int exponent, is_more;
} exact_window;

/* Returns the highest three words, the window, of a non-negative accumulator without carries. */
static exact_window exact_window_of(const exact_sum *s) {
    int top = s->n - 1;
    while (top > 0 && s->words[top] == 0) top--;
    int low = top < 2 ? 0 : top - 2;
    exact_window w = {.exponent = low * WORD_BITS + s->lowest};
    for (int i = top; i >= low; i--) w.value = w.value << WORD_BITS | (uint32_t)s->words[i];
    for (int i = 0; i < low; i++) w.is_more |= s->words[i] != 0;
    return w;
}

/* Returns the number of binary digits. */
static int exact_bit_length(exact_wide value) {
    int bits = 0;
    for (; value; value >>= 1) bits++;
    return bits;
}

/* Rounds a window to at most form->digits binary digits, none below 2^form->lowest. Returns the value in units of
 * 2^*exponent. */
static uint64_t exact_window_round(exact_window w, int *exponent, const exact_form *form) {
    int drop = exact_bit_length(w.value) - form->digits;
    if (w.exponent + drop < form->lowest) drop = form->lowest - w.exponent;
    *exponent = w.exponent;
    if (drop <= 0) return (uint64_t)w.value;
    *exponent += drop;
    if (drop > 127) return 0;
    exact_wide half = (exact_wide)1 << (drop - 1), rest = w.value & ((half << 1) - 1);
    uint64_t kept = (uint64_t)(w.value >> drop);
    int is_up = rest > half || (rest == half && (w.is_more || (kept & 1)));
    return kept + (uint64_t)is_up;
}

double exact_round(exact_kind kind, int64_t *words, const exact_form *form) {
    exact_sum s = exact_sum_of(kind, words);
    int64_t special = *exact_specials(&s), flag = ((int64_t)1 << FLAG_BITS) - 1;
    int has_infinity = (special >> (HAS_INFINITY * FLAG_BITS) & flag) != 0;
    int has_negative = (special >> (HAS_NEGATIVE_INFINITY * FLAG_BITS) & flag) != 0;
    if ((special & flag) || (has_infinity && has_negative)) return NAN;
    if (has_infinity || has_negative) return has_infinity ? INFINITY : -INFINITY;
    exact_carry(&s);
    int is_negative = words[s.n - 1] < 0, exponent = 0;
    for (int i = 0; is_negative && i < s.n; i++) words[i] = exact_wrap(-(uint64_t)words[i]);
    if (is_negative) exact_carry(&s);
    exact_window w = exact_window_of(&s);
    if (w.value == 0) return *exact_zeros(&s) > 0 && exact_zeros_are_open(&s) ? -0.0 : 0.0;
    uint64_t digits = exact_window_round(w, &exponent, form);
    double result = ldexp((double)digits, exponent);
    if (result > form->largest) result = INFINITY;
    return is_negative ? -result : result;
}
