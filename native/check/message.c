/* Matches notes to messages. A message of MPI has no field for a sequence number, and counting fails, since mpi4py may
 * send and receive messages without notes on the same communicator. So a note matches a message by sender, tag, length,
 * and a hash of the bytes. A message is refused only if a matching note has another data type or shape, and no matching
 * note fits. Such a refusal is certain
 *
 *   if data of the two types have equal bits only where all bits are 0 (`message_types_may_share_bits`), and some are
 *   not 0; or
 *   on the library's own communicator: each message has a note there, which comes before the message. If no matching
 *   note fits, the message's own does not.
 *
 * All other messages are accepted: on communicators that others may use, messages of zeros, which are equal
 * in every type, and messages in a GPU's memory, which are not hashed.
 *
 * If mpi4py receives a message that has a note, the note stays. The oldest note is dropped when there are too many.
 */
#include "check/message.h"

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/output.h"
#include "call/site.h"
#include "check/signature.h"
#include "mpi/loss.h"
#include "mpi/outbox.h"
#include "xla/xla_ffi.h"

/* Time that a receiver waits for a note that has not come before its message. */
#define NOTE_PATIENCE_NS INT64_C(1000000000)

enum { NOTE_TAG = 0, NOTES_KEPT = 4096, HASHED_WORDS = 512 };

/* Identifies the bytes of a message: their hash, 0 if it is unknown; and whether some of the hashed bytes are not 0. */
typedef struct message_content {
    uint64_t hash;
    int32_t has_nonzero;
} message_content;

typedef struct message_note {
    int32_t size, tag, is_on_own; /* of the communicator, of the message, whether it is on the library's own */
    message_content content;
    int64_t agreed; /* the communicator's number, 0 if it has none yet (comm.h) */
    int64_t items, bytes, dtype;
    int64_t shape, leaves; /* hashes; 0: not known */
    char shape_text[64];
    char line[SITE_TEXT_BYTES];
} message_note;

/* A note that was received, as an element of a list. */
typedef struct message_note_entry {
    int from; /* its sender in MPI_COMM_WORLD */
    message_note note;
    struct message_note_entry *next;
} message_note_entry;

/* The state of another rank, by its rank in MPI_COMM_WORLD. */
typedef struct message_peer {
    atomic_int announced, compared; /* number of the first messages to it, from it */
    int has_no_notes;               /* it has sent a message without a note */
} message_peer;

/* A message that was received, and the expectation of its receiver. */
typedef struct message {
    const call_facts *call;
    int source, tag;
    int from;      /* the source in MPI_COMM_WORLD; negative where that is not known */
    int is_longer; /* than its template; MPI does not say by how much */
    int is_on_own;
    int64_t bytes; /* its own, or of the template of a longer one */
    message_content content;
    int64_t shape, leaves; /* that are expected; 0: any */
    messages_compared which;
} message;

static const comm_entry *_Atomic own;
static atomic_int has_started; /* a receive on `own`: from then on a note may be that of a message which is under way */
static mpixla_handle channel;
static message_peer *peers;
static outbox outgoing;
static message_note_entry *notes, **notes_end = &notes; /* in the order of arrival */
static int64_t notes_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards these, and is held to receive a note */

int message_channel_set(mpixla_handle comm) {
    int ranks = 0;
    if (mpi_get()->comm_size(comm, &ranks) != 0) return error_set("MPI_Comm_size failed on the channel of the checks");
    message_peer *all = calloc((size_t)ranks, sizeof *all);
    if (!all) return error_set("out of memory for the checks of messages");
    free(peers);
    peers = all;
    channel = comm;
    return 0;
}

void message_own_comm_set(const comm_entry *comm) {
    atomic_store(&own, comm);
}

int message_is_on_own_comm(const call_facts *call) {
    return call->communicator == atomic_load_explicit(&own, memory_order_relaxed);
}

/* Returns a rank of the communicator as a rank of MPI_COMM_WORLD; negative for MPI_PROC_NULL, or if it is unknown, or
 * in another MPI_COMM_WORLD. */
static int message_world_rank(const comm_entry *entry, int64_t rank) {
    const int *members = atomic_load(&entry->members);
    return channel && members && rank >= 0 ? members[rank] : -1;
}

