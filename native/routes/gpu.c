#include "routes/gpu.h"

#include <string.h>

#include "base/error.h"

enum { LINE = 64 }; /* bytes; mirrors begin at multiples of it */

int gpu_enter(gpu_call *g, const ffi_call_frame *call) {
    *g = (gpu_call){.plan = NULL};
    return device_enter(&g->of_frame.device, call);
}

void gpu_leave(const gpu_call *g) {
    device_leave(&g->of_frame.device);
}

/* Agreeing */

/* Returns whether all ranks of the communicator make the call, and complete it, so that they can agree on a plan first.
 */
static int gpu_call_can_agree(const frame *f) {
    return facts_are_collective(&f->facts) && f->facts.row->request == MPIXLA_COMPLETES;
}

/* Refuses a call on a communicator whose plan says that it cannot be made as the user asks. Returns 0 or REFUSED. */
static int gpu_plan_check(const frame *f, const plan *p) {
    if (!p || !p->is_refused) return 0;
    return error_set("%s on communicator '%s' cannot be made in the way that MPIXLA_GPU_TRANSPORT asks for: %s",
                     f->facts.row->mpi_name, f->facts.communicator->name, p->why);
}

int gpu_plan_agree(const frame *f) {
    plan *p = NULL;
    if (f->gpu && plan_wish_get() == PLAN_MPI && *plan_mpi_refusal()) {
        return error_set(
            "%s was called with a GPU's memory and MPIXLA_GPU_TRANSPORT=mpi, but %s; unset it, or set it to host",
            f->facts.row->mpi_name, plan_mpi_refusal());
    }
    if (!gpu_call_can_agree(f)) return 0;
    const int code = plan_find(f, frame_device(f), &p);
    if (f->gpu) gpu_call_of(f)->plan = p;
    return code != 0 ? code : gpu_plan_check(f, p);
}

/* Mirrors */

static int64_t gpu_lines_round_up(int64_t bytes) {
    return (bytes + LINE - 1) / LINE * LINE;
}

/* Adds a mirror of the buffer `on_device` to the call's list, if it has bytes; buffers in one memory have one mirror.
 * `goes_out`: it is copied to the host before the call; `comes_in`: to the GPU after it. */
static void gpu_mirror_add(gpu_call *g, void *on_device, int64_t bytes, int goes_out, int comes_in) {
    gpu_mirror *m = g->mirrors;
    if (!on_device || bytes == 0) return;
    while (m < g->mirrors + g->mirrored && m->on_device != on_device) m++;
    if (m == g->mirrors + g->mirrored) {
        *m = (gpu_mirror){.on_device = on_device};
        g->mirrored++;
    }
    if (bytes > m->bytes) m->bytes = bytes;
    m->goes_out |= goes_out;
    m->comes_in |= comes_in;
}

/* Returns the address of a buffer's mirror on the host; the buffer's own address if it has none. */
static void *gpu_mirror_find(const gpu_call *g, void *on_device) {
    for (int i = 0; i < g->mirrored; i++)
        if (g->mirrors[i].on_device == on_device) return g->mirrors[i].on_host;
    return on_device;
}

/* Adds a mirror to the call's list for each buffer that the call reads or writes on the host. A template has one where
 * a wait copies it; else its values are copied to the result later (execute_template_rest_copy). A status that is a
 * result, or whose numbers are, always has one: it is written and read with the processor. */
static void gpu_mirrors_list(gpu_call *g, const frame *f) {
    int waits = f->facts.row->request == MPIXLA_WAITS, starts = f->facts.row->request == MPIXLA_STARTS;
    if (frame_gives_status(f)) gpu_mirror_add(g, f->status, mpi_get()->facts.status_size, 0, 1);
    gpu_mirror_add(g, f->numbers.data, frame_buffer_bytes(&f->numbers), 0, 1);
    if (f->gpu->has_arrays) return;
    gpu_mirror_add(g, f->send.data, frame_buffer_bytes(&f->send), 1, 0);
    gpu_mirror_add(g, f->id.data, frame_buffer_bytes(&f->id), waits, starts);
    if (waits) gpu_mirror_add(g, f->template_.data, frame_buffer_bytes(&f->template_), 1, 0);
    gpu_mirror_add(g, f->recv.data, frame_buffer_bytes(&f->recv), 0, 1);
}

int gpu_mirrors_make(frame *f) {
    gpu_call *g = gpu_call_of(f);
    const device *d = frame_device(f);
    int64_t bytes = 0;
    const int in_place = f->send.dtype && f->from != f->send.data;
    gpu_mirrors_list(g, f);
    for (int i = 0; i < g->mirrored; i++) bytes += gpu_lines_round_up(g->mirrors[i].bytes);
    if (bytes == 0) return 0;
    g->block = pool_get(d, POOL_PINNED, bytes);
    if (!g->block) return REFUSED;
    char *place = g->block->data;
    for (int i = 0; i < g->mirrored; i++) {
        gpu_mirror *m = &g->mirrors[i];
        m->on_host = place;
        place += gpu_lines_round_up(m->bytes);
        if (m->goes_out && device_copy_out(d, m->on_host, m->on_device, m->bytes)) return REFUSED;
    }
    f->send.data = gpu_mirror_find(g, f->send.data);
    f->id.data = gpu_mirror_find(g, f->id.data);
    if (f->facts.row->request == MPIXLA_WAITS) f->template_.data = gpu_mirror_find(g, f->template_.data);
    f->recv.data = gpu_mirror_find(g, f->recv.data);
    f->numbers.data = gpu_mirror_find(g, f->numbers.data);
    if (frame_gives_status(f)) {
        f->status = gpu_mirror_find(g, f->status);
        const int no_source = -1; /* where the receive fails, MPI may not write it */
        memcpy((char *)f->status + mpi_get()->facts.status_source, &no_source, sizeof no_source);
    }
    if (!in_place) f->from = f->send.data;
    return 0;
}

int gpu_mirrors_are_read(const gpu_call *g) {
    int are_read = 0;
    for (int i = 0; i < g->mirrored; i++) are_read |= g->mirrors[i].goes_out;
    return are_read;
}

int gpu_mirrors_end(const frame *f, int code) {
    const gpu_call *g = gpu_call_of(f);
    for (int i = 0; i < g->mirrored && code == 0; i++) {
        const gpu_mirror *m = &g->mirrors[i];
        if (m->comes_in) code = device_copy_in(frame_device(f), m->on_device, m->on_host, m->bytes);
    }
    pool_give_back(frame_device(f), g->block);
    return code;
}
