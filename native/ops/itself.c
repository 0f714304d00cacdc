#include "ops/itself.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/stack.h"
#include "base/thread.h"

/* ASK_EACH_NS: time between two checks whether a thread can still send the message. ARRIVES_WITHIN_NS: time that MPI
 * may take to deliver a sent message. PATIENCE_MILLISECONDS: time that Python has to answer. */
#define ASK_EACH_NS INT64_C(1000000000)
#define ARRIVES_WITHIN_NS INT64_C(100000000)
enum { PATIENCE_MILLISECONDS = 1000 };

int itself_is_awaited(const call_facts *f) {
    const comm_entry *c = f->communicator;
    if (!facts_have(f, ATTRIBUTE_SOURCE)) return 0;
    return f->source == c->rank || (f->source == MPIXLA_ANY_SOURCE && c->size == 1);
}

/* Returns whether the call itself sends the message. */
static int itself_is_sent(const call_facts *f) {
    return facts_have(f, ATTRIBUTE_DEST) && f->dest == f->communicator->rank &&
           (f->recvtag == MPIXLA_ANY_TAG || f->recvtag == f->sendtag);
}

/* Returns whether no thread of the front end but the waiting one can send the message. If XLA runs the program on the
 * thread that dispatched it, the calling thread is that one; else the dispatching thread waits for the result. */
static int itself_is_alone(void) {
    char unread[1];
    int64_t threads;
    return stack_ask(unread, sizeof unread, &threads, PATIENCE_MILLISECONDS) && threads == thread_is_front_end();
}

/* Sets the error of a receive that would block for ever. Returns REFUSED. */
static int itself_refuse(const call_facts *f) {
    char what[512];
    (void)facts_describe(f, NULL, 1, what, sizeof what);
    return error_set(
        "r%d | %s waits for a message from this rank itself, and nothing can send it any more: the program goes on "
        "only "
        "after this call. On one process (rank - 1) %% size is the rank itself. Start the send first (isend), use "
        "sendrecv, or run more processes: python -m mpixla run -n 2",
        mpi_get()->world_rank, what);
}

/* The operation to poll for: a message, by MPI_Iprobe, or a request, by MPI_Test. */
typedef struct itself_awaited {
    const frame *f; /* receives the message; NULL: the request is polled */
    mpi_request *receiving;
    void *status;
} itself_awaited;

/* Sets `*there` if the message, or the request, is complete. Returns 0 or an error code of MPI. */
static int itself_test(const itself_awaited *a, int *there) {
    const mpi_library *mpi = mpi_get();
    return a->f ? mpi->iprobe(a->f->source, a->f->recvtag, a->f->comm, there, a->status)
                : mpi->test(a->receiving, there, a->status);
}

/* Polls until it is there. Returns as itself_await; with `gives_up` also returns 0 if another thread may still send the
 * message. */
static int itself_poll(const itself_awaited *a, const call_facts *facts, int gives_up) {
    int64_t next = clock_now() + ASK_EACH_NS, last = INT64_MAX;
    for (int looks = 0;; looks++) {
        int there = 0, code = itself_test(a, &there);
        if (code != 0 || there) return code;
        int64_t now = clock_now();
        if (now >= last) return itself_refuse(facts);
        if (now >= next && last == INT64_MAX) {
            /* A thread that waits now may have sent the message before. */
            if (itself_is_alone())
                last = now + ARRIVES_WITHIN_NS;
            else if (gives_up)
                return 0;
            next = clock_now() + ASK_EACH_NS;
        }
        clock_backoff(looks);
    }
}

int itself_await(const frame *f) {
    _Alignas(16) char status[MPI_STATUS_BYTES];
    const itself_awaited a = {.f = f, .status = status};
    if (!itself_is_awaited(&f->facts) || itself_is_sent(&f->facts) || !stack_is_available()) return 0;
    return itself_poll(&a, &f->facts, facts_have(&f->facts, ATTRIBUTE_DEST) && f->facts.dest != MPIXLA_PROC_NULL);
}

int itself_wait(const call_facts *started, mpi_request *receiving, void *status) {
    const itself_awaited a = {.receiving = receiving, .status = status};
    if (!itself_is_awaited(started) || itself_is_sent(started) || !stack_is_available())
        return mpi_get()->wait(receiving, status);
    return itself_poll(&a, started, 0);
}
