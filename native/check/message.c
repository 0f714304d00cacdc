/* Which note belongs to a message. MPI has no place for a number in a message, and what mpi4py sends and receives on
 * the same communicator counts in MPI's order but not in ours. So a note is known by what the message has: its sender,
 * its tag, its length, and a hash of its bytes. A message is refused only if a note with all of these says another data
 * type or shape, and no such note fits. That is certain
 *
 *   where the bits of both types can be alike only if all of them are 0 (`could_share_bits`), and they are not 0; or
 *   on the library's own communicator. There each message has a note, which comes before the message: if none fits, its
 *   own does not.
 *
 * All else is accepted: messages of zeros, which are the same in every type, and data in a GPU's memory, of which no
 * hash is made, on communicators that others may use.
 *
 * A message that mpi4py receives leaves its note behind. It is dropped when there are too many.
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
#include "check/wanted.h"
#include "mpi/loss.h"
#include "mpi/outbox.h"
#include "xla/xla_ffi.h"

/* Nanoseconds that a receiver waits for a note that has not come before its message. */
#define PATIENCE INT64_C(1000000000)

enum { NOTE_TAG = 0, NOTES_KEPT = 4096, HASHED_WORDS = 512 };

/* The bytes of a message: a hash, 0 if they are not known; and whether some are not 0. */
typedef struct content {
    uint64_t hash;
    int32_t is_telling;
} content;

typedef struct note {
    int32_t size, tag, is_on_own; /* of the communicator, of the message, whether it is on the library's own */
    content content;
    int64_t agreed; /* the communicator's number, 0 if it has none yet (comm.h) */
    int64_t items, bytes, dtype;
    int64_t shape, leaves; /* hashes; 0: not known */
    char shape_text[64];
    char line[SITE_TEXT_BYTES];
} note;

/* A note that has come. */
typedef struct letter {
    int from; /* its sender in MPI_COMM_WORLD */
    note note;
    struct letter *next;
} letter;

/* What is known of another rank, by its rank in MPI_COMM_WORLD. */
typedef struct peer {
    atomic_int announced, compared; /* of the first messages: to it, from it */
    int has_no_notes;               /* it has sent a message without one */
} peer;

/* A message that has come, and what its receiver expects. */
typedef struct message {
    const call_facts *call;
    int source, tag;
    int from;      /* the source in MPI_COMM_WORLD; negative where that is not known */
    int is_longer; /* than its template; MPI does not say by how much */
    int is_on_own;
    int64_t bytes; /* its own, or of the template of a longer one */
    content content;
    int64_t shape, leaves; /* that are expected; 0: any */
    messages_compared which;
} message;

static const comm_entry *_Atomic own;
static atomic_int has_started; /* a receive on `own`, since when notes may be those of one that is under way */
static mpixla_handle channel;
static peer *peers;
static outbox outgoing;
static letter *arrived, **last = &arrived; /* in the order of their coming */
static int64_t arrived_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* for these, and for who receives a note */

int message_channel_set(mpixla_handle comm) {
    int ranks = 0;
    if (mpi_get()->comm_size(comm, &ranks) != 0) return error_set("MPI_Comm_size failed on the channel of the checks");
    peer *all = calloc((size_t)ranks, sizeof *all);
    if (!all) return error_set("out of memory for the checks of messages");
    free(peers);
    peers = all;
    channel = comm;
    return 0;
}

void message_own_set(const comm_entry *comm) {
    atomic_store(&own, comm);
}

int message_is_on_own(const call_facts *call) {
    return call->communicator == atomic_load_explicit(&own, memory_order_relaxed);
}

/* Negative where a rank is nobody, or of another MPI_COMM_WORLD, or not known. */
static int world_rank(const comm_entry *entry, int64_t rank) {
    const int *members = atomic_load(&entry->members);
    return channel && members && rank >= 0 ? members[rank] : -1;
}

