/* Calls with a GPU's memory by way of pinned memory of the host, through MPI: the row's expression, on mirrors. Every
 * call can go this way.
 *
 * Large calls go in pieces: while MPI has one, the next is on its way to the host, and the one before on its way back.
 * All ranks make the same pieces, which the plan says. A message from rank to rank has none: its receiver may be no
 * program of ours.
 */
#include "routes/gpu.h"
#include "routes/routes.h"

/* Returns the bytes of the call's send buffer, or else of its receive buffer. */
static int64_t gpu_host_bytes(const frame *f) {
    return frame_buffer_bytes(f->send.dtype ? &f->send : &f->recv);
}

/* Returns whether the call is made in pieces: it is large, and its items do not depend on each other. */
static int gpu_host_uses_pieces(const frame *f) {
    const plan *p = gpu_call_of(f)->plan;
    return p && (f->facts.row->attributes & SPLITS) && f->n > 1 && p->piece_bytes > 0 &&
           gpu_host_bytes(f) > p->piece_bytes;
}

/* Copies the call's buffers to pinned memory of the host and waits for the copies, unless it is made in pieces. Calls
 * of MANY copy the arrays that they need themselves. A call that reads nothing does not wait for the earlier work of
 * the stream, unless it is a barrier, or starts one. Returns 0. A local failure ends the job if the call is collective,
 * else it returns REFUSED (facts_fail). */
static int gpu_host_begin(frame *f) {
    gpu_call *g = gpu_call_of(f);
    f->gpu->has_arrays = f->facts.row->counts == MANY;
    g->is_in_pieces = gpu_host_uses_pieces(f);
    if (f->gpu->has_arrays || g->is_in_pieces) return 0;
    int failed = gpu_mirrors_make(f);
    if (!failed && (g->mirrored == 0 || !facts_type(&f->facts) || gpu_mirrors_are_read(g)))
        failed = device_wait(frame_device(f));
    return gpu_local_step_check(f, failed);
}

/* Some items of a call, `bytes` from byte `at` on, and where they lie on the host. */
typedef struct piece {
    pool_block *block;
    int64_t at, bytes;
} piece;

/* Puts the copy of a piece to the host on the stream, and an event behind it. The block may still be on its way to the
 * GPU with an earlier piece: the event comes after that, too. Returns 0 or REFUSED. */
static int gpu_host_piece_start(const device *d, const void *from, const piece *p) {
    if (p->bytes == 0) return 0;
    if (from && device_copy_out(d, p->block->data, (const char *)from + p->at, p->bytes)) return REFUSED;
    return DRIVER_CALL(d->driver, event_record, p->block->released, d->stream);
}

/* Waits for the copy of a piece to the host, makes the call for it, and puts the copy of its result on the stream.
 * Returns 0 or an error code. A local failure ends the job if the call is collective, else it returns REFUSED
 * (facts_fail): the other ranks wait for this rank in the next piece, too. */
static int gpu_host_piece_run(frame *f, const operation *o, const void *from, void *to, const piece *p) {
    const device *d = frame_device(f);
    int code = gpu_local_step_check(f, device_wait_for(d, p->block->released));
    if (code != 0) return code;
    f->send.data = f->recv.data = p->block->data;
    f->from = p->block->data;
    if (from && to) f->from = (const void *)(intptr_t)mpi_get()->facts.in_place; /* NOLINT(performance-no-int-to-ptr) */
    code = o->run(f);
    if (code != 0 || !to) return code;
    return gpu_local_step_check(f, device_copy_in(d, (char *)to + p->at, p->block->data, p->bytes));
}

/* Makes a large call in pieces, with two blocks of pinned memory in turn: while MPI has one piece, the next is on its
 * way to the host. Returns 0 or an error code. A local failure ends the job if the call is collective, else it returns
 * REFUSED (facts_fail). */
static int gpu_host_pieces_run(frame *f, const operation *o) {
    const device *d = frame_device(f);
    const mpi_library *mpi = mpi_get();
    const void *from = f->send.dtype ? f->send.data : NULL;
    void *to = f->recv.dtype ? f->recv.data : NULL;
    const int64_t limit = gpu_call_of(f)->plan->piece_bytes;
    int64_t bytes = gpu_host_bytes(f), n = f->n, unit = n > 0 && bytes >= n ? bytes / n : 1;
    int64_t most = limit / unit > 0 ? limit / unit * unit : unit;
    piece pieces[2] = {{.bytes = most}, {.at = most}};
    int code = 0;
    for (int i = 0; i < 2 && code == 0; i++) {
        pieces[i].block = pool_get(d, POOL_PINNED, most);
        code = gpu_local_step_check(f, !pieces[i].block);
    }
    if (code == 0) code = gpu_local_step_check(f, gpu_host_piece_start(d, from, &pieces[0]));
    for (int i = 0; code == 0 && pieces[i].at < bytes; i = 1 - i) {
        piece *next = &pieces[1 - i];
        next->at = pieces[i].at + pieces[i].bytes;
        next->bytes = next->at + most < bytes ? most : bytes - next->at;
        code = gpu_local_step_check(f, gpu_host_piece_start(d, from, next));
        f->n = pieces[i].bytes / unit;
        f->mpi = f->n <= mpi->count_limit ? mpi->small : mpi->large;
        if (code == 0) code = gpu_host_piece_run(f, o, from, to, &pieces[i]);
    }
    for (int i = 0; i < 2; i++) pool_give_back(d, pieces[i].block);
    f->n = n;
    return code;
}

/* Makes a call through MPI on mirrors in the host's memory, in pieces if it is large. Returns 0 or an error code. */
static int gpu_host_run(frame *f, const operation *o) {
    const int code = routes_mpi_prepare(f);
    if (code != 0) return code;
    return gpu_call_of(f)->is_in_pieces ? gpu_host_pieces_run(f, o) : o->run(f);
}

const route route_gpu_host = {.name = "host", .begin = gpu_host_begin, .run = gpu_host_run, .end = gpu_mirrors_end};
