/* Keeps requests: started MPI calls that a program waits for later, and the memory that MPI reads and writes for them.
 *
 * XLA may use or move its buffers as soon as a handler returns, so the data to send is copied into memory of the
 * request, and the data received is copied out of it. The memory is kept for the next request of its size, unless it is
 * very large: nothing is allocated on the steady path.
 *
 * In a program a request is its id: two float32 numbers, a place in the table, from 1, and how often the place was
 * used, both small enough to be exact. They are floats so that ids have derivatives, which are ids of other requests
 * (ARCHITECTURE.md, "Requests"); zeros stand for no request, which gives zeros, or the template, at once.
 * A batch of requests is one request, whose id each example has. A batch of no examples has no id: then a wait is for
 * the first such request of its communicator and type to complete.
 */
#ifndef MPIXLA_NATIVE_REQUEST_H
#define MPIXLA_NATIVE_REQUEST_H

#include "call/frame.h"

/* REQUEST_LIMIT requests at most may be started and not yet waited for. Generations are below REQUEST_GENERATIONS:
 * float32 represents all integers up to 2^24. */
enum { REQUEST_LIMIT = 65536, REQUEST_GENERATIONS = 1 << 24 };

typedef enum request_state {
    REQUEST_FREE,       /* in the list of its size class */
    REQUEST_STARTING,   /* owned by the handler that starts it */
    REQUEST_STARTED,    /* owned by no handler; a program has its id */
    REQUEST_WAITING,    /* owned by the handler that waits for it */
    REQUEST_UNRECEIVED, /* waited for or blocking, a send to this rank itself that is not received yet */
    REQUEST_ABANDONED   /* its memory belongs to MPI for good */
} request_state;

/* The lock of request.c guards `state`, `generation` and `next`. All other fields belong to the handler that owns the
 * request. */
typedef struct request {
    call_facts facts;               /* of the start */
    struct agreement *agreement;    /* the comparison of the start between ranks (check/agree.h), or NULL */
    int has_id;                     /* 0: it was started for a batch of no examples */
    mpi_request receiving, sending; /* receiving: or a collective call */
    int received, sent;             /* MPI has completed them */
    void *send; /* 2^size_class bytes, which begin with the data to send; NULL while a very large one is free */
    void *recv; /* in the same memory, behind the data to send */
    int size_class;
    int number;     /* the place in the table */
    int generation; /* 1 to REQUEST_GENERATIONS - 1 */
    request_state state;
    _Alignas(16) char status[MPI_STATUS_BYTES]; /* of the receive */
    struct request *next; /* in the list of the free ones of this size class, or of the unreceived ones */
} request;

/* Sets f->request: for a call that starts, a new request with memory, which has a copy of the data to send; for a wait,
 * the request with the given id, which no other call can wait for from then on; NULL for no request. Returns 0 or
 * REFUSED. Without memory a start ends the job if its call is collective, else it returns REFUSED (facts_fail). */
int request_attach(frame *f);

/* Ends a call that starts a request or waits for one, with the call's code. A start with code 0 writes the request's id
 * to its result, and the request can be waited for; a start that failed frees its request. A wait frees its request
 * whatever the code; a send to this rank itself is left to MPI, which completes it when it is received. Does nothing
 * without f->request: for a wait that has found none, and after request_abandon. */
void request_finish(frame *f, int code);

/* Leaves the request and its memory to MPI for good, and sets f->request to NULL. For a request whose memory MPI may
 * still use: a collective call that will never be complete, or a receive that cannot be cancelled. */
void request_abandon(frame *f);

/* Sends a message as MPI_Send does. Returns 0 or an error code. A message to this rank itself is sent by MPI_Isend from
 * a copy, and not waited for: MPI_Send might block for ever, since only this rank can receive the message. Returns
 * REFUSED without memory for that copy. */
int request_send(frame *f);

/* Starts the receive and the send of an isendrecv (a row of ops.def). Returns 0 or an error code: then cancels the
 * receive, or abandons the request if that fails. */
int request_exchange(frame *f);
/* Waits for f->request, copies the message into the receive buffer, and fills the rest from the template (a row of
 * ops.def), or with zeros. Returns 0 or an error code. f->request is NULL for no request: then the result is the
 * template or zeros at once. */
int request_wait(frame *f);

/* Returns the number of requests that are started and not waited for, or are sends to this rank itself that may not
 * have been received. Takes the lock. */
int64_t request_count_open(void);

#endif
