/* XLA's calls, made on the MPI of this process. The watchdog, the timeline and debug lines treat each as
 * a handler's call. */
#include "trampoline/calls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/feature.h"
#include "base/output.h"
#include "base/scratch.h"
#include "call/frame.h"
#include "local/local.h"
#include "mpi/dtype.h"
#include "mpi/float_reduce.h"
#include "mpi/job.h"
#include "mpi/reduction.h"
#include "trampoline/clique.h"
#include "watch/failure.h"
#include "watch/flight.h"
#include "watch/log.h"
#include "watch/trace.h"
#include "xla/xla_ffi.h"

/* The code of a call that has failed: its sentence is error_get's. */
enum { FAILED = 1 };

/* Only these calls are made on a clique's communicator, so their numbers need not be those of ops.def. */
enum { ALLGATHER, ALLREDUCE, REDUCE_SCATTER };
static const frame_shape allgather_shape = {.number = ALLGATHER,
                                            .op_name = "allgather",
                                            .mpi_name = "MPI_Allgather",
                                            .pattern = ALL,
                                            .counts = GATHERED,
                                            .attributes = LOCAL};
static const frame_shape allreduce_shape = {.number = ALLREDUCE,
                                            .op_name = "allreduce",
                                            .mpi_name = "MPI_Allreduce",
                                            .pattern = ALL,
                                            .counts = SAME,
                                            .attributes = OP | LOCAL};
static const frame_shape reduce_scatter_shape = {.number = REDUCE_SCATTER,
                                                 .op_name = "reduce_scatter",
                                                 .mpi_name = "MPI_Reduce_scatter_block",
                                                 .pattern = ALL,
                                                 .counts = SCATTERED,
                                                 .attributes = OP | LOCAL};
static const frame_shape send_shape = {
    .op_name = "send", .mpi_name = "MPI_Isend", .pattern = PAIR, .attributes = DEST | SENDTAG};
static const frame_shape recv_shape = {
    .op_name = "recv", .mpi_name = "MPI_Irecv", .pattern = PAIR, .attributes = SOURCE | RECVTAG};
static const frame_shape sendrecv_shape = {.op_name = "sendrecv",
                                           .mpi_name = "MPI_Sendrecv",
                                           .pattern = PAIR,
                                           .attributes = DEST | SENDTAG | SOURCE | RECVTAG};

typedef struct call {
    call_facts facts;
    mpixla_handle comm, type, op;
    unsigned on; /* features, as they were when it began */
    flight *mine;
    flight_call here;
    log_call line;
    trace_call traced;
} call;

/* Passes the sentence of error_get to failure_add (watch/failure.h), for the case that the program never sees the
 * failure. Returns FAILED. */
static int call_refuse(void) {
    failure_add(error_get(), NULL);
    return FAILED;
}

void trampoline_refuse(const char *name) {
    char text[TRAMPOLINE_TEXT_BYTES];
    snprintf(
        text, sizeof text,
        "mpixla: XLA has called %s, which mpixla does not pass on to MPI. Use a jaxlib that this mpixla was tested "
        "with, or gloo (without python -m mpixla.distributed).\n",
        name);
    output_write(text);
    abort();
}

static comm_entry *calls_comm_find(trampoline_handle comm) {
    return comm_find((int64_t)comm - TRAMPOLINE_COMMS);
}

static int calls_unstarted_refuse(void) {
    error_set("mpixla is not started in this process");
    return FAILED;
}

/* Fills the facts and handles that all calls have. Returns 0; or FAILED, with the sentence in error_get, if mpixla is
 * not started, `n` is negative (an int that has overflowed from XLA's 64-bit count), a handle is unknown, or there is
 * no memory. */
static int call_read(call *c, const frame_shape *row, trampoline_handle comm, int n, trampoline_handle type) {
    if (!mpi_get()) return calls_unstarted_refuse();
    if (n < 0) {
        error_set("r%d | XLA asks MPI for more than 2^31 - 1 items at once: split the array", mpi_get()->world_rank);
        return FAILED;
    }
    comm_entry *communicator = calls_comm_find(comm);
    const dtype_entry *dtype = communicator ? dtype_find(type == TRAMPOLINE_BYTE ? FFI_U8 : (int)type) : NULL;
    c->mine = flight_of_thread();
    if (!dtype || !c->mine) return FAILED;
    c->comm = communicator->handle;
    c->type = dtype->handle;
    c->facts = (call_facts){.row = row,
                            .communicator = communicator,
                            .sent_type = dtype,
                            .received_type = dtype,
                            .sent = n,
                            .received = n,
                            .items = row->pattern == PAIR ? -1 : n};
    return 0;
}

