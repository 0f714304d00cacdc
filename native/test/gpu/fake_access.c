#include "test/gpu/fake_access.h"

#include "test/gpu/fake_memory.h"

static _Thread_local fake_stream *current;
static _Thread_local int started; /* calls for which the memory was left open; 0: it was not */

void fake_access_stream_set(fake_stream *stream) {
    current = stream;
}

int fake_access_begin(void) {
    if (!current || !fake_stream_is_idle(current)) return 0;
    fake_memory_open();
    return 1;
}

void fake_access_release(void) {
    if (started > 0) fake_memory_close();
    started = 0;
}

void fake_access_end(int begun, int what) {
    if (what == FAKE_ACCESS_CLOSE) fake_access_release();
    if (what == FAKE_ACCESS_WAITED && started > 0 && --started == 0) fake_memory_close();
    if (!begun || (what == FAKE_ACCESS_LEAVE && started++ == 0)) return;
    fake_memory_close();
}