/* Returns the hash of a message's bytes, of a long one only of words at equal distances and the last one, and whether
 * some of these are not 0. Returns zeros for data in a GPU's memory, which is not hashed. */
static message_content message_content_of(const frame *f, const frame_buffer *b, int64_t bytes) {
    const char *data = b->data;
    const int64_t words = bytes / 8, step = words / HASHED_WORDS + 1, rest = bytes < 8 ? bytes : 8;
    uint64_t hash = (uint64_t)bytes, any = 0, word = 0;
    if (frame_array_device(f) || !data || bytes <= 0) return (message_content){0};
    for (int64_t i = 0; i < words; i += step) {
        memcpy(&word, data + 8 * i, sizeof word);
        hash = hash_combine(hash, word);
        any |= word;
    }
    word = 0;
    memcpy(&word, data + bytes - rest, (size_t)rest);
    hash = hash_combine(hash, word);
    return (message_content){.hash = hash ? hash : 1, .has_nonzero = (any | word) != 0};
}

/* Sending */

/* Counts a message with a peer. Returns whether it is one of the first MESSAGES_FIRST_NOTES. */
static int message_count_first(atomic_int *so_far) {
    return atomic_load_explicit(so_far, memory_order_relaxed) < MESSAGES_FIRST_NOTES &&
           atomic_fetch_add_explicit(so_far, 1, memory_order_relaxed) < MESSAGES_FIRST_NOTES;
}

/* Fills `n` with the note of a call that sends a message. Sets all bytes, since all are sent. */
static void message_note_fill(message_note *n, const frame *f) {
    const call_facts *call = &f->facts;
    const int64_t bytes = call->sent * call->sent_type->row->itemsize;
    memset(n, 0, sizeof *n); /* all bytes travel */
    *n = (message_note){.size = call->communicator->size,
                        .tag = call->sendtag,
                        .is_on_own = message_is_on_own_comm(call),
                        .content = message_content_of(f, &f->send, bytes),
                        .agreed = atomic_load(&call->communicator->agreed),
                        .items = call->sent,
                        .bytes = bytes,
                        .dtype = call->sent_type->number,
                        .shape = signature_shape_hash(&f->send, 0),
                        .leaves = signature_packed_hash(f)};
    signature_shape_describe(&f->send, 0, n->shape_text, sizeof n->shape_text);
    snprintf(n->line, sizeof n->line, "%s", site_text(call->site));
}

void message_note_send(const frame *f, messages_compared which) {
    const call_facts *call = &f->facts;
    if (call->row->request == MPIXLA_STARTS && facts_have(call, ATTRIBUTE_SOURCE) && message_is_on_own_comm(call))
        atomic_store_explicit(&has_started, 1, memory_order_relaxed);
    const int to = facts_have(call, ATTRIBUTE_DEST) ? message_world_rank(call->communicator, call->dest) : -1;
    if (to < 0 || (which == MESSAGES_FIRST && !message_count_first(&peers[to].announced))) return;
    message_note n;
    message_note_fill(&n, f);
    outbox_message *m = outbox_message_new((int64_t)(offsetof(message_note, line) + strlen(n.line) + 1));
    if (!m) return;
    memcpy(m->data, &n, (size_t)m->bytes);
    pthread_mutex_lock(&lock);
    (void)outbox_send(&outgoing, m, to, NOTE_TAG, channel);
    pthread_mutex_unlock(&lock);
}

/* Receiving. The caller holds the lock, except for the two message_take_... functions. */

/* Removes the note at the link `at` from the list, and returns it. The caller holds the lock, and frees the note. */
static message_note_entry *message_note_remove(message_note_entry **at) {
    message_note_entry *l = *at;
    *at = l->next;
    if (!l->next) notes_end = at;
    notes_count--;
    return l;
}

/* Receives a note of this sender if one has come, and appends it to the list; drops the oldest note if there are more
 * than NOTES_KEPT. Returns whether it has received one. The caller holds the lock. */
