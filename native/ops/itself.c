#include "ops/itself.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/stack.h"
#include "base/thread.h"

/* Nanoseconds until it is asked whether anything can send the message, and then again; and how long a message may take
 * until MPI finds it. Milliseconds that Python has to answer. */
#define ASK_EACH INT64_C(1000000000)
#define ARRIVES_WITHIN INT64_C(100000000)
enum { PATIENCE = 1000 };

int itself_is_awaited(const call_facts *f) {
    const comm_entry *c = f->communicator;
    if (!facts_have(f, ATTRIBUTE_SOURCE)) return 0;
    return f->source == c->rank || (f->source == MPIXLA_ANY_SOURCE && c->size == 1);
}

/* Whether the call itself sends the message. */
static int itself_is_sent(const call_facts *f) {
    return facts_have(f, ATTRIBUTE_DEST) && f->dest == f->communicator->rank &&
           (f->recvtag == MPIXLA_ANY_TAG || f->recvtag == f->sendtag);
}

/* Whether no other thread of the front end can send it. The calling thread is one of these, if XLA runs the program on
 * the thread that called it; else that one waits for the result. */
static int itself_is_alone(void) {
    char unread[1];
    int64_t threads;
    return stack_ask(unread, sizeof unread, &threads, PATIENCE) && threads == thread_is_front_end();
}

static int itself_refuse(const call_facts *f) {
    char what[512];
    (void)call_describe(f, NULL, 1, what, sizeof what);
    return error_set(
        "r%d | %s waits for a message from this rank itself, and nothing can send it any more: the program goes on "
        "only "
        "after this call. On one process (rank - 1) %% size is the rank itself. Start the send first (isend), use "
        "sendrecv, or run more processes: python -m mpixla run -n 2",
        mpi_get()->world_rank, what);
}

/* What is asked for until it is there. */
typedef struct awaited {
    const frame *f; /* a message; or NULL, and */
    mpi_request *receiving;
    void *status;
} awaited;

static int itself_look(const awaited *a, int *there) {
    const mpi_library *mpi = mpi_get();
    return a->f ? mpi->iprobe(a->f->source, a->f->recvtag, a->f->comm, there, a->status)
                : mpi->test(a->receiving, there, a->status);
}

/* Returns 0 once it is there, or `gives_up` if something may still send it; else as itself_await. */
static int itself_poll(const awaited *a, const call_facts *facts, int gives_up) {
    int64_t next = clock_now() + ASK_EACH, last = INT64_MAX;
    for (int looks = 0;; looks++) {
        int there = 0, code = itself_look(a, &there);
        if (code != 0 || there) return code;
        int64_t now = clock_now();
        if (now >= last) return itself_refuse(facts);
        if (now >= next && last == INT64_MAX) {
            /* A thread that is seen to wait now may have sent it before. */
            if (itself_is_alone())
                last = now + ARRIVES_WITHIN;
            else if (gives_up)
                return 0;
            next = clock_now() + ASK_EACH;
        }
        clock_between(looks);
    }
}

int itself_await(const frame *f) {
    _Alignas(16) char status[MPI_STATUS_BYTES];
    const awaited a = {.f = f, .status = status};
    if (!itself_is_awaited(&f->facts) || itself_is_sent(&f->facts) || !stack_is_answered()) return 0;
    return itself_poll(&a, &f->facts, facts_have(&f->facts, ATTRIBUTE_DEST) && f->facts.dest != MPIXLA_PROC_NULL);
}

int itself_wait(const call_facts *started, mpi_request *receiving, void *status) {
    const awaited a = {.receiving = receiving, .status = status};
    if (!itself_is_awaited(started) || itself_is_sent(started) || !stack_is_answered())
        return mpi_get()->wait(receiving, status);
    return itself_poll(&a, started, 0);
}
