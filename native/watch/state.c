#include "watch/state.h"

#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/text.h"
#include "call/site.h"
#include "check/check.h"
#include "mpi/reduction.h"
#include "ops/request.h"
#include "watch/flight.h"

enum {
    TEXT_BYTES = 640,
    MOST_COMMS = 1024,
    MOST_PEERS = 64,
    PEER_WORDS = 3,
    COMM_WORDS = 2,
    PAST_WORDS = 4,
    LOST_WORDS = 2
};

/* The last calls of a thread */

/* Writes the description of a past call to `text`, with details as facts_describe; of a wait only its MPI function and
 * its source line, as its request was not known yet when it was recorded. */
static void state_past_describe(const call_facts *f, char *text, size_t bytes) {
    if (f->row->request == MPIXLA_WAITS)
        snprintf(text, bytes, "%s%s%s", f->row->mpi_name, *site_text(f->site) ? ", at " : "", site_text(f->site));
    else
        (void)facts_describe(f, NULL, 1, text, bytes);
}

/* Appends a line for `calls` records that are alike, of which `newest` is the first: how long ago the newest and the
 * oldest began, and the description. Returns the new length. */
static size_t state_past_add_line(char *text, size_t used, const flight_record *newest, int64_t calls, int64_t now) {
    const call_facts *f = &newest->facts, *oldest = &newest[calls - 1].facts;
    char description[TEXT_BYTES];
    if (used >= STATE_LINES) return used;
    state_past_describe(f, description, sizeof description);
    if (calls > 1)
        used = text_add(text, STATE_LINES, used, "%lld times, the first one %.1f s ago and the last one ",
                        (long long)calls, 1e-9 * (double)(now - newest[calls - 1].when));
    used = text_add(text, STATE_LINES, used, "%.1f s ago: %s", 1e-9 * (double)(now - newest->when), description);
    if (facts_are_collective(f) && calls > 1)
        used = text_add(text, STATE_LINES, used, " (collective calls %lld to %lld)", (long long)oldest->sequence + 1,
                        (long long)f->sequence + 1);
    else if (facts_are_collective(f))
        used = text_add(text, STATE_LINES, used, " (collective call %lld)", (long long)f->sequence + 1);
    return text_add(text, STATE_LINES, used, "\n");
}

/* Returns whether one line serves two calls: both have the same description, and collective ones follow each other on
 * the communicator. */
static int state_past_are_alike(const call_facts *newer, const call_facts *older) {
    char a[TEXT_BYTES], b[TEXT_BYTES];
    if (newer->row != older->row || newer->site != older->site || newer->communicator != older->communicator) return 0;
    if (facts_are_collective(newer) && newer->sequence != older->sequence + 1) return 0;
    state_past_describe(newer, a, sizeof a);
    state_past_describe(older, b, sizeof b);
    return strcmp(a, b) == 0;
}

/* Writes the last calls of a thread (-1: of none): a text, the newest first, with one line for calls that are alike and
 * follow each other; whether the newest has not ended (`in_call`), which then has a line of its own; and the list of
 * the collective ones, with communicator, number, operation and line of the text. */
static void state_past_write(wire_writer *w, int64_t thread, int in_call) {
    flight_record records[FLIGHT_KEPT];
    int64_t past[FLIGHT_KEPT * PAST_WORDS], n = 0, now = flight_now(), line = 0;
    int found = thread < 0 ? 0 : flight_records_read(thread, records), first = 0;
    char text[STATE_LINES] = "";
    size_t used = 0;
    for (int i = 0; i < found; i++) {
        const call_facts *f = &records[i].facts;
        if (facts_are_collective(f)) {
            past[n++] = comm_key(f->communicator);
            past[n++] = f->sequence;
            past[n++] = (int64_t)hash_text(f->row->mpi_name);
            past[n++] = line;
        }
        if (i + 1 < found && !(in_call && i == 0) && state_past_are_alike(f, &records[i + 1].facts)) continue;
        used = state_past_add_line(text, used, &records[first], i + 1 - first, now);
        first = i + 1;
        line++;
    }
    wire_write_text(w, text);
    wire_write(w, in_call && found > 0);
    wire_write_list(w, past, n);
}

/* Returns the thread that made the newest call of this process; -1 if there was none. */
static int64_t state_newest_thread_find(int64_t threads) {
    flight_record records[FLIGHT_KEPT];
    int64_t newest = -1, when = 0;
    for (int64_t i = 0; i < threads; i++)
        if (flight_records_read(i, records) > 0 && (newest < 0 || records[0].when > when)) {
            newest = i;
            when = records[0].when;
        }
    return newest;
}

/* The calls that threads are in */