static int message_note_receive(int from) {
    _Alignas(16) char status[MPI_STATUS_BYTES];
    const mpi_library *mpi = mpi_get();
    int there = 0;
    if (mpi->iprobe(from, NOTE_TAG, channel, &there, status) != 0 || !there) return 0;
    message_note_entry *l = malloc(sizeof *l);
    if (!l || mpi->small->recv(&l->note, (int64_t)sizeof l->note, dtype_find(FFI_U8)->handle, from, NOTE_TAG, channel,
                               status) != 0) {
        free(l);
        return 0;
    }
    l->from = from;
    l->next = NULL;
    *notes_end = l;
    notes_end = &l->next;
    if (++notes_count > NOTES_KEPT) free(message_note_remove(&notes));
    return 1;
}

/* Returns whether the note may belong to the message: it has its sender, tag, communicator and length, and no other
 * hash of its bytes. */
static int message_note_may_match(const message *m, const message_note_entry *l) {
    const message_note *n = &l->note;
    const comm_entry *entry = m->call->communicator;
    const int64_t agreed = atomic_load(&entry->agreed);
    if (l->from != m->from || n->tag != m->tag || n->size != entry->size || n->is_on_own != m->is_on_own) return 0;
    if (n->agreed && agreed && n->agreed != agreed) return 0;
    if (m->is_longer) return n->bytes > m->bytes;
    return n->bytes == m->bytes && (!n->content.hash || !m->content.hash || n->content.hash == m->content.hash);
}

/* Returns whether the sender has the data type of the receiver. */
static int message_note_has_dtype(const message *m, const message_note *n) {
    return n->dtype == m->call->received_type->number;
}

/* Returns whether the sender has the data type, shape and leaves of the receiver, as far as they are compared. */
static int message_note_fits(const message *m, const message_note *n) {
    return message_note_has_dtype(m, n) && (!m->shape || m->shape == n->shape) &&
           (!m->leaves || !n->leaves || m->leaves == n->leaves);
}

static int message_type_is_integral(const mpixla_dtype_row *row) {
    return strcmp(row->kind, "integer") == 0 || strcmp(row->kind, "bool") == 0;
}

/* Returns whether the complex type `a` has parts of the size of `b`. */
static int message_type_is_pair(const mpixla_dtype_row *a, const mpixla_dtype_row *b) {
    return strcmp(a->kind, "complex") == 0 && a->itemsize == 2 * b->itemsize;
}

/* Returns whether data of the two types may well have the same bits: integers; a complex type and its part; and 16-bit
 * floats, which programs pass to mpi4py as integers. */
static int message_types_may_share_bits(const message *m, const message_note *n) {
    const dtype_entry *sent = dtype_find((int)n->dtype);
    const mpixla_dtype_row *a = sent ? sent->row : NULL, *b = m->call->received_type->row;
    if (!a || a == b || message_type_is_pair(a, b) || message_type_is_pair(b, a) || a->itemsize == 1 ||
        b->itemsize == 1)
        return 1;
    const int whole = message_type_is_integral(a) + message_type_is_integral(b);
    return whole == 2 || (whole == 1 && a->itemsize == 2 && b->itemsize == 2);
}

/* Returns whether a matching note that does not fit proves, without regard to other notes, that the message does not
 * fit. */
static int message_note_is_evidence(const message *m, const message_note *n) {
    return m->content.has_nonzero && n->content.hash == m->content.hash && !message_types_may_share_bits(m, n);
}

/* Returns whether the message's own note is certainly among the matching ones: then, if none fits, the message does
 * not. */
static int message_has_own_note(const message *m) {
    if (!m->is_on_own) return 0;
    return m->which == MESSAGES_ALL || (m->content.has_nonzero && !atomic_load(&has_started));
}

/* Returns whether no note proves anything about the message: on a communicator that others may use, one of zeros or one
 * that is not hashed. */
static int message_proves_nothing(const message *m) {
    return !m->is_on_own && !m->content.has_nonzero;
}

enum message_note_wish { LOOK_FITS, LOOK_EVIDENCE, LOOK_ANY };
/* Returns the address of the link to the first matching note: one that fits, or that is evidence, or any. The link is
 * NULL if there is none. */
