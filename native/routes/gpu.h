/* The common part of the three routes for a GPU's memory: the state of a call, the ranks' agreement, and mirrors, which
 * are copies of a call's buffers in pinned memory of the host.
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

/* Begin and end a call on the GPU that XLA passes, as device_enter and device_leave. */
int gpu_enter(gpu_call *g, const ffi_call_frame *call);
void gpu_leave(const gpu_call *g);

/* Agrees on the plan with the other ranks of a collective call, with arrays in either memory, and sets it in the
 * gpu_call: in a job where some rank may have a GPU, before the route is chosen. Returns 0 or an error code; REFUSED if
 * the call cannot be made with the transport that the user asks for. */
int gpu_plan_agree(const frame *f);

/* Returns 0 if `failed` is 0. Else a step of this rank alone has failed before its part of the call was made: ends the
 * job if the call is collective, since the other ranks wait, else returns REFUSED (facts_fail). A failure after that is
 * an ordinary error: no rank waits for it. */
static inline int gpu_local_step_check(const frame *f, int failed) {
    return failed ? facts_fail(&f->facts) : 0;
}

/* Replaces the frame's buffers by mirrors, or the status alone if the operation finds its arrays in the GPU's memory.
 * Gives the stream the copies of the buffers that the call reads, and does not wait for them. Returns 0 or REFUSED;
 * gpu_mirrors_end gives the memory back in both cases. */
int gpu_mirrors_make(frame *f);

/* Returns whether the call reads a mirror. */
int gpu_mirrors_are_read(const gpu_call *g);

/* Ends a call with mirrors: gives the stream their copies back to the GPU, if `code` is 0, and gives their memory back
 * to the pool. Returns `code` or REFUSED. */
int gpu_mirrors_end(const frame *f, int code);

#endif