/* Appends the other end of a message to `list`, which has `n` numbers; returns the new number. */
static int64_t state_peer_add(int64_t *list, int64_t n, int64_t rank, int64_t tag, int receives) {
    list[n++] = rank;
    list[n++] = tag;
    list[n++] = receives;
    return n;
}

/* Writes the other ends of the call's messages: rank in MPI_COMM_WORLD, tag and direction of each; MPIXLA_PROC_NULL is
 * left out. */
static void state_messages_write(wire_writer *w, const call_facts *f) {
    int64_t list[2 * PEER_WORDS], n = 0;
    int any = f->source == MPIXLA_ANY_SOURCE;
    if (facts_have(f, ATTRIBUTE_DEST) && f->dest != MPIXLA_PROC_NULL)
        n = state_peer_add(list, n, comm_world_rank(f->communicator, f->dest), f->sendtag, 0);
    if (facts_have(f, ATTRIBUTE_SOURCE) && f->source != MPIXLA_PROC_NULL)
        n = state_peer_add(list, n, any ? MPIXLA_ANY_SOURCE : comm_world_rank(f->communicator, f->source), f->recvtag,
                           1);
    wire_write_list(w, list, n);
}

/* Appends another rank to the ranks that a call needs (`list`, of `n`), once and MOST_PEERS at most; not this rank.
 * Returns the new number. */
static int64_t state_needed_add(int64_t *list, int64_t n, const comm_entry *c, int64_t rank) {
    if (rank < 0 || rank >= c->size || rank == c->rank || n >= MOST_PEERS) return n;
    int64_t needed = comm_world_rank(c, rank);
    for (int64_t i = 0; i < n; i++)
        if (list[i] == needed) return n;
    list[n] = needed;
    return n + 1;
}

/* Writes the ranks that a call needs: the neighbours of an exchange, else all other members. A call that is compared
 * needs all ranks, and so does a message from any source. */
static void state_needed_write(wire_writer *w, const call_facts *f) {
    const comm_entry *c = f->communicator;
    if (facts_have_neighbours(f) && !check_is_due(f)) {
        int64_t list[MOST_PEERS] = {0}, n = 0;
        for (int sending = 1; sending >= 0; sending--) {
            const topology_slots *slots = facts_neighbours(f, sending);
            for (int64_t i = 0; i < slots->number; i++) n = state_needed_add(list, n, c, slots->ranks[i]);
        }
        wire_write_list(w, list, n);
        return;
    }
    wire_write(w, c->size - 1);
    for (int i = 0; i < c->size; i++)
        if (i != c->rank) wire_write(w, comm_world_rank(c, i));
}

/* Writes the call that a thread is in, with its ranks and messages. */
static void state_call_write(wire_writer *w, const flight_view *view, int64_t thread, flight_moment moment) {
    const call_facts *f = view->waits ? &view->started : &view->facts;
    const dtype_entry *type = facts_type(f);
    char description[TEXT_BYTES], kind[128];
    int has_op = facts_have(f, ATTRIBUTE_OP);
    flight_describe(view, description, sizeof description);
    snprintf(kind, sizeof kind, "%s%s%s", type ? type->row->name : "no data", has_op ? ", op " : "",
             has_op ? reduction_name(f->reduction) : "");
    wire_write(w, flight_clock_of(thread)->waited_ns / 1000000);
    wire_write(w, view->entered);
    wire_write(w, thread);
    wire_write(w, moment.is_front_end);
    wire_write(w, moment.pauses & 1);
    wire_write(w, facts_are_collective(f));
    wire_write(w, comm_key(f->communicator));
    wire_write(w, comm_members_are_known(f->communicator));
    wire_write(w, atomic_load(&f->communicator->is_shared));
    wire_write(w, f->sequence);
    wire_write(w, type ? facts_count(f) * type->row->itemsize : 0);
    wire_write(w, facts_have(f, ATTRIBUTE_ROOT) ? comm_world_rank(f->communicator, f->root) : -1);
    wire_write(w, f->items);
    wire_write_text(w, description);
    wire_write_text(w, f->row->mpi_name);
    wire_write_text(w, kind);
    wire_write_text(w, site_text(view->facts.site));
    wire_write_text(w, f->communicator->name);
    state_needed_write(w, f);
    state_messages_write(w, f);
}

