#include "transport/transport.h"

#include <stdatomic.h>
#include <string.h>

#include "base/error.h"
#include "mpi/float_reduce.h"
#include "mpi/reduction.h"
#include "transport/nccl_calls.h"

enum { LINE = 64 }; /* bytes; mirrors begin at multiples of it */

static atomic_int waits_for_nccl;

void transport_wait_for_nccl(void) {
    atomic_store(&waits_for_nccl, 1);
}

/* For what this rank does by itself before it has made its part of the call, for which the others wait. What fails
 * after that is an ordinary error: nobody waits for it any more. */
static int before_part(const frame *f, int failed) {
    return failed ? call_fail(&f->facts) : 0;
}

/* Choosing */

/* Calls that all ranks of the communicator make, and complete: they can agree. */
static int is_agreed_on(const frame *f) {
    return facts_are_collective(&f->facts) && f->facts.row->request == MPIXLA_COMPLETES;
}

/* MPI reduces itself, without a function of ours or of the user's, which would touch a GPU's memory. */
static int is_reduced_by_mpi(const frame *f) {
    int64_t number = f->attributes[ATTRIBUTE_OP];
    return reduction_is_predefined(number) && !reduction_is_of_pairs(number) &&
           !float_reduce_find(facts_type(&f->facts)->number, number);
}

/* Whether MPI may be given the GPU's memory. What a request sends and receives, and a message to this rank itself, is
 * copied, and an exscan may fill its result: that is done with the processor, which must reach the memory. */
static int mpi_takes(const frame *f) {
    int is_to_itself = frame_has(f, ATTRIBUTE_DEST) && f->attributes[ATTRIBUTE_DEST] == f->facts.communicator->rank;
    if (f->facts.row->request != MPIXLA_COMPLETES || is_to_itself || frame_has(f, ATTRIBUTE_FILL)) return 0;
    return !frame_has(f, ATTRIBUTE_OP) || is_reduced_by_mpi(f);
}

/* Returns 0, or REFUSED where the plan says so. */
static int plan_check(const frame *f, const plan *p) {
    if (!p || !p->is_refused) return 0;
    return error_set("%s on communicator '%s' cannot be made in the way that MPIXLA_GPU_TRANSPORT asks for: %s",
                     f->facts.row->mpi_name, f->facts.communicator->name, p->why);
}

int transport_join(const frame *f) {
    plan *p = NULL;
    int code = is_agreed_on(f) ? plan_find(f, NULL, &p) : 0;
    return code != 0 ? code : plan_check(f, p);
}

const char *transport_name(const transport *t) {
    static const char *const names[] = {[TRANSPORT_HOST] = "host", [TRANSPORT_NCCL] = "nccl", [TRANSPORT_MPI] = "mpi"};
    return names[t->kind];
}

static int choose(transport *t, const frame *f, int (*through_nccl)(frame *f)) {
    int wants_mpi = plan_wish_get() == PLAN_MPI;
    if (wants_mpi && *plan_mpi_refusal()) {
        return error_set(
            "%s was called with a GPU's memory and MPIXLA_GPU_TRANSPORT=mpi, but %s; unset it, or set it to host",
            f->facts.row->mpi_name, plan_mpi_refusal());
    }
    t->kind = wants_mpi && mpi_takes(f) ? TRANSPORT_MPI : TRANSPORT_HOST;
    if (!is_agreed_on(f)) return 0;
    int code = plan_find(f, &t->gpu, &t->plan);
    if (code == 0) code = plan_check(f, t->plan);
    if (code != 0) return code;
    if (!through_nccl || !t->plan->nccl || !nccl_takes(f)) return 0;
    if (t->plan->device != t->gpu.number) {
        return error_set(
            "%s on communicator '%s' was called for GPU %d, but before for GPU %d: use one GPU in each process",
            f->facts.row->mpi_name, f->facts.communicator->name, t->gpu.number, t->plan->device);
    }
    t->kind = TRANSPORT_NCCL;
    return 0;
}

/* Mirrors */

static int64_t in_lines(int64_t bytes) {
    return (bytes + LINE - 1) / LINE * LINE;
}

/* Buffers in one memory have one mirror. */
static void mirror_add(transport *t, void *on_device, int64_t bytes, int goes_out, int comes_in) {
    transport_mirror *m = t->mirrors;
    if (!on_device || bytes == 0) return;
    while (m < t->mirrors + t->mirrored && m->on_device != on_device) m++;
    if (m == t->mirrors + t->mirrored) {
        *m = (transport_mirror){.on_device = on_device};
        t->mirrored++;
    }
    if (bytes > m->bytes) m->bytes = bytes;
    m->goes_out |= goes_out;
    m->comes_in |= comes_in;
}