/* Hashes all of a short message, and of a long one words at equal distances and the last ones. */
static content content_of(const frame *f, const frame_buffer *b, int64_t bytes) {
    const char *data = b->data;
    const int64_t words = bytes / 8, step = words / HASHED_WORDS + 1, rest = bytes < 8 ? bytes : 8;
    uint64_t hash = (uint64_t)bytes, any = 0, word = 0;
    if (frame_array_device(f) || !data || bytes <= 0) return (content){0};
    for (int64_t i = 0; i < words; i += step) {
        memcpy(&word, data + 8 * i, sizeof word);
        hash = hash_combine(hash, word);
        any |= word;
    }
    word = 0;
    memcpy(&word, data + bytes - rest, (size_t)rest);
    hash = hash_combine(hash, word);
    return (content){.hash = hash ? hash : 1, .is_telling = (any | word) != 0};
}

/* Sending */

/* Whether it is one of the first: which it is once. */
static int is_first(atomic_int *so_far) {
    return atomic_load_explicit(so_far, memory_order_relaxed) < MESSAGES_FIRST_NOTES &&
           atomic_fetch_add_explicit(so_far, 1, memory_order_relaxed) < MESSAGES_FIRST_NOTES;
}

static void note_fill(note *n, const frame *f) {
    const call_facts *call = &f->facts;
    const int64_t bytes = call->sent * call->sent_type->row->itemsize;
    memset(n, 0, sizeof *n); /* all bytes travel */
    *n = (note){.size = call->communicator->size,
                .tag = call->sendtag,
                .is_on_own = message_is_on_own(call),
                .content = content_of(f, &f->send, bytes),
                .agreed = atomic_load(&call->communicator->agreed),
                .items = call->sent,
                .bytes = bytes,
                .dtype = call->sent_type->number,
                .shape = wanted_shape_number(&f->send, 0),
                .leaves = wanted_parts(f)};
    wanted_shape_describe(&f->send, 0, n->shape_text, sizeof n->shape_text);
    snprintf(n->line, sizeof n->line, "%s", site_text(call->site));
}

void message_announce(const frame *f, messages_compared which) {
    const call_facts *call = &f->facts;
    if (call->row->request == MPIXLA_STARTS && facts_have(call, ATTRIBUTE_SOURCE) && message_is_on_own(call))
        atomic_store_explicit(&has_started, 1, memory_order_relaxed);
    const int to = facts_have(call, ATTRIBUTE_DEST) ? world_rank(call->communicator, call->dest) : -1;
    if (to < 0 || (which == MESSAGES_FIRST && !is_first(&peers[to].announced))) return;
    note n;
    note_fill(&n, f);
    outbox_message *m = outbox_message_new((int64_t)(offsetof(note, line) + strlen(n.line) + 1));
    if (!m) return;
    memcpy(m->data, &n, (size_t)m->bytes);
    pthread_mutex_lock(&lock);
    (void)outbox_send(&outgoing, m, to, NOTE_TAG, channel);
    pthread_mutex_unlock(&lock);
}

/* Receiving. The caller has the lock, but for note_take. */

static letter *note_take_out(letter **at) {
    letter *l = *at;
    *at = l->next;
    if (!l->next) last = at;
    arrived_count--;
    return l;
}

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
    if (++arrived_count > NOTES_KEPT) free(note_take_out(&arrived));
    return 1;
}

/* Whether the note can be the message's. */
static int could_be_of(const message *m, const letter *l) {
    const note *n = &l->note;
    const comm_entry *entry = m->call->communicator;
    const int64_t agreed = atomic_load(&entry->agreed);
    if (l->from != m->from || n->tag != m->tag || n->size != entry->size || n->is_on_own != m->is_on_own) return 0;
    if (n->agreed && agreed && n->agreed != agreed) return 0;
    if (m->is_longer) return n->bytes > m->bytes;
    return n->bytes == m->bytes && (!n->content.hash || !m->content.hash || n->content.hash == m->content.hash);
}

static int has_dtype(const message *m, const note *n) {
    return n->dtype == m->call->received_type->number;
}

static int fits(const message *m, const note *n) {
    return has_dtype(m, n) && (!m->shape || m->shape == n->shape) &&
           (!m->leaves || !n->leaves || m->leaves == n->leaves);
}

static int is_whole_number(const mpixla_dtype_row *row) {
    return strcmp(row->kind, "integer") == 0 || strcmp(row->kind, "bool") == 0;
}

static int is_pair_of(const mpixla_dtype_row *a, const mpixla_dtype_row *b) {
    return strcmp(a->kind, "complex") == 0 && a->itemsize == 2 * b->itemsize;
}

