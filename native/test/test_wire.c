#include <stdlib.h>

#include "base/wire.h"
#include "check.h"

static const int64_t items[] = {7, -8, 9};

static wire_writer written(void) {
    wire_writer w = {.data = NULL};
    wire_write(&w, -5);
    wire_write_text(&w, "a text");
    wire_write_list(&w, items, 3);
    wire_write_text(&w, "");
    wire_write_list(&w, NULL, 0);
    for (int i = 0; i < 1000; i++) wire_write(&w, i); /* it grows */
    return w;
}

static void reads_what_was_written(void) {
    wire_writer w = written();
    wire_reader r = {.data = w.data, .bytes = w.bytes};
    int64_t n = 0;
    CHECK_INT(wire_read(&r), -5);
    CHECK_STR(wire_read_text(&r), "a text");
    const int64_t *list = wire_read_list(&r, &n);
    CHECK_INT(n, 3);
    for (int i = 0; i < 3; i++) CHECK_INT(list[i], items[i]);
    CHECK_STR(wire_read_text(&r), "");
    CHECK(wire_read_list(&r, &n) == NULL && n == 0);
    for (int i = 0; i < 1000; i++) CHECK_INT(wire_read(&r), i);
    CHECK(!r.failed);
    CHECK_INT(wire_read(&r), 0);
    CHECK(r.failed);
    free(w.data);
}

/* Whatever is missing, nothing beyond the end is read: the sanitizers say so. */
static void reads_what_is_cut_off(void) {
    wire_writer w = written();
    for (size_t bytes = 0; bytes < 96; bytes++) {
        char *part = malloc(bytes + 1);
        memcpy(part, w.data, bytes);
        wire_reader r = {.data = part, .bytes = bytes};
        int64_t n = 0;
        (void)wire_read(&r);
        (void)wire_read_text(&r);
        (void)wire_read_list(&r, &n);
        CHECK(n == 0 || n == 3);
        (void)wire_read_text(&r);
        free(part);
    }
    free(w.data);
}

static void refuses_counts_that_cannot_be(void) {
    static const int64_t counts[] = {-1, INT64_MAX, INT64_MAX / 8, INT64_MIN, 1000, 0};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        const int64_t data[] = {counts[i], 'x'};
        wire_reader text = {.data = (const char *)data, .bytes = sizeof data}, list = text;
        int64_t n = 0;
        CHECK_STR(wire_read_text(&text), "");
        CHECK(text.failed);
        CHECK(wire_read_list(&list, &n) == NULL && n == 0);
        CHECK_INT(list.failed, counts[i] != 0);
    }
    const int64_t endless[] = {8, -1}; /* no zero at its end */
    wire_reader r = {.data = (const char *)endless, .bytes = sizeof endless};
    CHECK_STR(wire_read_text(&r), "");
    CHECK(r.failed);
}

int main(void) {
    reads_what_was_written();
    reads_what_is_cut_off();
    refuses_counts_that_cannot_be();
    return check_failures();
}