static void *mirror_of(const transport *t, void *on_device) {
    for (int i = 0; i < t->mirrored; i++)
        if (t->mirrors[i].on_device == on_device) return t->mirrors[i].on_host;
    return on_device;
}

/* Lists the mirrors that the call needs. A template has one where a wait copies it; else what the result keeps of it is
 * brought later (transport_keep). A status that is a result always has one: it is written and read with the processor.
 */
static void mirrors_list(transport *t, const frame *f) {
    int waits = f->facts.row->request == MPIXLA_WAITS, starts = f->facts.row->request == MPIXLA_STARTS;
    if (frame_gives_status(f)) mirror_add(t, f->status, mpi_get()->facts.status_size, 0, 1);
    if (t->kind == TRANSPORT_MPI) return;
    mirror_add(t, f->send.data, frame_buffer_bytes(&f->send), 1, 0);
    mirror_add(t, f->id.data, frame_buffer_bytes(&f->id), waits, starts);
    if (waits) mirror_add(t, f->template_.data, frame_buffer_bytes(&f->template_), 1, 0);
    mirror_add(t, f->recv.data, frame_buffer_bytes(&f->recv), 0, 1);
}

/* The frame's buffers become their mirrors, with the contents of those that the call reads. A call that reads none does
 * not wait for what the stream does before it, unless it is a barrier, or MPI is given the GPU's memory. */
static int mirrors_make(transport *t, frame *f) {
    int64_t bytes = 0;
    int reads = t->kind == TRANSPORT_MPI, in_place = f->send.dtype && f->from != f->send.data;
    mirrors_list(t, f);
    for (int i = 0; i < t->mirrored; i++) bytes += in_lines(t->mirrors[i].bytes);
    if (bytes == 0) return device_wait(&t->gpu);
    t->block = pool_get(&t->gpu, POOL_PINNED, bytes);
    if (!t->block) return REFUSED;
    char *place = t->block->data;
    for (int i = 0; i < t->mirrored; i++) {
        transport_mirror *m = &t->mirrors[i];
        m->on_host = place;
        place += in_lines(m->bytes);
        reads |= m->goes_out;
        if (m->goes_out && device_copy_out(&t->gpu, m->on_host, m->on_device, m->bytes)) return REFUSED;
    }
    f->send.data = mirror_of(t, f->send.data);
    f->id.data = mirror_of(t, f->id.data);
    if (f->facts.row->request == MPIXLA_WAITS) f->template_.data = mirror_of(t, f->template_.data);
    f->recv.data = mirror_of(t, f->recv.data);
    if (frame_gives_status(f)) {
        f->status = mirror_of(t, f->status);
        const int nobody = -1; /* where the receive fails, MPI may not write it */
        memcpy((char *)f->status + mpi_get()->facts.status_source, &nobody, sizeof nobody);
    }
    if (!in_place) f->from = f->send.data;
    return reads ? device_wait(&t->gpu) : 0;
}

/* Pieces: while MPI has one, the next is on its way to the host, and the one before on its way back. All ranks make the
 * same pieces, which the plan says. A message from rank to rank has none: its receiver may be no program of ours. */

static int64_t bytes_in_all(const frame *f) {
    return frame_buffer_bytes(f->send.dtype ? &f->send : &f->recv);
}

static int goes_in_pieces(const transport *t, const frame *f) {
    int64_t bytes = bytes_in_all(f);
    return (f->facts.row->attributes & SPLITS) && f->n > 1 && t->plan->piece_bytes > 0 && bytes > t->plan->piece_bytes;
}

/* Some items of a call, `bytes` from byte `at` on, and where they lie on the host. */
typedef struct piece {
    pool_block *block;
    int64_t at, bytes;
} piece;

/* The block may still be on its way to the GPU with an earlier piece: the event comes after that, too. */
static int piece_start(const transport *t, const void *from, const piece *p) {
    if (p->bytes == 0) return 0;
    if (from && device_copy_out(&t->gpu, p->block->data, (const char *)from + p->at, p->bytes)) return REFUSED;
    return DRIVER_CALL(t->gpu.driver, event_record, p->block->released, t->gpu.stream);
}

/* The others wait for this rank in the next piece, too, so its part is made with the last one. */
static int piece_run(const transport *t, frame *f, int (*run)(frame *f), const void *from, void *to, const piece *p) {
    const mpi_library *mpi = mpi_get();
    int code = before_part(f, device_wait_for(&t->gpu, p->block->released));
    if (code != 0) return code;
    f->send.data = f->recv.data = p->block->data;
    f->from = p->block->data;
    if (from && to) f->from = (const void *)(intptr_t)mpi->facts.in_place; /* NOLINT(performance-no-int-to-ptr) */
    code = run(f);
    if (code != 0 || !to) return code;
    return before_part(f, device_copy_in(&t->gpu, (char *)to + p->at, p->block->data, p->bytes));
}

