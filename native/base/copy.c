#include "base/copy.h"

/* A function of its own, since compilers turn a memcpy of constant size into the REP MOVSB that it is to avoid. */
void copy_bytes_in_chunks(char *to, const char *from, int64_t bytes, int64_t chunk) {
    for (; bytes > chunk; bytes -= chunk, to += chunk, from += chunk) memcpy(to, from, (size_t)chunk);
    memcpy(to, from, (size_t)bytes);
}
