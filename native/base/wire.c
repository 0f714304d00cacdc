#include "base/wire.h"

#include <stdlib.h>
#include <string.h>

enum { UNIT = 8, FIRST_ROOM = 1024 };

/* Appends so many bytes, and zeros up to the next multiple of eight. Returns their address; NULL with `failed` set
 * without memory. */
static char *wire_reserve(wire_writer *w, size_t bytes) {
    size_t whole = (bytes + UNIT - 1) / UNIT * UNIT;
    while (!w->failed && w->room - w->bytes < whole) {
        size_t wider = w->room > 0 ? 2 * w->room : FIRST_ROOM;
        char *data = realloc(w->data, wider);
        w->failed = data == NULL;
        if (!data) break;
        w->data = data;
        w->room = wider;
    }
    if (w->failed) return NULL;
    char *place = w->data + w->bytes;
    memset(place, 0, whole);
    w->bytes += whole;
    return place;
}

void wire_write(wire_writer *w, int64_t number) {
    char *place = wire_reserve(w, sizeof number);
    if (place) memcpy(place, &number, sizeof number);
}

/* Appends a count, and then `bytes` bytes of data. */
static void wire_write_counted(wire_writer *w, const void *data, int64_t n, size_t bytes) {
    wire_write(w, n);
    char *place = wire_reserve(w, bytes);
    if (place && bytes > 0) memcpy(place, data, bytes);
}

void wire_write_text(wire_writer *w, const char *text) {
    size_t bytes = strlen(text) + 1;
    wire_write_counted(w, text, (int64_t)bytes, bytes);
}

void wire_write_list(wire_writer *w, const int64_t *items, int64_t n) {
    wire_write_counted(w, items, n, (size_t)n * sizeof *items);
}

/* Returns the address of the next `bytes` bytes of the message, and advances past them and their padding; NULL with
 * `failed` set if the message is shorter. */
static const char *wire_take_bytes(wire_reader *r, uint64_t bytes) {
    uint64_t whole = bytes > SIZE_MAX - UNIT ? bytes : (bytes + UNIT - 1) / UNIT * UNIT;
    if (r->failed || whole > r->bytes - r->at) {
        r->failed = 1;
        return NULL;
    }
    const char *place = r->data + r->at;
    r->at += whole;
    return place;
}

/* Returns the next number; 0 with `failed` set after the end of the message. */
int64_t wire_read(wire_reader *r) {
    int64_t number = 0;
    const char *place = wire_take_bytes(r, sizeof number);
    if (place) memcpy(&number, place, sizeof number);
    return number;
}

/* Returns the next text, which points into the message; "" with `failed` set if there is none. */
const char *wire_read_text(wire_reader *r) {
    int64_t bytes = wire_read(r);
    const char *text = bytes > 0 ? wire_take_bytes(r, (uint64_t)bytes) : NULL;
    if (text && text[bytes - 1] == '\0') return text;
    r->failed = 1;
    return "";
}

/* Returns the next list and its length `*n`; it points into the message. NULL and 0 if it is empty, or, with `failed`
 * set, if there is none. */
const int64_t *wire_read_list(wire_reader *r, int64_t *n) {
    *n = wire_read(r);
    const char *items = *n > 0 && *n <= INT64_MAX / UNIT ? wire_take_bytes(r, (uint64_t)*n * UNIT) : NULL;
    if (items) return (const int64_t *)(const void *)items;
    r->failed |= *n != 0;
    *n = 0;
    return NULL;
}