static int run_in_pieces(const transport *t, frame *f, int (*run)(frame *f)) {
    const mpi_library *mpi = mpi_get();
    const void *from = f->send.dtype ? f->send.data : NULL;
    void *to = f->recv.dtype ? f->recv.data : NULL;
    int64_t bytes = bytes_in_all(f), n = f->n, unit = n > 0 && bytes >= n ? bytes / n : 1;
    int64_t most = t->plan->piece_bytes / unit > 0 ? t->plan->piece_bytes / unit * unit : unit;
    piece pieces[2] = {{.bytes = most}, {.at = most}};
    int code = 0;
    for (int i = 0; i < 2 && code == 0; i++) {
        pieces[i].block = pool_get(&t->gpu, POOL_PINNED, most);
        code = before_part(f, !pieces[i].block);
    }
    if (code == 0) code = before_part(f, piece_start(t, from, &pieces[0]));
    for (int i = 0; code == 0 && pieces[i].at < bytes; i = 1 - i) {
        piece *next = &pieces[1 - i];
        next->at = pieces[i].at + pieces[i].bytes;
        next->bytes = next->at + most < bytes ? most : bytes - next->at;
        code = before_part(f, piece_start(t, from, next));
        f->n = pieces[i].bytes / unit;
        f->mpi = f->n <= mpi->count_limit ? mpi->small : mpi->large;
        if (code == 0) code = piece_run(t, f, run, from, to, &pieces[i]);
    }
    for (int i = 0; i < 2; i++) pool_give_back(&t->gpu, pieces[i].block);
    f->n = n;
    return code;
}

/* The call */

/* Passes the code of a call of NCCL's on. */
static int transport_failure_note(const transport *t, int code) {
    if (code != 0) atomic_store(&t->plan->has_failed, 1);
    return code;
}

int transport_begin(transport *t, frame *f, int (*through_nccl)(frame *f)) {
    int code = choose(t, f, through_nccl);
    if (code != 0) return code;
    if (f->facts.row->counts == MANY || t->kind != TRANSPORT_HOST) f->device = &t->gpu;
    f->direct = t->kind == TRANSPORT_MPI;
    if (t->kind == TRANSPORT_NCCL) {
        f->nccl = t->plan->nccl;
        f->nccl_comm = t->plan->nccl_comm;
        return transport_failure_note(t, nccl_look(f));
    }
    if (f->facts.row->counts == MANY) return 0; /* halo.c brings the borders only, and waits itself */
    t->in_pieces = t->kind == TRANSPORT_HOST && t->plan && goes_in_pieces(t, f);
    return t->in_pieces ? 0 : before_part(f, mirrors_make(t, f));
}

/* Whoever looks how long a call waits for others must not count what the stream has to do before it, for which
 * device_wait says that this rank computes. */
static int run_through_nccl(const transport *t, frame *f, int (*through_nccl)(frame *f)) {
    int waits = atomic_load_explicit(&waits_for_nccl, memory_order_relaxed);
    int code = waits ? before_part(f, device_wait(&t->gpu)) : 0;
    if (code == 0) code = transport_failure_note(t, through_nccl(f));
    if (!waits || code != 0) return code;
    return before_part(f, DRIVER_CALL(t->gpu.driver, stream_synchronize, t->gpu.stream));
}

int transport_run(const transport *t, frame *f, int (*run)(frame *f), int (*through_nccl)(frame *f)) {
    if (t->kind == TRANSPORT_NCCL) return run_through_nccl(t, f, through_nccl);
    return t->in_pieces ? run_in_pieces(t, f, run) : run(f);
}

int transport_keep(const transport *t, const frame *f, int64_t at, int64_t bytes) {
    char *to = (char *)f->recv.data + at;
    const char *from = (const char *)f->template_.data + at;
    return t->kind == TRANSPORT_MPI ? device_copy_within(&t->gpu, to, from, bytes)
                                    : device_copy_out(&t->gpu, to, from, bytes);
}

int transport_end(transport *t, int code) {
    for (int i = 0; i < t->mirrored && code == 0; i++) {
        const transport_mirror *m = &t->mirrors[i];
        if (m->comes_in) code = device_copy_in(&t->gpu, m->on_device, m->on_host, m->bytes);
    }
    pool_give_back(&t->gpu, t->block);
    return code;
}
