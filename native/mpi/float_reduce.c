#include "mpi/float_reduce.h"

#include <math.h>
#include <string.h>

#include "base/error.h"
#include "xla/xla_ffi.h"

#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#endif

static inline uint32_t float_reduce_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float float_reduce_float(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* The 16-bit formats, without branches, so that the loops below vectorize. */

static inline float bf16_decode(uint16_t h) {
    return float_reduce_float((uint32_t)h << 16);
}

/* Returns a float as a bfloat16, rounded to nearest, ties to even; a NaN stays one. */
static inline uint16_t bf16_encode(float f) {
    uint32_t u = float_reduce_bits(f);
    uint32_t rounded = (u + 0x7fffU + ((u >> 16) & 1U)) >> 16;
    return (uint16_t)(f != f ? (u >> 16) | 0x40U : rounded);
}

/* Returns a float16 as a float. */
static inline float f16_decode(uint16_t h) {
    uint32_t magnitude = (uint32_t)(h & 0x7fffU) << 13, sign = (uint32_t)(h & 0x8000U) << 16;
    uint32_t normal = magnitude + (112U << 23);  /* the exponents' biases are 15 and 127 */
    uint32_t special = magnitude + (224U << 23); /* infinity and NaN */
    uint32_t tiny = float_reduce_bits(float_reduce_float(magnitude + (113U << 23)) -
                                      float_reduce_float(113U << 23)); /* no implicit one */
    uint32_t u = magnitude >= (31U << 23) ? special : magnitude >= (1U << 23) ? normal : tiny;
    return float_reduce_float(u | sign);
}

/* Returns a float as a float16, rounded to nearest, ties to even; a NaN or infinity stays one. */
static inline uint16_t f16_encode(float f) {
    uint32_t u = float_reduce_bits(f), magnitude = u & 0x7fffffffU, sign = (u >> 16) & 0x8000U;
    uint32_t normal = (magnitude - (112U << 23) + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
    uint32_t tiny = float_reduce_bits(float_reduce_float(magnitude) + float_reduce_float(126U << 23)) -
                    (126U << 23); /* the sum rounds */
    uint32_t special = magnitude > (255U << 23) ? 0x7e00U : 0x7c00U;
    uint32_t h = magnitude >= (143U << 23) ? special : magnitude >= (113U << 23) ? normal : tiny;
    return (uint16_t)(h | sign);
}

/* The 8-bit formats: decoded by a table, encoded by arithmetic on the format's numbers. */

typedef struct f8_format {
    int mantissa; /* bits */
    int bias;     /* the code's exponent is greater by this than the number's */
    int largest;  /* the code of the largest finite number */
    int infinity; /* the code of infinity; of NaN in a format without infinities */
    int nan;      /* the code of NaN that results have */
    int has_sign, has_negative_zero;
} f8_format;

/* Rounds 0 <= a < 2^22 to an integer, ties to even: the sum has no bits for a fraction. */
static inline float f8_round_to_even(float a) {
    return (a + 0x1p23F) - 0x1p23F; /* for 0 <= a < 2^22: the sum has no bits for a fraction */
}

/* Returns the code of a float in an 8-bit format, rounded to nearest, ties to even; beyond the largest number that of
 * infinity or NaN. */
static int f8_encode(const f8_format *format, float f) {
    int sign = signbit(f) && format->has_sign ? 0x80 : 0, code;
    if (isnan(f) || (signbit(f) && !format->has_sign)) return format->nan;
    if (isinf(f)) return format->infinity | (format->infinity == format->nan ? 0 : sign);
    float a = fabsf(f);
    int exponent = a > 0 ? ilogbf(a) : -1000;
    if (format->mantissa == 0) { /* powers of two, and no zero */
        if (a == 0) return format->nan;
        if (exponent < -format->bias) return 0;
        code = exponent + format->bias;
        code += ldexpf(a, -exponent) >= 1.5F; /* ties go up: there is no mantissa that could be even */
    } else {
        if (exponent < 1 - format->bias) exponent = 1 - format->bias;
        int steps = (int)f8_round_to_even(ldexpf(a, format->mantissa - exponent));
        code = ((exponent + format->bias - 1) << format->mantissa) + steps;
    }
    if (code > format->largest) return format->infinity | (format->infinity == format->nan ? 0 : sign);
    return code == 0 && !format->has_negative_zero ? 0 : code | sign;
}

/* Returns the float that a code of an 8-bit format stands for. */
static float f8_decode(const f8_format *format, int code) {
    if (code == format->nan) return NAN;
    int magnitude = format->has_sign ? code & 0x7f : code;
    float sign = format->has_sign && code & 0x80 ? -1.0F : 1.0F;
    if (magnitude > format->largest)
        return magnitude == format->infinity && format->infinity != format->nan ? sign * INFINITY : NAN;
    int exponent = magnitude >> format->mantissa, fraction = magnitude & ((1 << format->mantissa) - 1);
    if (format->mantissa == 0) return ldexpf(1.0F, exponent - format->bias);
    if (exponent == 0) return sign * ldexpf((float)fraction, 1 - format->bias - format->mantissa);
    return sign * ldexpf((float)(fraction + (1 << format->mantissa)), exponent - format->bias - format->mantissa);
}

/* The functions that MPI calls, which combine `in` into `inout`. There is one for each data type, so what MPI says of
 * it is not looked at. First SUM and PROD, which compute in float. */

#define COMBINED(attributes, name, type, computed, decode, expression)                         \
    attributes static void name(void *in_, void *inout_, const void *length, void *datatype) { \
        const type *restrict in = in_;                                                         \
        type *restrict inout = inout_;                                                         \
        const int64_t n = mpi_length(length);                                                  \
        (void)datatype;                                                                        \
        for (int64_t i = 0; i < n; i++) {                                                      \
            computed a = decode(in[i]), b = decode(inout[i]);                                  \
            inout[i] = (type)(expression);                                                     \
        }                                                                                      \
    }

#define SUM_AND_PROD(name, type, decode, encode)               \
    COMBINED(, name##_sum, type, float, decode, encode(a + b)) \
    COMBINED(, name##_prod, type, float, decode, encode(a *b))

SUM_AND_PROD(bf16, uint16_t, bf16_decode, bf16_encode)
SUM_AND_PROD(f16, uint16_t, f16_decode, f16_encode)

/* The same for many numbers at once, where the processor can; the end of the array is left to those above, for which
 * its length may have more bytes than they read, as the low ones come first here. */
#ifdef __x86_64__
#define FOR_AVX2 __attribute__((target("avx2,f16c")))

/* Eight float16: the processor converts them. */
enum { f16_at_once = 8 };
#define f16_combine(in, inout, combine)                                                                  \
    do {                                                                                                 \
        __m256 a = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(in)));                              \
        __m256 b = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(inout)));                           \
        _mm_storeu_si128((__m128i *)(inout), _mm256_cvtps_ph(combine(a, b), _MM_FROUND_TO_NEAREST_INT)); \
    } while (0)

