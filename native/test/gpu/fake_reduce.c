#include "test/gpu/fake_reduce.h"

#include <math.h>
#include <string.h>

typedef uint16_t half;
typedef uint16_t bfloat;

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float half_up(half h) {
    uint32_t sign = (h & 0x8000u) << 16, exponent = h >> 10 & 0x1f, fraction = h & 0x3ff;
    if (exponent == 0) return (sign ? -1.0f : 1.0f) * (float)fraction * 0x1p-24f;
    if (exponent == 0x1f) return float_of(sign | 0x7f800000u | fraction << 13);
    return float_of(sign | (exponent + 112) << 23 | fraction << 13);
}

static half half_down(float value) {
    uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return (half)(sign | 0x7e00u);
    if (size >= 0x477ff000u) return (half)(sign | 0x7c00u);                                   /* too large */
    if (size < 0x38800000u) return (half)(sign | (uint32_t)lrintf(float_of(size) * 0x1p24f)); /* subnormal */
    return (half)(sign | (size + 0xfffu + (size >> 13 & 1) - 0x38000000u) >> 13);
}

static float bfloat_up(bfloat b) {
    return float_of((uint32_t)b << 16);
}

static bfloat bfloat_down(float value) {
    uint32_t bits = bits_of(value);
    if (isnan(value)) return (bfloat)(bits >> 16 | 0x40u);
    return (bfloat)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

/* Sums and products of integers wrap around. */
#define INTEGER(name, T)                               \
    static T name##_of(T a, T b, int op) {             \
        switch (op) {                                  \
            case FAKE_SUM:                             \
                return (T)((uint64_t)a + (uint64_t)b); \
            case FAKE_PROD:                            \
                return (T)((uint64_t)a * (uint64_t)b); \
            case FAKE_MAX:                             \
                return a > b ? a : b;                  \
            default:                                   \
                return a < b ? a : b;                  \
        }                                              \
    }
#define REAL(name, T, max, min)            \
    static T name##_of(T a, T b, int op) { \
        switch (op) {                      \
            case FAKE_SUM:                 \
                return a + b;              \
            case FAKE_PROD:                \
                return a * b;              \
            case FAKE_MAX:                 \
                return max(a, b);          \
            default:                       \
                return min(a, b);          \
        }                                  \
    }
#define SHORT(name, T)                                                  \
    static T name##_of(T a, T b, int op) {                              \
        return name##_down(float32_of(name##_up(a), name##_up(b), op)); \
    }
#define LOOP(name, T)                                                              \
    static void name##_reduce(void *inout, const void *in, size_t count, int op) { \
        for (size_t i = 0; i < count; i++) {                                       \
            T a, b;                                                                \
            memcpy(&a, (char *)inout + i * sizeof a, sizeof a);                    \
            memcpy(&b, (const char *)in + i * sizeof b, sizeof b);                 \
            a = name##_of(a, b, op);                                               \
            memcpy((char *)inout + i * sizeof a, &a, sizeof a);                    \
        }                                                                          \
    }

INTEGER(int8, int8_t)
INTEGER(uint8, uint8_t)
INTEGER(int32, int32_t)
INTEGER(uint32, uint32_t)
INTEGER(int64, int64_t)
INTEGER(uint64, uint64_t)
REAL(float32, float, fmaxf, fminf)
REAL(float64, double, fmax, fmin)
SHORT(half, half)
SHORT(bfloat, bfloat)
LOOP(int8, int8_t)
LOOP(uint8, uint8_t)
LOOP(int32, int32_t)
LOOP(uint32, uint32_t)
LOOP(int64, int64_t)
LOOP(uint64, uint64_t)
LOOP(float32, float)
LOOP(float64, double)
LOOP(half, half)
LOOP(bfloat, bfloat)

/* By NCCL's numbers. */
static const struct {
    const char *name;
    size_t bytes;
    void (*reduce)(void *inout, const void *in, size_t count, int op);
} types[] = {
    {"int8", 1, int8_reduce},       {"uint8", 1, uint8_reduce},     {"int32", 4, int32_reduce},
    {"uint32", 4, uint32_reduce},   {"int64", 8, int64_reduce},     {"uint64", 8, uint64_reduce},
    {"float16", 2, half_reduce},    {"float32", 4, float32_reduce}, {"float64", 8, float64_reduce},
    {"bfloat16", 2, bfloat_reduce},
};

static int is_type(int type) {
    return type >= 0 && (size_t)type < sizeof types / sizeof types[0];
}

size_t fake_reduce_itemsize(int type) {
    return is_type(type) ? types[type].bytes : 0;
}

const char *fake_reduce_type_name(int type) {
    return is_type(type) ? types[type].name : "no type";
}

const char *fake_reduce_op_name(int op) {
    static const char *const names[] = {"sum", "product", "maximum", "minimum"};
    return op >= 0 && op < FAKE_REDUCTIONS ? names[op] : "no reduction";
}

void fake_reduce(void *inout, const void *in, size_t count, int type, int op) {
    types[type].reduce(inout, in, count, op);
}
