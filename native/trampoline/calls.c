/* XLA's calls, made by the library (mpixla_call_make), which reports each as it does a handler's call. */
#include "trampoline/calls.h"

#include <stdio.h>
#include <stdlib.h>

#include "trampoline/clique.h"

/* The code of a call that has failed. */
enum { FAILED = 1 };

/* The sentence about this thread's last failure, if calls.c has found it; NULL: mpixla_last_error has it. */
static _Thread_local const char *own_error;

/* Returns the code that XLA gets for a result of the library's. */
static int calls_code_make(int code) {
    own_error = NULL;
    return code < 0 ? FAILED : 0;
}

void trampoline_refuse(const char *name) {
    char text[TRAMPOLINE_TEXT_BYTES];
    snprintf(
        text, sizeof text,
        "mpixla: XLA has called %s, which mpixla does not pass on to MPI. Use a jaxlib that this mpixla was tested "
        "with, or gloo (without python -m mpixla.distributed).\n",
        name);
    mpixla_output_write(text);
    abort();
}

/* Returns a call of this operation, without buffers and reduction. */
static mpixla_call calls_call_make(const char *name, trampoline_handle comm, trampoline_handle type) {
    return (mpixla_call){.name = name,
                         .caller = "JAX's ",
                         .comm = (int64_t)comm - TRAMPOLINE_COMMS,
                         .dtype = type == TRAMPOLINE_BYTE ? TRAMPOLINE_U8 : (int)type};
}

static int64_t calls_op_number(trampoline_handle op) {
    return (int64_t)op - TRAMPOLINE_SUM;
}

/* Makes XLA's MPI_Allgather. Returns 0 or FAILED. */
int trampoline_allgather(const void *s, int sn, trampoline_handle st, void *r, int rn, trampoline_handle rt,
                         trampoline_handle comm) {
    (void)rn;
    (void)rt;
    int rank, size;
    mpixla_call call = calls_call_make("allgather", comm, st);
    if (mpixla_comm_place(call.comm, &rank, &size)) return calls_code_make(-1);
    call.send = s;
    call.sent = sn;
    call.recv = r;
    call.received = (int64_t)sn * size;
    return calls_code_make(mpixla_call_make(&call));
}

/* Makes XLA's MPI_Allreduce. Returns 0 or FAILED. */
int trampoline_allreduce(const void *s, void *r, int n, trampoline_handle t, trampoline_handle op,
                         trampoline_handle comm) {
    mpixla_call call = calls_call_make("allreduce", comm, t);
    call.send = s;
    call.recv = r;
    call.sent = call.received = n;
    call.op = calls_op_number(op);
    return calls_code_make(mpixla_call_make(&call));
}

/* Makes XLA's MPI_Reduce_scatter. Returns 0 or FAILED, also if the parts are not equal. */
int trampoline_reduce_scatter(const void *s, void *r, const int *n, trampoline_handle t, trampoline_handle op,
                              trampoline_handle comm) {
    int rank, size;
    mpixla_call call = calls_call_make("reduce_scatter", comm, t);
    if (mpixla_comm_place(call.comm, &rank, &size)) return calls_code_make(-1);
    call.send = s;
    call.recv = r;
    for (int i = 1; i < size; i++)
        if (n[i] != n[0]) {
            own_error = "XLA asks for a reduce-scatter of parts of different sizes, which mpixla does not pass on";
            return FAILED;
        }
    call.sent = (int64_t)n[0] * size;
    call.received = n[0];
    call.op = calls_op_number(op);
    return calls_code_make(mpixla_call_make(&call));
}

/* Makes XLA's MPI_Sendrecv. Returns 0 or FAILED. */
int trampoline_sendrecv(const void *s, int sn, trampoline_handle st, int dest, int sendtag, void *r, int rn,
                        trampoline_handle rt, int source, int recvtag, trampoline_handle comm, void *ignored) {
    (void)rt;
    (void)ignored;
    mpixla_call call = calls_call_make("sendrecv", comm, st);
    call.send = s;
    call.sent = sn;
    call.dest = dest;
    call.sendtag = sendtag;
    call.recv = r;
    call.received = rn;
    call.source = source;
    call.recvtag = recvtag;
    return calls_code_make(mpixla_call_make(&call));
}

/* The messages that XLA has started on this thread: MPI_Wait, which XLA calls in the same function, finds one by MPI's
 * request, since XLA moves its variable. */
enum { STARTED = 32 };
static _Thread_local struct {
    trampoline_handle request;
    mpixla_call call; /* without a caller: nothing is started here */
} started[STARTED];

/* Starts a message, sets `*request`, and keeps the call for trampoline_wait. Returns 0 or FAILED; FAILED with
 * calls_code_make's sentence if STARTED messages are under way. */
static int calls_message_start(const mpixla_call *call, trampoline_handle *request) {
    int i = 0;
    while (i < STARTED && started[i].call.caller) i++;
    if (i == STARTED) {
        own_error = "XLA has started more messages in one thread than mpixla keeps until they are waited for";
        return FAILED;
    }
    mpixla_handle handle;
    const int code = calls_code_make(mpixla_message_start(call, &handle));
    if (code != 0) return code;
    *request = (trampoline_handle)handle;
    started[i].request = *request;
    started[i].call = *call;
    return 0;
}

