/* Nothing says which note belongs to which message, and nothing has to: a message is refused if it has other bytes than
 * its template, or if of all notes that could be its own none has the template's data type. Its own is among them, so a
 * right program is not refused, in whatever order it waits for its messages. What stays unseen are two messages of one
 * tag and as many bytes which are received each in the other's place.
 *
 * A message of mpi4py's has no note. After the first that is known by that, the notes of its sender say nothing
 * certain, and the data types of its messages are compared no more. A message that mpi4py receives leaves its note
 * behind, which is taken for that of a later message only where it fits.
 */
#include "check/message.h"

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "call/site.h"
#include "mpi/loss.h"
#include "xla/xla_ffi.h"

/* Nanoseconds that a receiver waits for a note that has not come before its message. */
#define PATIENCE INT64_C(1000000000)

enum { NOTE_TAG = 0, ANY_DTYPE = -1 };

typedef struct note {
    int32_t size, tag; /* of the communicator, of the message */
    int64_t items, bytes, dtype;
    char line[SITE_TEXT_BYTES];
} note;

/* A note that MPI sends until it is done, or one that has come. */
typedef struct letter {
    mpi_request request;
    int from; /* its sender in MPI_COMM_WORLD */
    note note;
    struct letter *next;
} letter;

/* What has come. */
typedef struct message {
    const call_facts *call;
    int source, tag;
    int from;      /* the source in MPI_COMM_WORLD; negative where that is not known */
    int is_longer; /* than its template; MPI does not say by how much */
    int64_t bytes; /* its own, or of the template of a longer one */
} message;

static mpixla_handle channel;
static unsigned char *has_no_notes; /* by rank: it has sent a message without one */
static letter *outgoing;
static letter *arrived, **last = &arrived;               /* in the order of their coming */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* for these, and for who receives a note */

int message_channel_set(mpixla_handle comm) {
    int ranks = 0;
    if (mpi_get()->comm_size(comm, &ranks) != 0) return error_set("MPI_Comm_size failed on the channel of the checks");
    unsigned char *none = calloc((size_t)ranks, 1);
    if (!none) return error_set("out of memory for the checks of messages");
    free(has_no_notes);
    has_no_notes = none;
    channel = comm;
    return 0;
}

/* Negative where a rank is nobody, or of another MPI_COMM_WORLD, or not known. */
static int world_rank(const comm_entry *entry, int64_t rank) {
    const int *members = atomic_load(&entry->members);
    return channel && members && rank >= 0 ? members[rank] : -1;
}

/* Sending */

/* With the lock. */
static void outgoing_free(void) {
    _Alignas(16) char status[MPI_STATUS_BYTES];
    for (letter **at = &outgoing; *at;) {
        letter *l = *at;
        int done = 0;
        if (mpi_get()->test(&l->request, &done, status) == 0 && !done) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        free(l);
    }
}

void message_announce(const call_facts *call) {
    int to = world_rank(call->communicator, call->dest);
    letter *l = to >= 0 ? malloc(sizeof *l) : NULL;
    if (!l) return;
    l->note = (note){.size = call->communicator->size,
                     .tag = call->sendtag,
                     .items = call->sent,
                     .bytes = call->sent * call->sent_type->row->itemsize,
                     .dtype = call->sent_type->number};
    snprintf(l->note.line, sizeof l->note.line, "%s", site_text(call->site));
    int64_t bytes = (int64_t)(offsetof(note, line) + strlen(l->note.line) + 1);
    pthread_mutex_lock(&lock);
    outgoing_free();
    if (mpi_get()->small->isend(&l->note, bytes, dtype_find(FFI_U8)->handle, to, NOTE_TAG, channel, &l->request) == 0) {
        l->next = outgoing;
        outgoing = l;
        l = NULL;
    }
    pthread_mutex_unlock(&lock);
    free(l);
}

/* Receiving. The caller has the lock, but for note_take. */

/* Takes a note of this sender's if one has come. Returns whether. */
static int note_hear(int from) {
    _Alignas(16) char status[MPI_STATUS_BYTES];
    const mpi_library *mpi = mpi_get();
    int there = 0;
    if (mpi->iprobe(from, NOTE_TAG, channel, &there, status) != 0 || !there) return 0;
    letter *l = malloc(sizeof *l);
    if (!l || mpi->small->recv(&l->note, (int64_t)sizeof l->note, dtype_find(FFI_U8)->handle, from, NOTE_TAG, channel,
                               status) != 0) {
        free(l);
        return 0;
    }
    l->from = from;
    l->next = NULL;
    *last = l;
    last = &l->next;
    return 1;
}

static letter *note_take_out(letter **at) {
    letter *l = *at;
    *at = l->next;
    if (!l->next) last = at;
    return l;
}

/* Where the first note is that could be the message's and has this data type; what is there is NULL if there is none.
 */
static letter **note_find(const message *m, int64_t dtype) {
    letter **at = &arrived;
    for (; *at; at = &(*at)->next) {
        const note *n = &(*at)->note;
        int could_be = (*at)->from == m->from && n->size == m->call->communicator->size && n->tag == m->tag &&
                       (m->is_longer ? n->bytes > m->bytes : n->bytes == m->bytes);
        if (could_be && (dtype == ANY_DTYPE || n->dtype == dtype)) break;
    }
    return at;
}

static void notes_drop(int from) {
    while (note_hear(from)) {
    }
    for (letter **at = &arrived; *at;)
        if ((*at)->from == from)
            free(note_take_out(at));
        else
            at = &(*at)->next;
}

