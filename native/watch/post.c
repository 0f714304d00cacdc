#include "watch/post.h"

#include <stdlib.h>
#include <string.h>

#include "mpi/dtype.h"
#include "mpi/mpi.h"
#include "mpi/outbox.h"
#include "xla/xla_ffi.h"

enum { TAG = 1, AT_ONCE = 64 /* messages that are begun to be received at one time */ };

/* What a message begins with: the letter without its data. */
typedef struct head {
    int64_t kind, from, number;
} head;

/* A message that MPI receives. */
typedef struct parcel {
    mpi_request request;
    struct parcel *next;
    int source;
    int64_t bytes;
    _Alignas(8) char data[];
} parcel;

static mpixla_handle channel;
static int channel_ranks;
static outbox sending;
static parcel *coming; /* those that are being received, in the order in which they came */
static mpi_request joining;
static int has_joined;

void post_open(mpixla_handle comm, int ranks) {
    channel = comm;
    channel_ranks = ranks;
}

static mpixla_handle byte_type(void) {
    return dtype_find(FFI_U8)->handle;
}

static parcel *parcel_make(int64_t bytes) {
    parcel *p = calloc(1, sizeof *p + (size_t)bytes);
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

/* Whether a message has come. Once a rank has failed MPI may refuse to look for one of any rank; that of each single
 * rank it still finds. */
static int message_find(void *status) {
    const mpi_library *mpi = mpi_get();
    int there = 0;
    if (mpi->iprobe((int)mpi->facts.any_source, TAG, channel, &there, status) == 0) return there;
    for (int source = 0; source < channel_ranks; source++)
        if (mpi->iprobe(source, TAG, channel, &there, status) == 0 && there) return 1;
    return 0;
}

/* Begins to receive the next message that has come; NULL if there is none. */
static parcel *receive_begin(void) {
    _Alignas(16) char status[MPI_STATUS_BYTES];
    const mpi_library *mpi = mpi_get();
    int64_t bytes = 0;
    if (!message_find(status)) return NULL;
    if (mpi_bytes_of(status, &bytes) != 0 || bytes < 0) return NULL;
    parcel *p = parcel_make(bytes);
    /* Nobody else receives here, so this is the message that was found. It is received from its sender, not from any
     * rank, as MPICH 5.0 on UCX never ends that for what has already come from another host. */
    if (p) p->source = mpi_source_of(status);
    if (p && mpi->small->irecv(p->data, bytes, byte_type(), p->source, TAG, channel, &p->request) == 0) return p;
    free(p);
    return NULL;
}

/* Begins to receive what has come. A sender may die in the middle of a message, which then never ends: the others' are
 * received all the same. */
static void receive_all(void) {
    parcel **end = &coming;
    while (*end) end = &(*end)->next;
    for (int i = 0; i < AT_ONCE && (*end = receive_begin()) != NULL; i++) end = &(*end)->next;
}

/* Takes the first message out that is there, and before which its sender has sent none that is not; NULL: there is
 * none.
 */
static parcel *received_take(void) {
    for (parcel **at = &coming; *at; at = &(*at)->next) {
        parcel *p = *at, *earlier = coming;
        while (earlier != p && earlier->source != p->source) earlier = earlier->next;
        if (earlier != p || !mpi_request_is_done(&p->request)) continue;
        *at = p->next;
        return p;
    }
    return NULL;
}

int post_take(post_letter *letter) {
    head h;
    (void)outbox_is_sending(&sending);
    receive_all();
    parcel *p = received_take();
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

int post_unsent(void) {
    return outbox_is_sending(&sending);
}

void post_join(void) {
    has_joined = mpi_get()->ibarrier(channel, &joining) == 0;
}

int post_all_joined(void) {
    return !has_joined || mpi_request_is_done(&joining);
}
