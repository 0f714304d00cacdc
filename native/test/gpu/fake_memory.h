/* The memory of the fake GPUs. Its pages are mapped twice: where device pointers point nobody may touch them, and the
 * engine, which stands for the GPU, reads and writes them elsewhere. So a host that touches device memory gets a
 * SIGSEGV.
 */
#ifndef MPIXLA_TEST_FAKE_MEMORY_H
#define MPIXLA_TEST_FAKE_MEMORY_H

#include "test/gpu/gpu_types.h"

/* What fresh memory is full of, and what freed memory is. */
enum { FAKE_FRESH = 0xA5, FAKE_FREED = 0xDE };

/* NULL where there is no more. Freed memory is used again as late as possible. */
FAKE_API void *fake_memory_alloc(size_t bytes);
/* Returns 0, or -1 if this is not the start of live memory. Complains if somebody wrote beyond its end. */
FAKE_API int fake_memory_free(void *memory);
/* How many allocations are live. */
FAKE_API int64_t fake_memory_live(void);

/* NULL if these bytes are within one live allocation, else what they are instead, to go on after "which". */
const char *fake_memory_wrong(const void *memory, size_t bytes);

/* Where the engine has what is here; host memory is where it is. */
FAKE_API void *fake_memory_engine(const void *memory);

/* Lets everybody touch device memory, until it is closed as often as it was opened. */
FAKE_API void fake_memory_open(void);
FAKE_API void fake_memory_close(void);
FAKE_API int fake_memory_is_open(void);

#endif
