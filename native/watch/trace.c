/* Events are put together by hand: what is measured should not be this. What changes in an event when its call ends
 * comes first, at places that are known, in as many bytes as before.
 */
#include "watch/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/feature.h"
#include "base/pause.h"
#include "call/site.h"
#include "mpi/reduction.h"
#include "mpixla.h"
#include "watch/timeline.h"

enum { EVENT_BYTES = 4096, LIST_END = EVENT_BYTES - 512, LANES = 64, NUMBER_BYTES = 24, TIME_BYTES = 16 };

/* Not yet known, in microseconds. Whatever part of another time has taken its place, it is a number. */
#define NO_TIME "999999999999.999"
static const char head[] = ",\n{\"ph\":\"B\",\"dur\":" NO_TIME ",\"args\":{\"failed\":0";
static const char gpu_head[] = ",\"transport\":null    ,\"gpu\":" NO_TIME;
enum {
    AT_PHASE = 9,
    AT_DURATION = 18,
    AT_FAILED = sizeof head - 2,
    AT_TRANSPORT = sizeof head - 1 + 13,
    AT_GPU = sizeof head - 1 + sizeof gpu_head - 1 - TIME_BYTES
};

static atomic_int on, begun; /* the number of the timeline that is being written, and of the last one */
static timeline file;
static atomic_uint_least64_t lanes; /* bit i: a call is in row i */
static atomic_int threads;
static _Thread_local int thread;

int64_t mpixla_trace_now(void) {
    return clock_now();
}

/* Text */

typedef struct text {
    size_t used;
    char bytes[EVENT_BYTES];
} text;

/* Inline, so that literals, of known sizes, are stored and not copied. */
static inline void put(text *t, const char *bytes, size_t number) {
    if (number > sizeof t->bytes - t->used) {
        t->used = sizeof t->bytes;
        return;
    }
    memcpy(t->bytes + t->used, bytes, number);
    t->used += number;
}

#define PUT(t, literal) put((t), (literal), sizeof(literal) - 1)

static void put_number(text *t, int64_t value) {
    char digits[NUMBER_BYTES];
    char *end = digits + sizeof digits, *at = end;
    uint64_t left = value < 0 ? -(uint64_t)value : (uint64_t)value;
    do *--at = (char)('0' + left % 10);
    while (left /= 10);
    if (value < 0) *--at = '-';
    put(t, at, (size_t)(end - at));
}

/* Nanoseconds as microseconds, in TIME_BYTES, with blanks ahead. */
static void time_format(char at[TIME_BYTES], int64_t nanoseconds) {
    static const int64_t most = INT64_C(999999999999999);
    int64_t left = nanoseconds < 0 ? 0 : nanoseconds > most ? most : nanoseconds;
    int i = TIME_BYTES;
    for (int digit = 0; digit < 4 || left > 0; digit++, left /= 10) {
        if (digit == 3) at[--i] = '.';
        at[--i] = (char)('0' + left % 10);
    }
    while (i > 0) at[--i] = ' ';
}

/* How many bytes the character has that begins here, 0 if it is none of UTF-8. */
static int character(const unsigned char *c) {
    int more = c[0] < 0x80 ? 0 : c[0] >= 0xC2 && c[0] < 0xE0 ? 1 : (c[0] & 0xF0) == 0xE0 ? 2 : 3;
    if (c[0] >= 0x80 && (c[0] < 0xC2 || c[0] > 0xF4)) return 0;
    for (int i = 1; i <= more; i++)
        if ((c[i] & 0xC0) != 0x80) return 0;
    int is_long = (c[0] == 0xE0 && c[1] < 0xA0) || (c[0] == 0xF0 && c[1] < 0x90);
    int is_none = (c[0] == 0xED && c[1] >= 0xA0) || (c[0] == 0xF4 && c[1] >= 0x90);
    return is_long || is_none ? 0 : more + 1;
}

static int is_plain(unsigned char c) {
    return c >= 0x20 && c < 0x80 && c != '"' && c != '\\';
}

