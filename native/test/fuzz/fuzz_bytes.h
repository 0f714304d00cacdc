/* Decisions, read from bytes that a fuzzer or a random generator made. When there are no more, every decision is 0. */
#ifndef MPIXLA_TEST_FUZZ_BYTES_H
#define MPIXLA_TEST_FUZZ_BYTES_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

typedef struct fuzz_bytes {
    const uint8_t *at;
    size_t left;
} fuzz_bytes;

static inline uint64_t fuzz_take(fuzz_bytes *b, int bytes) {
    uint64_t value = 0;
    for (; bytes > 0 && b->left > 0; bytes--, b->left--) value = value << 8 | *b->at++;
    return value;
}

/* 0 to n - 1; n is at most 256. */
static inline int fuzz_below(fuzz_bytes *b, int n) {
    return n > 1 ? (int)(fuzz_take(b, 1) % (uint64_t)n) : 0;
}

/* Once in n times. */
static inline int fuzz_rarely(fuzz_bytes *b, int n) {
    return fuzz_below(b, n) == n - 1;
}

/* A number as it should not be: small, at a border, or any. */
static inline int64_t fuzz_number(fuzz_bytes *b) {
    static const int64_t borders[] = {0,
                                      -1,
                                      -2,
                                      -3,
                                      INT_MAX,
                                      INT64_C(1) << 31,
                                      INT_MIN,
                                      INT64_C(1) << 32,
                                      (INT64_C(1) << 32) + 1,
                                      INT64_C(1) << 40,
                                      INT64_C(1) << 60,
                                      INT64_C(1) << 62,
                                      INT64_MAX / 3,
                                      INT64_MAX / 2,
                                      INT64_MAX - 1,
                                      INT64_MAX,
                                      INT64_MIN,
                                      INT64_MIN + 1};
    switch (fuzz_below(b, 4)) {
        case 0:
            return fuzz_below(b, 12) - 2;
        case 1:
            return (int64_t)fuzz_take(b, 8);
        default:
            return borders[fuzz_below(b, sizeof borders / sizeof borders[0])];
    }
}

#endif
