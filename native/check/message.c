/* Which note belongs to which receive. Notes of one sender come in the order of its messages, and MPI gives each
 * message to the first receive that was posted for its tag: so, of one sender, notes and receives are matched as MPI
 * matches messages and receives. A receive from any source may take a message of any sender, which is known only when
 * it has: what could be its message belongs to nobody until then.
 *
 * Where that cannot be followed (a receive completes that was posted after one from any source that has not; a message
 * that is no program's of mpixla comes in between) the messages of that sender are compared no more: a right program is
 * never refused.
 */
#include "check/message.h"

#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "call/site.h"
#include "mpi/loss.h"

/* Nanoseconds: how long a receiver waits for a note, a sender for an answer at first, and the end of the process for
 * the answers that did not come in time. What a sender waits is halved whenever nobody answers, down to the least. */
#define NOTE_PATIENCE INT64_C(1000000000)
#define ANSWER_PATIENCE INT64_C(2000000000)
#define LEAST_PATIENCE INT64_C(1000000)
#define END_PATIENCE INT64_C(100000000)

enum { NOTE_TAG = 0, LATE_MOST = 1024, TEXT_BYTES = 1200, SPINS = 2000, PAUSE_NANOSECONDS = 50000 };

/* What travels, as far as its kind has it: a note says what a message is, an answer what its receiver says. */
enum { NOTE, ANSWER };
typedef struct note {
    int32_t kind, from;
    int64_t index; /* of the message among those of the sender to this receiver */
    int32_t bad, tag;
    int64_t items, bytes, dtype;
    char line[SITE_TEXT_BYTES];
    char text[TEXT_BYTES]; /* of a bad answer */
} note;

/* What MPI sends until it is done. */
typedef struct letter {
    mpi_request request;
    struct letter *next;
    note content; /* the first bytes of one */
} letter;

typedef struct arrived {
    note content;
    int held; /* it may be the message of a receive from any source */
    struct expected *by;
    struct arrived *next;
} arrived;

/* A receive that was posted. */
typedef struct expected {
    int64_t source, tag; /* as programs number them */
    int64_t items, bytes, dtype, site;
    arrived *note;
    int answered;
    struct expected *next;
} expected;

/* A message whose receiver is to answer. */
typedef struct sent {
    int to, late, answered;
    int64_t index;
    char *refusal; /* of a bad answer */
    struct sent *next;
} sent;

typedef struct peer {
    int64_t sent, received; /* messages so far */
    int lost;               /* its messages are not compared */
} peer;

typedef struct courier {
    mpixla_handle comm;
    int joined;
    peer *peers;
    arrived *notes;     /* in their order, as below */
    expected *receives; /* that are not complete */
    sent *sents;        /* that are not answered */
    int late;
    letter *letters;
} courier;

/* Of all communicators: so all that a program waits in vain is twice what it waits first. */
static _Atomic int64_t patience = ANSWER_PATIENCE;

static void (*late_told_to)(const char *sentence);

void message_late_told_to(void (*tell)(const char *sentence)) {
    late_told_to = tell;
}

/* Between two looks. */
static void pause_briefly(int looks) {
    const struct timespec pause = {.tv_nsec = PAUSE_NANOSECONDS};
    if (looks < SPINS)
        (void)sched_yield();
    else
        (void)nanosleep(&pause, NULL);
}

static int out_of_memory(const check_state *s) {
    (void)error_set("out of memory for the checks of communicator '%s'", s->entry->name);
    return MPI_REFUSED;
}

static courier *courier_of(check_state *s) {
    if (s->courier) return s->courier;
    courier *c = calloc(1, sizeof *c);
    peer *peers = calloc((size_t)s->entry->size, sizeof *peers);
    if (!c || !peers) {
        free(c);
        free(peers);
        (void)out_of_memory(s);
        return NULL;
    }
    c->peers = peers;
    s->courier = c;
    return c;
}

/* Sending notes and answers */

