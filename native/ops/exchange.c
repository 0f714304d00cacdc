#include "ops/exchange.h"

#include <string.h>

#include "base/error.h"
#include "base/scratch.h"
#include "device/device.h"

/* One side of the exchange: what frame.h calls sending or not. */
typedef struct side {
    const char *peer; /* "destination" */
    const topology_slots *slots;
    const frame_array *counts;
    const frame_buffer *buffer;
} side;

static side side_of(const frame *f, int sending) {
    const frame_array *a = f->arrays;
    return sending ? (side){"destination", f->dests, &a[ATTRIBUTE_SENDCOUNTS], &f->send}
                   : (side){"source", f->sources, &a[ATTRIBUTE_RECVCOUNTS], &f->recv};
}

/* Checks */

static int numbers_check(const frame *f, const side *s, const frame_array *numbers, const char *what) {
    if (numbers->size == s->slots->number) return 0;
    return error_set("an exchange has %lld %s for its %ss, but rank %d of communicator '%s' has %lld",
                     (long long)numbers->size, what, s->peer, f->communicator->rank, f->communicator->name,
                     (long long)s->slots->number);
}

/* Where a slot's items are: from `offset`, `count` of them, all in the buffer. */
static int range_check(const side *s, int64_t i, int64_t offset) {
    int64_t count = s->counts->items[i], end;
    if (count >= 0 && offset >= 0 && !__builtin_add_overflow(offset, count, &end) && end <= s->buffer->count) return 0;
    return error_set("%s %lld of an exchange has %lld items from item %lld on, but the buffer has %lld items", s->peer,
                     (long long)i, (long long)count, (long long)offset, (long long)s->buffer->count);
}

int exchange_check(const frame *f) {
    const side out = side_of(f, 1), in = side_of(f, 0);
    const frame_array *offsets = &f->arrays[ATTRIBUTE_SENDOFFSETS];
    int64_t received = 0;
    if (f->send.dtype != f->recv.dtype)
        return error_set("an exchange was called with %s to send and %s to receive", f->send.dtype->row->name,
                         f->recv.dtype->row->name);
    if (numbers_check(f, &out, out.counts, "counts") || numbers_check(f, &out, offsets, "offsets") ||
        numbers_check(f, &in, in.counts, "counts"))
        return -1;
    for (int64_t i = 0; i < out.slots->number; i++)
        if (range_check(&out, i, offsets->items[i])) return -1;
    for (int64_t i = 0; i < in.slots->number; received += in.counts->items[i++])
        if (range_check(&in, i, received)) return -1;
    if (received != f->recv.count)
        return error_set("the sources of an exchange have %lld items in all, but its receive buffer has %lld",
                         (long long)received, (long long)f->recv.count);
    return 0;
}

/* The call */

typedef struct message {
    mpi_request request;
    int posted;
} message;

/* The first failure is the one that is told of. */
static void fail(frame *f, int *first, int code, const char *function, int sending, int64_t slot) {
    if (*first != 0 || code == 0) return;
    *first = code;
    f->fault = (frame_fault){.function = function, .sending = sending, .slot = slot};
}

static void *item(const frame_buffer *b, int64_t offset) {
    return b->data ? (char *)b->data + offset * b->dtype->row->itemsize : NULL;
}

static const mpi_counted *calls_for(const mpi_library *mpi, int64_t count) {
    return count <= mpi->count_limit ? mpi->small : mpi->large;
}

/* What would come from nobody becomes zeros: last, as a GPU does that later, and MPI has its memory until then. */
static int zero(const frame *f, int64_t i, int64_t offset) {
    const side in = side_of(f, 0);
    int64_t bytes = in.counts->items[i] * in.buffer->dtype->row->itemsize;
    if (in.slots->ranks[i] != MPIXLA_PROC_NULL) return 0;
    if (f->device) return device_clear(f->device, item(in.buffer, offset), bytes) ? MPI_REFUSED : 0;
    if (bytes > 0) memset(item(in.buffer, offset), 0, (size_t)bytes);
    return 0;
}

