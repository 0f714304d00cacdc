#include "watch/post.h"

#include <stdlib.h>
#include <string.h>

#include "mpi/dtype.h"
#include "mpi/mpi.h"
#include "mpi/outbox.h"
#include "xla/xla_ffi.h"

enum { TAG = 1, MOST_BEGUN = 64 /* receives that one call of post_receive starts */ };

/* The header of a message: the letter without its data. */
typedef struct head {
    int64_t kind, from, number;
} head;

/* A message that is being received. */
typedef struct incoming {
    mpi_request request;
    struct incoming *next;
    int source;
    int64_t bytes;
    _Alignas(8) char data[];
} incoming;

static mpixla_handle channel;
static int channel_ranks;
static outbox sending;
static incoming *receives; /* in the order in which the messages came */
static mpi_request join_request;
static int has_joined;

void post_channel_set(mpixla_handle comm, int ranks) {
    channel = comm;
    channel_ranks = ranks;
}

static mpixla_handle post_byte_type(void) {
    return dtype_find(FFI_U8)->handle;
}

/* Returns memory for a message of so many bytes, which the caller frees; NULL without memory. */
static incoming *post_incoming_new(int64_t bytes) {
    incoming *p = calloc(1, sizeof *p + (size_t)bytes);
    if (p) p->bytes = bytes;
    return p;
}

void post_send(int to, post_kind kind, int64_t number, const void *data, size_t bytes) {
    const head h = {.kind = kind, .from = mpi_get()->world_rank, .number = number};
    outbox_message *m = outbox_message_new((int64_t)(sizeof h + bytes));
    if (!m) return;
    memcpy(m->data, &h, sizeof h);
    if (bytes > 0) memcpy(m->data + sizeof h, data, bytes);
    (void)outbox_send(&sending, m, to, TAG, channel);
}

/* Returns whether a message has arrived, and sets its status; 0 as well if MPI fails. Once a rank has failed, MPI may
 * refuse to probe for a message of any source; it still finds those of single ranks. */
static int post_message_probe(void *status) {
    const mpi_library *mpi = mpi_get();
    int there = 0;
    if (mpi->iprobe((int)mpi->facts.any_source, TAG, channel, &there, status) == 0) return there;
    for (int source = 0; source < channel_ranks; source++)
        if (mpi->iprobe(source, TAG, channel, &there, status) == 0 && there) return 1;
    return 0;
}

/* Starts to receive the next message that has arrived. Returns it, which the caller frees; NULL if there is none, there
 * is no memory, or MPI fails. */
static incoming *post_receive_start(void) {
    _Alignas(16) char status[MPI_STATUS_BYTES];
    const mpi_library *mpi = mpi_get();
    int64_t bytes = 0;
    if (!post_message_probe(status)) return NULL;
    if (mpi_bytes_of(status, &bytes) != 0 || bytes < 0) return NULL;
    incoming *p = post_incoming_new(bytes);
    /* No other thread receives here, so this is the message that was found. It is received from its sender: MPICH 5.0
     * on UCX never ends a receive from any source of a message that has already come from another host. */
    if (p) p->source = mpi_source_of(status);
    if (p && mpi->small->irecv(p->data, bytes, post_byte_type(), p->source, TAG, channel, &p->request) == 0) return p;
    free(p);
    return NULL;
}

/* Starts to receive all messages that have arrived. A sender may die in the middle of a message, which then never ends:
 * other messages are received all the same. */
static void post_receives_start(void) {
    incoming **end = &receives;
    while (*end) end = &(*end)->next;
    for (int i = 0; i < MOST_BEGUN && (*end = post_receive_start()) != NULL; i++) end = &(*end)->next;
}

/* Removes and returns the first message that is complete, as are all earlier ones of its sender, for the caller to
 * free; NULL if there is none. */
static incoming *post_complete_remove(void) {
    for (incoming **at = &receives; *at; at = &(*at)->next) {
        incoming *p = *at, *earlier = receives;
        while (earlier != p && earlier->source != p->source) earlier = earlier->next;
        if (earlier != p || !mpi_request_is_done(&p->request)) continue;
        *at = p->next;
        return p;
    }
    return NULL;
}

int post_receive(post_letter *letter) {
    head h;
    (void)outbox_is_sending(&sending);
    post_receives_start();
    incoming *p = post_complete_remove();
    if (!p) return 0;
    if (p->bytes < (int64_t)sizeof h) {
        free(p);
        return 0;
    }
    memcpy(&h, p->data, sizeof h);
    *letter = (post_letter){.kind = (post_kind)h.kind,
                            .from = (int)h.from,
                            .number = h.number,
                            .memory = (char *)p,
                            .data = p->data + sizeof h,
                            .bytes = (size_t)p->bytes - sizeof h};
    return 1;
}

int post_is_sending(void) {
    return outbox_is_sending(&sending);
}

void post_barrier_start(void) {
    has_joined = mpi_get()->ibarrier(channel, &join_request) == 0;
}

int post_barrier_is_done(void) {
    return !has_joined || mpi_request_is_done(&join_request);
}