/* Sets the call's reduction, in the facts and as MPI's handle. MAX and MIN of floats are the library's, in which NaN
 * wins as it does in jnp.max. Returns 0 or FAILED. */
static int call_op_read(call *c, trampoline_handle op) {
    int64_t number = (int64_t)op - TRAMPOLINE_SUM;
    const mpixla_handle *ours = float_reduce_find(c->facts.sent_type->number, number);
    if (!ours) ours = reduction_find(number);
    if (!ours) return FAILED;
    c->op = *ours;
    c->facts.reduction = number;
    return 0;
}

/* Begins the call's flight record and, if they are on, its timeline event and debug line; gives a collective call its
 * number on the communicator. */
static void call_begin(call *c) {
    call_facts *f = &c->facts;
    if (facts_are_collective(f)) f->sequence = comm_count(f->communicator);
    c->on = features_get();
    flight_enter(c->mine, &c->here, f);
    if (c->on & FEATURE_TRACE) trace_start(&c->traced, f, 0, 0);
    if (c->on & FEATURE_LOG) log_start(&c->line, f, NULL);
}

/* Ends the call's debug line, timeline event and flight record. Returns 0 for code 0; else FAILED as call_refuse, with
 * the sentence that REFUSED has already, or one about MPI's code. */
static int call_end(call *c, int code) {
    if (c->on & FEATURE_LOG) log_end(&c->line, &c->facts, mpi_error_class(code));
    if (c->on & FEATURE_TRACE) trace_end(&c->traced, NULL, code != 0);
    flight_leave(c->mine, &c->here);
    if (code == 0) return 0;
    if (code == REFUSED) return call_refuse();
    char description[512], ours[sizeof description + 8];
    facts_describe(&c->facts, NULL, 1, description, sizeof description);
    snprintf(ours, sizeof ours, "JAX's %s", description);
    (void)mpi_error_set(c->facts.row->mpi_name, code, ours, "");
    return call_refuse();
}

/* Makes a collective call of `n` items a rank through memory that the ranks share, if that is faster (local/local.h):
 * sets `*made` to whether it did. Else only checks that this memory is not broken, so that MPI may make it. Returns 0
 * or an error code. */
static int calls_local_run(const call *c, const void *s, int64_t sent, void *r, int64_t received, int64_t n,
                           int *made) {
    frame f = {.facts = c->facts,
               .send = {.data = (void *)(intptr_t)s, .count = sent, .dtype = c->facts.sent_type},
               .recv = {.data = r, .count = received, .dtype = c->facts.received_type},
               .n = n,
               .type = c->type,
               .comm = c->comm,
               .size = c->facts.communicator->size,
               .op = c->op};
    f.attributes = f.own.attributes;
    f.arrays = f.own.arrays;
    f.own.attributes[ATTRIBUTE_OP] = c->facts.reduction;
    *made = 0;
    frame_posts_fill(&f);
    const int code = local_can_make(&f) ? local_run(&f, made) : 0;
    return code != 0 || *made ? code : local_check(&f);
}

/* Makes XLA's MPI_Allgather, through shared memory or MPI. Returns 0 or FAILED. */
int trampoline_allgather(const void *s, int sn, trampoline_handle st, void *r, int rn, trampoline_handle rt,
                         trampoline_handle comm) {
    (void)rn;
    (void)rt;
    call c;
    int made;
    if (call_read(&c, &allgather_shape, comm, sn, st)) return call_refuse();
    call_begin(&c);
    int code = calls_local_run(&c, s, sn, r, (int64_t)sn * c.facts.communicator->size, sn, &made);
    if (code == 0 && !made) code = mpi_get()->small->allgather(s, sn, c.type, r, sn, c.type, c.comm);
    return call_end(&c, code);
}

/* Makes XLA's MPI_Allreduce, through shared memory or MPI. Returns 0 or FAILED. */
int trampoline_allreduce(const void *s, void *r, int n, trampoline_handle t, trampoline_handle op,
                         trampoline_handle comm) {
    call c;
    int made;
    if (call_read(&c, &allreduce_shape, comm, n, t) || call_op_read(&c, op)) return call_refuse();
    call_begin(&c);
    int code = calls_local_run(&c, s, n, r, n, n, &made);
    if (s == r) s = (const void *)(intptr_t)mpi_get()->facts.in_place; /* NOLINT(performance-no-int-to-ptr) */
    if (code == 0 && !made) code = mpi_get()->small->allreduce(s, r, n, c.type, c.op, c.comm);
    return call_end(&c, code);
}

