#include "neighbours/messages.h"

#include "base/copy.h"
#include "base/error.h"
#include "base/scratch.h"
#include "call/route.h"
#include "local/pairs.h"
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

/* Sets `*first` to the code of a failure, and f->fault to its function and message (NULL: none), unless `*first` has a
 * failure already or the code is 0. */
static void messages_failure_record(frame *f, int *first, int code, const char *function, const message *m) {
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

/* Starts to send or receive a message through MPI, and sets m->request and m->is_posted. Returns 0 or an error code of
 * MPI. */
static int message_request_start(message *m, const mpi_library *mpi, mpixla_handle comm) {
    const dtype_received as = m->is_sent ? (dtype_received){m->items, m->dtype->handle}
                                         : dtype_receive(m->dtype, m->items, mpi_bytes_limit(mpi));
    const mpi_counted *calls = as.count <= mpi->count_limit ? mpi->small : mpi->large;
    int peer = (int)m->peer, tag = (int)m->tag;
    int code = m->is_sent ? calls->isend(m->data, as.count, as.type, peer, tag, comm, &m->request)
                          : calls->irecv(m->data, as.count, as.type, peer, tag, comm, &m->request);
    m->is_posted = code == 0;
    return code;
}

/* Returns REFUSED with error_set for a received message of another length (`arrived` bytes) than expected, since MPI
 * accepts a shorter one; else 0. `rule` is the rule that the program broke. */
static int message_arrival_check(const frame *f, const message *m, int64_t arrived, const char *rule) {
    const int64_t expected = m->items * m->dtype->row->itemsize;
    if (arrived == expected) return 0;
    char description[512];
    frame_describe(f, description, sizeof description);
    return error_set(
        "r%d | a message of %lld bytes came from rank %lld, but source slot %lld was to receive %lld: %s (%s)",
        mpi_get()->world_rank, (long long)arrived, (long long)m->peer, (long long)m->slot, (long long)expected, rule,
        description);
}

/* Starts a message with MPI. A failure goes into `*first` and f->fault, unless there is one already. */
static void message_start(message *one, frame *f, mpixla_handle comm, int *first) {
    messages_failure_record(f, first, message_request_start(one, mpi_get(), comm),
                            one->is_sent ? "MPI_Isend" : "MPI_Irecv", one);
}

/* Starts all messages that do not go through shared memory. The first failure goes into `*first` and f->fault. */
static void messages_requests_start(messages *m, frame *f, mpixla_handle comm, int *first) {
    for (message *one = m->all; one < m->all + m->number; one++)
        if (!one->pair) message_start(one, f, comm, first);
}

/* Waits for all active requests, and checks the lengths of received messages. The first failure goes into `*first` and
 * f->fault. */
static void messages_requests_wait(messages *m, frame *f, int *first) {
    for (message *one = m->all; one < m->all + m->number; one++) {
        int64_t arrived = 0;
        if (!one->is_posted) continue;
        messages_failure_record(f, first, mpi_get()->wait(&one->request, f->scratch), "MPI_Wait", one);
        if (*first != 0 || one->is_sent) continue;
        messages_failure_record(f, first, mpi_bytes_of(f->scratch, &arrived), "MPI_Get_elements_x", one);
        if (*first == 0) messages_failure_record(f, first, message_arrival_check(f, one, arrived, m->rule), NULL, one);
    }
}

/* Through memory that two ranks share, which has no tags: two ranks' messages match by their order.
 */

void messages_sort(messages *m) {
    for (int64_t i = 1; i < m->number; i++) {
        const message moved = m->all[i];
        int64_t j = i;
        for (; j > 0 && m->all[j - 1].tag < moved.tag; j--) m->all[j] = m->all[j - 1];
        m->all[j] = moved;
    }
}

/* Sets the pair of each message, NULL for MPI, and its place among the messages of the pair, and counts them in
 * m->pending. Returns 0 if messages of a pair are not in order of descending tags, else 1. */
static int messages_pairs_assign(messages *m, pairs *p) {
    m->pending = 0;
    pairs_progress_clear(p);
    for (message *one = m->all; one < m->all + m->number; one++) {
        one->pair = pairs_find(p, one->peer);
        if (!one->pair) continue;
        pair_progress *progress = pair_progress_of(one->pair, one->is_sent);
        if (progress->all > 0 && one->tag > progress->tag) return 0;
        progress->tag = one->tag;
        one->place = progress->all++;
        one->bytes = one->items * one->dtype->row->itemsize;
        m->pending++;
    }
    return 1;
}

/* A longer message goes through MPI. Its sender posts an empty piece with the length, so that the receiver knows. */
enum { MOST_BYTES = 1 << 15 };

/* Copies the next piece of a message to the shared memory; of a long one only its length, as MPI passes the message.
 * Returns whether there was room. */
static int message_piece_send(message *one) {
    const int is_long = one->bytes > MOST_BYTES;
    int64_t bytes = is_long ? 0 : one->bytes - one->moved;
    char *to = pair_piece_reserve(one->pair, &bytes);
    if (!to) return 0;
    copy_bytes(to, (const char *)one->data + one->moved, bytes);
    pair_piece_publish(one->pair, bytes, one->bytes);
    one->moved += bytes;
    one->is_done = is_long || one->moved == one->bytes;
    one->is_long = is_long;
    return 1;
}

/* Copies the next piece of a message from the shared memory. Returns whether there was one. Skips bytes beyond the
 * receive buffer. */
static int message_piece_receive(message *one) {
    int64_t bytes, whole;
    const char *from = pair_piece_peek(one->pair, &bytes, &whole);
    if (!from) return 0;
    const int64_t room = one->bytes - one->moved, kept = bytes < room ? bytes : room;
    copy_bytes((char *)one->data + one->moved, from, kept);
    pair_piece_release(one->pair);
    one->moved += bytes;
    one->is_long = whole > MOST_BYTES;
    one->is_done = one->is_long || one->moved == whole;
    return 1;
}

/* Copies a piece of each message that can make progress through shared memory, and starts those that turn out long with
 * MPI, whose first failure goes into `*first` and f->fault. Returns whether any message made progress. */
static int messages_pieces_move(messages *m, frame *f, mpixla_handle comm, int *first) {
    int moved = 0;
    for (int is_sent = 1; is_sent >= 0; is_sent--)
        for (message *one = m->all; one < m->all + m->number; one++) {
            if (!one->pair || one->is_sent != is_sent) continue;
            pair_progress *progress = pair_progress_of(one->pair, is_sent);
            if (one->place != progress->done || !(is_sent ? message_piece_send(one) : message_piece_receive(one)))
                continue;
            moved = 1;
            progress->done += one->is_done;
            m->pending -= one->is_done;
            if (one->is_long) message_start(one, f, comm, first);
        }
    return moved;
}

/* Moves all messages that go through shared memory, and waits while none can move; starts long ones with MPI. `*first`
 * and f->fault get the first message that MPI refuses to start. Returns 0, or an error code if waiting fails
 * (pairs_wait_step): then some messages have not been moved. */
static int messages_pairs_run(messages *m, frame *f, pairs *p, mpixla_handle comm, int *first) {
    pairs_wait wait = {.spins = pairs_spins(p)};
    int code = 0;
    while (m->pending > 0 && code == 0)
        if (messages_pieces_move(m, f, comm, first))
            wait = (pairs_wait){.spins = pairs_spins(p)};
        else
            code = pairs_wait_step(p, &wait);
    return code;
}

/* Checks the lengths of the messages that were received through shared memory; the first wrong one goes into `*first`
 * and f->fault. */
static void messages_lengths_check(const messages *m, frame *f, int *first) {
    for (const message *one = m->all; one < m->all + m->number && *first == 0; one++)
        if (one->pair && !one->is_sent && !one->is_long) {
            const int code = one->moved > one->bytes ? (int)mpi_get()->facts.err_truncate
                                                     : message_arrival_check(f, one, one->moved, m->rule);
            messages_failure_record(f, first, code, "MPI_Irecv", one);
        }
}

/* Sends and receives all messages through shared memory and MPI. Returns 0 or the first failure's code; breaks this
 * rank's shared memory if some messages there were not moved. */
static int messages_run_without_route(messages *m, frame *f) {
    mpixla_handle comm = 0;
    void *held = NULL;
    int first = 0, code = 0;
    messages_failure_record(f, &first, comm_derive(f->facts.communicator, COMM_PRIVATE, &comm), "MPI_Comm_dup", NULL);
    if (first == 0 && pairs_are_on())
        messages_failure_record(f, &first, hold_acquire(&pairs_held, f->facts.communicator, &held), "MPI_Allgather",
                                NULL);
    if (first != 0) return first;
    pairs *p = held;
    if (p) code = pairs_held.check(p);
    if (p && code == 0 && !messages_pairs_assign(m, p)) {
        messages_sort(m);
        (void)messages_pairs_assign(m, p);
    }
    if (code == 0) messages_requests_start(m, f, comm, &first);
    if (p && code == 0) code = messages_pairs_run(m, f, p, comm, &first);
    if (p && code != 0) memory_break_by_call(pairs_held.state(p), f, code);
    if (p && code == 0) messages_lengths_check(m, f, &first);
    messages_failure_record(f, &first, code, NULL, NULL);
    if (p) hold_release(&pairs_held, f->facts.communicator, p);
    messages_requests_wait(m, f, &first);
    return first;
}

int messages_run(messages *m, frame *f) {
    const route *r = route_on_gpu(f);
    return r && r->messages_run ? r->messages_run(m, f) : messages_run_without_route(m, f);
}
