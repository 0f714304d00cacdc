#include "exact/exact_sum.h"

#include <fenv.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

/* 32 bits of a word are its own, the others are for carries: they go on after this many additions at the latest. */
enum { WORD_BITS = 32 };
__extension__ typedef unsigned __int128 wide;
static const int64_t room = (int64_t)1 << 29;

/* Of doubles, and of their products, the lowest bit that there is; and words up to the highest, with 2^64 of them. */
enum { LOWEST_OF_NUMBERS = -1074, NUMBER_WORDS = 68, PRODUCT_WORDS = 136, FLAG_WORDS = 2 };

/* What of several ranks adds up as well: how many had the one or the other. */
enum { HAS_NAN, HAS_INFINITY, HAS_NEGATIVE_INFINITY };
enum { FLAG_BITS = 21 };

int exact_words(exact_kind kind) {
    return (kind == EXACT_PRODUCTS ? PRODUCT_WORDS : NUMBER_WORDS) + FLAG_WORDS;
}

static int64_t *specials_of(const exact_sum *s) {
    return s->words + s->n;
}

/* In one half how many ranks have added -0.0, in the other how many have added anything else. */
static int64_t *zeros_of(const exact_sum *s) {
    return s->words + s->n + 1;
}

static void flag_set(int64_t *word, int flag) {
    if (!((*word >> (flag * FLAG_BITS)) & 1)) *word += (int64_t)1 << (flag * FLAG_BITS);
}

