/* Exact sums, compared with one that counts bits. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "check.h"
#include "exact/exact_sum.h"
#include "fixture.h"
#include "scarce.h"

static const exact_form f64 = {53, -1074, DBL_MAX}, f32 = {24, -149, FLT_MAX}, f16 = {11, -24, 65504};

/* How often each power of two is there, from 2^LOWEST on; of products too. */
enum { LOWEST = -2148, BITS = 4400 };
static int64_t counts[BITS];

static void count(double x, double y) {
    int e = 0, f = 0;
    int64_t m = (int64_t)ldexp(frexp(x, &e), 53), n = (int64_t)ldexp(frexp(y, &f), 53);
    for (int i = 0; i < 54; i++)
        for (int k = 0; k < 54; k++)
            if ((llabs(m) >> i & 1) && (llabs(n) >> k & 1))
                counts[e + f - 106 + i + k - LOWEST] += (m < 0) == (n < 0) ? 1 : -1;
}

static double counted(const exact_form *form) {
    for (int sign = 1; sign >= -1; sign -= 2) {
        static int bits[BITS];
        int64_t more = 0;
        int top = -1, least;
        for (int i = 0; i < BITS; i++) {
            int64_t here = sign * counts[i] + more;
            bits[i] = (int)(here & 1);
            more = (here - bits[i]) / 2;
            if (bits[i]) top = i;
        }
        if (more != 0) continue; /* it is negative */
        if (top < 0) return 0;
        least = top - form->digits + 1;
        if (least + LOWEST < form->lowest) least = form->lowest - LOWEST;
        int64_t digits = 0;
        int half = least > 0 ? bits[least - 1] : 0, rest = 0;
        for (int i = top; i >= least; i--) digits = 2 * digits + bits[i];
        for (int i = 0; i < least - 1; i++) rest |= bits[i];
        if (half && (rest || (digits & 1))) digits++;
        double result = ldexp((double)digits, least + LOWEST);
        return sign * (result > form->largest ? INFINITY : result);
    }
    CHECK(0);
    return 0;
}

static uint64_t state = 88172645463325252;

