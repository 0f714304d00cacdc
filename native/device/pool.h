/* Allocates memory for one call, and keeps it for the next one: pinned memory of the host, memory of the device, or,
 * without a device, ordinary memory of the host. A block is reused only when the stream has done all that the call put
 * on it. A thread waits for that only if its program is far ahead of the stream. Thread-safe.
 */
#ifndef MPIXLA_NATIVE_POOL_H
#define MPIXLA_NATIVE_POOL_H

#include "device/device.h"

typedef enum pool_kind { POOL_PINNED, POOL_DEVICE, POOL_HOST, POOL_KINDS } pool_kind;

typedef struct pool_block {
    char *data; /* aligned for anything */
    pool_kind kind;
    int64_t bytes;
    int device;            /* the device whose streams use it; this field and `released` are unused for POOL_HOST */
    driver_event released; /* recorded when it was given back */
    struct pool_block *next;
} pool_block;

/* Returns a block of at least `bytes` bytes, which the caller gives back; NULL with error_set on failure. Waits for the
 * stream if too many blocks of the size wait for it. The device is NULL for POOL_HOST, here and in pool_give_back. A
 * free large block may be too small: then it is freed, and a new one made. */
pool_block *pool_get(const device *d, pool_kind kind, int64_t bytes);

/* Gives a block back: another call may get it once the stream has done all work that was put on it so far. NULL is
 * ignored. A block that is not kept, or whose event cannot be recorded, is freed once the stream is done. */
void pool_give_back(const device *d, pool_block *b);

#endif
