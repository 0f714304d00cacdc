/* MAX and MIN of every float type, as MPI would call them: special values, and all codes of the 8-bit types, against
 * numbers that are decoded here. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "check.h"
#include "mpi/float_reduce.h"
#include "xla/xla_ffi.h"

enum { SUM, PROD, MAX, MIN, OPS = 64 };

/* An MPI that keeps the functions it is given: a handle is a place in this list, from 1 on. */
static mpi_combine *made[OPS + 1];
static int made_count, refused;

static int keep(mpi_combine *combine, mpixla_handle *op) {
    if (refused || made_count == OPS) return 1;
    made[++made_count] = combine;
    *op = (mpixla_handle)made_count;
    return 0;
}

static mpi_combine *combine_of(int dtype, int reduction) {
    const mpixla_handle *op = float_reduce_find(dtype, reduction);
    return op && *op >= 1 && *op <= (mpixla_handle)made_count ? made[*op] : NULL;
}

/* Which codes are no numbers: those of the greatest exponent (of which mantissa 0 is infinity); all ones; -0; all ones
 * where there is no sign. */
typedef enum nans { IEEE, ALL_ONES, NEGATIVE_ZERO, UNSIGNED } nans;

typedef struct format {
    const char *name;
    int dtype, bits, exponent, mantissa, bias;
    nans nans;
} format;

static const format formats[] = {
    {"float64", FFI_F64, 64, 11, 52, 1023, IEEE},
    {"float32", FFI_F32, 32, 8, 23, 127, IEEE},
    {"float16", FFI_F16, 16, 5, 10, 15, IEEE},
    {"bfloat16", FFI_BF16, 16, 8, 7, 127, IEEE},
    {"float8_e5m2", FFI_F8E5M2, 8, 5, 2, 15, IEEE},
    {"float8_e4m3", FFI_F8E4M3, 8, 4, 3, 7, IEEE},
    {"float8_e3m4", FFI_F8E3M4, 8, 3, 4, 3, IEEE},
    {"float8_e4m3fn", FFI_F8E4M3FN, 8, 4, 3, 7, ALL_ONES},
    {"float8_e4m3b11fnuz", FFI_F8E4M3B11FNUZ, 8, 4, 3, 11, NEGATIVE_ZERO},
    {"float8_e5m2fnuz", FFI_F8E5M2FNUZ, 8, 5, 2, 16, NEGATIVE_ZERO},
    {"float8_e4m3fnuz", FFI_F8E4M3FNUZ, 8, 4, 3, 8, NEGATIVE_ZERO},
    {"float8_e8m0fnu", FFI_F8E8M0FNU, 8, 8, 0, 127, UNSIGNED},
};
enum { FORMATS = sizeof formats / sizeof formats[0] };

/* A code as a number; exact, but for float64's least ones, which a thread that flushes would not tell apart. */
static double decode(const format *f, uint64_t code) {
    uint64_t ones = (UINT64_C(1) << (f->exponent + f->mantissa)) - 1, magnitude = code & ones;
    uint64_t fraction = magnitude & ((UINT64_C(1) << f->mantissa) - 1);
    int exponent = (int)(magnitude >> f->mantissa), is_negative = f->nans != UNSIGNED && code > ones;
    int is_greatest = exponent == (1 << f->exponent) - 1;
    if (f->nans == IEEE && is_greatest && fraction > 0) return NAN;
    if (f->nans == IEEE && is_greatest) return is_negative ? -INFINITY : INFINITY;
    if ((f->nans == ALL_ONES || f->nans == UNSIGNED) && magnitude == ones) return NAN;
    if (f->nans == NEGATIVE_ZERO && is_negative && magnitude == 0) return NAN;
    int has_one = exponent > 0 || f->nans == UNSIGNED;
    double a = (double)(fraction + (has_one ? UINT64_C(1) << f->mantissa : 0));
    a = ldexp(a, (has_one ? exponent : 1) - f->bias - f->mantissa);
    return is_negative ? -a : a;
}

