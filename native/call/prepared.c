#include "call/prepared.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "mpixla.h"
#include "xla/ffi.h"

struct prepared {
    _Atomic(frame *) frame; /* of the first run that read the call; NULL: there was none. It never changes. */
};

/* Frees a prepared call with its frame: XLA's deleter of the state. */
static void prepared_free(void *state) {
    prepared *p = state;
    free(atomic_load(&p->frame));
    free(p);
}

/* Gives XLA an empty prepared call as the state of a call that it instantiates. Never returns an error, which would
 * fail the compilation of the program: a call without a state is read in each run. */
static ffi_error *prepared_instantiate(ffi_call_frame *call) {
    prepared *p = ffi_query_answer(call, FFI_STAGE_INSTANTIATE) ? NULL : calloc(1, sizeof *p);
    if (p && ffi_state_set(call, p, prepared_free) != 0) free(p);
    return NULL;
}

mpixla_handler *mpixla_instantiate_handler(void) {
    return (mpixla_handler *)prepared_instantiate;
}

prepared *prepared_of(const ffi_call_frame *call) {
    return ffi_state_get(call);
}

/* Returns a copy of the frame in one block, with the items of its array attributes and without the state of one run;
 * NULL without memory. */
static frame *prepared_frame_copy(const frame *f) {
    size_t items = 0;
    for (int i = 0; i < ATTRIBUTES; i++) items += frame_has(f, i) ? (size_t)f->arrays[i].size : 0;
    frame *copy = malloc(sizeof *copy + items * sizeof(int64_t));
    if (!copy) return NULL;
    *copy = *f;
    copy->gpu = NULL; /* each run has its own, and in a GPU's memory its own route, too */
    copy->agreement = NULL;
    if (f->gpu) copy->route = NULL;
    copy->attributes = copy->own.attributes;
    copy->arrays = copy->own.arrays;
    int64_t *to = (int64_t *)(copy + 1);
    for (int i = 0; i < ATTRIBUTES; i++) {
        const size_t size = frame_has(f, i) ? (size_t)f->arrays[i].size : 0;
        if (size == 0) continue;
        memcpy(to, f->arrays[i].items, size * sizeof *to);
        copy->own.arrays[i].items = to;
        to += size;
    }
    return copy;
}

int prepared_read(prepared *p, frame *f, const frame_shape *shape, const ffi_call_frame *call, frame_gpu *gpu) {
    const frame *known = p ? atomic_load_explicit(&p->frame, memory_order_acquire) : NULL;
    if (known) return frame_read_again(f, known, call, gpu);
    return frame_read(f, shape, call, gpu);
}

void prepared_publish(prepared *p, const frame *f) {
    frame *none = NULL;
    if (!p || f->at_run_time != 0 || atomic_load_explicit(&p->frame, memory_order_relaxed)) return;
    frame *copy = prepared_frame_copy(f);
    if (copy && !atomic_compare_exchange_strong(&p->frame, &none, copy)) free(copy);
}