/* A string of JSON. A name that was cut may end within a character. */
static void put_string(text *t, const char *value) {
    static const char hexadecimal[] = "0123456789abcdef";
    const unsigned char *c = (const unsigned char *)value;
    PUT(t, "\"");
    for (;;) {
        const unsigned char *first = c;
        while (is_plain(*c)) c++;
        put(t, (const char *)first, (size_t)(c - first));
        if (*c == '\0') break;
        int bytes = character(c);
        if (bytes == 0) {
            PUT(t, "?");
        } else if (*c < 0x20) {
            char escaped[] = {'\\', 'u', '0', '0', hexadecimal[*c >> 4], hexadecimal[*c & 15]};
            put(t, escaped, sizeof escaped);
        } else {
            if (bytes == 1) PUT(t, "\\");
            put(t, (const char *)c, (size_t)bytes);
        }
        c += bytes > 0 ? bytes : 1;
    }
    PUT(t, "\"");
}

#define PUT_NUMBER(t, name, value) (PUT(t, ",\"" name "\":"), put_number((t), (value)))
#define PUT_STRING(t, name, value) (PUT(t, ",\"" name "\":"), put_string((t), (value)))

static char *add(const text *t) {
    return t->used < sizeof t->bytes ? timeline_add(&file, t->bytes, t->used) : NULL; /* cut, it would be no JSON */
}

/* Communicators: each is described once, so that calls need only say its number. */

/* Ranks of MPI_COMM_WORLD as [first, how many, distance] each. */
static void put_members(text *t, const int *members, int size) {
    PUT(t, ",\"members\":[");
    size_t begin = t->used;
    for (int i = 0; i < size;) {
        int step = i + 1 < size ? members[i + 1] - members[i] : 1, n = 1;
        while (i + n < size && members[i + n] - members[i + n - 1] == step) n++;
        if (t->used > LIST_END) { /* too irregular: they go by their number and the name alone */
            t->used = begin;
            PUT(t, "],\"has_more\":1");
            return;
        }
        if (i > 0) PUT(t, ",");
        PUT(t, "[");
        put_number(t, members[i]);
        PUT(t, ",");
        put_number(t, n);
        PUT(t, ",");
        put_number(t, step);
        PUT(t, "]");
        i += n;
    }
    PUT(t, "]");
}

static void describe(comm_entry *c, int64_t number) {
    text t;
    void *now = (void *)(intptr_t)atomic_load(&on); /* NOLINT(performance-no-int-to-ptr) */
    if (atomic_exchange(&c->attached[COMM_SLOT_TRACED], now) == now) return;
    t.used = 0;
    PUT(&t, ",\n{\"ph\":\"M\",\"name\":\"mpixla_communicator\",\"pid\":");
    put_number(&t, mpi_get()->world_rank);
    PUT(&t, ",\"args\":{\"number\":");
    put_number(&t, number);
    PUT_STRING(&t, "name", c->name);
    PUT_NUMBER(&t, "rank", c->rank);
    PUT_NUMBER(&t, "size", c->size);
    const int *members = atomic_load_explicit(&c->members, memory_order_acquire);
    if (members) put_members(&t, members, c->size);
    PUT(&t, "}}");
    (void)add(&t);
}

/* Calls */

/* A rank of the communicator as one of MPI_COMM_WORLD. */
static void put_peer(text *t, const comm_entry *c, int64_t peer) {
    const int *members = atomic_load_explicit(&c->members, memory_order_acquire);
    if (peer == MPIXLA_ANY_SOURCE)
        PUT(t, "\"any\"");
    else if (peer < 0 || peer >= c->size)
        PUT(t, "null");
    else
        put_number(t, members ? members[peer] : peer);
}

static void put_tag(text *t, int64_t tag) {
    if (tag == MPIXLA_ANY_TAG)
        PUT(t, "\"any\"");
    else
        put_number(t, tag);
}

static void put_neighbours(text *t, const call_facts *f) {
    const topology_slots *s = facts_neighbours(f, 0);
    int any = 0;
    PUT(t, ",\"sources\":[");
    for (int64_t i = 0; i < s->number && t->used < LIST_END; i++) {
        if (s->ranks[i] == MPIXLA_PROC_NULL) continue;
        if (any++) PUT(t, ",");
        put_peer(t, f->communicator, s->ranks[i]);
    }
    PUT(t, "]");
}

static void put_message(text *t, const call_facts *f) {
    if (facts_have(f, ATTRIBUTE_ROOT)) {
        PUT(t, ",\"root\":");
        put_peer(t, f->communicator, f->root);
    }
    if (facts_have(f, ATTRIBUTE_DEST)) {
        PUT(t, ",\"to\":");
        put_peer(t, f->communicator, f->dest);
        PUT_NUMBER(t, "sendtag", f->sendtag);
    }
    if (facts_have(f, ATTRIBUTE_SOURCE)) {
        PUT(t, ",\"from\":");
        put_peer(t, f->communicator, f->source);
        PUT(t, ",\"recvtag\":");
        put_tag(t, f->recvtag);
    }
}