/* Sixteen bfloat16, as eight pairs: those in the lower halves of 32 bits, and those in the upper halves. No number need
 * move to another place then. */
enum { bf16_at_once = 16 };
#define bf16_combine(in, inout, combine)                                                                         \
    do {                                                                                                         \
        __m256i a = _mm256_loadu_si256((const __m256i *)(in)), b = _mm256_loadu_si256((const __m256i *)(inout)); \
        __m256i c = bf16_encode_pairs(combine(bf16_decode_lower(a), bf16_decode_lower(b)),                       \
                                      combine(bf16_decode_upper(a), bf16_decode_upper(b)));                      \
        _mm256_storeu_si256((__m256i *)(inout), c);                                                              \
    } while (0)

FOR_AVX2 static inline __m256 bf16_decode_lower(__m256i pairs) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
}

FOR_AVX2 static inline __m256 bf16_decode_upper(__m256i pairs) {
    return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000U)));
}

/* Rounds eight floats to bfloat16 in the upper halves of 32 bits; the lower halves are undefined. A NaN stays a NaN, as
 * its lower half is zeros, so that rounding carries nothing: it is an operand's, which was a bfloat16, or the
 * processor's own. */
FOR_AVX2 static inline __m256i bf16_round(__m256 f) {
    __m256i u = _mm256_castps_si256(f);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
}

FOR_AVX2 static inline __m256i bf16_encode_pairs(__m256 lower, __m256 upper) {
    return _mm256_blend_epi16(_mm256_srli_epi32(bf16_round(lower), 16), bf16_round(upper), 0xaa);
}

#define COMPUTED_AVX2(type, name, combine)                                                                   \
    FOR_AVX2 static void type##_##name##_avx2(void *in_, void *inout_, const void *length, void *datatype) { \
        uint16_t *in = in_, *inout = inout_;                                                                 \
        const int64_t n = mpi_length(length), rest = n % type##_at_once, most = n - rest;                    \
        for (int64_t i = 0; i < most; i += type##_at_once) type##_combine(in + i, inout + i, combine);       \
        type##_##name(in + most, inout + most, &rest, datatype);                                             \
    }