static message_note_entry **message_note_find(const message *m, enum message_note_wish look) {
    message_note_entry **at = &notes;
    for (; *at; at = &(*at)->next) {
        const message_note *n = &(*at)->note;
        if (!message_note_may_match(m, *at)) continue;
        if (look == LOOK_ANY || (look == LOOK_FITS ? message_note_fits(m, n) : message_note_is_evidence(m, n))) break;
    }
    return at;
}

/* Waits for the note of a message whose length is right, and removes it from the list. Returns a note that fits, if
 * there is one or it comes in time, or one that proves that the message does not fit, or NULL. The caller frees it.
 * Sets `*any` to whether there was a matching note. Takes the lock. */
static message_note_entry *message_note_wait(const message *m, int *any) {
    const int64_t until = clock_now() + (m->which == MESSAGES_ALL ? NOTE_PATIENCE_NS : 0);
    message_note_entry *found = NULL;
    for (int looks = 0, ends = 0; !ends; looks++) {
        if (looks > 0) clock_backoff(looks);
        pthread_mutex_lock(&lock);
        while (message_note_receive(m->from)) {
        }
        ends = (peers[m->from].has_no_notes && !m->is_on_own) || clock_now() >= until;
        *any = *message_note_find(m, LOOK_ANY) != NULL;
        message_note_entry **at = message_note_find(m, LOOK_FITS);
        if (!*at) at = message_note_find(m, LOOK_EVIDENCE);
        if (!*at && ends && message_has_own_note(m)) at = message_note_find(m, LOOK_ANY);
        if (*at) found = message_note_remove(at);
        pthread_mutex_unlock(&lock);
        ends |= found != NULL || (*any && message_proves_nothing(m));
    }
    return found;
}

/* Waits for the note of a message whose length is wrong, for the error message, and removes it from the list; NULL if
 * there is none within NOTE_PATIENCE_NS. The caller frees it. Takes the lock. */
static message_note_entry *message_note_wait_any_length(const message *m) {
    const int64_t until = clock_now() + NOTE_PATIENCE_NS;
    const int is_known = m->is_on_own || atomic_load(&m->call->communicator->agreed) || m->content.has_nonzero;
    message_note_entry *found = NULL;
    for (int looks = 0, ends = !is_known; !ends; looks++) {
        if (looks > 0) clock_backoff(looks);
        pthread_mutex_lock(&lock);
        while (message_note_receive(m->from)) {
        }
        ends = peers[m->from].has_no_notes || clock_now() >= until;
        message_note_entry **at = message_note_find(m, LOOK_ANY);
        if (*at) found = message_note_remove(at);
        pthread_mutex_unlock(&lock);
        ends |= found != NULL;
    }
    return found;
}

/* Comparing */

/* Marks the sender as one that sends messages without notes: this rank no longer waits for its notes, except on the
 * library's own communicator. `prints`: says so on standard error, once. Takes the lock. */
static void message_peer_mark_noteless(const message *m, int prints) {
    pthread_mutex_lock(&lock);
    int is_known = peers[m->from].has_no_notes;
    peers[m->from].has_no_notes = 1;
    pthread_mutex_unlock(&lock);
    if (!is_known && prints)
        output_print(
            "mpixla: r%d | MPIXLA_CHECK: a message from rank %d of communicator '%s' was not sent with mpixla: "
            "the data types of such messages are not compared\n",
            mpi_get()->world_rank, m->source, m->call->communicator->name);
}

/* Writes items as text: "3 items of float32 of shape (3,)". */
static void message_items_describe(char *text, size_t bytes, int64_t items, int64_t dtype, const char *shape) {
    const dtype_entry *found = dtype_find((int)dtype);
    snprintf(text, bytes, "%lld item%s of %s%s%s", (long long)items, items == 1 ? "" : "s",
             found ? found->row->name : "an unknown type", *shape ? " of shape " : "", shape);
}

/* Returns the names of the properties in which message and note differ; `n` may be NULL. */
static const char *message_difference_name(const message *m, const message_note *n) {
    const int types = n && !message_note_has_dtype(m, n), counts = !n || n->items != m->call->received;
    if (types || counts) return types && counts ? "the data type and the count" : types ? "the data type" : "the count";
    return m->shape && m->shape != n->shape ? "the shape" : "the leaves of their pytrees";
}