static int64_t bytes_of(const dtype_entry *type, int64_t items) {
    int64_t bytes;
    return !type || __builtin_mul_overflow(items, type->row->itemsize, &bytes) ? 0 : bytes;
}

static void put_data(text *t, const call_facts *f) {
    int is_halo = facts_have(f, ATTRIBUTE_WIDTH);
    PUT_NUMBER(t, "sends", is_halo ? f->border_bytes : bytes_of(f->sent_type, f->sent));
    PUT_NUMBER(t, "receives", is_halo ? f->border_bytes : bytes_of(f->received_type, f->received));
    if (facts_type(f)) {
        PUT_NUMBER(t, "items", facts_count(f));
        PUT_STRING(t, "dtype", facts_type(f)->row->name);
    }
    if (facts_have(f, ATTRIBUTE_OP)) PUT_STRING(t, "op", reduction_name(f->reduction));
}

static void put_request(text *t, const trace_request *r) {
    if (!r || r->number < 0) return;
    PUT(t, ",\"request\":\"");
    put_number(t, r->number);
    PUT(t, ".");
    put_number(t, r->generation);
    PUT(t, "\"");
    if (!r->started) return;
    PUT_STRING(t, "waits_for", r->started->row->op_name);
    if (r->started->site) PUT_STRING(t, "started_at", site_text(r->started->site));
}

static void put_call(text *t, const call_facts *f, const trace_request *r, const trace_call *c) {
    int waits = f->row->request == FRAME_WAITS;
    put(t, head, sizeof head - 1);
    if (c->on_a_gpu) put(t, gpu_head, sizeof gpu_head - 1);
    PUT_STRING(t, "mpi", f->row->mpi_name);
    if (f->site) PUT_STRING(t, "site", site_text(f->site));
    PUT_STRING(t, "comm", f->communicator->name);
    PUT_NUMBER(t, "number", f->communicator->number);
    if (facts_are_collective(f)) PUT_NUMBER(t, "sequence", f->sequence);
    if (f->reverse) PUT(t, ",\"reverse\":1");
    put_request(t, r);
    if (!waits) {
        put_message(t, f);
        put_data(t, f);
    }
    PUT_NUMBER(t, "thread", thread);
    if (facts_have_neighbours(f)) put_neighbours(t, f);
    PUT(t, "},\"ts\":");
    char began[TIME_BYTES];
    time_format(began, c->began);
    put(t, began, sizeof began);
    PUT_NUMBER(t, "pid", mpi_get()->world_rank);
    PUT_NUMBER(t, "tid", c->lane);
    PUT_STRING(t, "name", f->row->op_name);
    PUT_STRING(t, "cat",
               waits                             ? "wait"
               : f->row->request == FRAME_STARTS ? "start"
               : facts_are_collective(f)         ? "collective"
                                                 : "message");
    PUT(t, "}");
}

static int lane_take(void) {
    uint64_t taken = atomic_load_explicit(&lanes, memory_order_relaxed);
    while (taken != UINT64_MAX) {
        int lane = __builtin_ctzll(~taken);
        if (atomic_compare_exchange_weak(&lanes, &taken, taken | UINT64_C(1) << lane)) return lane;
    }
    return LANES; /* shared by all that are left */
}

static void lane_leave(int lane) {
    if (lane < LANES) atomic_fetch_and(&lanes, ~(UINT64_C(1) << lane));
}

static void write_call(trace_call *c, const call_facts *f, const trace_request *r) {
    text t;
    t.used = 0;
    if (!thread) thread = atomic_fetch_add(&threads, 1) + 1;
    if ((intptr_t)comm_attached(f->communicator, COMM_SLOT_TRACED) != atomic_load_explicit(&on, memory_order_relaxed))
        describe(f->communicator, f->communicator->number);
    put_call(&t, f, r, c);
    c->event = add(&t);
    timeline_show(&file);
}

