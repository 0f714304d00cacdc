#include "watch/trace.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/feature.h"
#include "base/pause.h"
#include "call/site.h"
#include "mpi/reduction.h"
#include "mpixla.h"

enum { MOST_NUMBERS = 1024, PATH_BYTES = 4096 };

static _Atomic(timeline *) current_timeline; /* NULL: this process is not traced */
static atomic_int thread_count;              /* threads with a number, from 1 */
static _Thread_local int thread_number;      /* of this thread; 0: it has none yet */

int64_t mpixla_trace_now(void) {
    return clock_now();
}

/* Texts and communicators: each is written once, and records of calls have its number. */

/* Adds a text to the timeline, as `number`. */
static void trace_text_define(timeline *t, uint32_t number, const void *text) {
    timeline_add_parts(t, TIMELINE_TEXT, number, text, strlen(text));
}

/* Returns the number of a text, which must never be freed; 0 for none. */
static uint16_t trace_text_number(timeline *t, const char *text) {
    return text && *text ? timeline_number_of(t, text, trace_text_define) : 0;
}

/* Returns the rank in MPI_COMM_WORLD of a communicator's rank, or TIMELINE_ANY or TIMELINE_NOBODY. */
static int32_t trace_world_rank(const comm_entry *c, int64_t rank) {
    if (rank == MPIXLA_ANY_SOURCE) return TIMELINE_ANY;
    int64_t world = rank < 0 || rank >= c->size ? TIMELINE_NOBODY : comm_world_rank(c, rank);
    return world < 0 ? TIMELINE_NOBODY : (int32_t)world; /* a rank of another world */
}

/* Adds the members of a communicator to the timeline, as ranges of ranks; none if they take more than MOST_NUMBERS
 * ranges: the communicator is then known by its name alone. */
static void trace_members_define(timeline *t, uint32_t number, const comm_entry *c) {
    int32_t parts[MOST_NUMBERS][3];
    int used = 0;
    for (int i = 0, n; i < c->size; i += n) {
        if (used == MOST_NUMBERS) return;
        int step = i + 1 < c->size ? trace_world_rank(c, i + 1) - trace_world_rank(c, i) : 1;
        for (n = 1; i + n < c->size && trace_world_rank(c, i + n) - trace_world_rank(c, i + n - 1) == step;) n++;
        memcpy(parts[used++], (int32_t[]){trace_world_rank(c, i), n, step}, sizeof parts[0]);
    }
    timeline_add_parts(t, TIMELINE_MEMBERS, number, parts, (size_t)used * sizeof parts[0]);
}

/* Adds the neighbours of a communicator on one side to the timeline, in MPI_COMM_WORLD, at most MOST_NUMBERS;
 * MPIXLA_PROC_NULL is left out. */
static void trace_neighbours_define(timeline *t, uint32_t number, uint32_t kind, const comm_entry *c,
                                    const topology_slots *s) {
    int32_t ranks[MOST_NUMBERS] = {0};
    size_t used = 0;
    for (int64_t i = 0; i < s->number && used < MOST_NUMBERS; i++)
        if (s->ranks[i] != MPIXLA_PROC_NULL) ranks[used++] = trace_world_rank(c, s->ranks[i]);
    timeline_add_parts(t, kind, number, ranks, used * sizeof *ranks);
}

/* Adds a communicator to the timeline, with its members and neighbours (timeline_definition). */
static void trace_communicator_define(timeline *t, uint32_t number, const void *key) {
    const comm_entry *c = key;
    timeline_record *r = timeline_add(t);
    if (!r) return;
    r->number = number;
    r->of.communicator = (timeline_communicator){.in_process = c->number, .rank = c->rank, .size = c->size};
    _Static_assert(sizeof r->of.communicator.name >= sizeof c->name, "names fit");
    memcpy(r->of.communicator.name, c->name, sizeof c->name);
    timeline_publish(r, TIMELINE_COMMUNICATOR);
    if (atomic_load_explicit(&c->members, memory_order_acquire)) trace_members_define(t, number, c);
    if (!c->topology) return;
    trace_neighbours_define(t, number, TIMELINE_SOURCES, c, &c->topology->sources);
    trace_neighbours_define(t, number, TIMELINE_DESTS, c, &c->topology->dests);
}

/* Adds the number that the ranks of a communicator have agreed on for it; `key` points to that number. */
static void trace_agreed_define(timeline *t, uint32_t number, const void *key) {
    const comm_entry *c = (const comm_entry *)((const char *)key - offsetof(comm_entry, agreed));
    timeline_record *r = timeline_add(t);
    if (!r) return;
    r->number = number;
    r->of.agreed = (timeline_agreed){.in_process = c->number, .agreed = atomic_load(&c->agreed)};
    timeline_publish(r, TIMELINE_AGREED);
}