COMPUTED_AVX2(bf16, sum, _mm256_add_ps)
COMPUTED_AVX2(bf16, prod, _mm256_mul_ps)
COMPUTED_AVX2(f16, sum, _mm256_add_ps)
COMPUTED_AVX2(f16, prod, _mm256_mul_ps)
#endif

/* XLA's number and the name, then an f8_format, and last how many codes of NaN there are below all numbers and above
 * them, where codes are in the order of their numbers (f8_in_order). */
#define F8_FORMATS(FORMAT)                                                        \
    FORMAT(FFI_F8E5M2, f8e5m2, 2, 15, 0x7b, 0x7c, 0x7e, 1, 1, 3, 3)               \
    FORMAT(FFI_F8E4M3FN, f8e4m3fn, 3, 7, 0x7e, 0x7f, 0x7f, 1, 1, 1, 1)            \
    FORMAT(FFI_F8E4M3B11FNUZ, f8e4m3b11fnuz, 3, 11, 0x7f, 0x80, 0x80, 1, 0, 1, 0) \
    FORMAT(FFI_F8E5M2FNUZ, f8e5m2fnuz, 2, 16, 0x7f, 0x80, 0x80, 1, 0, 1, 0)       \
    FORMAT(FFI_F8E4M3FNUZ, f8e4m3fnuz, 3, 8, 0x7f, 0x80, 0x80, 1, 0, 1, 0)        \
    FORMAT(FFI_F8E4M3, f8e4m3, 3, 7, 0x77, 0x78, 0x7c, 1, 1, 7, 7)                \
    FORMAT(FFI_F8E3M4, f8e3m4, 4, 3, 0x6f, 0x70, 0x78, 1, 1, 15, 15)              \
    FORMAT(FFI_F8E8M0FNU, f8e8m0fnu, 0, 127, 0xfe, 0xff, 0xff, 0, 0, 0, 1)