static int receive(const frame *f, const mpi_library *mpi, mpixla_handle comm, int64_t i, int64_t offset, message *m) {
    const side in = side_of(f, 0);
    int64_t n = in.counts->items[i];
    void *data = item(in.buffer, offset);
    m->posted = 0;
    if (in.slots->ranks[i] == MPIXLA_PROC_NULL) return 0;
    int code =
        calls_for(mpi, n)->irecv(data, n, f->type, (int)in.slots->ranks[i], (int)in.slots->tags[i], comm, &m->request);
    m->posted = code == 0;
    return code;
}

static int send(const frame *f, const mpi_library *mpi, mpixla_handle comm, int64_t i, message *m) {
    const side out = side_of(f, 1);
    int64_t n = out.counts->items[i];
    m->posted = 0;
    if (out.slots->ranks[i] == MPIXLA_PROC_NULL) return 0;
    int code = calls_for(mpi, n)->isend(item(out.buffer, f->arrays[ATTRIBUTE_SENDOFFSETS].items[i]), n, f->type,
                                        (int)out.slots->ranks[i], (int)out.slots->tags[i], comm, &m->request);
    m->posted = code == 0;
    return code;
}

/* MPI itself reports a message that is too long, but not one that is too short. */
static int arrival_check(frame *f, const mpi_library *mpi, int64_t i) {
    const side in = side_of(f, 0);
    int64_t arrived = 0, expected = in.counts->items[i];
    int code = mpi->get_elements(f->scratch, f->type, &arrived);
    if (code != 0 || arrived == expected) return code;
    char what[512];
    frame_describe(f, what, sizeof what);
    (void)error_set(
        "r%d | a message of %lld items came from rank %lld, but source slot %lld was to receive %lld: the two ranks "
        "disagree on what goes between them (%s)",
        mpi->world_rank, (long long)arrived, (long long)in.slots->ranks[i], (long long)i, (long long)expected, what);
    return MPI_REFUSED;
}

int exchange(frame *f) {
    const mpi_library *mpi = mpi_get();
    if (exchange_check(f)) return MPI_REFUSED;
    int64_t sources = f->sources->number, dests = f->dests->number;
    message *m = scratch_get(SCRATCH_MESSAGES, (size_t)(sources + dests) * sizeof *m);
    if (!m) return MPI_REFUSED;
    mpixla_handle comm = 0;
    int first = 0;
    fail(f, &first, comm_private(f->communicator, &comm), "MPI_Comm_dup", 0, -1);
    if (first != 0) return first;
    /* After a failure the others are posted and waited for all the same: their partners wait for them, and no request
     * may outlive the buffers. */
    for (int64_t i = 0, offset = 0; i < sources; offset += f->arrays[ATTRIBUTE_RECVCOUNTS].items[i++])
        fail(f, &first, receive(f, mpi, comm, i, offset, &m[i]), "MPI_Irecv", 0, i);
    for (int64_t i = 0; i < dests; i++) fail(f, &first, send(f, mpi, comm, i, &m[sources + i]), "MPI_Isend", 1, i);
    for (int64_t i = 0; i < sources; i++) {
        if (!m[i].posted) continue;
        int code = mpi->wait(&m[i].request, f->scratch);
        fail(f, &first, code, "MPI_Wait", 0, i);
        if (code == 0 && first == 0) fail(f, &first, arrival_check(f, mpi, i), "MPI_Get_elements_x", 0, i);
    }
    for (int64_t i = 0; i < dests; i++)
        if (m[sources + i].posted) fail(f, &first, mpi->wait(&m[sources + i].request, f->scratch), "MPI_Wait", 1, i);
    for (int64_t i = 0, offset = 0; i < sources; offset += f->arrays[ATTRIBUTE_RECVCOUNTS].items[i++])
        fail(f, &first, zero(f, i, offset), "MPI_Irecv", 0, i);
    return first;
}