void trace_start(trace_call *c, const call_facts *f, int on_a_gpu) {
    *c = (trace_call){.began = mpixla_trace_now(),
                      .waited = on_a_gpu ? pause_total() : 0,
                      .lane = lane_take(),
                      .on_a_gpu = on_a_gpu,
                      .is_of_a_request = f->row->request != FRAME_COMPLETES};
    if (!c->is_of_a_request) write_call(c, f, NULL);
}

void trace_request_known(trace_call *c, const call_facts *f, const trace_request *r) {
    if (c->is_of_a_request) write_call(c, f, r);
}

/* One store of the processor, or two in either order: the event can be read at each moment. */
static void patch(char *at, const char *bytes, size_t number) {
    memcpy(at, bytes, number);
    atomic_signal_fence(memory_order_seq_cst);
}

void trace_end(const trace_call *c, const char *transport, int failed) {
    char duration[TIME_BYTES];
    lane_leave(c->lane);
    if (!c->event) return;
    if (c->on_a_gpu) {
        time_format(duration, pause_total() - c->waited);
        patch(c->event + AT_GPU, duration, sizeof duration);
        char name[] = "        ";
        if (transport) {
            (void)snprintf(name, sizeof name, "\"%s\"  ", transport);
            patch(c->event + AT_TRANSPORT, name, 8);
        }
    }
    time_format(duration, mpixla_trace_now() - c->began);
    patch(c->event + AT_DURATION, duration, sizeof duration);
    if (failed) patch(c->event + AT_FAILED, "1", 1);
    patch(c->event + AT_PHASE, "X", 1);
}

/* Beginning and end */

static void put_process(text *t, const mpixla_trace_facts *facts) {
    char host[256] = "";
    int rank = mpi_get()->world_rank;
    (void)gethostname(host, sizeof host - 1);
    PUT(t, "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":");
    put_number(t, rank);
    char name[sizeof host + 32];
    (void)snprintf(name, sizeof name, "rank %d on %s", rank, host);
    PUT(t, ",\"args\":{\"name\":");
    put_string(t, name);
    PUT(t, "}},\n{\"ph\":\"M\",\"name\":\"mpixla_trace\",\"pid\":");
    put_number(t, rank);
    PUT(t, ",\"args\":{\"version\":1");
    PUT_NUMBER(t, "rank", rank);
    PUT_NUMBER(t, "ranks", facts->ranks);
    PUT_STRING(t, "host", host);
    PUT_STRING(t, "job", facts->job);
    PUT_STRING(t, "clock", facts->clock);
    PUT_NUMBER(t, "process", getpid());
    PUT(t, "}}");
}

int mpixla_trace_start(const mpixla_trace_facts *facts) {
    char path[TIMELINE_PATH_BYTES];
    text t;
    t.used = 0;
    if (!mpi_get()) return error_set("mpixla_start has not been called");
    if (facts->struct_size != sizeof *facts)
        return error_set(
            "mpixla_trace_start was given facts of %zu bytes, but this library expects %zu: the Python package and "
            "libmpixla are of different versions; install mpixla again",
            facts->struct_size, sizeof *facts);
    if (atomic_load(&on)) return error_set("this process is traced already");
    if (snprintf(path, sizeof path, "%s/rank-%04d.json", facts->directory, mpi_get()->world_rank) >= (int)sizeof path)
        return error_set("the path of a trace is too long: %s", facts->directory);
    put_process(&t, facts);
    if (timeline_open(&file, path, (size_t)facts->limit, mpi_get()->world_rank, t.bytes, t.used)) return -1;
    atomic_store(&on, atomic_fetch_add(&begun, 1) + 1);
    (void)feature_set(FEATURE_TRACE, 1);
    return 0;
}

int mpixla_trace_clock(int64_t when, int64_t ahead, int64_t round_trip) {
    text t;
    t.used = 0;
    PUT(&t, ",\n{\"ph\":\"M\",\"name\":\"mpixla_clock\",\"pid\":");
    put_number(&t, mpi_get() ? mpi_get()->world_rank : 0);
    PUT(&t, ",\"args\":{\"when\":");
    put_number(&t, when);
    PUT_NUMBER(&t, "ahead", ahead);
    PUT_NUMBER(&t, "round_trip", round_trip);
    PUT(&t, "}}");
    return atomic_load(&on) && add(&t) ? 0 : error_set("this process is not traced, or its trace takes no more");
}

int mpixla_trace_end(void) {
    (void)feature_set(FEATURE_TRACE, 0);
    if (!atomic_exchange(&on, 0)) return 0;
    return timeline_close(&file);
}