/* Starts XLA's MPI_Isend, and sets `*request`. Returns 0 or FAILED. */
int trampoline_isend(const void *b, int n, trampoline_handle t, int dest, int tag, trampoline_handle comm,
                     trampoline_handle *request) {
    mpixla_call call = calls_call_make("send", comm, t);
    call.send = b;
    call.sent = n;
    call.dest = dest;
    call.sendtag = tag;
    return calls_message_start(&call, request);
}

/* Starts XLA's MPI_Irecv, and sets `*request`. Returns 0 or FAILED. */
int trampoline_irecv(void *b, int n, trampoline_handle t, int source, int tag, trampoline_handle comm,
                     trampoline_handle *request) {
    mpixla_call call = calls_call_make("recv", comm, t);
    call.recv = b;
    call.received = n;
    call.source = source;
    call.recvtag = tag;
    return calls_message_start(&call, request);
}

/* Waits for a message that XLA has started on this thread. Returns 0 or FAILED. */
int trampoline_wait(trampoline_handle *request, void *ignored) {
    (void)ignored;
    int i = STARTED - 1;
    while (i >= 0 && !(started[i].call.caller && started[i].request == *request)) i--;
    if (i < 0) {
        own_error = "XLA waits for a message that it has not started in the same thread";
        return FAILED;
    }
    mpixla_handle handle = *request;
    const int code = calls_code_make(mpixla_message_wait(&started[i].call, &handle));
    started[i].call.caller = NULL;
    *request = (trampoline_handle)handle;
    return code;
}

/* Sets `*part` to the communicator that the front end has offered for the clique of devices with the first device
 * `color`, where this process has the place `key`, removes the offer, and returns 0; `comm` is ignored. Ends the job if
 * there is none: XLA does not look at the returned code, and would go on with no communicator. */
int trampoline_comm_split(trampoline_handle comm, int color, int key, trampoline_handle *part) {
    (void)comm;
    const int64_t found = clique_offer_take(color, key);
    if (found < 0) {
        char why[TRAMPOLINE_TEXT_BYTES];
        int rank = -1, size;
        const int is_started = mpixla_comm_place(MPIXLA_WORLD, &rank, &size) == 0;
        snprintf(
            why, sizeof why,
            "mpixla: rank %d: XLA asks for a communicator that mpixla was not told of (first device %d, place %d), "
            "so the whole job ends. Run programs that are sharded over processes through jax.jit, with one device "
            "a process; if you do, report this to mpixla.\n",
            rank, color, key);
        mpixla_output_write(why);
        mpixla_job_end(1, is_started);
    }
    *part = (trampoline_handle)found + TRAMPOLINE_COMMS;
    return 0;
}

/* Forgets XLA's handle of a communicator, which belongs to the front end. */
int trampoline_comm_free(trampoline_handle *comm) {
    *comm = 0;
    return 0;
}

/* Sets `*rank` and `*size` for one of XLA's communicators. Returns 0, or FAILED if it is unknown. */
static int calls_comm_place(trampoline_handle comm, int *rank, int *size) {
    const int64_t id = comm == TRAMPOLINE_WORLD ? MPIXLA_WORLD : (int64_t)comm - TRAMPOLINE_COMMS;
    return calls_code_make(mpixla_comm_place(id, rank, size));
}

int trampoline_comm_rank(trampoline_handle comm, int *rank) {
    int size;
    return calls_comm_place(comm, rank, &size);
}

int trampoline_comm_size(trampoline_handle comm, int *size) {
    int rank;
    return calls_comm_place(comm, &rank, size);
}

/* Tells XLA that MPI is initialized: sets `*provided` to the thread level that it requires. Returns 0, or FAILED if
 * mpixla is not started. */
int trampoline_init_thread(int *argc, char ***argv, int required, int *provided) {
    (void)argc;
    (void)argv;
    if (*mpixla_mpi_file() == '\0') {
        own_error = "JAX asks for MPI before mpixla has been imported. Call mpixla.distributed.initialize()";
        return FAILED;
    }
    *provided = required;
    return 0;
}

int trampoline_finalize(void) {
    return 0;
}

/* Tells XLA that each thread may call MPI, as the front end has made sure: else XLA makes communicators on the main
 * thread alone. */
int trampoline_is_thread_main(int *flag) {
    *flag = 1;
    return 0;
}

/* Writes the sentence about the last failure of this thread to `text`, of TRAMPOLINE_TEXT_BYTES bytes, and sets
 * `*length`. Returns 0. */
int trampoline_error_string(int code, char *text, int *length) {
    (void)code;
    *length = snprintf(text, TRAMPOLINE_TEXT_BYTES, "%s", own_error ? own_error : mpixla_last_error());
    if (*length >= TRAMPOLINE_TEXT_BYTES) *length = TRAMPOLINE_TEXT_BYTES - 1;
    return 0;
}

/* Writes the version text that MPItrampoline prints when it is loaded with MPITRAMPOLINE_VERBOSE. */
int trampoline_get_library_version(char *text, int *length) {
    *length = snprintf(text, TRAMPOLINE_TEXT_BYTES, "mpixla, for the MPI that mpi4py loads");
    return 0;
}
