#include "test/gpu/fake_access.h"

#include "test/gpu/fake_memory.h"

static _Thread_local fake_stream *current;
static _Thread_local int is_left; /* open since a non-blocking call */

void fake_access_stream_set(fake_stream *stream) {
    current = stream;
}

int fake_access_begin(void) {
    if (!current || !fake_stream_is_idle(current)) return 0;
    fake_memory_open();
    return 1;
}

void fake_access_release(void) {
    if (is_left) fake_memory_close();
    is_left = 0;
}

void fake_access_end(int begun, int what) {
    if (what == FAKE_ACCESS_CLOSE) fake_access_release();
    if (!begun) return;
    if (what == FAKE_ACCESS_LEAVE && !is_left)
        is_left = 1;
    else
        fake_memory_close();
}
