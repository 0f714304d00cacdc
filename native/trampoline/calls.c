/* XLA's calls, made on the MPI of this process. */
#include "trampoline/calls.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "mpi/comm.h"
#include "mpi/dtype.h"
#include "mpi/float_reduce.h"
#include "mpi/reduction.h"
#include "watch/failure.h"
#include "xla/xla_ffi.h"

/* The code of what is refused here, which MPI has no text for. */
enum { REFUSED = 1 };

static int refuse(void) {
    failure_note(error_get(), NULL);
    return REFUSED;
}

/* Communicators that the front end has made and XLA has not yet asked for. */
enum { OFFERS = 64 };
static struct {
    int64_t comm;
    int color, key;
} offers[OFFERS];
static int offered;
static pthread_mutex_t offering = PTHREAD_MUTEX_INITIALIZER;

int mpixla_trampoline_offer(int64_t comm, int color, int key) {
    if (!comm_find(comm)) return -1;
    int code = 0;
    pthread_mutex_lock(&offering);
    if (offered == OFFERS)
        code = error_set("more than %d communicators are offered to XLA that it has not asked for", OFFERS);
    else {
        offers[offered].comm = comm;
        offers[offered].color = color;
        offers[offered].key = key;
        offered++;
    }
    pthread_mutex_unlock(&offering);
    return code;
}

int mpixla_trampoline_offers(void) {
    pthread_mutex_lock(&offering);
    int count = offered;
    pthread_mutex_unlock(&offering);
    return count;
}

/* The newest offer that fits, or -1: cliques with the same first device and the same place in it look alike, and the
 * front end opens one at a time. */
static int64_t offer_take(int color, int key) {
    int64_t comm = -1;
    pthread_mutex_lock(&offering);
    int i = offered - 1;
    while (i >= 0 && (offers[i].color != color || offers[i].key != key)) i--;
    if (i >= 0) {
        comm = offers[i].comm;
        offered--;
        memmove(&offers[i], &offers[i + 1], (size_t)(offered - i) * sizeof offers[0]);
    }
    pthread_mutex_unlock(&offering);
    return comm;
}

static comm_entry *comm_of(trampoline_handle comm) {
    if (comm >= TRAMPOLINE_COMMS) return comm_find((int64_t)(comm - TRAMPOLINE_COMMS));
    error_set("XLA has used a communicator that it was not given");
    return NULL;
}

/* One call: what it is made with, which may be missing, and what came of it. */
typedef struct call {
    const mpi_library *mpi;
    const mpi_counted *small;
    mpixla_handle comm;
} call;

/* Whether the call can be made: none of its counts is negative, which is what XLA's 64-bit counts beyond an int may
 * become. */
static int call_begin(call *c, trampoline_handle comm, int n) {
    c->mpi = mpi_get();
    if (!c->mpi) return error_set("mpixla is not started in this process"), 0;
    c->small = c->mpi->small;
    if (n < 0)
        return error_set("r%d | XLA asks MPI for more than 2^31 - 1 items at once. Split the array",
                         c->mpi->world_rank),
               0;
    const comm_entry *entry = comm_of(comm);
    if (!entry) return 0;
    c->comm = entry->handle;
    return 1;
}

static int call_end(const call *c, const char *function, int n, int code) {
    if (code == 0) return 0;
    char text[MPI_ERROR_BYTES], message[MPI_ERROR_BYTES + 128];
    mpi_error_describe(c->mpi, code, text);
    snprintf(message, sizeof message, "r%d | %s returned error code %d: %s (for XLA, %d items)", c->mpi->world_rank,
             function, mpi_error_class(code), text, n);
    text_clean(message);
    error_set("%s", message);
    return refuse();
}

static int type_of(trampoline_handle type, mpixla_handle *found) {
    const dtype_entry *entry = dtype_find(type == TRAMPOLINE_BYTE ? FFI_U8 : (int)type);
    if (!entry) return 0;
    *found = entry->handle;
    return 1;
}

/* MAX and MIN of floats are ours, in which NaN wins as it does in jnp.max. */
static int op_of(trampoline_handle op, trampoline_handle type, mpixla_handle *found) {
    int64_t number = (int64_t)op - TRAMPOLINE_SUM;
    const mpixla_handle *ours = float_reduce_find((int)type, number);
    if (!ours) ours = reduction_find(number);
    if (!ours) return 0;
    *found = *ours;
    return 1;
}

int trampoline_allgather(const void *s, int sn, trampoline_handle st, void *r, int rn, trampoline_handle rt,
                         trampoline_handle comm) {
    call c;
    mpixla_handle type;
    if (st != rt || !call_begin(&c, comm, sn) || !type_of(st, &type)) return refuse();
    return call_end(&c, "MPI_Allgather", sn, c.small->allgather(s, sn, type, r, rn, type, c.comm));
}

int trampoline_allreduce(const void *s, void *r, int n, trampoline_handle t, trampoline_handle op,
                         trampoline_handle comm) {
    call c;
    mpixla_handle type, reduction;
    if (!call_begin(&c, comm, n) || !type_of(t, &type) || !op_of(op, t, &reduction)) return refuse();
    if (s == r) s = (const void *)(intptr_t)c.mpi->facts.in_place;
    return call_end(&c, "MPI_Allreduce", n, c.small->allreduce(s, r, n, type, reduction, c.comm));
}

