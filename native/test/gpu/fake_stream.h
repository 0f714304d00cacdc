/* Streams that run late on purpose: what is added to one runs when somebody waits for it, and not before.
 */
#ifndef MPIXLA_TEST_FAKE_STREAM_H
#define MPIXLA_TEST_FAKE_STREAM_H

#include "test/gpu/gpu_types.h"

/* One thing to do. */
typedef struct fake_work {
    /* A copy, or with `fill` a fill: `height` rows of `width` bytes, as the program names them. */
    void *to;
    const void *from;
    size_t to_pitch, from_pitch, width, height;
    int is_fill;
    unsigned char value;
    int is_trusted; /* one side is host memory that need not be pinned */
    /* If not NULL it is called with `data` instead; it may block. */
    void (*call)(void *data);
    void *data;
} fake_work;

typedef struct fake_stream fake_stream;

/* A stream of this device, for the caller alone until it gives it back. Handles stay valid for good. */
FAKE_API fake_stream *fake_stream_take(int device);
FAKE_API void fake_stream_give(fake_stream *stream);

/* The stream with this handle, or NULL. */
fake_stream *fake_stream_find(driver_stream handle);
int fake_stream_device(const fake_stream *stream);

/* What is wrong with the memory that work names, as a sentence into `text`; returns whether anything is. */
int fake_work_is_wrong(const fake_work *work, char *text, size_t bytes);

/* Adds work at the end, which need not be right. Memory of the host that a copy will write is spoilt at once, unless
 * what is to run before reads it: who looks at it too early sees that. Returns 0, or the driver's code. */
FAKE_API int fake_stream_add(fake_stream *stream, const fake_work *work);

/* How much was added so far: by this number one may wait for it. */
FAKE_API uint64_t fake_stream_added(fake_stream *stream);
FAKE_API int fake_stream_has_run(fake_stream *stream, uint64_t until);
/* Runs the work that was added until then, and returns 0, or the driver's code for what went wrong. */
FAKE_API int fake_stream_run(fake_stream *stream, uint64_t until);
FAKE_API int fake_stream_is_idle(fake_stream *stream);

#endif
