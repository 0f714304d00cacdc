/* Numbers that stand for what they are made of, the same in every process: what differs has different ones, but for one
 * case in 2^64. */
#ifndef MPIXLA_NATIVE_NUMBER_H
#define MPIXLA_NATIVE_NUMBER_H

#include <stddef.h>
#include <stdint.h>

/* A number made of bytes, of a text, and of two numbers. */
uint64_t number_of_bytes(const void *data, size_t bytes);
uint64_t number_of_text(const char *text);
uint64_t number_mix(uint64_t a, uint64_t b);

#endif
