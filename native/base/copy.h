/* Copies of arrays.
 *
 * glibc before 2.39 copies 2 KiB and more with REP MOVSB where the processor says that it is fast. AMD's Zen 3 and 4
 * say so, but take up to 20 times as long if the destination's place in its page is at, or a few bytes behind, the
 * source's (glibc's bug 30994). Copies in chunks of less than 2 KiB use vectors: on an AMD EPYC with glibc 2.36
 * (November 2026) 64 KiB took 22 us at once and 1.5 us in chunks.
 */
#ifndef MPIXLA_NATIVE_COPY_H
#define MPIXLA_NATIVE_COPY_H

#include <stdint.h>
#include <string.h>

enum {
    COPY_PAGE_BYTES = 4096,
    COPY_NEAR_BYTES = 64,   /* the distance of places in a page from which on REP MOVSB is fast again */
    COPY_CHUNK_BYTES = 1536 /* which memcpy copies with vectors */
};

/* Copies bytes, `chunk` of them at a time. */
void copy_bytes_in_chunks(char *to, const char *from, int64_t bytes, int64_t chunk);

/* Copies the bytes as memcpy does, in chunks where that is faster. The buffers do not overlap; without bytes they may
 * be NULL. */
static inline void copy_bytes(void *to, const void *from, int64_t bytes) {
    if (bytes > COPY_CHUNK_BYTES && ((uintptr_t)to - (uintptr_t)from) % COPY_PAGE_BYTES < COPY_NEAR_BYTES)
        copy_bytes_in_chunks(to, from, bytes, COPY_CHUNK_BYTES);
    else if (bytes > 0)
        memcpy(to, from, (size_t)bytes);
}

#endif
