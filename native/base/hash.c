#include "base/hash.h"

#include <string.h>

/* Returns the FNV-1a hash of the bytes, mixed so that each bit of the input reaches each of the result. */
uint64_t hash_bytes(const void *data, size_t bytes) {
    const unsigned char *at = data;
    uint64_t n = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < bytes; i++) n = (n ^ at[i]) * UINT64_C(0x100000001b3);
    return hash_combine(n, bytes);
}

uint64_t hash_text(const char *text) {
    return hash_bytes(text, strlen(text));
}

uint64_t hash_combine(uint64_t a, uint64_t b) {
    uint64_t n = (a ^ (b + UINT64_C(0x9E3779B97F4A7C15))) * UINT64_C(0xBF58476D1CE4E5B9);
    n = (n ^ (n >> 27)) * UINT64_C(0x94D049BB133111EB);
    return n ^ (n >> 31);
}