/* The codes that are tried with each other: all of an 8-bit type; else those around zero, one, the least normal number,
 * infinity and the greatest NaN, with both signs. */
enum { CODES = 256 };

static int codes_of(const format *f, uint64_t codes[CODES]) {
    int n = 0;
    if (f->bits == 8) {
        while (n < CODES) {
            codes[n] = (uint64_t)n;
            n++;
        }
        return n;
    }
    uint64_t sign = UINT64_C(1) << (f->bits - 1), least = UINT64_C(1) << f->mantissa, infinity = sign - least;
    const uint64_t some[] = {0,
                             1,
                             2,
                             least - 1,
                             least,
                             least + 1,
                             (uint64_t)f->bias << f->mantissa,
                             ((uint64_t)f->bias << f->mantissa) + 1,
                             infinity - 1,
                             infinity,
                             infinity + 1,
                             infinity + least / 2 - 1,
                             infinity + least / 2,
                             infinity + least / 2 + 1,
                             sign - 1};
    for (size_t i = 0; i < sizeof some / sizeof some[0]; i++) {
        codes[n++] = some[i];
        codes[n++] = some[i] | sign;
    }
    return n;
}

/* Arrays of codes of a type, as MPI has them. */

static void put(const format *f, void *array, int i, uint64_t code) {
    size_t bytes = (size_t)f->bits / 8;
    memcpy((char *)array + (size_t)i * bytes, &code, bytes); /* processors here have the low byte first */
}

static uint64_t get(const format *f, const void *array, int i) {
    uint64_t code = 0;
    size_t bytes = (size_t)f->bits / 8;
    memcpy(&code, (const char *)array + (size_t)i * bytes, bytes);
    return code;
}

static uint64_t combined(const format *f, mpi_combine *combine, uint64_t a, uint64_t b) {
    int one = 1;
    uint64_t in = 0, inout = 0;
    put(f, &in, 0, a);
    put(f, &inout, 0, b);
    combine(&in, &inout, &one, NULL);
    return get(f, &inout, 0);
}

static int is_right(const format *f, int reduction, uint64_t a, uint64_t b, uint64_t result) {
    double x = decode(f, a), y = decode(f, b), got = decode(f, result);
    if (result != a && result != b) return 0;
    if (isnan(x) || isnan(y)) return isnan(got);
    int sign = signbit(got) != 0;
    if (x == 0 && y == 0)
        return got == 0 && sign == (reduction == MAX ? signbit(x) && signbit(y) : signbit(x) || signbit(y));
    return got == (reduction == MAX ? fmax(x, y) : fmin(x, y));
}

/* Says which case went wrong, but the first of a type only. */
static int told;
static void expect(int holds, const format *f, int reduction, const char *what, uint64_t a, uint64_t b, uint64_t c) {
    CHECK(holds || told);
    if (holds || told++) return;
    printf("%s of %s: %s: %llx %llx %llx\n", reduction == MAX ? "MAX" : "MIN", f->name, what, (unsigned long long)a,
           (unsigned long long)b, (unsigned long long)c);
}

static void gives_the_extreme_of_every_pair(const format *f, int reduction, mpi_combine *combine) {
    uint64_t codes[CODES];
    int n = codes_of(f, codes), length = n * n;
    /* All pairs as one array, so that they go through vectors, from which single ones must not differ. */
    void *in = malloc((size_t)length * 8), *inout = malloc((size_t)length * 8);
    if (!in || !inout) exit(2);
    for (int i = 0; i < length; i++) {
        put(f, in, i, codes[i / n]);
        put(f, inout, i, codes[i % n]);
    }
    combine(in, inout, &length, NULL);
    for (int i = 0; i < length; i++) {
        uint64_t a = codes[i / n], b = codes[i % n], result = get(f, inout, i);
        expect(is_right(f, reduction, a, b, result), f, reduction, "a, b and the result", a, b, result);
        expect(combined(f, combine, a, b) == result, f, reduction, "not the same alone", a, b, result);
        expect(combined(f, combine, b, a) == result, f, reduction, "depends on the order", a, b, result);
    }
    free(in);
    free(inout);
}

