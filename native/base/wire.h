/* Serializes numbers, texts and lists for messages between processes of one architecture. Each value begins at a
 * multiple of eight bytes, so that a reader can return pointers into the message.
 */
#ifndef MPIXLA_NATIVE_WIRE_H
#define MPIXLA_NATIVE_WIRE_H

#include <stddef.h>
#include <stdint.h>

/* A growing buffer; all zeros: empty. The caller frees `data`. */
typedef struct wire_writer {
    char *data;
    size_t bytes, room;
    int failed; /* there was no memory; later writes do nothing */
} wire_writer;

/* Append one value to the buffer. */
void wire_write(wire_writer *w, int64_t number);
void wire_write_text(wire_writer *w, const char *text);
void wire_write_list(wire_writer *w, const int64_t *items, int64_t n);

/* A cursor over a message, which the caller owns and which begins at a multiple of eight bytes. */
typedef struct wire_reader {
    const char *data;
    size_t bytes, at;
    int failed; /* the message ended before a value */
} wire_reader;

/* Return the next value, which points into the message; 0, "" or no list, with `failed` set, after its end. */
int64_t wire_read(wire_reader *r);
const char *wire_read_text(wire_reader *r);
const int64_t *wire_read_list(wire_reader *r, int64_t *n);

#endif