/* Calls */

/* Returns the bytes of so many items; 0 if they do not fit 64 bits. */
static int64_t trace_items_bytes(const dtype_entry *type, int64_t items) {
    int64_t bytes;
    return !type || __builtin_mul_overflow(items, type->row->itemsize, &bytes) ? 0 : bytes;
}

/* Sets the root or the other ends of a message in the record of a call. */
static void trace_peers_fill(timeline_call *e, const call_facts *f) {
    const comm_entry *c = f->communicator;
    if (facts_have(f, ATTRIBUTE_ROOT)) e->root = trace_world_rank(c, f->root);
    if (facts_have(f, ATTRIBUTE_DEST)) {
        e->to = trace_world_rank(c, f->dest);
        e->sendtag = f->sendtag;
    }
    if (facts_have(f, ATTRIBUTE_SOURCE)) {
        e->from = trace_world_rank(c, f->source);
        e->recvtag = f->recvtag == MPIXLA_ANY_TAG ? TIMELINE_ANY : f->recvtag;
    }
}

/* Sets the bytes, items, type and reduction in the record of a call. */
static void trace_data_fill(timeline_call *e, const call_facts *f, timeline *t) {
    int is_halo = facts_have(f, ATTRIBUTE_WIDTH);
    e->sends = is_halo ? f->border_bytes : trace_items_bytes(f->sent_type, f->sent);
    e->receives = is_halo ? f->border_bytes : trace_items_bytes(f->received_type, f->received);
    if (facts_type(f)) {
        e->items = facts_count(f);
        e->dtype = trace_text_number(t, facts_type(f)->row->name);
    }
    if (facts_have(f, ATTRIBUTE_OP)) e->reduction = trace_text_number(t, reduction_name(f->reduction));
}

/* Sets the request, and the call that started it, in the record of a call. */
static void trace_request_fill(timeline_call *e, const trace_request *r, timeline *t) {
    e->request = r->number;
    e->generation = r->generation;
    if (!r->started) return;
    e->waits_for = trace_text_number(t, r->started->row->op_name);
    e->started_at = trace_text_number(t, site_text(r->started->site));
}

/* Returns the category of a call: a wait, a start, a collective call or a message. */
static uint8_t trace_category(const call_facts *f) {
    if (f->row->request == MPIXLA_WAITS) return TIMELINE_WAIT;
    if (f->row->request == MPIXLA_STARTS) return TIMELINE_START;
    return facts_are_collective(f) ? TIMELINE_COLLECTIVE : TIMELINE_MESSAGE;
}

/* Returns the code of the pattern in which ranks wait for each other in the call: the pattern of its row, or each for
 * all if the ranks compare the call. The result has no meaning for messages and waits. */
static uint8_t trace_wait_pattern(const call_facts *f, int is_compared) {
    static const uint8_t meetings[] = {[NO_PATTERN] = TIMELINE_EACH_FOR_ALL,
                                       [ALL] = TIMELINE_EACH_FOR_ALL,
                                       [FROM_ROOT] = TIMELINE_EACH_FOR_ROOT,
                                       [TO_ROOT] = TIMELINE_ROOT_FOR_ALL,
                                       [PREFIX] = TIMELINE_EACH_FOR_THOSE_BEFORE,
                                       [NEIGHBOURS] = TIMELINE_EACH_FOR_NEIGHBOURS,
                                       [PAIR] = TIMELINE_EACH_FOR_ALL};
    return is_compared ? TIMELINE_EACH_FOR_ALL : meetings[f->row->pattern];
}

/* Adds the record of a call that begins to the timeline, and sets c->entry to it; leaves that NULL if the timeline
 * takes no more. `request` is the call's, or NULL. */
