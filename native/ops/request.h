/* Keeps requests: calls of MPI that were started and are waited for later, with the memory that MPI reads and writes.
 *
 * XLA may use or move its buffers as soon as a handler returns, so what is sent is copied into memory of the request,
 * and what is received is copied out of it. The memory is kept for the next request of its size, unless it is very
 * large: nothing is allocated on the steady path.
 *
 * In a program a request is its id: two float32 numbers, a place in the table, from 1, and how often the place was
 * used, both small enough to be exact. They are floats so that ids have derivatives, which are ids of other requests
 * (ARCHITECTURE.md, "Requests"); zeros stand for no request, which gives zeros, or the template, at once.
 * A batch of requests is one, whose id each example has. If there are no examples, so that there is no id, a wait is
 * for whichever such request of its communicator and type is complete first.
 */
#ifndef MPIXLA_NATIVE_REQUEST_H
#define MPIXLA_NATIVE_REQUEST_H

#include "call/frame.h"

/* As many may be started and not yet waited for; and float32 has all integers up to so many. */
enum { REQUEST_LIMIT = 65536, REQUEST_GENERATIONS = 1 << 24 };

typedef enum request_state {
    REQUEST_FREE,     /* its memory is for the next one */
    REQUEST_STARTING, /* a handler has it */
    REQUEST_STARTED,  /* a program has its id */
    REQUEST_WAITING,  /* a handler has it */
    REQUEST_LEFT,     /* nobody has it: a message to this rank itself, to be received */
    REQUEST_ABANDONED /* nobody has it, and MPI has not given its memory back: it is MPI's for good */
} request_state;

/* `state`, `generation` and `next` change with the lock of request.c, with which those look who do not have the
 * request. All else is for the handler that has it. */
typedef struct request {
    call_facts facts;               /* of the start */
    struct agreement *agreement;    /* whether all ranks start the same (check/agree.h); NULL */
    int has_id;                     /* a program has it; else it was started for a batch of no examples */
    mpi_request receiving, sending; /* receiving: also a collective call */
    int received, sent;             /* MPI has said that they are complete */
    void *send; /* 2^size_class bytes, of which the first are sent; NULL while a very large one is free */
    void *recv; /* in the same memory, behind what is sent */
    int size_class;
    int number;     /* the place in the table */
    int generation; /* 1 to REQUEST_GENERATIONS - 1 */
    request_state state;
    _Alignas(16) char status[MPI_STATUS_BYTES]; /* of what it receives */
    struct request *next;                       /* of the free ones of this size class, or of those that are left */
} request;

/* Sets f->request. For a call that starts: a new request with memory, which has a copy of the data to send. For a wait:
 * the request with the given id, which no other call can wait for from then on; NULL for no request. Returns 0 or
 * REFUSED; without memory for a call that starts, as call_fail (facts.h). */
int request_take(frame *f);

/* Ends a call that starts or waits, with its code: writes the id of the request that it started, or frees the request
 * that it waited for, unless the request was abandoned. */
void request_settle(frame *f, int code);

/* Leaves the request and its memory to MPI for good, where MPI may still use the memory: a collective call that will
 * never be complete, or a receive that cannot be cancelled. */
void request_abandon(frame *f);

/* Makes MPI_Send. Returns 0 or an error code. A message to this rank itself is sent from a copy, and not waited for,
 * since MPI_Send might block for ever: only this rank can receive it. */
int request_send(frame *f);

/* Parts of the rows of ops.def; each returns 0 or an error code. The receive and the send of an isendrecv: */
int request_exchange(frame *f);
/* waits, and copies what arrived into the receive buffer, and the template into the rest: */
int request_wait(frame *f);

/* Returns how many requests a program has started and not waited for, or has sent to this rank itself. */
int64_t request_count_open(void);

#endif