static void letters_sweep(courier *c) {
    _Alignas(16) char status[MPI_STATUS_BYTES];
    for (letter **at = &c->letters; *at;) {
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

static int letter_post(check_state *s, int to, const note *content, size_t bytes) {
    courier *c = s->courier;
    letters_sweep(c);
    letter *l = malloc(offsetof(letter, content) + bytes);
    if (!l) return out_of_memory(s);
    memcpy(&l->content, content, bytes);
    int code = mpi_get()->small->isend(&l->content, (int64_t)bytes, dtype_find(FFI_U8)->handle, to, NOTE_TAG, c->comm,
                                       &l->request);
    if (code != 0) {
        free(l);
        return code;
    }
    l->next = c->letters;
    c->letters = l;
    return 0;
}

/* What fails here the sender finds out by waiting. */
static void answer(check_state *s, const note *to, const char *refusal) {
    note a = {.kind = ANSWER, .from = s->entry->rank, .index = to->index, .bad = refusal != NULL};
    if (refusal) snprintf(a.text, sizeof a.text, "%s", refusal);
    if (to->from != s->entry->rank) (void)letter_post(s, to->from, &a, refusal ? sizeof a : offsetof(note, line));
}

/* Comparing */

static void describe_difference(const check_state *s, const expected *e, const note *n, char *text, size_t bytes) {
    const dtype_entry *sends = dtype_find((int)n->dtype), *receives = dtype_find((int)e->dtype);
    const char *line = site_text(e->site);
    int types = n->dtype != e->dtype, counts = n->items != e->items;
    snprintf(
        text, bytes,
        "MPIXLA_CHECK: a message from rank %d to rank %d of communicator '%s' with tag %d is not what its receiver "
        "expects:\n  rank %d sends %lld item%s of %s, at %s\n  rank %d receives %lld item%s of %s, at %s\nThey differ "
        "in %s. Receive with a template of the shape and data type of what is sent.",
        n->from, s->entry->rank, s->entry->name, n->tag, n->from, (long long)n->items, n->items == 1 ? "" : "s",
        sends ? sends->row->name : "an unknown type", n->line[0] ? n->line : "an unknown line", s->entry->rank,
        (long long)e->items, e->items == 1 ? "" : "s", receives ? receives->row->name : "an unknown type",
        *line ? line : "an unknown line",
        types && counts ? "the data type and the count"
        : types         ? "the data type"
                        : "the count");
}

static int fits(const expected *e, const note *n, int accepts_short) {
    return n->dtype == e->dtype && (n->items == e->items || (accepts_short && n->items < e->items));
}

/* Matching */

static void remove_note(courier *c, arrived *n) {
    arrived **at = &c->notes;
    while (*at != n) at = &(*at)->next;
    *at = n->next;
    if (n->by) n->by->note = NULL;
    free(n);
}

static void remove_receive(courier *c, expected *e) {
    expected **at = &c->receives;
    while (*at != e) at = &(*at)->next;
    *at = e->next;
    /* A note that goes leaves its receive without one. NOLINTNEXTLINE(clang-analyzer-unix.Malloc) */
    if (e->note) e->note->by = NULL;
    free(e);
}

/* From now on nothing of this sender is compared. */
static void lose(check_state *s, int64_t source) {
    courier *c = s->courier;
    c->peers[source].lost = 1;
    for (arrived *n = c->notes, *next; n; n = next) {
        next = n->next;
        if (n->content.from != source) continue;
        if (!n->by || !n->by->answered) answer(s, &n->content, NULL);
        remove_note(c, n);
    }
}

static int is_held_before(const courier *c, const arrived *n) {
    for (const arrived *m = c->notes; m != n; m = m->next)
        if (m->held && m->content.from == n->content.from) return 1;
    return 0;
}

static int takes_tag(const expected *e, const note *n) {
    return e->tag == MPIXLA_ANY_TAG || e->tag == n->tag;
}

/* The receive that takes this note's message, as far as it is known. */
static void match_one(check_state *s, arrived *n) {
    courier *c = s->courier;
    n->held = is_held_before(c, n);
    for (expected *e = c->receives; e && !n->held; e = e->next) {
        if (e->note || !takes_tag(e, &n->content)) continue;
        if (e->source == MPIXLA_ANY_SOURCE) n->held = 1;
        if (e->source != n->content.from) continue;
        e->note = n;
        n->by = e;
        /* A sender that waits for the answer may be what the receive waits for. */
        e->answered = fits(e, &n->content, 0);
        if (e->answered) answer(s, &n->content, NULL);
        return;
    }
}

static void match(check_state *s) {
    for (arrived *n = s->courier->notes; n; n = n->next)
        if (!n->by) match_one(s, n);
}

/* A receive from any source has a message of this sender: the first one that it could take, unless an earlier receive
 * from any source has that. */
static void match_from_anybody(check_state *s, expected *e, int source) {
    courier *c = s->courier;
    for (const expected *before = c->receives; before != e; before = before->next)
        if (before->source == MPIXLA_ANY_SOURCE) {
            lose(s, source);
            return;
        }
    for (arrived *n = c->notes; n; n = n->next) {
        if (n->by || n->content.from != source || !takes_tag(e, &n->content)) continue;
        e->note = n;
        n->by = e;
        return;
    }
}

/* Hearing */

static void hear_answer(check_state *s, const note *n) {
    courier *c = s->courier;
    for (sent **at = &c->sents; *at; at = &(*at)->next) {
        sent *one = *at;
        if (one->to != n->from || one->index != n->index) continue;
        one->answered = 1;
        if (n->bad) {
            char text[TEXT_BYTES + 32];
            snprintf(text, sizeof text, "r%d | %s", mpi_get()->world_rank, n->text);
            if (one->late && late_told_to) late_told_to(text);
            one->refusal = malloc(sizeof text);
            if (one->refusal) memcpy(one->refusal, text, sizeof text);
        }
        if (!one->late) return; /* somebody waits for it */
        *at = one->next;
        c->late--;
        free(one->refusal);
        free(one);
        return;
    }
}

static void hear_note(check_state *s, const note *n) {
    courier *c = s->courier;
    arrived *kept = c->peers[n->from].lost ? NULL : malloc(sizeof *kept);
    if (!kept) {
        answer(s, n, NULL);
        if (!c->peers[n->from].lost) lose(s, n->from);
        return;
    }
    *kept = (arrived){.content = *n};
    arrived **at = &c->notes;
    while (*at) at = &(*at)->next;
    *at = kept;
}

void message_poll(check_state *s) {
    _Alignas(16) char status[MPI_STATUS_BYTES];
    const mpi_library *mpi = mpi_get();
    courier *c = s->courier;
    if (!c || !c->joined) return;
    int any = (int)mpi->facts.any_source, notes = 0;
    for (;;) {
        int there = 0;
        note n;
        if (mpi->iprobe(any, NOTE_TAG, c->comm, &there, status) != 0 || !there) break;
        if (mpi->small->recv(&n, (int64_t)sizeof n, dtype_find(FFI_U8)->handle, mpi_source_of(status), NOTE_TAG,
                             c->comm, status) != 0)
            break;
        if (n.kind == NOTE)
            hear_note(s, &n);
        else
            hear_answer(s, &n);
        notes += n.kind == NOTE;
    }
    if (notes > 0) match(s);
}

/* Joining: what was sent before, and has not arrived, has no notes, so it could not be told from what comes after it.
 */

int message_join(check_state *s) {
    courier *c = courier_of(s);
    if (!c) return MPI_REFUSED;
    if (c->joined) return 0;
    size_t size = (size_t)s->entry->size;
    int64_t *sent_to = malloc(2 * size * sizeof *sent_to);
    if (!sent_to) return out_of_memory(s);
    int64_t *sent_by = sent_to + size;
    for (size_t i = 0; i < size; i++) sent_to[i] = c->peers[i].sent;
    mpixla_handle word = dtype_find(FFI_S64)->handle;
    int code = comm_checking(s->entry, &c->comm);
    if (code == 0) code = mpi_get()->small->alltoall(sent_to, 1, word, sent_by, 1, word, c->comm);
    for (size_t i = 0; code == 0 && i < size; i++)
        if (c->peers[i].received != sent_by[i]) c->peers[i].lost = 1;
    c->joined = code == 0;
    free(sent_to);
    return code;
}

/* Around a call */

static int send_begin(check_state *s, frame *f) {
    courier *c = s->courier;
    int to = (int)f->attributes[ATTRIBUTE_DEST];
    note n = {.kind = NOTE,
              .from = s->entry->rank,
              .index = c->peers[to].sent++,
              .tag = f->sendtag,
              .items = f->send.count,
              .bytes = f->send.count * f->send.dtype->row->itemsize,
              .dtype = f->send.dtype->number};
    if (!c->joined) return 0;
    snprintf(n.line, sizeof n.line, "%s", site_text(f->site));
    int code = letter_post(s, to, &n, offsetof(note, text));
    if (code != 0 || to == s->entry->rank) return code; /* who would answer itself */
    sent *one = calloc(1, sizeof *one);
    if (!one) return out_of_memory(s);
    one->to = to;
    one->index = n.index;
    one->next = c->sents;
    c->sents = one;
    f->checks[0] = one;
    return 0;
}

static int receive_begin(check_state *s, frame *f) {
    const int nobody = -1;
    expected *e = calloc(1, sizeof *e), **at = &s->courier->receives;
    if (!e) return out_of_memory(s);
    e->source = f->attributes[ATTRIBUTE_SOURCE];
    e->tag = f->attributes[ATTRIBUTE_RECVTAG];
    e->items = f->recv.count;
    e->bytes = f->recv.count * f->recv.dtype->row->itemsize;
    e->dtype = f->recv.dtype->number;
    e->site = f->site;
    /* Where the receive fails, MPI may not write it. One that is a result in a GPU's memory gets a mirror later, which
     * says the same (transport.c). */
    if (frame_has(f, ATTRIBUTE_STATUS) && !(f->is_on_gpu && f->attributes[ATTRIBUTE_STATUS] == MPIXLA_STATUS_RESULT))
        memcpy((char *)f->status + mpi_get()->facts.status_source, &nobody, sizeof nobody);
    while (*at) at = &(*at)->next;
    *at = e;
    f->checks[1] = e;
    if (s->courier->joined) match(s);
    return 0;
}

int message_begin(check_state *s, frame *f) {
    int code = courier_of(s) ? 0 : MPI_REFUSED;
    if (code == 0 && s->entry->size == 1) code = message_join(s);
    if (code != 0) return code;
    message_poll(s);
    if (frame_has(f, ATTRIBUTE_SOURCE) && f->attributes[ATTRIBUTE_SOURCE] != MPIXLA_PROC_NULL)
        code = receive_begin(s, f);
    if (code == 0 && frame_has(f, ATTRIBUTE_DEST) && f->attributes[ATTRIBUTE_DEST] != MPIXLA_PROC_NULL)
        code = send_begin(s, f);
    if (code != 0) message_forget(s, f); /* the call is not made */
    return code;
}

static void sent_drop(courier *c, sent *one) {
    sent **at = &c->sents;
    while (*at != one) at = &(*at)->next;
    *at = one->next;
    free(one->refusal);
    free(one);
}

/* Nobody waits for its answer any more. Of those the oldest go when they are too many: nobody will answer. */
static void sent_leave(courier *c, sent *one) {
    one->late = 1;
    if (++c->late <= LATE_MOST) return;
    sent *oldest = NULL;
    for (sent *each = c->sents; each; each = each->next)
        if (each->late) oldest = each;
    if (oldest) {
        c->late--;
        sent_drop(c, oldest);
    }
}

void message_forget(check_state *s, frame *f) {
    if (!s->courier) return;
    if (f->checks[0]) sent_leave(s->courier, f->checks[0]);
    if (f->checks[1]) remove_receive(s->courier, f->checks[1]);
    f->checks[0] = f->checks[1] = NULL;
}

static int answer_wait(check_state *s, sent *one) {
    courier *c = s->courier;
    int64_t until = clock_now() + atomic_load(&patience);
    message_poll(s);
    for (int looks = 0; !one->answered && clock_now() < until; looks++) {
        pause_briefly(looks);
        message_poll(s);
    }
    if (!one->answered) {
        int64_t half = atomic_load(&patience) / 2;
        atomic_store(&patience, half < LEAST_PATIENCE ? 0 : half);
        sent_leave(c, one);
        return 0;
    }
    int code = one->refusal ? MPI_REFUSED : 0;
    if (one->refusal) (void)error_set("%s", one->refusal);
    sent_drop(c, one);
    return code;
}

/* Waits until it is known which note is the message's, or that none is. */
static void note_wait(check_state *s, expected *e, int source) {
    const courier *c = s->courier;
    int64_t until = clock_now() + NOTE_PATIENCE;
    for (int looks = 0; !c->peers[source].lost; looks++) {
        message_poll(s);
        if (!e->note && e->source == MPIXLA_ANY_SOURCE) match_from_anybody(s, e, source);
        if (e->note || c->peers[source].lost) return;
        int held = 0;
        for (const arrived *n = c->notes; n; n = n->next) held |= n->held && n->content.from == source;
        if (e->source != MPIXLA_ANY_SOURCE && held) {
            lose(s, source);
        } else if (clock_now() >= until) {
            lose(s, source);
            fprintf(stderr,
                    "mpixla: r%d | MPIXLA_CHECK: a message from rank %d of communicator '%s' was not sent with mpixla; "
                    "messages from there are not compared from now on\n",
                    mpi_get()->world_rank, source, s->entry->name);
        } else {
            pause_briefly(looks);
        }
    }
}

/* The message is there, or was too long. */
static int receive_end(check_state *s, expected *e, const void *status, int accepts_short, int code) {
    courier *c = s->courier;
    int64_t source = e->source == MPIXLA_ANY_SOURCE ? mpi_source_of(status) : e->source, bytes = -1;
    if (source < 0 || source >= s->entry->size) { /* there is none */
        remove_receive(c, e);
        return code;
    }
    c->peers[source].received++;
    if (code > 0 && loss_is(mpi_error_class(code))) lose(s, source); /* nothing has come, and nothing will */
    if (c->joined) note_wait(s, e, (int)source);
    arrived *n = e->note;
    if (code == 0 && mpi_get()->get_elements(status, dtype_find(FFI_U8)->handle, &bytes) != 0) bytes = -1;
    int is_its_own = n && (code != 0 || (n->content.tag == mpi_tag_of(status) && n->content.bytes == bytes));
    if (n && !is_its_own) {
        lose(s, source);
    } else if (n) {
        int is_right = fits(e, &n->content, accepts_short);
        char text[TEXT_BYTES];
        if (!is_right) {
            describe_difference(s, e, &n->content, text, sizeof text);
            (void)error_set("r%d | %s", mpi_get()->world_rank, text);
            code = MPI_REFUSED;
        }
        if (!e->answered) answer(s, &n->content, is_right ? NULL : text);
        remove_note(c, n);
    }
    remove_receive(c, e);
    if (c->joined) match(s); /* what may have been this one's is another's */
    return code;
}

int message_end(check_state *s, const frame *call, const void *status, int accepts_short, int code) {
    char first[ERROR_BYTES] = "";
    int result = code;
    if (!s->courier) return code;
    if (call->checks[1]) result = receive_end(s, call->checks[1], status, accepts_short, code);
    if (result == MPI_REFUSED) snprintf(first, sizeof first, "%s", error_get());
    if (!call->checks[0]) return result;
    int answered = answer_wait(s, call->checks[0]);
    if (result != MPI_REFUSED && result != 0) return answered == MPI_REFUSED ? answered : result;
    if (result == MPI_REFUSED) (void)error_set("%s", first);
    return result == 0 ? answered : result;
}

/* The end */

int message_finish(check_state *s) {
    courier *c = s->courier;
    if (!c || !c->joined) return 0;
    message_poll(s);
    letters_sweep(c);
    return c->sents || c->letters;
}

int64_t message_patience(void) {
    int64_t half = atomic_load(&patience) / 2;
    return half > END_PATIENCE ? half : END_PATIENCE;
}

void message_free(check_state *s) {
    courier *c = s->courier;
    if (!c) return;
    s->courier = NULL;
    letters_sweep(c);
    /* MPI has what it sends until it is done: such a letter is not freed. */
    for (letter *l = c->letters; l; l = l->next) (void)mpi_get()->request_free(&l->request);
    while (c->receives) remove_receive(c, c->receives);
    while (c->notes) remove_note(c, c->notes);
    while (c->sents) sent_drop(c, c->sents);
    free(c->peers);
    free(c);
}