int trampoline_reduce_scatter(const void *s, void *r, const int *n, trampoline_handle t, trampoline_handle op,
                              trampoline_handle comm) {
    call c;
    mpixla_handle type, reduction;
    if (!call_begin(&c, comm, n[0]) || !type_of(t, &type) || !op_of(op, t, &reduction)) return refuse();
    const comm_entry *entry = comm_of(comm);
    for (int i = 1; i < entry->size; i++)
        if (n[i] != n[0]) {
            error_set("XLA asks for a reduce-scatter of parts of different sizes, which mpixla does not pass on");
            return refuse();
        }
    return call_end(&c, "MPI_Reduce_scatter_block", n[0],
                    c.small->reduce_scatter_block(s, r, n[0], type, reduction, c.comm));
}

int trampoline_isend(const void *b, int n, trampoline_handle t, int dest, int tag, trampoline_handle comm,
                     trampoline_handle *request) {
    call c;
    mpixla_handle type;
    if (!call_begin(&c, comm, n) || !type_of(t, &type)) return refuse();
    return call_end(&c, "MPI_Isend", n, c.small->isend(b, n, type, dest, tag, c.comm, request));
}

int trampoline_irecv(void *b, int n, trampoline_handle t, int source, int tag, trampoline_handle comm,
                     trampoline_handle *request) {
    call c;
    mpixla_handle type;
    if (!call_begin(&c, comm, n) || !type_of(t, &type)) return refuse();
    return call_end(&c, "MPI_Irecv", n, c.small->irecv(b, n, type, source, tag, c.comm, request));
}

int trampoline_wait(trampoline_handle *request, void *ignored) {
    (void)ignored;
    _Alignas(16) char status[MPI_STATUS_BYTES];
    call c = {.mpi = mpi_get()};
    return c.mpi ? call_end(&c, "MPI_Wait", 0, c.mpi->wait(request, status)) : REFUSED;
}

int trampoline_sendrecv(const void *s, int sn, trampoline_handle st, int dest, int sendtag, void *r, int rn,
                        trampoline_handle rt, int source, int recvtag, trampoline_handle comm, void *ignored) {
    (void)ignored;
    _Alignas(16) char status[MPI_STATUS_BYTES];
    call c;
    mpixla_handle type;
    if (st != rt || !call_begin(&c, comm, sn < rn ? sn : rn) || !type_of(st, &type)) return refuse();
    return call_end(&c, "MPI_Sendrecv", sn,
                    c.small->sendrecv(s, sn, type, dest, sendtag, r, rn, type, source, recvtag, c.comm, status));
}

/* XLA does not look at what this returns, and would go on with no communicator: so the job ends here. */
int trampoline_comm_split(trampoline_handle comm, int color, int key, trampoline_handle *part) {
    (void)comm;
    int64_t found = offer_take(color, key);
    if (found < 0) {
        const mpi_library *mpi = mpi_get();
        fprintf(stderr,
                "mpixla: rank %d: XLA asks for a communicator that mpixla was not told of (first device %d, place %d), "
                "so the "
                "whole job ends. Run programs that are sharded over processes from Python, through jax.jit, with one "
                "device a process; if this one is, report it to mpixla.\n",
                mpi ? mpi->world_rank : -1, color, key);
        if (mpi) mpi->abort(mpi->facts.comm_world, 1);
        abort();
    }
    *part = (trampoline_handle)found + TRAMPOLINE_COMMS;
    return 0;
}

/* It belongs to the front end. */
int trampoline_comm_free(trampoline_handle *comm) {
    *comm = 0;
    return 0;
}

static int comm_number(trampoline_handle comm, int (*ask)(mpixla_handle comm, int *number), int *number) {
    if (!ask) return REFUSED;
    if (comm == TRAMPOLINE_WORLD) return ask(mpi_get()->facts.comm_world, number);
    const comm_entry *entry = comm_of(comm);
    return entry ? ask(entry->handle, number) : refuse();
}

int trampoline_comm_rank(trampoline_handle comm, int *rank) {
    return comm_number(comm, mpi_get() ? mpi_get()->comm_rank : NULL, rank);
}

int trampoline_comm_size(trampoline_handle comm, int *size) {
    return comm_number(comm, mpi_get() ? mpi_get()->comm_size : NULL, size);
}

int trampoline_init_thread(int *argc, char ***argv, int required, int *provided) {
    (void)argc;
    (void)argv;
    if (!mpi_get()) {
        error_set("JAX asks for MPI before mpixla has been imported. Call mpixla.distributed.initialize()");
        return REFUSED;
    }
    *provided = required;
    return 0;
}

int trampoline_finalize(void) {
    return 0;
}

/* XLA makes communicators on this thread alone if MPI says no to others. The front end has seen to it that MPI takes
 * calls from all. */
int trampoline_is_thread_main(int *flag) {
    *flag = 1;
    return 0;
}

int trampoline_error_string(int code, char *text, int *length) {
    (void)code;
    *length = snprintf(text, TRAMPOLINE_TEXT_BYTES, "%s", error_get());
    if (*length >= TRAMPOLINE_TEXT_BYTES) *length = TRAMPOLINE_TEXT_BYTES - 1;
    return 0;
}

/* MPItrampoline asks when it is loaded, with MPITRAMPOLINE_VERBOSE. */
int trampoline_get_library_version(char *text, int *length) {
    *length = snprintf(text, TRAMPOLINE_TEXT_BYTES, "mpixla, for the MPI that mpi4py loads");
    return 0;
}
