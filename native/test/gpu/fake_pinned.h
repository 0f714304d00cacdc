/* Pinned host memory: the only host memory from and to which the fake GPU copies asynchronously. The real one would
 * take other memory as well, and make the copy a synchronous one.
 */
#ifndef MPIXLA_TEST_FAKE_PINNED_H
#define MPIXLA_TEST_FAKE_PINNED_H

#include "test/gpu/gpu_types.h"

void *fake_pinned_alloc(size_t bytes);
/* Returns 0, or -1 if this is not the start of pinned memory. */
int fake_pinned_free(void *memory);
/* Whether these bytes are within one piece of it. */
int fake_pinned_has(const void *memory, size_t bytes);
/* How many pieces there are, and their bytes. */
FAKE_API int64_t fake_pinned_live(void);
FAKE_API int64_t fake_pinned_bytes(void);

#endif