#define FORMAT(ffi, name, mantissa, bias, largest, infinity, nan, sign, zero, below, above)      \
    static const f8_format name##_format = {mantissa, bias, largest, infinity, nan, sign, zero}; \
    static float name##_values[256];                                                             \
    static inline float name##_decode(uint8_t code) {                                            \
        return name##_values[code];                                                              \
    }                                                                                            \
    static inline uint8_t name##_encode(float f) {                                               \
        return (uint8_t)f8_encode(&name##_format, f);                                            \
    }                                                                                            \
    SUM_AND_PROD(name, uint8_t, name##_decode, name##_encode)
F8_FORMATS(FORMAT)
#undef FORMAT

/* MAX and MIN compare codes as integers, and the result is one of the two codes as it is.
 *
 * Each code is mapped to a signed integer, in the order of the numbers: -0 is below +0, and NaNs are below and above
 * all numbers. For MAX as many as there are NaNs below are subtracted: these wrap around, so that all NaNs are above.
 * For MIN as many as there are NaNs above are added, and all are below. That is one order of all codes, without ties,
 * so the result is the same code in whatever order MPI combines. Unlike a comparison of floats it does not depend on
 * whether the thread flushes subnormal numbers to zero. */

/* The greater a negative number is the smaller is its code without the sign, so these bits are inverted. */
#define IN_ORDER(type, code) (type)((code) ^ ((type)(0 - ((code) >> (8 * sizeof(type) - 1))) >> 1))

/* Returns a key for the code of an 8-bit format: as signed integers, keys are in the order of the numbers. */
static inline uint8_t f8_in_order(const f8_format *format, uint8_t code) {
    if (!format->has_sign) return code ^ 0x80U;
    uint8_t place = IN_ORDER(uint8_t, code);
    if (format->nan != 0x80) return place;
    return (uint8_t)(code == 0x80 ? 0x80 : place + (code > 0x80)); /* NaN has the code of -0, and goes to the end */
}

#define CHOSEN(attributes, name, type, key, comparison) \
    COMBINED(attributes, name, type, type, , key(a) comparison key(b) ? a : b)

/* Also compiled for processors with larger vectors, by any compiler. */
#ifdef __x86_64__
#define CHOSEN_AVX2(name, type, key, comparison) CHOSEN(FOR_AVX2, name##_avx2, type, key, comparison)
#else
#define CHOSEN_AVX2(name, type, key, comparison)
#endif

#define MAX_AND_MIN(name, type, integer, in_order, below, above) \
    static inline integer name##_max_key(type code) {            \
        return (integer)(type)((in_order) - (below));            \
    }                                                            \
    static inline integer name##_min_key(type code) {            \
        return (integer)(type)((in_order) + (above));            \
    }                                                            \
    CHOSEN(, name##_max, type, name##_max_key, >)                \
    CHOSEN(, name##_min, type, name##_min_key, <)                \
    CHOSEN_AVX2(name##_max, type, name##_max_key, >)             \
    CHOSEN_AVX2(name##_min, type, name##_min_key, <)

#define IEEE_MAX_AND_MIN(name, type, integer, nans) MAX_AND_MIN(name, type, integer, IN_ORDER(type, code), nans, nans)
IEEE_MAX_AND_MIN(bf16, uint16_t, int16_t, 0x7fU)
IEEE_MAX_AND_MIN(f16, uint16_t, int16_t, 0x3ffU)
IEEE_MAX_AND_MIN(f32, uint32_t, int32_t, 0x7fffffU)
IEEE_MAX_AND_MIN(f64, uint64_t, int64_t, UINT64_C(0xfffffffffffff))

#define FORMAT(ffi, name, mantissa, bias, largest, infinity, nan, sign, zero, below, above) \
    MAX_AND_MIN(name, uint8_t, int8_t, f8_in_order(&name##_format, code), below, above)
F8_FORMATS(FORMAT)
#undef FORMAT

/* The operations, by element type and reduction. */

/* SUM, PROD, MAX and MIN are the first rows of reductions.def; XLA's numbers of element types are less than TYPES. */
enum { REDUCTIONS = 4, TYPES = 64 };

#ifdef __x86_64__
#define AVX2(function) function##_avx2

/* Returns whether the processor has AVX2 and converts float16 (F16C). */
static int float_reduce_has_avx2(void) {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#else
#define AVX2(function) function
#define float_reduce_has_avx2() 0
#endif

/* NULL: MPI's own operation is used. */
static const struct {
    int dtype;                                               /* XLA's number */
    mpi_combine *on_any[REDUCTIONS], *with_avx2[REDUCTIONS]; /* processors */
} rows[] = {
    {FFI_BF16,
     {bf16_sum, bf16_prod, bf16_max, bf16_min},
     {AVX2(bf16_sum), AVX2(bf16_prod), AVX2(bf16_max), AVX2(bf16_min)}},
    {FFI_F16, {f16_sum, f16_prod, f16_max, f16_min}, {AVX2(f16_sum), AVX2(f16_prod), AVX2(f16_max), AVX2(f16_min)}},
    {FFI_F32, {NULL, NULL, f32_max, f32_min}, {NULL, NULL, AVX2(f32_max), AVX2(f32_min)}},
    {FFI_F64, {NULL, NULL, f64_max, f64_min}, {NULL, NULL, AVX2(f64_max), AVX2(f64_min)}},
#define FORMAT(ffi, name, ...)                          \
    {ffi,                                               \
     {name##_sum, name##_prod, name##_max, name##_min}, \
     {name##_sum, name##_prod, AVX2(name##_max), AVX2(name##_min)}},
    F8_FORMATS(FORMAT)
#undef FORMAT
};

/* Written by float_reduce_start before the first handler runs, read-only after. */
static struct {
    mpixla_handle op;
    int made;
} ours[TYPES][REDUCTIONS];

int float_reduce_start(const mpi_library *mpi) {
    for (int code = 0; code < 256; code++) {
#define FORMAT(ffi, name, ...) name##_values[code] = f8_decode(&name##_format, code);
        F8_FORMATS(FORMAT)
#undef FORMAT
    }
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        mpi_combine *const *combine = float_reduce_has_avx2() ? rows[i].with_avx2 : rows[i].on_any;
        for (int r = 0; r < REDUCTIONS; r++) {
            if (!combine[r]) continue;
            if (mpi->op_create(combine[r], &ours[rows[i].dtype][r].op) != 0) return error_set("MPI_Op_create failed");
            ours[rows[i].dtype][r].made = 1;
        }
    }
    return 0;
}

const mpixla_handle *float_reduce_find(int ffi_dtype, int64_t reduction) {
    if (ffi_dtype < 0 || ffi_dtype >= TYPES || reduction < 0 || reduction >= REDUCTIONS) return NULL;
    return ours[ffi_dtype][reduction].made ? &ours[ffi_dtype][reduction].op : NULL;
}