static uint64_t bits_any(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* From 2^low up to 2^high, or zero. */
static double any(int low, int high) {
    int e = low + (int)(bits_any() % (uint64_t)(high - low));
    if (bits_any() % 16 == 0) return bits_any() % 2 ? -0.0 : 0.0;
    return ldexp((double)(bits_any() >> 11 | (uint64_t)1 << 52) * 0x1p-53, e) * (bits_any() % 2 ? 1 : -1);
}

enum { MOST = 3072 };
static double x[MOST], y[MOST];
static float narrow[2][MOST];

static void fill(int n, int low, int high) {
    for (int i = 0; i < n; i++) x[i] = any(low, high);
    for (int i = 0; i < n; i++) y[i] = any(low, high);
    for (int i = 0; i < n; i++) narrow[0][i] = (float)x[i];
    for (int i = 0; i < n; i++) narrow[1][i] = (float)y[i];
}

/* What is there three times as long adds up to nothing: numbers, and two parts of each. What rounding loses of these is
 * seen then. */
static void cancel(int n) {
    for (int i = 0; i < n; i++) {
        uint64_t bits;
        double high;
        memcpy(&bits, &x[i], sizeof bits);
        bits &= ~(((uint64_t)1 << 26) - 1);
        memcpy(&high, &bits, sizeof high);
        x[n + i] = -high;
        x[2 * n + i] = high - x[i];
        y[n + i] = y[2 * n + i] = y[i];
    }
}

typedef enum what { NUMBERS_F64, NUMBERS_F32, PRODUCTS_F64, PRODUCTS_F32, WHATS } what;

static void add(exact_sum *s, what w, int at, int n) {
    if (w == NUMBERS_F64) exact_add_f64(s, x + at, n);
    if (w == NUMBERS_F32) exact_add_f32(s, narrow[0] + at, n);
    if (w == PRODUCTS_F64) exact_add_products_f64(s, x + at, y + at, n);
    if (w == PRODUCTS_F32) exact_add_products_f32(s, narrow[0] + at, narrow[1] + at, n);
}

static exact_kind kind_of(what w) {
    return w == PRODUCTS_F64 ? EXACT_PRODUCTS : EXACT_NUMBERS;
}

/* In so many parts, whose words are added. */
static double sum(what w, int n, int parts, const exact_form *form) {
    int64_t words[EXACT_WORDS_MOST], total[EXACT_WORDS_MOST] = {0};
    exact_environment e;
    exact_environment_set(&e);
    for (int k = 0; k < parts; k++) {
        exact_sum s = exact_begin(kind_of(w), words);
        add(&s, w, n * k / parts, n * (k + 1) / parts - n * k / parts);
        exact_end(&s);
        for (int i = 0; i < exact_words(kind_of(w)); i++) total[i] += words[i];
    }
    double result = exact_round(kind_of(w), total, form);
    exact_environment_restore(&e);
    return result;
}

static double expected(what w, int n, const exact_form *form) {
    memset(counts, 0, sizeof counts);
    for (int i = 0; i < n; i++) {
        if (w == NUMBERS_F64) count(x[i], 1);
        if (w == NUMBERS_F32) count((double)narrow[0][i], 1);
        if (w == PRODUCTS_F64) count(x[i], y[i]);
        if (w == PRODUCTS_F32) count((double)narrow[0][i], (double)narrow[1][i]);
    }
    return counted(form);
}

static void is_that_of_all_bits(void) {
    static const int ranges[][2] = {{0, 1},         {-20, 20},     {-90, 90},   {-126, 120},
                                    {-1070, -1000}, {-1073, 1010}, {900, 1020}, {-505, -490}};
    static const int sizes[] = {0, 1, 7, 255, 1024, 1500, 2600, MOST};
    static const exact_form *const forms[] = {&f64, &f32, &f16};
    for (size_t r = 0; r < sizeof ranges / sizeof *ranges; r++)
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
            for (int w = 0; w < WHATS; w++) {
                int is_narrow = w == NUMBERS_F32 || w == PRODUCTS_F32;
                if (is_narrow && (ranges[r][0] < -126 || ranges[r][1] > 120)) continue;
                const exact_form *form = k % 2 ? &f64 : forms[bits_any() % 3];
                fill(sizes[k], ranges[r][0], ranges[r][1]);
                if (k % 2) cancel(sizes[k] / 3);
                double should = expected((what)w, sizes[k], form);
                for (int code = -1; code < 3; code++)
                    for (int parts = 1; parts < 4; parts++) {
                        if (exact_code_choose(code)) continue;
                        double is = sum((what)w, sizes[k], parts, form);
                        CHECK(is == should);
                    }
            }
    CHECK_INT(exact_code_choose(-1), 0);
    CHECK_INT(exact_code_choose(3), -1);
}

/* As many numbers as a block has, and the same with the other sign in two blocks: rounding would lose other digits of
 * them. Where all are as large as the greatest, the sums of slices have the most digits; where the least are a little
 * too small, what a first slice leaves cannot be added. */
static void loses_nothing_in_a_block(void) {
    enum { N = 1024, TIMES = 10 };
    static const int ranges[][2] = {{-1, 0}, {-30, 0}, {-37, 0}, {-17, 0}, {-25, 0}};
    for (size_t r = 0; r < TIMES * sizeof ranges / sizeof *ranges; r++) {
        const int *range = ranges[r / TIMES];
        for (int i = 0; i < N; i++) {
            x[i] = fabs(any(range[0], range[1])) + (range[0] == -1);
            x[N + 2 * i] = -x[i];
            x[N + 2 * i + 1] = 0;
        }
        for (int i = 0; i < 3 * N; i++) narrow[0][i] = (float)x[i];
        for (int code = -1; code < 3; code++) {
            if (exact_code_choose(code)) continue;
            CHECK(sum(NUMBERS_F64, 3 * N, 1, &f64) == 0);
            CHECK(sum(NUMBERS_F32, 3 * N, 1, &f64) == 0);
        }
    }
    CHECK_INT(exact_code_choose(-1), 0);
}

static double sum_of(const double *numbers, int n) {
    memcpy(x, numbers, (size_t)n * sizeof *x);
    return sum(NUMBERS_F64, n, 2, &f64);
}
#define SUM(...) sum_of((const double[]){__VA_ARGS__}, (int)(sizeof((const double[]){__VA_ARGS__}) / sizeof(double)))

static void knows_what_is_no_number(void) {
    CHECK(isnan(SUM(1, NAN)));
    CHECK(isnan(SUM(INFINITY, 1, -INFINITY)));
    CHECK(SUM(INFINITY, -DBL_MAX) == INFINITY);
    CHECK(SUM(1, -INFINITY) == -INFINITY);
    CHECK(SUM(DBL_MAX, DBL_MAX) == INFINITY);
    CHECK(SUM(DBL_MAX, DBL_MAX, -DBL_MAX) == DBL_MAX);
    CHECK(SUM(-DBL_MAX, -DBL_MAX, -1) == -INFINITY);
    CHECK(signbit(SUM(-0.0, -0.0)));
    CHECK(!signbit(SUM(-0.0, 0.0)));
    CHECK(!signbit(SUM(1, -1)));
    CHECK(!signbit(sum(NUMBERS_F64, 0, 1, &f64)));
    CHECK(SUM(0x1p-1074, 0x1p-1074) == 0x1p-1073);
    CHECK(SUM(1, 0x1p-53) == 1); /* ties go to even */
    CHECK(SUM(1 + 0x1p-52, 0x1p-53) == 1 + 0x1p-51);
    CHECK(SUM(1, 0x1p-53, 0x1p-1074) == 1 + 0x1p-52);
    for (int i = 0; i < 300; i++) x[i] = INFINITY, y[i] = i == 299 ? 0 : 1;
    CHECK(isnan(sum(PRODUCTS_F64, 300, 1, &f64)));
    CHECK(sum(PRODUCTS_F64, 299, 1, &f64) == INFINITY);
}

/* As on XLA's threads, which then have the processor do so again. */
static void has_subnormal_numbers(void) {
#ifdef __x86_64__
    const unsigned flushes = 0x9fc0;
    if (!scarce_is_real()) return; /* valgrind has no such processor */
    unsigned before = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(flushes);
    double is = SUM(0x1p-1074, 0x1p-1074);
    unsigned after = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(before);
    CHECK(is == 0x1p-1073);
    CHECK_INT(after & flushes, flushes);
#endif
}

/* Accumulators */

static void carries(void) {
    int64_t words[EXACT_WORDS_MOST], all[EXACT_WORDS_MOST] = {0};
    enum { RANKS = 1 << 20 };
    exact_sum s = exact_begin(EXACT_NUMBERS, words);
    x[0] = 1 - 0x1p-53;
    exact_add_f64(&s, x, 1);
    exact_end(&s);
    for (int i = 0; i < exact_words(EXACT_NUMBERS); i++) all[i] = words[i] * RANKS;
    CHECK(exact_round(EXACT_NUMBERS, all, &f64) == RANKS * (1 - 0x1p-53));
    s = exact_begin(EXACT_NUMBERS, words);
    s.room = 1;
    words[0] = INT64_MAX - 1;
    x[0] = 0x1p-1074;
    exact_add_f64(&s, x, 1);
    CHECK_INT(words[0], UINT32_MAX);
    CHECK_INT(words[1], INT32_MAX);
}

/* Handlers */

static call c;
static int64_t words[EXACT_WORDS_MOST];
static int64_t shapes[4][2];

static void make(const char *name) {
    call_make(&c, "barrier", FIXTURE_RANK0, 0);
    c.handler = call_helper_handler(name);
}

static void buffer_add(int side, int i, int dtype, int64_t lines, int64_t line, void *data) {
    int64_t *dims = shapes[2 * side + i];
    call_insert(&c, side, i, dtype, 1, data);
    dims[0] = lines;
    dims[1] = line;
    c.sides[side].buffers[i].dims = dims;
    c.sides[side].buffers[i].rank = 2;
}

static void handles(void) {
    static float numbers[2] = {0.5F, 2};
    make("exact_add");
    buffer_add(CALL_OPERANDS, 0, FFI_F32, 1, 2, numbers);
    buffer_add(CALL_RESULTS, 0, FFI_S64, 1, exact_words(EXACT_NUMBERS), words);
    CHECK_STR(call_run(&c), "");
    CHECK(exact_round(EXACT_NUMBERS, memcpy(counts, words, sizeof words), &f32) == 2.5);
    buffer_add(CALL_OPERANDS, 1, FFI_F32, 1, 2, numbers);
    CHECK_STR(call_run(&c), "");
    CHECK(exact_round(EXACT_NUMBERS, memcpy(counts, words, sizeof words), &f32) == 4.25);
    c.sides[CALL_OPERANDS].buffers[1].dtype = FFI_F64;
    CHECK_STR(call_run(&c), "the arrays of an exact sum are float32 or float64, of one type and shape");
    c.sides[CALL_OPERANDS].buffers[0].dtype = FFI_F64;
    CHECK_STR(call_run(&c), "an exact sum gives 138 int64 for each line");
    c.sides[CALL_OPERANDS].buffers[0].rank = 0;
    CHECK_STR(call_run(&c), "array 0 of an exact sum has no axes");
    c.sides[CALL_OPERANDS].buffers[0].rank = 2;
    shapes[0][1] = -1;
    CHECK_STR(call_run(&c), "array 0 of an exact sum has no valid shape");
    shapes[0][1] = 2;
    c.sides[CALL_OPERANDS].buffers[0].data = NULL;
    CHECK_STR(call_run(&c), "array 0 of an exact sum is a null pointer");

    make("exact_round");
    CHECK_STR(call_run(&c), "the rounding of an exact sum takes 'digits', a 64-bit integer, in place 0");
}

int main(int argc, char **argv) {
    fixture_start(argc, argv);
    is_that_of_all_bits();
    loses_nothing_in_a_block();
    knows_what_is_no_number();
    has_subnormal_numbers();
    carries();
    handles();
    return check_failures();
}