/* Of the 8-bit codes a quarter: both sides of each multiple of 8, and so 0x7f, 0x80 and 0xff. */
static void is_associative(const format *f, int reduction, mpi_combine *combine) {
    uint64_t all[CODES], codes[CODES];
    int n = 0;
    for (int i = 0, count = codes_of(f, all); i < count; i++)
        if (f->bits > 8 || i % 8 == 0 || i % 8 == 7) codes[n++] = all[i];
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            uint64_t first = combined(f, combine, codes[i], codes[j]);
            for (int k = 0; k < n; k++)
                expect(combined(f, combine, first, codes[k]) ==
                           combined(f, combine, codes[i], combined(f, combine, codes[j], codes[k])),
                       f, reduction, "depends on what is combined first", codes[i], codes[j], codes[k]);
        }
}

static void takes_every_length(const format *f, int reduction, mpi_combine *combine) {
    enum { LONGEST = 70 };
    uint64_t in[LONGEST + 1], inout[LONGEST + 1], low = 0, high = (uint64_t)f->bias << f->mantissa; /* 0 and 1 */
    for (int length = 0; length <= LONGEST; length++) {
        for (int i = 0; i <= LONGEST; i++) {
            put(f, in, i, i % 3 ? low : high);
            put(f, inout, i, i % 3 ? high : low);
        }
        combine(in, inout, &length, NULL);
        for (int i = 0; i < length; i++)
            expect(get(f, inout, i) == (reduction == MAX ? high : low), f, reduction, "length, place", (uint64_t)length,
                   (uint64_t)i, get(f, inout, i));
        expect(get(f, inout, length) == (length % 3 ? high : low), f, reduction, "writes behind", (uint64_t)length, 0,
               get(f, inout, length));
    }
}

static void leaves_the_rest_to_mpi(void) {
    for (int dtype = -1; dtype <= 64; dtype++)
        for (int reduction = -1; reduction <= 4; reduction++) {
            int expected = 0;
            for (int i = 0; i < FORMATS; i++)
                if (formats[i].dtype == dtype) expected = reduction >= (formats[i].bits > 16 ? MAX : SUM);
            CHECK_INT(float_reduce_find(dtype, reduction) != NULL, expected && reduction <= MIN);
        }
}

/* MPI's own would take their codes for integers. */
static void knows_every_reduction_of_floats(void) {
    static const char *const kinds[] = {
#define MPIXLA_REDUCTION(name, kinds, nccl) kinds,
#include "tables/reductions.def"
#undef MPIXLA_REDUCTION
    };
    for (int i = 0; i < (int)(sizeof kinds / sizeof kinds[0]); i++)
        CHECK_INT(float_reduce_find(FFI_BF16, i) != NULL, strstr(kinds[i], "float") != NULL);
}

int main(void) {
    const mpi_library mpi = {.op_create = keep};
    refused = 1;
    CHECK_INT(float_reduce_start(&mpi), -1);
    CHECK_STR(error_get(), "MPI_Op_create failed");
    refused = 0;
    CHECK_INT(float_reduce_start(&mpi), 0);
    leaves_the_rest_to_mpi();
    knows_every_reduction_of_floats();
    for (int i = 0; i < FORMATS; i++)
        for (int reduction = MAX; reduction <= MIN; reduction++) {
            const format *f = &formats[i];
            mpi_combine *combine = combine_of(f->dtype, reduction);
            CHECK(combine != NULL);
            told = 0;
            if (!combine) continue;
            gives_the_extreme_of_every_pair(f, reduction, combine);
            is_associative(f, reduction, combine);
            takes_every_length(f, reduction, combine);
        }
    return check_failures();
}