/* Whether different data of these two types may well be the same bits: whole numbers; a complex number and its parts;
 * and short floats, which programs give mpi4py as whole numbers. */
static int could_share_bits(const message *m, const note *n) {
    const dtype_entry *sent = dtype_find((int)n->dtype);
    const mpixla_dtype_row *a = sent ? sent->row : NULL, *b = m->call->received_type->row;
    if (!a || a == b || is_pair_of(a, b) || is_pair_of(b, a) || a->itemsize == 1 || b->itemsize == 1) return 1;
    const int whole = is_whole_number(a) + is_whole_number(b);
    return whole == 2 || (whole == 1 && a->itemsize == 2 && b->itemsize == 2);
}

/* Whether a note that could be the message's and does not fit tells, without others, that the message does not. */
static int is_evidence(const message *m, const note *n) {
    return m->content.is_telling && n->content.hash == m->content.hash && !could_share_bits(m, n);
}

/* Whether a message has its note among those that have come before it: and then any that could be its note tells, if
 * none fits. */
static int has_own_note(const message *m) {
    if (!m->is_on_own) return 0;
    return m->which == MESSAGES_ALL || (m->content.is_telling && !atomic_load(&has_started));
}

/* On a communicator that others may use: no note tells anything of it. */
static int is_of_zeros(const message *m) {
    return !m->is_on_own && !m->content.is_telling;
}

/* The first note that could be the message's and fits; or that is evidence; or any. */
enum look { LOOK_FITS, LOOK_EVIDENCE, LOOK_ANY };
static letter **note_find(const message *m, enum look look) {
    letter **at = &arrived;
    for (; *at; at = &(*at)->next) {
        const note *n = &(*at)->note;
        if (!could_be_of(m, *at)) continue;
        if (look == LOOK_ANY || (look == LOOK_FITS ? fits(m, n) : is_evidence(m, n))) break;
    }
    return at;
}

/* Gives the note of a message whose length is right: one that fits if there is such a one, or comes in time; else one
 * that says for certain that the message does not fit. To be freed. NULL: there is neither. Sets whether there was any
 * note that could be the message's. */
static letter *note_take(const message *m, int *any) {
    const int64_t until = clock_now() + (m->which == MESSAGES_ALL ? PATIENCE : 0);
    letter *found = NULL;
    for (int looks = 0, ends = 0; !ends; looks++) {
        if (looks > 0) clock_between(looks);
        pthread_mutex_lock(&lock);
        while (note_hear(m->from)) {
        }
        ends = (peers[m->from].has_no_notes && !m->is_on_own) || clock_now() >= until;
        *any = *note_find(m, LOOK_ANY) != NULL;
        letter **at = note_find(m, LOOK_FITS);
        if (!*at) at = note_find(m, LOOK_EVIDENCE);
        if (!*at && ends && has_own_note(m)) at = note_find(m, LOOK_ANY);
        if (*at) found = note_take_out(at);
        pthread_mutex_unlock(&lock);
        ends |= found != NULL || (*any && is_of_zeros(m));
    }
    return found;
}

/* Gives the note of a message that has another length, which no note has to prove: for its words. */
static letter *note_take_of_other_length(const message *m) {
    const int64_t until = clock_now() + PATIENCE;
    const int is_known = m->is_on_own || atomic_load(&m->call->communicator->agreed) || m->content.is_telling;
    letter *found = NULL;
    for (int looks = 0, ends = !is_known; !ends; looks++) {
        if (looks > 0) clock_between(looks);
        pthread_mutex_lock(&lock);
        while (note_hear(m->from)) {
        }
        ends = peers[m->from].has_no_notes || clock_now() >= until;
        letter **at = note_find(m, LOOK_ANY);
        if (*at) found = note_take_out(at);
        pthread_mutex_unlock(&lock);
        ends |= found != NULL;
    }
    return found;
}

/* Comparing */

/* The sender may have sent a message without a note: from now on nobody waits for its notes, but on the library's own
 * communicator. */