/* Writes the calls that have waited longest, of STATE_CALLS threads at most, the longest first; -1 ends the list. */
static void state_calls_write(wire_writer *w, int64_t threads) {
    int64_t chosen[STATE_CALLS], n = 0;
    for (int64_t i = 0; i < threads; i++) {
        int64_t at = n, waited = flight_clock_of(i)->waited_ns;
        if (!flight_moment_read(i).in_call) continue;
        while (at > 0 && flight_clock_of(chosen[at - 1])->waited_ns < waited) at--;
        if (at == STATE_CALLS) continue;
        if (n < STATE_CALLS) n++;
        memmove(&chosen[at + 1], &chosen[at], (size_t)(n - at - 1) * sizeof *chosen);
        chosen[at] = i;
    }
    for (int64_t i = 0; i < n; i++) {
        flight_view view;
        if (flight_view_read(chosen[i], &view)) state_call_write(w, &view, chosen[i], flight_moment_read(chosen[i]));
    }
    wire_write(w, -1);
}

/* Writes the communicators, and the number of collective calls on each. Of more than MOST_COMMS, those in use come
 * first, in the order in which they were made, and then the freed ones, the newest first. */
static void state_comms_write(wire_writer *w) {
    int64_t words[MOST_COMMS * COMM_WORDS] = {0}, n = 0, comms = comm_count_all();
    const int64_t room = sizeof words / sizeof words[0];
    int has_all = comms <= MOST_COMMS;
    for (int64_t look = 0; look < 2 * comms && n < room; look++) {
        const comm_entry *c = comm_find_any(look < comms ? look : 2 * comms - 1 - look);
        if (atomic_load(&c->alive) != (look < comms)) continue;
        words[n++] = comm_key(c);
        words[n++] = atomic_load(&c->collectives);
        has_all &= c->size == 1 || comm_members_are_known(c);
    }
    wire_write_list(w, words, n);
    wire_write(w, has_all);
}

void state_write(wire_writer *w, const state_facts *facts) {
    int64_t threads = flight_threads(), newest = state_newest_thread_find(threads);
    wire_write(w, facts->rank);
    wire_write(w, STATE_HERE);
    wire_write(w, facts->ended);
    wire_write(w, facts->left_ms);
    wire_write(w, facts->percent);
    wire_write(w, facts->threads);
    wire_write(w, request_count_open());
    wire_write_text(w, facts->where);
    wire_write_text(w, facts->python);
    wire_write_list(w, facts->lost, facts->lost_count);
    state_comms_write(w);
    state_calls_write(w, threads);
    state_past_write(w, newest, newest >= 0 && flight_moment_read(newest).in_call);
}

/* Reading */

/* Reads a list of records of so many words; sets *n to their number. */
static const void *state_records_read(wire_reader *r, int64_t words, int64_t *n) {
    const int64_t *list = wire_read_list(r, n);
    *n /= words;
    return list;
}

/* Reads the call that state_call_write has written, after its milliseconds. */
static void state_call_read(state_call *c, wire_reader *r, int64_t milliseconds) {
    c->milliseconds = milliseconds;
    c->number = wire_read(r);
    c->thread = wire_read(r);
    c->is_front_end = wire_read(r);
    c->pauses = wire_read(r);
    c->collective = wire_read(r);
    c->comm = wire_read(r);
    c->has_members = wire_read(r);
    c->is_shared = wire_read(r);
    c->sequence = wire_read(r);
    c->bytes = wire_read(r);
    c->root = wire_read(r);
    c->items = wire_read(r);
    c->description = wire_read_text(r);
    c->op = wire_read_text(r);
    c->kind = wire_read_text(r);
    c->site = wire_read_text(r);
    c->comm_name = wire_read_text(r);
    c->needed = wire_read_list(r, &c->needs);
    c->peers = state_records_read(r, PEER_WORDS, &c->messages);
}

int state_read(state *s, wire_reader *r) {
    *s = (state){.rank = wire_read(r)};
    s->presence = wire_read(r);
    s->ended = wire_read(r);
    s->left_ms = wire_read(r);
    s->percent = wire_read(r);
    s->threads = wire_read(r);
    s->requests = wire_read(r);
    s->where = wire_read_text(r);
    s->python = wire_read_text(r);
    s->lost = state_records_read(r, LOST_WORDS, &s->lost_count);
    for (int64_t i = 0; i < s->lost_count; i++)
        if (s->lost[i].presence <= STATE_HERE || s->lost[i].presence >= STATE_PRESENCES) return 0;
    s->comms = state_records_read(r, COMM_WORDS, &s->comm_count);
    s->has_all_comms = wire_read(r);
    for (int64_t milliseconds; (milliseconds = wire_read(r)) >= 0 && !r->failed;) {
        if (s->call_count == STATE_CALLS) return 0;
        state_call_read(&s->calls[s->call_count++], r, milliseconds);
    }
    s->last = wire_read_text(r);
    s->in_newest = wire_read(r);
    s->past = state_records_read(r, PAST_WORDS, &s->past_count);
    return !r->failed && s->presence >= 0 && s->presence < STATE_PRESENCES;
}
