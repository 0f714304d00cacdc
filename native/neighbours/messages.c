#include "neighbours/messages.h"

#include "base/error.h"
#include "base/scratch.h"
#include "device/device.h"
#include "device/nccl.h"
#include "mpi/job.h"

int messages_begin(messages *m, const frame *f, int64_t most) {
    message *all = scratch_get(SCRATCH_MESSAGES, (size_t)most * sizeof *all);
    *m = (messages){.all = all};
    return all ? 0 : job_fail(f->facts.communicator);
}

void messages_add(messages *m, message one) {
    if (one.peer != MPIXLA_PROC_NULL) m->all[m->number++] = one;
}

/* Through MPI */

/* The first failure is the one that is told of. */
static void note_failure(frame *f, int *first, int code, const char *function, const message *m) {
    if (*first != 0 || code == 0) return;
    *first = code;
    f->fault = (frame_fault){.function = function, .slot = -1};
    if (!m) return;
    f->fault = (frame_fault){.function = function,
                             .is_sent = m->is_sent,
                             .slot = m->slot,
                             .peer = m->peer,
                             .tag = m->tag,
                             .items = m->items};
}

static int message_post(message *m, const mpi_library *mpi, mpixla_handle comm) {
    const dtype_received as = m->is_sent ? (dtype_received){m->items, m->dtype->handle}
                                         : dtype_receive(m->dtype, m->items, mpi_most_bytes(mpi));
    const mpi_counted *calls = as.count <= mpi->count_limit ? mpi->small : mpi->large;
    int peer = (int)m->peer, tag = (int)m->tag;
    int code = m->is_sent ? calls->isend(m->data, as.count, as.type, peer, tag, comm, &m->request)
                          : calls->irecv(m->data, as.count, as.type, peer, tag, comm, &m->request);
    m->is_posted = code == 0;
    return code;
}

/* MPI takes a message that is shorter than the receiver expects. */
static int arrival_check(const frame *f, const mpi_library *mpi, const message *m, const char *rule) {
    int64_t arrived = 0;
    const int64_t expected = m->items * m->dtype->row->itemsize;
    int code = mpi_bytes_of(f->scratch, &arrived);
    if (code != 0 || arrived == expected) return code;
    char what[512];
    frame_describe(f, what, sizeof what);
    return error_set(
        "r%d | a message of %lld bytes came from rank %lld, but source slot %lld was to receive %lld: %s (%s)",
        mpi->world_rank, (long long)arrived, (long long)m->peer, (long long)m->slot, (long long)expected, rule, what);
}

static int run_through_mpi(messages *m, frame *f) {
    const mpi_library *mpi = mpi_get();
    mpixla_handle comm = 0;
    int first = 0;
    note_failure(f, &first, comm_derive(f->facts.communicator, COMM_PRIVATE, &comm), "MPI_Comm_dup", NULL);
    if (first != 0) return first;
    for (message *one = m->all; one < m->all + m->number; one++)
        note_failure(f, &first, message_post(one, mpi, comm), one->is_sent ? "MPI_Isend" : "MPI_Irecv", one);
    for (message *one = m->all; one < m->all + m->number; one++) {
        if (!one->is_posted) continue;
        note_failure(f, &first, mpi->wait(&one->request, f->scratch), "MPI_Wait", one);
        if (first == 0 && !one->is_sent)
            note_failure(f, &first, arrival_check(f, mpi, one, m->rule), "MPI_Get_elements_x", one);
    }
    return first;
}

/* Through NCCL, which has no tags: two ranks' messages meet in the order in which both give them to it. */

/* By tags. Few messages, and mostly in order. */
static void messages_sort(messages *m) {
    for (int64_t i = 1; i < m->number; i++) {
        const message moved = m->all[i];
        int64_t j = i;
        for (; j > 0 && m->all[j - 1].tag > moved.tag; j--) m->all[j] = m->all[j - 1];
        m->all[j] = moved;
    }
}

static int message_give(const frame *f, const message *m) {
    size_t bytes = (size_t)(m->items * m->dtype->row->itemsize);
    if (bytes == 0) return 0;
    return m->is_sent ? NCCL_CALL(f->nccl, f->nccl_comm, send, m->data, bytes, NCCL_UINT8, (int)m->peer, f->nccl_comm,
                                  f->device->stream)
                      : NCCL_CALL(f->nccl, f->nccl_comm, recv, m->data, bytes, NCCL_UINT8, (int)m->peer, f->nccl_comm,
                                  f->device->stream);
}

static int run_through_nccl(messages *m, const frame *f) {
    messages_sort(m);
    if (nccl_group_start(f->nccl, f->nccl_comm)) return REFUSED;
    int failed = 0;
    for (int64_t i = 0; i < m->number && !failed; i++) failed = message_give(f, &m->all[i]);
    return nccl_group_end(f->nccl, f->nccl_comm, failed);
}

int messages_run(messages *m, frame *f) {
    return f->nccl ? run_through_nccl(m, f) : run_through_mpi(m, f);
}
