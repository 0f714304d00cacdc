#include "ops/self_message.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/stack.h"
#include "base/thread.h"

/* ASK_EACH_NS: time between two checks whether a thread can still send the message. ARRIVES_WITHIN_NS: time that MPI
 * may take to deliver a sent message. PATIENCE_MILLISECONDS: time that Python has to answer. */
#define ASK_EACH_NS INT64_C(1000000000)
#define ARRIVES_WITHIN_NS INT64_C(100000000)
enum { PATIENCE_MILLISECONDS = 1000 };

int self_message_is_awaited(const call_facts *f) {
    const comm_entry *c = f->communicator;
    if (!facts_have(f, ATTRIBUTE_SOURCE)) return 0;
    return f->source == c->rank || (f->source == MPIXLA_ANY_SOURCE && c->size == 1);
}

/* Returns whether the call itself sends the message that it awaits. */
static int self_message_is_sent_by_call(const call_facts *f) {
    return facts_have(f, ATTRIBUTE_DEST) && f->dest == f->communicator->rank &&
           (f->recvtag == MPIXLA_ANY_TAG || f->recvtag == f->sendtag);
}

/* Returns whether no thread of the front end but the waiting one can send the message. If XLA runs the program on the
 * thread that dispatched it, the calling thread is the waiting one; else the dispatching thread waits for the result.
 */
static int self_message_has_no_sender(void) {
    char unread[1];
    int64_t threads;
    return stack_ask(unread, sizeof unread, &threads, PATIENCE_MILLISECONDS) && threads == thread_is_front_end();
}

/* Sets the error of a receive that would block for ever. Returns REFUSED. */
static int self_message_refuse(const call_facts *f) {
    char description[512];
    (void)facts_describe(f, NULL, 1, description, sizeof description);
    return error_set(
        "r%d | %s waits for a message from this rank itself, and nothing can send it any more: the program goes on "
        "only "
        "after this call. On one process (rank - 1) %% size is the rank itself. Start the send first (isend), use "
        "sendrecv, or run more processes: python -m mpixla run -n 2",
        mpi_get()->world_rank, description);
}

/* The operation to poll for: a message, by MPI_Iprobe, or a request, by MPI_Test. */
typedef struct self_message_awaited {
    const frame *f; /* receives the message; NULL: the request is polled */
    mpi_request *receiving;
    void *status;
} self_message_awaited;

/* Sets `*there` to 1 if the message has come, or the request is complete. Returns 0 or an error code of MPI. */
static int self_message_test(const self_message_awaited *a, int *there) {
    const mpi_library *mpi = mpi_get();
    return a->f ? mpi->iprobe(a->f->source, a->f->recvtag, a->f->comm, there, a->status)
                : mpi->test(a->receiving, there, a->status);
}

/* Polls until the message, or the request, is complete, and asks Python once a second whether another thread may send
 * it. Returns as self_message_await; with `gives_up` also returns 0 if another thread may still send the message. */
static int self_message_poll(const self_message_awaited *a, const call_facts *facts, int gives_up) {
    int64_t next = clock_now() + ASK_EACH_NS, last = INT64_MAX;
    for (int looks = 0;; looks++) {
        int there = 0, code = self_message_test(a, &there);
        if (code != 0 || there) return code;
        int64_t now = clock_now();
        if (now >= last) return self_message_refuse(facts);
        if (now >= next && last == INT64_MAX) {
            /* A thread that waits now may have sent the message before. */
            if (self_message_has_no_sender())
                last = now + ARRIVES_WITHIN_NS;
            else if (gives_up)
                return 0;
            next = clock_now() + ASK_EACH_NS;
        }
        clock_backoff(looks);
    }
}

int self_message_await(const frame *f) {
    _Alignas(16) char status[MPI_STATUS_BYTES];
    const self_message_awaited a = {.f = f, .status = status};
    if (!self_message_is_awaited(&f->facts) || self_message_is_sent_by_call(&f->facts) || !stack_is_available())
        return 0;
    return self_message_poll(&a, &f->facts, facts_have(&f->facts, ATTRIBUTE_DEST) && f->facts.dest != MPIXLA_PROC_NULL);
}

int self_message_request_wait(const call_facts *started, mpi_request *receiving, void *status) {
    const self_message_awaited a = {.receiving = receiving, .status = status};
    if (!self_message_is_awaited(started) || self_message_is_sent_by_call(started) || !stack_is_available())
        return mpi_get()->wait(receiving, status);
    return self_message_poll(&a, started, 0);
}
