/* Numbers, texts and lists as bytes, for messages between processes of one kind of machine. Everything begins at a
 * multiple of eight bytes, so that a reader uses what it finds where it lies.
 */
#ifndef MPIXLA_NATIVE_WIRE_H
#define MPIXLA_NATIVE_WIRE_H

#include <stddef.h>
#include <stdint.h>

/* Starts as zeros. The memory is the caller's to free. */
typedef struct wire_writer {
    char *data;
    size_t bytes, room;
    int failed; /* there was no memory: what follows is not written */
} wire_writer;

void wire_write(wire_writer *w, int64_t number);
void wire_write_text(wire_writer *w, const char *text);
void wire_write_list(wire_writer *w, const int64_t *items, int64_t n);

/* Over memory that begins at a multiple of eight and stays the caller's. What is not there reads as 0, "" and no list,
 * and sets `failed`. */
typedef struct wire_reader {
    const char *data;
    size_t bytes, at;
    int failed;
} wire_reader;

int64_t wire_read(wire_reader *r);
const char *wire_read_text(wire_reader *r);
const int64_t *wire_read_list(wire_reader *r, int64_t *n);

#endif
