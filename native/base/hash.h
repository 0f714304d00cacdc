/* 64-bit hashes that are equal in all processes of a job. */
#ifndef MPIXLA_NATIVE_HASH_H
#define MPIXLA_NATIVE_HASH_H

#include <stddef.h>
#include <stdint.h>

/* Returns the hash of bytes, or of a text. */
uint64_t hash_bytes(const void *data, size_t bytes);
uint64_t hash_text(const char *text);

/* Returns a hash of two hashes or numbers, in this order. */
uint64_t hash_combine(uint64_t a, uint64_t b);

#endif