static void trace_call_add(trace_call *c, const call_facts *f, const trace_request *request) {
    timeline *t = c->file;
    if (!thread_number) thread_number = atomic_fetch_add(&thread_count, 1) + 1;
    timeline_call e = {.sequence = facts_are_collective(f) ? f->sequence : -1,
                       .items = -1,
                       .began = c->began,
                       .gpu = c->on_a_gpu ? 0 : -1,
                       .thread = thread_number,
                       .root = TIMELINE_NONE,
                       .to = TIMELINE_NONE,
                       .from = TIMELINE_NONE,
                       .request = -1,
                       .op = trace_text_number(t, f->row->op_name),
                       .mpi = trace_text_number(t, f->row->mpi_name),
                       .site = trace_text_number(t, site_text(f->site)),
                       .category = trace_category(f),
                       .meeting = trace_wait_pattern(f, c->is_compared),
                       .is_reverse = f->reverse,
                       .windows = f->windows};
    if (request) trace_request_fill(&e, request, t);
    if (e.category != TIMELINE_WAIT) {
        trace_peers_fill(&e, f);
        trace_data_fill(&e, f, t);
    }
    if (facts_have_neighbours(f)) e.neighbours = f->back ? TIMELINE_DESTS : TIMELINE_SOURCES;
    uint16_t communicator = timeline_number_of(t, f->communicator, trace_communicator_define);
    timeline_record *r = timeline_add(t);
    if (!r) return;
    r->number = communicator;
    memcpy(&r->of.call, &e, sizeof e);
    timeline_publish(r, TIMELINE_CALL);
    timeline_file_rename(t);
    c->entry = &r->of.call;
    c->communicator = f->communicator;
}

void trace_start(trace_call *c, const call_facts *f, int on_a_gpu, int is_compared) {
    *c = (trace_call){.file = atomic_load_explicit(&current_timeline, memory_order_acquire),
                      .on_a_gpu = on_a_gpu,
                      .is_compared = is_compared};
    if (!c->file) return;
    c->began = mpixla_trace_now();
    c->waited = pause_total();
    if (f->row->request == MPIXLA_COMPLETES) trace_call_add(c, f, NULL);
}

void trace_request_set(trace_call *c, const call_facts *f, const trace_request *r) {
    if (c->file && f->row->request != MPIXLA_COMPLETES) trace_call_add(c, f, r);
}

void trace_end(const trace_call *c, const char *transport, int failed) {
    if (!c->entry) return;
    if (atomic_load(&c->communicator->agreed))
        (void)timeline_number_of(c->file, &c->communicator->agreed, trace_agreed_define);
    if (c->on_a_gpu) c->entry->gpu = pause_total() - c->waited;
    c->entry->transport = trace_text_number(c->file, transport);
    c->entry->took = mpixla_trace_now() - c->began;
    atomic_store_explicit(&c->entry->state, failed ? TIMELINE_FAILED : TIMELINE_OVER, memory_order_release);
}

/* Files */

/* Begins the timeline of this process, in a file of the facts' directory, and sets FEATURE_TRACE. Returns 0; REFUSED if
 * it is traced already, or the file cannot be made. */
int mpixla_trace_start(const mpixla_trace_facts *facts) {
    char path[PATH_BYTES];
    if (!mpi_get()) return error_set("mpixla_start has not been called");
    if (facts->struct_size != sizeof *facts)
        return error_set(
            "mpixla_trace_start was given facts of %zu bytes, but this library expects %zu: the Python package and "
            "libmpixla are of different versions; install mpixla again",
            facts->struct_size, sizeof *facts);
    if (atomic_load(&current_timeline)) return error_set("this process is traced already");
    if (snprintf(path, sizeof path, "%s/rank-%04d.trace", facts->directory, mpi_get()->world_rank) >= (int)sizeof path)
        return error_set("the path of a trace is too long: %s", facts->directory);
    timeline_header header = {.magic = "mpixla",
                              .version = TIMELINE_VERSION,
                              .record_bytes = TIMELINE_RECORD_BYTES,
                              .rank = mpi_get()->world_rank,
                              .ranks = (int32_t)facts->ranks,
                              .process = getpid()};
    (void)gethostname(header.host, sizeof header.host - 1);
    (void)snprintf(header.job, sizeof header.job, "%s", facts->job);
    (void)snprintf(header.clock, sizeof header.clock, "%s", facts->clock);
    timeline *made = timeline_open(path, (size_t)facts->limit, &header);
    if (!made) return REFUSED;
    atomic_store(&current_timeline, made);
    (void)feature_set(FEATURE_TRACE, 1);
    return 0;
}

/* Records a measurement in the timeline: at time `when` of this process's clock rank 0's was `ahead` of it, by a
 * message with this round trip, all in nanoseconds. Returns 0; REFUSED without a timeline, or if it takes no more. */
int mpixla_trace_clock(int64_t when, int64_t ahead, int64_t round_trip) {
    timeline *t = atomic_load(&current_timeline);
    timeline_record *r = t ? timeline_add(t) : NULL;
    if (!r) return error_set("this process is not traced, or its trace takes no more");
    r->of.clock = (timeline_clock){when, ahead, round_trip};
    timeline_publish(r, TIMELINE_CLOCK);
    return 0;
}

int mpixla_trace_end(void) {
    (void)feature_set(FEATURE_TRACE, 0);
    timeline *t = atomic_exchange(&current_timeline, NULL);
    return t ? timeline_close(t) : 0;
}