/* Sets the error for a message that does not fit, with both ends' items and lines; `n`, its note, may be NULL. Returns
 * REFUSED. */
static int message_refuse(const frame *f, const message *m, const message_note *n) {
    const call_facts *call = m->call;
    const comm_entry *entry = call->communicator;
    const char *line = site_text(call->site), *unknown = "an unknown line", *difference = message_difference_name(m, n);
    const int by_shape = strcmp(difference, "the shape") == 0;
    char sends[160], receives[160], shape[64] = "";
    if (by_shape) signature_shape_describe(&f->recv, 0, shape, sizeof shape);
    message_items_describe(receives, sizeof receives, call->received, call->received_type->number, shape);
    if (n)
        message_items_describe(sends, sizeof sends, n->items, n->dtype, by_shape ? n->shape_text : "");
    else
        snprintf(sends, sizeof sends, "%lld bytes", (long long)m->bytes);
    return error_set(
        "r%d | MPIXLA_CHECK: a message from rank %d to rank %d of communicator '%s' with tag %d is not what its "
        "receiver expects:\n  rank %d sends %s, at %s\n  rank %d receives %s, at %s\nThey differ in %s. Receive with a "
        "template of the shape and data type of the array that is sent.",
        mpi_get()->world_rank, m->source, entry->rank, entry->name, m->tag, m->source, sends,
        n && n->line[0] ? n->line : unknown, entry->rank, receives, *line ? line : unknown, difference);
}

/* Compares a message whose length is right with its note. Returns REFUSED with error_set if a note proves that it does
 * not fit; else 0. Marks a sender whose note has not come. */
static int message_note_compare(const frame *f, const message *m) {
    int any = 0;
    message_note_entry *l = message_note_wait(m, &any);
    int code = l && !message_note_fits(m, &l->note) ? message_refuse(f, m, &l->note) : 0;
    if (!l && m->which == MESSAGES_ALL && !(any && message_proves_nothing(m))) message_peer_mark_noteless(m, !any);
    free(l);
    return code;
}

int message_compare(const frame *f, const call_facts *call, const void *status, int accepts_short,
                    messages_compared which, int code) {
    const comm_entry *entry = call->communicator;
    const int64_t expected = call->received * call->received_type->row->itemsize;
    const int is_on_own = message_is_on_own_comm(call);
    if (code < 0 || (which == MESSAGES_FIRST && (code != 0 || !is_on_own)) || loss_is_error(mpi_error_class(code)))
        return code;
    message m = {.call = call,
                 .source = call->source == MPIXLA_ANY_SOURCE ? mpi_source_of(status) : call->source,
                 .tag = call->recvtag == MPIXLA_ANY_TAG ? mpi_tag_of(status) : call->recvtag,
                 .is_longer = code > 0,
                 .is_on_own = is_on_own,
                 .bytes = expected,
                 .which = which};
    if (m.source < 0 || m.source >= entry->size) return code;
    if (code == 0 && mpi_bytes_of(status, &m.bytes) != 0) return code;
    m.from = message_world_rank(entry, m.source);
    if (which == MESSAGES_FIRST && (m.from < 0 || !message_count_first(&peers[m.from].compared))) return code;
    if (code == 0) m.content = message_content_of(f, &f->recv, m.bytes);
    if (code == 0 && m.bytes == expected && which == MESSAGES_ALL && is_on_own) {
        m.shape = signature_shape_hash(&f->recv, 0);
        m.leaves =
            call == &f->facts ? signature_packed_hash(f) : 0; /* the frame of a wait has the leaves of its own pytree */
    }
    const int may_be_shorter = accepts_short || which == MESSAGES_FIRST;
    if (code == 0 && (m.bytes == expected || (may_be_shorter && m.bytes < expected)))
        return m.from < 0 ? 0 : message_note_compare(f, &m);
    message_note_entry *l = m.from < 0 ? NULL : message_note_wait_any_length(&m);
    /* Else the failure is not of the length, or the length is unknown. */
    if (l || code == 0) code = message_refuse(f, &m, l ? &l->note : NULL);
    free(l);
    return code;
}
