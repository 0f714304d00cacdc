#include "watch/state.h"

#include <stdio.h>
#include <string.h>

#include "call/site.h"
#include "mpi/reduction.h"
#include "watch/flight.h"

enum {
    TEXT_BYTES = 640,
    MOST_COMMS = 1024,
    MOST_THREADS = 64,
    MOST_PEERS = 64,
    PEER_WORDS = 3,
    COMM_WORDS = 2,
    PAST_WORDS = 4
};

/* Communicators have their own numbers on each rank. What is the same on all members: the name, who they are, and how
 * many there were before with both. */

static uint64_t mix(uint64_t hash, const void *data, size_t bytes) {
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ at[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static uint64_t comm_hash(const comm_entry *c) {
    const int *members = atomic_load(&((comm_entry *)(intptr_t)c)->members); /* NOLINT(performance-no-int-to-ptr) */
    uint64_t hash = mix(UINT64_C(0xcbf29ce484222325), c->name, strlen(c->name));
    hash = mix(hash, &c->size, sizeof c->size);
    return members ? mix(hash, members, (size_t)c->size * sizeof *members) : hash;
}

typedef struct comm_keys {
    int64_t key[MOST_COMMS];
    int64_t n;
} comm_keys;

static void keys_make(comm_keys *k) {
    uint64_t hashes[MOST_COMMS];
    for (k->n = 0; k->n < MOST_COMMS; k->n++) {
        const comm_entry *c = comm_look(k->n);
        if (!c) break;
        int64_t before = 0;
        hashes[k->n] = comm_hash(c);
        for (int64_t i = 0; i < k->n; i++) before += hashes[i] == hashes[k->n];
        k->key[k->n] = (int64_t)mix(hashes[k->n], &before, sizeof before);
    }
}

static int64_t key_of(const comm_keys *k, int64_t comm) {
    return comm >= 0 && comm < k->n ? k->key[comm] : -1;
}

static int64_t key_of_entry(const comm_keys *k, const comm_entry *c) {
    for (int64_t i = 0; i < k->n; i++)
        if (comm_look(i) == c) return k->key[i];
    return -1;
}

/* The last calls */

int64_t state_op(const char *name) {
    return (int64_t)mix(0, name, strlen(name));
}

static const char *number_name(int32_t number, int32_t any, char text[16]) {
    if (number == any) return "any";
    if (number == MPIXLA_PROC_NULL) return "nobody";
    snprintf(text, 16, "%d", (int)number);
    return text;
}

static size_t line_add(char *text, size_t bytes, size_t used, const flight_record *r, int64_t now) {
    char tail[TEXT_BYTES] = "", number[48] = "";
    const char *site = site_text(r->site);
    uint32_t has = r->shape->attributes;
    size_t n = 0;
    if (used >= bytes) return used;
    char name[16];
    if (has & DEST)
        n += (size_t)snprintf(tail + n, sizeof tail - n, " -> %s", number_name(r->to, MPIXLA_ANY_SOURCE, name));
    if (has & SOURCE)
        n += (size_t)snprintf(tail + n, sizeof tail - n, " <- %s", number_name(r->from, MPIXLA_ANY_SOURCE, name));
    if (has & (DEST | SOURCE))
        n += (size_t)snprintf(tail + n, sizeof tail - n, " with tag %s", number_name(r->tag, MPIXLA_ANY_TAG, name));
    if (has & ROOT) n += (size_t)snprintf(tail + n, sizeof tail - n, " with root %d", (int)r->to);
    if (r->dtype)
        n += (size_t)snprintf(tail + n, sizeof tail - n, "%s %lld items of %s", n > 0 ? "," : " with",
                              (long long)r->items, r->dtype->row->name);
    if ((has & (DEST | SOURCE)) == 0 && r->shape->request != FRAME_WAITS)
        snprintf(number, sizeof number, ", collective call %lld", (long long)r->sequence + 1);
    snprintf(tail + n, sizeof tail - n, " on '%s'%s%s%s", r->communicator->name, number, *site ? ", at " : "", site);
    int length = snprintf(text + used, bytes - used, "%.1f s ago: %s%s\n", 1e-9 * (double)(now - r->when),
                          r->shape->mpi_name, tail);
    return length < 0 ? used : used + (size_t)length;
}

/* Those of a thread, the newest first, and which of them were collective. */
static void last_write(wire_writer *w, const comm_keys *keys, int64_t thread, int in_call) {
    flight_record records[FLIGHT_KEPT];
    int64_t past[FLIGHT_KEPT * PAST_WORDS], n = 0, now = flight_now();
    int found = thread < 0 ? 0 : flight_last(thread, records);
    char text[STATE_LINES] = "";
    size_t used = 0;
    for (int i = 0; i < found; i++) {
        const flight_record *r = &records[i];
        used = line_add(text, sizeof text, used, r, now);
        if ((r->shape->attributes & (DEST | SOURCE)) != 0 || r->shape->request == FRAME_WAITS) continue;
        past[n++] = key_of_entry(keys, r->communicator);
        past[n++] = r->sequence;
        past[n++] = state_op(r->shape->mpi_name);
        past[n++] = i;
    }
    wire_write_text(w, text);
    wire_write(w, in_call && found > 0);
    wire_write_list(w, past, n);
}

/* The thread that made the newest call; -1 for none. */
static int64_t newest_thread(int64_t threads) {
    flight_record records[FLIGHT_KEPT];
    int64_t newest = -1, when = 0;
    for (int64_t i = 0; i < threads; i++)
        if (flight_last(i, records) > 0 && (newest < 0 || records[0].when > when)) {
            newest = i;
            when = records[0].when;
        }
    return newest;
}

/* Calls */

typedef struct writing {
    wire_writer *w;
    const comm_keys *keys;
    int64_t thread, waited, pauses;
    int64_t written;
} writing;

static int64_t world_rank(const comm_entry *c, int64_t rank) {
    const int *members = atomic_load(&((comm_entry *)(intptr_t)c)->members); /* NOLINT(performance-no-int-to-ptr) */
    return members && rank >= 0 && rank < c->size ? members[rank] : rank;
}

static int64_t peer_add(int64_t *list, int64_t n, int64_t rank, int64_t tag, int receives) {
    list[n++] = rank;
    list[n++] = tag;
    list[n++] = receives;
    return n;
}

static void messages_write(wire_writer *w, const frame *f) {
    int64_t list[2 * PEER_WORDS], n = 0;
    const int64_t *a = f->attributes;
    int any = a[ATTRIBUTE_SOURCE] == MPIXLA_ANY_SOURCE;
    if (frame_has(f, ATTRIBUTE_DEST) && a[ATTRIBUTE_DEST] != MPIXLA_PROC_NULL)
        n = peer_add(list, n, world_rank(f->communicator, a[ATTRIBUTE_DEST]), a[ATTRIBUTE_SENDTAG], 0);
    if (frame_has(f, ATTRIBUTE_SOURCE) && a[ATTRIBUTE_SOURCE] != MPIXLA_PROC_NULL)
        n = peer_add(list, n, any ? MPIXLA_ANY_SOURCE : world_rank(f->communicator, a[ATTRIBUTE_SOURCE]),
                     a[ATTRIBUTE_RECVTAG], 1);
    wire_write_list(w, list, n);
}

static int64_t needed_add(int64_t *list, int64_t n, const frame *f, int64_t rank) {
    int64_t needed = world_rank(f->communicator, rank);
    if (rank < 0 || rank >= f->size || rank == f->communicator->rank || n >= MOST_PEERS) return n;
    for (int64_t i = 0; i < n; i++)
        if (list[i] == needed) return n;
    list[n] = needed;
    return n + 1;
}

/* The neighbours of an exchange; of any other collective call, all members. A message of any source needs them, too. */
static void needed_write(wire_writer *w, const frame *f) {
    if (frame_has_neighbours(f)) {
        int64_t list[MOST_PEERS], n = 0;
        for (int64_t i = 0; i < f->dests->number; i++) n = needed_add(list, n, f, f->dests->ranks[i]);
        for (int64_t i = 0; i < f->sources->number; i++) n = needed_add(list, n, f, f->sources->ranks[i]);
        wire_write_list(w, list, n);
        return;
    }
    wire_write(w, f->size - 1);
    for (int i = 0; i < f->size; i++)
        if (i != f->communicator->rank) wire_write(w, world_rank(f->communicator, i));
}

/* The count that must be the same on all ranks. */
static int64_t items_of(const frame *f) {
    frame_counts c = f->shape->counts;
    int same =
        c == SAME || c == DIVIDED || c == GATHERED || c == SCATTERED || (c == FREE && frame_has(f, ATTRIBUTE_ROOT));
    return same && frame_is_collective(f) ? f->n : -1;
}

static void call_write(void *context, const frame *f) {
    writing *this = context;
    wire_writer *w = this->w;
    char what[TEXT_BYTES], kind[128];
    frame_describe(f, 1, what, sizeof what);
    int64_t site = f->site;
    if (f->shape->request == FRAME_WAITS && f->started) f = f->started;
    const frame_buffer *data = f->send.dtype ? &f->send : &f->recv;
    int has_op = frame_has(f, ATTRIBUTE_OP);
    snprintf(kind, sizeof kind, "%s%s%s", data->dtype ? data->dtype->row->name : "no data", has_op ? ", op " : "",
             has_op ? reduction_name(f->attributes[ATTRIBUTE_OP]) : "");
    wire_write(w, this->waited / 1000000);
    wire_write(w, this->pauses);
    wire_write(w, frame_is_collective(f));
    wire_write(w, key_of(this->keys, f->attributes[ATTRIBUTE_COMM]));
    wire_write(w, f->sequence);
    wire_write(w, data->dtype ? data->count * data->dtype->row->itemsize : 0);
    wire_write(w, frame_has(f, ATTRIBUTE_ROOT) ? world_rank(f->communicator, f->root) : -1);
    wire_write(w, items_of(f));
    wire_write_text(w, what);
    wire_write_text(w, f->shape->mpi_name);
    wire_write_text(w, kind);
    wire_write_text(w, site_text(site));
    wire_write_text(w, f->communicator->name);
    needed_write(w, f);
    messages_write(w, f);
    this->written++;
}

static void comms_write(wire_writer *w, const comm_keys *keys) {
    wire_write(w, keys->n * COMM_WORDS);
    for (int64_t i = 0; i < keys->n; i++) {
        wire_write(w, keys->key[i]);
        wire_write(w, atomic_load(&comm_look(i)->collectives));
    }
}

void state_write(wire_writer *w, const state_facts *facts) {
    comm_keys keys;
    int64_t threads = flight_threads();
    keys_make(&keys);
    wire_write(w, facts->rank);
    wire_write(w, STATE_HERE);
    wire_write(w, facts->ended);
    wire_write(w, facts->left);
    wire_write(w, facts->percent);
    wire_write_text(w, facts->where);
    wire_write_text(w, facts->python);
    comms_write(w, &keys);
    writing this = {.w = w, .keys = &keys};
    for (int64_t i = 0; i < threads && this.written < STATE_CALLS; i++) {
        flight_moment now = flight_of(i);
        this.thread = i;
        this.pauses = now.pauses & 1;
        this.waited = i < facts->threads ? facts->waited[i] : 0;
        int64_t written = this.written;
        wire_write(w, i);
        flight_show(i, call_write, &this);
        /* A thread that was in no call has its number only, and the next one follows. */
        if (this.written == written) wire_write(w, -1);
    }
    wire_write(w, -1);
    int64_t newest = newest_thread(threads);
    last_write(w, &keys, newest, newest >= 0 && flight_of(newest).in_call);
}

static const void *records_read(wire_reader *r, int64_t words, int64_t *n) {
    const int64_t *list = wire_read_list(r, n);
    *n /= words;
    return list;
}

static void call_read(state_call *c, wire_reader *r, int64_t milliseconds) {
    c->milliseconds = milliseconds;
    c->pauses = wire_read(r);
    c->collective = wire_read(r);
    c->comm = wire_read(r);
    c->sequence = wire_read(r);
    c->bytes = wire_read(r);
    c->root = wire_read(r);
    c->items = wire_read(r);
    c->what = wire_read_text(r);
    c->op = wire_read_text(r);
    c->kind = wire_read_text(r);
    c->site = wire_read_text(r);
    c->comm_name = wire_read_text(r);
    c->needed = wire_read_list(r, &c->needs);
    c->peers = records_read(r, PEER_WORDS, &c->messages);
}

int state_read(state *s, wire_reader *r) {
    *s = (state){.rank = wire_read(r)};
    s->presence = wire_read(r);
    s->ended = wire_read(r);
    s->left = wire_read(r);
    s->percent = wire_read(r);
    s->where = wire_read_text(r);
    s->python = wire_read_text(r);
    s->comms = records_read(r, COMM_WORDS, &s->in_comms);
    while (wire_read(r) >= 0 && !r->failed) {
        int64_t milliseconds = wire_read(r);
        if (milliseconds < 0) continue;
        if (s->in_calls == STATE_CALLS) return -1;
        call_read(&s->calls[s->in_calls++], r, milliseconds);
    }
    s->last = wire_read_text(r);
    s->in_newest = wire_read(r);
    s->past = records_read(r, PAST_WORDS, &s->in_past);
    if (s->presence < 0 || s->presence >= STATE_PRESENCES) return -1;
    return r->failed ? -1 : 0;
}