/* Makes XLA's MPI_Reduce_scatter, through shared memory or MPI. Returns 0 or FAILED, also if the parts are not equal.
 */
int trampoline_reduce_scatter(const void *s, void *r, const int *n, trampoline_handle t, trampoline_handle op,
                              trampoline_handle comm) {
    call c;
    int made;
    if (call_read(&c, &reduce_scatter_shape, comm, n[0], t) || call_op_read(&c, op)) return call_refuse();
    for (int i = 1; i < c.facts.communicator->size; i++)
        if (n[i] != n[0]) {
            error_set("XLA asks for a reduce-scatter of parts of different sizes, which mpixla does not pass on");
            return call_refuse();
        }
    call_begin(&c);
    int code = calls_local_run(&c, s, (int64_t)n[0] * c.facts.communicator->size, r, n[0], n[0], &made);
    if (code == 0 && !made) code = mpi_get()->small->reduce_scatter_block(s, r, n[0], c.type, c.op, c.comm);
    return call_end(&c, code);
}

/* Makes XLA's MPI_Sendrecv on the MPI of this process. Returns 0 or FAILED. */
int trampoline_sendrecv(const void *s, int sn, trampoline_handle st, int dest, int sendtag, void *r, int rn,
                        trampoline_handle rt, int source, int recvtag, trampoline_handle comm, void *ignored) {
    (void)rt;
    (void)ignored;
    call c;
    if (call_read(&c, &sendrecv_shape, comm, sn < rn ? sn : rn, st)) return call_refuse();
    c.facts.dest = dest;
    c.facts.sendtag = sendtag;
    c.facts.source = source;
    c.facts.recvtag = recvtag;
    _Alignas(16) char status[MPI_STATUS_BYTES];
    call_begin(&c);
    return call_end(
        &c, mpi_get()->small->sendrecv(s, sn, c.type, dest, sendtag, r, rn, c.type, source, recvtag, c.comm, status));
}

/* Messages that XLA has started on this thread, by MPI's request (XLA moves its variable): what MPI_Wait waits for,
 * which XLA calls in the same function. */
enum { STARTED = 32 };
typedef struct messages {
    int next;
    struct {
        trampoline_handle request;
        call_facts facts; /* without a communicator: nothing is started here */
    } of[STARTED];
} messages;
static _Thread_local messages *started; /* NULL until there is one */

/* Returns the list of the messages that XLA has started on this thread; NULL without memory: messages are waited for
 * all the same, and are not watched. */
static messages *calls_started_get(void) {
    if (started) return started;
    started = scratch_get(SCRATCH_STARTED, sizeof *started);
    if (started) memset(started, 0, sizeof *started);
    return started;
}

/* Keeps the facts of a message that XLA has started, for trampoline_wait, unless there is no memory. Returns 0; FAILED
 * for a start that has failed (`code`), as call_end. */
static int calls_message_start(call *c, const trampoline_handle *request, int code) {
    if (code != 0) {
        call_begin(c);
        return call_end(c, code);
    }
    messages *m = calls_started_get();
    if (!m) return 0;
    m->of[m->next].request = *request;
    m->of[m->next].facts = c->facts;
    m->next = (m->next + 1) % STARTED;
    return 0;
}

/* Starts XLA's MPI_Isend on the MPI of this process, sets `*request`, and keeps the facts for trampoline_wait. Returns
 * 0 or FAILED. */
int trampoline_isend(const void *b, int n, trampoline_handle t, int dest, int tag, trampoline_handle comm,
                     trampoline_handle *request) {
    call c;
    if (call_read(&c, &send_shape, comm, n, t)) return call_refuse();
    *request = 0; /* MPI may write half of it */
    c.facts.dest = dest;
    c.facts.sendtag = tag;
    return calls_message_start(&c, request, mpi_get()->small->isend(b, n, c.type, dest, tag, c.comm, request));
}

/* Starts XLA's MPI_Irecv on the MPI of this process, sets `*request`, and keeps the facts for trampoline_wait. Returns
 * 0 or FAILED. */
