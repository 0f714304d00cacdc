/* What the routes of a GPU's memory share: what each keeps of a call, what the ranks agree on first, and mirrors, which
 * are copies of buffers in pinned memory of the host.
 */
#ifndef MPIXLA_NATIVE_GPU_H
#define MPIXLA_NATIVE_GPU_H

#include "call/frame.h"
#include "device/pool.h"
#include "routes/plan.h"

enum { GPU_MIRRORS = 4 };

/* A buffer and its copy. */
typedef struct gpu_mirror {
    void *on_device, *on_host;
    int64_t bytes;
    int goes_out, comes_in; /* to the host before the call, to the GPU after it */
} gpu_mirror;

/* One call. */
typedef struct gpu_call {
    frame_gpu of_frame; /* first, so that gpu_call_of finds the rest */
    plan *plan;         /* NULL where the ranks need none */
    pool_block *block;  /* which has the mirrors */
    gpu_mirror mirrors[GPU_MIRRORS];
    int mirrored;
    int is_in_pieces; /* gpu_host.c */
} gpu_call;

static inline gpu_call *gpu_call_of(const frame *f) {
    return (gpu_call *)f->gpu;
}

/* Around a call, as device_enter and device_leave: the call has no route yet. */
int gpu_enter(gpu_call *g, const ffi_call_frame *call);
void gpu_leave(const gpu_call *g);

/* Before a call gets its route, in a job where some rank may have a GPU: the ranks of a collective call agree on their
 * plan, whatever memory each of them has. Returns 0 or an error code. */
int gpu_join(const frame *f);

/* For what this rank does by itself before it has made its part of the call, for which the others wait: 0, or as
 * call_fail (facts.h). What fails after that is an ordinary error: nobody waits for it any more. */
static inline int gpu_before_part(const frame *f, int failed) {
    return failed ? call_fail(&f->facts) : 0;
}

/* The frame's buffers become their mirrors, or its status alone if the operation finds its arrays in the GPU's memory.
 * Gives the stream the copies of what the call reads, which it does not wait for. 0 or REFUSED. */
int gpu_mirrors_make(frame *f);

/* Whether the call reads a mirror. */
int gpu_mirrors_are_read(const gpu_call *g);

/* A route's end: brings back what mirrors have, if `code` is 0, and gives back their memory. */
int gpu_end(const frame *f, int code);

#endif