static void peer_distrust(const message *m, int tells) {
    pthread_mutex_lock(&lock);
    int is_known = peers[m->from].has_no_notes;
    peers[m->from].has_no_notes = 1;
    pthread_mutex_unlock(&lock);
    if (!is_known && tells)
        output_print(
            "mpixla: r%d | MPIXLA_CHECK: a message from rank %d of communicator '%s' was not sent with mpixla: "
            "the data types of such messages are not compared\n",
            mpi_get()->world_rank, m->source, m->call->communicator->name);
}

static void describe_items(char *text, size_t bytes, int64_t items, int64_t dtype, const char *shape) {
    const dtype_entry *found = dtype_find((int)dtype);
    snprintf(text, bytes, "%lld item%s of %s%s%s", (long long)items, items == 1 ? "" : "s",
             found ? found->row->name : "an unknown type", *shape ? " of shape " : "", shape);
}

static const char *difference_of(const message *m, const note *n) {
    const int types = n && !has_dtype(m, n), counts = !n || n->items != m->call->received;
    if (types || counts) return types && counts ? "the data type and the count" : types ? "the data type" : "the count";
    return m->shape && m->shape != n->shape ? "the shape" : "the leaves of their pytrees";
}

/* Without a note only the bytes are known. Returns REFUSED. */
static int message_refuse(const frame *f, const message *m, const note *n) {
    const call_facts *call = m->call;
    const comm_entry *entry = call->communicator;
    const char *line = site_text(call->site), *unknown = "an unknown line", *difference = difference_of(m, n);
    const int by_shape = strcmp(difference, "the shape") == 0;
    char sends[160], receives[160], shape[64] = "";
    if (by_shape) wanted_shape_describe(&f->recv, 0, shape, sizeof shape);
    describe_items(receives, sizeof receives, call->received, call->received_type->number, shape);
    if (n)
        describe_items(sends, sizeof sends, n->items, n->dtype, by_shape ? n->shape_text : "");
    else
        snprintf(sends, sizeof sends, "%lld bytes", (long long)m->bytes);
    return error_set(
        "r%d | MPIXLA_CHECK: a message from rank %d to rank %d of communicator '%s' with tag %d is not what its "
        "receiver expects:\n  rank %d sends %s, at %s\n  rank %d receives %s, at %s\nThey differ in %s. Receive with a "
        "template of the shape and data type of what is sent.",
        mpi_get()->world_rank, m->source, entry->rank, entry->name, m->tag, m->source, sends,
        n && n->line[0] ? n->line : unknown, entry->rank, receives, *line ? line : unknown, difference);
}

/* Of a message whose length is right. */
static int length_is_right(const frame *f, const message *m) {
    int any = 0;
    letter *l = note_take(m, &any);
    int code = l && !fits(m, &l->note) ? message_refuse(f, m, &l->note) : 0;
    if (!l && m->which == MESSAGES_ALL && !(any && is_of_zeros(m))) peer_distrust(m, !any);
    free(l);
    return code;
}

int message_compare(const frame *f, const call_facts *call, const void *status, int accepts_short,
                    messages_compared which, int code) {
    const comm_entry *entry = call->communicator;
    const int64_t expected = call->received * call->received_type->row->itemsize;
    const int is_on_own = message_is_on_own(call);
    if (code < 0 || (which == MESSAGES_FIRST && (code != 0 || !is_on_own)) || loss_is(mpi_error_class(code)))
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
    m.from = world_rank(entry, m.source);
    if (which == MESSAGES_FIRST && (m.from < 0 || !is_first(&peers[m.from].compared))) return code;
    if (code == 0) m.content = content_of(f, &f->recv, m.bytes);
    if (code == 0 && m.bytes == expected && which == MESSAGES_ALL && is_on_own) {
        m.shape = wanted_shape_number(&f->recv, 0);
        m.leaves = call == &f->facts ? wanted_parts(f) : 0; /* a wait has those of its own pytree */
    }
    const int may_be_shorter = accepts_short || which == MESSAGES_FIRST;
    if (code == 0 && (m.bytes == expected || (may_be_shorter && m.bytes < expected)))
        return m.from < 0 ? 0 : length_is_right(f, &m);
    letter *l = m.from < 0 ? NULL : note_take_of_other_length(&m);
    /* Else what failed is not the length, or nobody knows by how much. */
    if (l || code == 0) code = message_refuse(f, &m, l ? &l->note : NULL);
    free(l);
    return code;
}