int trampoline_irecv(void *b, int n, trampoline_handle t, int source, int tag, trampoline_handle comm,
                     trampoline_handle *request) {
    call c;
    if (call_read(&c, &recv_shape, comm, n, t)) return call_refuse();
    *request = 0;
    c.facts.source = source;
    c.facts.recvtag = tag;
    return calls_message_start(&c, request, mpi_get()->small->irecv(b, n, c.type, source, tag, c.comm, request));
}

/* Waits for a message that XLA has started (`request`); the watchdog, the timeline and debug lines see it, unless its
 * facts were not kept. Returns 0 or FAILED. */
int trampoline_wait(trampoline_handle *request, void *ignored) {
    (void)ignored;
    _Alignas(16) char status[MPI_STATUS_BYTES];
    int i = started ? STARTED - 1 : -1;
    while (i >= 0 && !(started->of[i].facts.communicator && started->of[i].request == *request)) i--;
    if (i < 0) { /* it is not in the list, so it is not watched */
        int code = mpi_get()->wait(request, status);
        if (code == 0) return 0;
        (void)mpi_error_set("MPI_Wait", code, "for a message of JAX's", "");
        return call_refuse();
    }
    call c = {.facts = started->of[i].facts, .mine = flight_of_thread()};
    started->of[i].facts.communicator = NULL;
    call_begin(&c);
    return call_end(&c, mpi_get()->wait(request, status));
}

/* Sets `*part` to the communicator that the front end has offered for this clique, removes the offer, and returns 0.
 * Ends the job if there is none: XLA does not look at the returned code, and would go on with no communicator. */
int trampoline_comm_split(trampoline_handle comm, int color, int key, trampoline_handle *part) {
    (void)comm;
    int64_t found = clique_offer_take(color, key);
    if (found < 0) {
        const mpi_library *mpi = mpi_get();
        char why[ERROR_BYTES];
        snprintf(
            why, sizeof why,
            "mpixla: rank %d: XLA asks for a communicator that mpixla was not told of (first device %d, place %d), "
            "so the whole job ends. Run programs that are sharded over processes through jax.jit, with one device "
            "a process; if you do, report this to mpixla.\n",
            mpi ? mpi->world_rank : -1, color, key);
        job_end(why, 1, mpi != NULL);
    }
    *part = (trampoline_handle)found + TRAMPOLINE_COMMS;
    return 0;
}

/* Forgets XLA's handle of a communicator, which belongs to the front end. */
int trampoline_comm_free(trampoline_handle *comm) {
    *comm = 0;
    return 0;
}

/* Sets `*answer` to the rank in, or the size of, a communicator, by MPI's function `ask`. Returns 0, MPI's error code,
 * or FAILED if the communicator is unknown. */
static int calls_comm_query(trampoline_handle comm, int (*ask)(mpixla_handle comm, int *answer), int *answer) {
    if (comm == TRAMPOLINE_WORLD) return ask(mpi_get()->facts.comm_world, answer);
    const comm_entry *c = calls_comm_find(comm);
    return c ? ask(c->handle, answer) : call_refuse();
}

int trampoline_comm_rank(trampoline_handle comm, int *rank) {
    return mpi_get() ? calls_comm_query(comm, mpi_get()->comm_rank, rank) : calls_unstarted_refuse();
}

int trampoline_comm_size(trampoline_handle comm, int *size) {
    return mpi_get() ? calls_comm_query(comm, mpi_get()->comm_size, size) : calls_unstarted_refuse();
}

/* Tells XLA that MPI is initialized: sets `*provided` to the thread level that it requires. Returns 0, or FAILED if
 * mpixla is not started. */
int trampoline_init_thread(int *argc, char ***argv, int required, int *provided) {
    (void)argc;
    (void)argv;
    if (!mpi_get()) {
        error_set("JAX asks for MPI before mpixla has been imported. Call mpixla.distributed.initialize()");
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
    *length = snprintf(text, TRAMPOLINE_TEXT_BYTES, "%s", error_get());
    if (*length >= TRAMPOLINE_TEXT_BYTES) *length = TRAMPOLINE_TEXT_BYTES - 1;
    return 0;
}

/* Writes the version text that MPItrampoline prints when it is loaded with MPITRAMPOLINE_VERBOSE. */
int trampoline_get_library_version(char *text, int *length) {
    *length = snprintf(text, TRAMPOLINE_TEXT_BYTES, "mpixla, for the MPI that mpi4py loads");
    return 0;
}
