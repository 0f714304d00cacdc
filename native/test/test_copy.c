#include <stdlib.h>

#include "base/copy.h"
#include "run.h"

enum { MOST = 3 * COPY_CHUNK_BYTES + 5, MARGIN = 8 };

/* Copies `bytes` bytes between places that are so far behind the beginnings of two pages. Returns whether they have
 * arrived, and nothing beside them is changed. */
static int copies(char *to_page, char *from_page, int64_t to_at, int64_t from_at, int64_t bytes) {
    char *to = to_page + MARGIN + to_at, *from = from_page + MARGIN + from_at;
    for (int64_t i = -MARGIN; i < bytes + MARGIN; i++) {
        from[i] = (char)(i * 7 + 1);
        to[i] = 'x';
    }
    copy_bytes(to, from, bytes);
    int is_right = memcmp(to, from, (size_t)bytes) == 0;
    for (int64_t i = 1; i <= MARGIN; i++) is_right &= to[-i] == 'x' && to[bytes + i - 1] == 'x';
    return is_right;
}

static void copies_between_any_places_in_pages(void) {
    const int64_t places[] = {0, 1, 16, COPY_NEAR_BYTES - 1, COPY_NEAR_BYTES, COPY_PAGE_BYTES - 1};
    const int64_t sizes[] = {0,   1, COPY_CHUNK_BYTES - 1, COPY_CHUNK_BYTES, COPY_CHUNK_BYTES + 1, 2 * COPY_CHUNK_BYTES,
                             MOST};
    const size_t bytes = (size_t)(4 * COPY_PAGE_BYTES);
    char *to = aligned_alloc(COPY_PAGE_BYTES, bytes), *from = aligned_alloc(COPY_PAGE_BYTES, bytes);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        for (size_t j = 0; j < sizeof places / sizeof *places; j++)
            for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
                CHECK(copies(to, from, places[i], places[j], sizes[k]));
    free(to);
    free(from);
}

static void copies_nothing_between_null_pointers(void) {
    copy_bytes(NULL, NULL, 0);
}

int main(void) {
    copies_between_any_places_in_pages();
    copies_nothing_between_null_pointers();
    return check_failures();
}
