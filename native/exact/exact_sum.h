/* The exact sum of floats, or of products of floats: an accumulator of integers that spans the whole range of what is
 * added, so that nothing is rounded before the end. Its words are numbers like any others: those of several ranks are
 * added one by one, and the sum of so many accumulators is the accumulator of all.
 *
 *   exact_environment e;
 *   exact_enter(&e);
 *   exact_sum s = exact_begin(EXACT_NUMBERS, words);
 *   exact_add_f64(&s, x, n);
 *   exact_end(&s);
 *   exact_leave(&e);
 *
 * In whatever order numbers are added, and whichever instructions the processor has, the rounded value has the same
 * bits. */
#ifndef MPIXLA_NATIVE_EXACT_SUM_H
#define MPIXLA_NATIVE_EXACT_SUM_H

#include <stdint.h>

typedef enum exact_kind { EXACT_NUMBERS, EXACT_PRODUCTS } exact_kind;

enum { EXACT_WORDS_MOST = 138 };

/* How many words an accumulator has. */
int exact_words(exact_kind kind);

typedef struct exact_sum {
    int64_t *words;   /* the caller's */
    int n;            /* those of the value; behind them are flags */
    int lowest;       /* word 0 counts 2^lowest, and each 2^32 times as much as the one before */
    int64_t room;     /* additions that are left before carries must go on */
    int says_rounded; /* the processor says whether it has rounded anything */
} exact_sum;

/* Between these the calling thread rounds to nearest and has subnormal numbers, which XLA's threads have the processor
 * take for zero. Everything else is called between them. */
typedef struct exact_environment {
    _Alignas(16) char saved[64];
} exact_environment;
void exact_enter(exact_environment *e);
void exact_leave(const exact_environment *e);

/* An accumulator of nothing, in these words. */
exact_sum exact_begin(exact_kind kind, int64_t *words);

/* Adds n numbers to an accumulator of numbers. */
void exact_add_f64(exact_sum *s, const double *x, int64_t n);
void exact_add_f32(exact_sum *s, const float *x, int64_t n);

/* Adds n products of two numbers, to an accumulator of products if they are float64, or of numbers if float32. */
void exact_add_products_f64(exact_sum *s, const double *x, const double *y, int64_t n);
void exact_add_products_f32(exact_sum *s, const float *x, const float *y, int64_t n);

/* Makes the words those that other accumulators can be added to, some 2^30 of them. */
void exact_end(exact_sum *s);

/* A type of floats. */
typedef struct exact_form {
    int digits;     /* binary ones that a number has at most */
    int lowest;     /* 2^lowest is the least number that is not 0 */
    double largest; /* what is more, rounded, becomes infinity */
} exact_form;

/* The value of the accumulator that the words are, rounded once to nearest, ties to even. NaN if any NaN was added or
 * infinities of both signs; else the infinity that was added; -0.0 if nothing was added but that. The words are lost.
 */
double exact_round(exact_kind kind, int64_t *words, const exact_form *form);

/* For tests: has one of the variants for kinds of processors do the work, numbered from 0; -1: the best one. Returns 0,
 * or -1 where the processor has no such instructions, or there is no such variant. */
int exact_code_choose(int code);

#endif