static uint64_t bits_of(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static double double_of(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

enum { FRACTION = 52, BIAS = 1023, SPECIAL = 2047 };
static const uint64_t SIGN = (uint64_t)1 << 63;

static int is_negative_zero(double x) {
    return bits_of(x) == SIGN;
}

/* Words may be anybody's: of those that no numbers have made, no sum comes, but no harm either. */
static int64_t wrapped(uint64_t word) {
    return (int64_t)word;
}

/* All words but the last become 0 to 2^32 - 1. */
static void carry(exact_sum *s) {
    for (int i = 0; i + 1 < s->n; i++) {
        int64_t high = s->words[i] >> WORD_BITS;
        s->words[i + 1] = wrapped((uint64_t)s->words[i + 1] + (uint64_t)high);
        s->words[i] = (int64_t)(uint32_t)s->words[i];
    }
    s->room = room;
}

/* Adds mantissa * 2^exponent. */
static void bits_add(exact_sum *s, uint64_t mantissa, int exponent, int is_negative) {
    int place = exponent - s->lowest, i = place / WORD_BITS;
    wide value = (wide)mantissa << (place % WORD_BITS);
    for (int k = 0; k < 3; k++, value >>= WORD_BITS) {
        int64_t part = (int64_t)(uint32_t)value;
        s->words[i + k] += is_negative ? -part : part;
    }
    if (--s->room <= 0) carry(s);
}

typedef struct parts {
    uint64_t mantissa;
    int exponent, is_negative, is_special;
} parts;

static parts parts_of(double x) {
    uint64_t bits = bits_of(x), fraction = bits & (((uint64_t)1 << FRACTION) - 1);
    int exponent = (int)(bits >> FRACTION & SPECIAL);
    return (parts){.mantissa = fraction | (exponent ? (uint64_t)1 << FRACTION : 0),
                   .exponent = (exponent ? exponent : 1) - BIAS - FRACTION,
                   .is_negative = (int)(bits >> 63),
                   .is_special = exponent == SPECIAL};
}

static void special_add(const exact_sum *s, double x) {
    flag_set(specials_of(s), isnan(x) ? HAS_NAN : x > 0 ? HAS_INFINITY : HAS_NEGATIVE_INFINITY);
}

static void number_add(exact_sum *s, double x) {
    const parts p = parts_of(x);
    if (p.is_special)
        special_add(s, x);
    else if (p.mantissa)
        bits_add(s, p.mantissa, p.exponent, p.is_negative);
}

static void product_add(exact_sum *s, double x, double y) {
    const parts p = parts_of(x), q = parts_of(y);
    int is_negative = p.is_negative ^ q.is_negative;
    wide value = (wide)p.mantissa * q.mantissa;
    if (p.is_special || q.is_special) {
        special_add(s, x * y);
    } else if (value) {
        bits_add(s, (uint64_t)value, p.exponent + q.exponent, is_negative);
        bits_add(s, (uint64_t)(value >> 64), p.exponent + q.exponent + 64, is_negative);
    }
}

/* Blocks
 *
 * The numbers of a block are cut into slices, each of numbers that are multiples of one power of two, and so large that
 * the sum of BLOCK of them is exact in double precision: 43 binary digits a slice, from one above the greatest number's
 * exponent on. What a slice leaves of each number goes into the next one. What the last one leaves adds up exactly as
 * it is: where the least is not 33 exponents below the greatest, behind one slice, and so on. */
enum { BLOCK = 1024, SLICE = 43, FIRST = 41, REACH = 33, GREATEST = 1000 };
enum { MOST_CUTS = 2 + 2100 / SLICE, MOST_LANES = 32 };
/* Added to a number and taken away again, leaves a multiple of 2^unit of it. */
static inline double cutter(int unit) {
    return double_of((uint64_t)(unit + FRACTION + BIAS) << FRACTION | (uint64_t)1 << (FRACTION - 1));
}

static inline int unit_of(int greatest, int slice) {
    int unit = greatest - FIRST - slice * SLICE;
    return unit < LOWEST_OF_NUMBERS ? LOWEST_OF_NUMBERS : unit;
}

/* The exponents of the greatest number and of the least one but 0, as doubles have them; 0 of none. */
typedef struct span {
    int greatest, least;
} span;

/* One of them for each kind of processor. */
typedef struct exact_code {
    span (*measure)(const double *x, int n);
    void (*cut)(const double *x, int n, int cuts, const double *at, double *sums);
    double (*add_f32)(const float *x, int n);
    int (*multiply)(const double *x, const double *y, double *products, double *errors);
} exact_code;

#define CODE(processor) {measure_##processor, cut_##processor, add_f32_##processor, multiply_##processor}

/* Numbers are a multiple of MOST_LANES, and arrays are aligned for one. */
#define FOR
#define LANES 2
#define NAMED(name) name##_plain
#include "exact/exact_blocks.inc"
#ifdef __x86_64__
#define FOR __attribute__((target("avx2,fma")))
#define LANES 4
#define NAMED(name) name##_avx2
#include "exact/exact_blocks.inc"
#define FOR __attribute__((target("avx512f,avx512dq,avx512vl,fma")))
#define LANES 8
#define NAMED(name) name##_avx512
#include "exact/exact_blocks.inc"
#endif

static const exact_code codes[] = {
#ifdef __x86_64__
    CODE(avx512),
    CODE(avx2),
#endif
    CODE(plain),
};
enum { CODES = sizeof codes / sizeof *codes };

static int is_there(int code) {
#ifdef __x86_64__
    if (code == 0)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl");
    if (code == 1) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    return code < CODES;
}

static const exact_code *_Atomic chosen; /* by exact_code_choose; else the first that is there */

static const exact_code *code_get(void) {
    const exact_code *one = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (one) return one;
    int code = 0;
    while (!is_there(code)) code++;
    return &codes[code];
}

int exact_code_choose(int code) {
    if (code >= CODES || !is_there(code)) return -1;
    atomic_store(&chosen, code < 0 ? NULL : &codes[code]);
    return 0;
}

/* Of up to BLOCK numbers, a multiple of MOST_LANES. */
static void block_add(exact_sum *s, const double *x, int n) {
    const exact_code *code = code_get();
    double at[MOST_CUTS], sums[MOST_CUTS + 1];
    span of = code->measure(x, n);
    if (of.greatest == 0 && of.least == 0) return;
    int greatest = of.greatest - BIAS, apart = of.greatest - of.least, cuts = 1;
    if (greatest > GREATEST) {
        for (int i = 0; i < n; i++) number_add(s, x[i]);
        return;
    }
    if (apart > REACH) cuts += (apart - REACH + SLICE - 1) / SLICE;
    for (int i = 0; i < cuts; i++) at[i] = cutter(unit_of(greatest, i));
    code->cut(x, n, cuts, at, sums);
    for (int i = 0; i <= cuts; i++) number_add(s, sums[i]);
}

/* Adding */

_Static_assert(sizeof(fenv_t) <= sizeof(exact_environment), "there is room for it");

void exact_enter(exact_environment *e) {
    fenv_t environment;
    (void)fegetenv(&environment);
    memcpy(e, &environment, sizeof environment);
    (void)fesetenv(FE_DFL_ENV); /* nothing has been rounded in it */
}

void exact_leave(const exact_environment *e) {
    fenv_t environment;
    memcpy(&environment, e, sizeof environment);
    (void)fesetenv(&environment);
}

static exact_sum sum_of(exact_kind kind, int64_t *words) {
    return (exact_sum){.words = words,
                       .n = exact_words(kind) - FLAG_WORDS,
                       .lowest = LOWEST_OF_NUMBERS * (kind == EXACT_PRODUCTS ? 2 : 1),
                       .room = room};
}

/* Whether the processor says what was rounded: valgrind, for one, does not. */
static int says_rounded(void) {
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
    exact_sum s = sum_of(kind, words);
    s.says_rounded = says_rounded();
    return s;
}

void exact_end(exact_sum *s) {
    carry(s);
}

/* What is not -0.0 is looked for until there is some: mostly the first. */
static void zeros_look(const exact_sum *s, int is_one) {
    *zeros_of(s) = is_one ? 1 : (int64_t)1 << WORD_BITS;
}
static int zeros_are_looked_for(const exact_sum *s) {
    return !(*zeros_of(s) >> WORD_BITS);
}

/* So many numbers in whole vectors, of which the last ones are zeros. */
static int filled(int64_t n) {
    return (int)((n + MOST_LANES - 1) / MOST_LANES * MOST_LANES);
}

void exact_add_f64(exact_sum *s, const double *x, int64_t n) {
    double last[BLOCK];
    for (int64_t i = 0; i < n && zeros_are_looked_for(s); i++) zeros_look(s, is_negative_zero(x[i]));
    for (; n >= BLOCK; n -= BLOCK, x += BLOCK) block_add(s, x, BLOCK);
    if (n <= 0) return;
    memcpy(last, x, (size_t)n * sizeof *x);
    for (int i = (int)n; i < filled(n); i++) last[i] = 0;
    block_add(s, last, filled(n));
}

/* The same of floats. Mostly they add up exactly as doubles: the processor says whether anything was rounded. */
static void block_add_f32(exact_sum *s, const float *x, int n) {
    double doubles[BLOCK], sum = code_get()->add_f32(x, n);
    if (s->says_rounded && !fetestexcept(FE_INEXACT)) {
        number_add(s, sum);
        return;
    }
    for (int i = 0; i < n; i++) doubles[i] = (double)x[i];
    block_add(s, doubles, n); /* cppcheck-suppress uninitvar ; of n numbers */
    (void)feclearexcept(FE_INEXACT);
}

void exact_add_f32(exact_sum *s, const float *x, int64_t n) {
    float last[BLOCK];
    for (int64_t i = 0; i < n && zeros_are_looked_for(s); i++) zeros_look(s, is_negative_zero((double)x[i]));
    for (; n >= BLOCK; n -= BLOCK, x += BLOCK) block_add_f32(s, x, BLOCK);
    if (n <= 0) return;
    memcpy(last, x, (size_t)n * sizeof *x);
    for (int i = (int)n; i < filled(n); i++) last[i] = 0;
    block_add_f32(s, last, filled(n));
}

/* A product that is too small for a double is none. */
static int is_of_negative_zero(double x, double y) {
    return (x == 0 || y == 0) && is_negative_zero(x * y);
}

void exact_add_products_f64(exact_sum *s, const double *x, const double *y, int64_t n) {
    double products[BLOCK], errors[BLOCK];
    for (int64_t i = 0; i < n && zeros_are_looked_for(s); i++) zeros_look(s, is_of_negative_zero(x[i], y[i]));
    for (; n >= BLOCK; n -= BLOCK, x += BLOCK, y += BLOCK) {
        if (code_get()->multiply(x, y, products, errors)) {
            block_add(s, products, BLOCK);
            block_add(s, errors, BLOCK);
        } else {
            for (int i = 0; i < BLOCK; i++) product_add(s, x[i], y[i]);
        }
    }
    for (int64_t i = 0; i < n; i++) product_add(s, x[i], y[i]);
}

/* Products of floats are doubles. */
void exact_add_products_f32(exact_sum *s, const float *x, const float *y, int64_t n) {
    double products[BLOCK];
    for (int64_t i = 0; i < n && zeros_are_looked_for(s); i++)
        zeros_look(s, is_of_negative_zero((double)x[i], (double)y[i]));
    for (; n > 0; n -= BLOCK, x += BLOCK, y += BLOCK) {
        int here = n < BLOCK ? (int)n : BLOCK, all = filled(here);
        for (int i = 0; i < here; i++) products[i] = (double)x[i] * (double)y[i];
        for (int i = here; i < all; i++) products[i] = 0;
        block_add(s, products, all);
    }
}

/* Rounding */

/* The highest words of a value, and whether there is anything below them. */
typedef struct window {
    wide value;
    int exponent, is_more;
} window;

static window window_of(const exact_sum *s) {
    int top = s->n - 1;
    while (top > 0 && s->words[top] == 0) top--;
    int low = top < 2 ? 0 : top - 2;
    window w = {.exponent = low * WORD_BITS + s->lowest};
    for (int i = top; i >= low; i--) w.value = w.value << WORD_BITS | (uint32_t)s->words[i];
    for (int i = 0; i < low; i++) w.is_more |= s->words[i] != 0;
    return w;
}

static int length_of(wide value) {
    int bits = 0;
    for (; value; value >>= 1) bits++;
    return bits;
}

/* The value as a multiple of 2^*exponent, of at most `digits` binary digits, none below 2^lowest. */
static uint64_t window_round(window w, int *exponent, const exact_form *form) {
    int drop = length_of(w.value) - form->digits;
    if (w.exponent + drop < form->lowest) drop = form->lowest - w.exponent;
    *exponent = w.exponent;
    if (drop <= 0) return (uint64_t)w.value;
    *exponent += drop;
    if (drop > 127) return 0;
    wide half = (wide)1 << (drop - 1), rest = w.value & ((half << 1) - 1);
    uint64_t kept = (uint64_t)(w.value >> drop);
    int is_up = rest > half || (rest == half && (w.is_more || (kept & 1)));
    return kept + (uint64_t)is_up;
}

double exact_round(exact_kind kind, int64_t *words, const exact_form *form) {
    exact_sum s = sum_of(kind, words);
    int64_t special = *specials_of(&s), flag = ((int64_t)1 << FLAG_BITS) - 1;
    int has_infinity = (special >> (HAS_INFINITY * FLAG_BITS) & flag) != 0;
    int has_negative = (special >> (HAS_NEGATIVE_INFINITY * FLAG_BITS) & flag) != 0;
    if ((special & flag) || (has_infinity && has_negative)) return NAN;
    if (has_infinity || has_negative) return has_infinity ? INFINITY : -INFINITY;
    carry(&s);
    int is_negative = words[s.n - 1] < 0, exponent = 0;
    for (int i = 0; is_negative && i < s.n; i++) words[i] = wrapped(-(uint64_t)words[i]);
    if (is_negative) carry(&s);
    window w = window_of(&s);
    if (w.value == 0) return *zeros_of(&s) > 0 && zeros_are_looked_for(&s) ? -0.0 : 0.0;
    uint64_t digits = window_round(w, &exponent, form);
    double result = ldexp((double)digits, exponent);
    if (result > form->largest) result = INFINITY;
    return is_negative ? -result : result;
}
