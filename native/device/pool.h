/* Memory for one call, kept for the next call: pinned memory of the host or memory of the device; or ordinary memory of
 * the host, for which there is no device. What a call has given the stream to do with it is done before another call
 * gets it. Nobody waits for that but a program that is far ahead of its stream. Any thread may call it.
 */
#ifndef MPIXLA_NATIVE_POOL_H
#define MPIXLA_NATIVE_POOL_H

#include "device/device.h"

typedef enum pool_kind { POOL_PINNED, POOL_DEVICE, POOL_HOST, POOL_KINDS } pool_kind;

typedef struct pool_block {
    char *data; /* aligned for anything */
    pool_kind kind;
    int64_t bytes;         /* that it has */
    int device;            /* whose streams use it; not of POOL_HOST, as the next one */
    driver_event released; /* when the stream is done with it */
    struct pool_block *next;
} pool_block;

/* A block of at least `bytes` bytes, to be given back. On failure NULL with error_set. The device is NULL for
 * POOL_HOST, here and when it is given back. */
pool_block *pool_get(const device *d, pool_kind kind, int64_t bytes);

/* Gives it back, once all is done that the stream has been given so far. NULL is allowed. */
void pool_give_back(const device *d, pool_block *b);

#endif