/* Gives a note that could be the message's, to be freed: one with this data type if there is such a one, or comes in
 * time, else one with another. NULL: there is none. */
static letter *note_take(const message *m, int64_t dtype) {
    const int64_t until = clock_now() + PATIENCE;
    letter *found = NULL;
    for (int looks = 0, ends = m->from < 0; !ends; looks++) {
        if (looks > 0) clock_between(looks);
        pthread_mutex_lock(&lock);
        if (has_no_notes[m->from]) notes_drop(m->from);
        letter **at = note_find(m, dtype);
        while (!*at && note_hear(m->from)) at = note_find(m, dtype);
        ends = *at || has_no_notes[m->from] || clock_now() >= until;
        if (!*at && ends) at = note_find(m, ANY_DTYPE);
        if (*at && ends) found = note_take_out(at);
        pthread_mutex_unlock(&lock);
    }
    return found;
}

/* Comparing */

/* Whether the only note that there is, which does not fit, can be that of the next message, which waits: then this one
 * has none. */
static int may_be_of_next(const message *m, const note *n) {
    _Alignas(16) char status[MPI_STATUS_BYTES];
    const mpi_library *mpi = mpi_get();
    const comm_entry *entry = m->call->communicator;
    int there = 0;
    int64_t bytes = -1;
    pthread_mutex_lock(&lock);
    while (note_hear(m->from)) {
    }
    int is_only = *note_find(m, ANY_DTYPE) == NULL;
    pthread_mutex_unlock(&lock);
    if (!is_only || !atomic_load(&entry->alive)) return 0;
    if (mpi->iprobe(m->source, m->tag, entry->handle, &there, status) != 0 || !there) return 0;
    return mpi_bytes_of(status, &bytes) == 0 && bytes == n->bytes;
}

/* The sender has sent a message without a note: from now on its notes say nothing. */
static void notes_distrust(const message *m) {
    if (m->from < 0) return;
    pthread_mutex_lock(&lock);
    int is_known = has_no_notes[m->from];
    has_no_notes[m->from] = 1;
    notes_drop(m->from);
    pthread_mutex_unlock(&lock);
    if (!is_known)
        fprintf(stderr,
                "mpixla: r%d | MPIXLA_CHECK: a message from rank %d of communicator '%s' was not sent with mpixla; the "
                "data types of messages from there are not compared from now on\n",
                mpi_get()->world_rank, m->source, m->call->communicator->name);
}

static void describe_items(char *text, size_t bytes, int64_t items, int64_t dtype) {
    const dtype_entry *found = dtype_find((int)dtype);
    snprintf(text, bytes, "%lld item%s of %s", (long long)items, items == 1 ? "" : "s",
             found ? found->row->name : "an unknown type");
}

/* Without a note only the bytes are known. Returns REFUSED. */
static int message_refuse(const message *m, const note *n) {
    const call_facts *call = m->call;
    const comm_entry *entry = call->communicator;
    const char *line = site_text(call->site), *unknown = "an unknown line";
    char sends[64], receives[64];
    int types = n && n->dtype != call->received_type->number, counts = !n || n->items != call->received;
    describe_items(receives, sizeof receives, call->received, call->received_type->number);
    if (n)
        describe_items(sends, sizeof sends, n->items, n->dtype);
    else
        snprintf(sends, sizeof sends, "%lld bytes", (long long)m->bytes);
    return error_set(
        "r%d | MPIXLA_CHECK: a message from rank %d to rank %d of communicator '%s' with tag %d is not what its "
        "receiver "
        "expects:\n  rank %d sends %s, at %s\n  rank %d receives %s, at %s\nThey differ in %s. Receive with a template "
        "of the shape and data type of what is sent.",
        mpi_get()->world_rank, m->source, entry->rank, entry->name, m->tag, m->source, sends,
        n && n->line[0] ? n->line : unknown, entry->rank, receives, *line ? line : unknown,
        types && counts ? "the data type and the count"
        : types         ? "the data type"
                        : "the count");
}

int message_compare(const call_facts *call, const void *status, int accepts_short, int code) {
    const comm_entry *entry = call->communicator;
    const int64_t expected = call->received * call->received_type->row->itemsize;
    message m = {.call = call,
                 .source = call->source == MPIXLA_ANY_SOURCE ? mpi_source_of(status) : call->source,
                 .tag = call->recvtag == MPIXLA_ANY_TAG ? mpi_tag_of(status) : call->recvtag,
                 .is_longer = code > 0,
                 .bytes = expected};
    if (m.source < 0 || m.source >= entry->size || code < 0 || loss_is(mpi_error_class(code))) return code;
    if (code == 0 && mpi_bytes_of(status, &m.bytes) != 0) return code;
    m.from = world_rank(entry, m.source);

    int has_size = code == 0 && (m.bytes == expected || (accepts_short && m.bytes < expected));
    letter *l = note_take(&m, has_size ? call->received_type->number : ANY_DTYPE);
    if (has_size) {
        int has_dtype = l && l->note.dtype == call->received_type->number;
        if (!l || (!has_dtype && may_be_of_next(&m, &l->note)))
            notes_distrust(&m);
        else if (!has_dtype)
            code = message_refuse(&m, &l->note);
    } else if (l || code == 0) { /* else what failed is not the size, or nobody knows by how much */
        code = message_refuse(&m, l ? &l->note : NULL);
    }
    free(l);
    return code;
}
