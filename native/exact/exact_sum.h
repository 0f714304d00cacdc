/* Sums floats, or products of floats, exactly, in an accumulator of integers that spans the whole range of exponents
 * (as Kulisch's), so that nothing is rounded before the end. Accumulators of several ranks are added word by word: the
 * result is the accumulator of all numbers.
 *
 *   exact_environment e;
 *   exact_environment_set(&e);
 *   exact_sum s = exact_begin(EXACT_NUMBERS, words);
 *   exact_add_f64(&s, x, n);
 *   exact_end(&s);
 *   exact_environment_restore(&e);
 *
 * The bits of the rounded value do not depend on the order of the numbers, nor on the processor's instructions. */
#ifndef MPIXLA_NATIVE_EXACT_SUM_H
#define MPIXLA_NATIVE_EXACT_SUM_H

#include <stdint.h>

typedef enum exact_kind { EXACT_NUMBERS, EXACT_PRODUCTS } exact_kind;

enum { EXACT_WORDS_MOST = 138 };

/* Returns how many words an accumulator has. */
int exact_words(exact_kind kind);

typedef struct exact_sum {
    int64_t *words;   /* the caller's */
    int n;            /* number of words of the value; flags follow */
    int lowest;       /* word i is in units of 2^(lowest + 32 i) */
    int64_t room;     /* additions before carries must be propagated */
    int says_rounded; /* the processor sets FE_INEXACT */
} exact_sum;

/* A floating-point environment (fenv_t), which exact_environment_restore restores. */
typedef struct exact_environment {
    _Alignas(16) char saved[64];
} exact_environment;

/* Saves the thread's floating-point environment in `e`, and sets the default one: rounding to nearest, with subnormal
 * numbers, which XLA's threads flush to zero. exact_begin to exact_round are called between this and
 * exact_environment_restore. */
void exact_environment_set(exact_environment *e);

/* Restores the floating-point environment of the calling thread. */
void exact_environment_restore(const exact_environment *e);

/* Returns an empty accumulator in these words, which the caller owns: exact_words(kind) of them. */
exact_sum exact_begin(exact_kind kind, int64_t *words);

/* Adds n numbers to an accumulator of numbers. */
void exact_add_f64(exact_sum *s, const double *x, int64_t n);
void exact_add_f32(exact_sum *s, const float *x, int64_t n);

/* Adds n products of two numbers, to an accumulator of products if they are float64, or of numbers if float32. */
void exact_add_products_f64(exact_sum *s, const double *x, const double *y, int64_t n);
void exact_add_products_f32(exact_sum *s, const float *x, const float *y, int64_t n);

/* Propagates all carries. Then up to 2^30 accumulators can be added, word by word. */
void exact_end(exact_sum *s);

/* A floating-point type. */
typedef struct exact_form {
    int digits;     /* of the significand, binary */
    int lowest;     /* 2^lowest is the least number that is not 0 */
    double largest; /* the largest finite number */
} exact_form;

/* Returns the value of an accumulator, rounded once to nearest, ties to even. NaN if any NaN was added or
 * infinities of both signs; else the infinity that was added; -0.0 if nothing but -0.0 was added. Destroys the words.
 */
double exact_round(exact_kind kind, int64_t *words, const exact_form *form);

/* Selects the variant of the code for an instruction set, numbered from 0; -1: the best one. For tests. Returns 0, or
 * -1 if the processor lacks the instructions, or there is no such variant. */
int exact_code_choose(int code);

#endif
