/* Dimension by dimension, each block sends the lines at its border whole, with the ghosts at their ends: so corners
 * come right without messages to diagonal neighbours, and a message is a few equal pieces of each array, at equal
 * distances.
 *
 * All arrays' pieces are one message. It is sent and received where it lies if it is one piece; else it is packed here,
 * as a derived type of MPI's for several arrays would have to be made again whenever XLA moves one of them. A rank that
 * is its own neighbour copies.
 */
#include "neighbours/halo.h"

#include "call/route.h"
#include "device/pool.h"
#include "mpi/job.h"
#include "neighbours/messages.h"
#include "ops/pieces.h"

/* A call, and what it does in one dimension. Lines are named by the first of their indices along the axis, which counts
 * from the end if it is negative; there are always `width` of them. */
typedef struct halo {
    frame *f;
    int adds; /* it is the transpose */
    pieces_place place;
    int64_t dimension, width;
    int is_itself;            /* this rank is its own neighbour on both sides */
    int64_t bytes;            /* of a message, which lines ever it has */
    const dtype_entry *dtype; /* of its items: bytes, if the arrays' types differ */
    int is_sent_in_place, is_received_in_place;
} halo;

/* One of the two directions of a dimension: what is sent that way, and what comes that way from the other side. */
typedef struct transfer {
    int64_t from, to;      /* the lines that are sent, and those where what comes is used */
    int64_t dest, source;  /* slots of the neighbours that it sends to, and receives from */
    char *sent, *received; /* the messages */
} transfer;

/* Lines */

typedef struct lines_walk {
    int64_t buffer, array; /* the next one */
} lines_walk;

/* The pieces of the lines at `at` of one array after the other; 0 if there are no more. */
static int lines_next(const halo *h, int64_t at, lines_walk *next, pieces *p) {
    const frame *f = h->f;
    next->buffer = frame_next(f->results, next->buffer);
    if (next->buffer == f->results->size) return 0;
    int64_t axis = f->arrays[ATTRIBUTE_AXES].items[next->array++ * f->arrays[ATTRIBUTE_WIDTH].size + h->dimension];
    *p = pieces_of(f->results->buffers[next->buffer++], axis, h->width, at);
    return 1;
}

/* Does the action with all of them, which lie in the message one after another. */
static int lines_each(const halo *h, int64_t at, pieces_action *act, char *message) {
    lines_walk next = {0};
    int64_t packed = 0;
    for (pieces p; lines_next(h, at, &next, &p); packed += p.number * p.size)
        if (act(&h->place, p, message ? message + packed : NULL)) return REFUSED;
    return 0;
}

static char *lines_first(const halo *h, int64_t at) {
    lines_walk next = {0};
    for (pieces p; lines_next(h, at, &next, &p);)
        if (p.number > 0) return p.first;
    return NULL;
}

/* One piece goes where it lies, if MPI or NCCL reads and writes the memory of the arrays. What comes and is to be added
 * may not be written over what it is added to. */
static void lines_measure(halo *h) {
    int64_t number = 0;
    lines_walk next = {0};
    h->bytes = 0;
    h->dtype = h->f->recv.dtype;
    for (pieces p; lines_next(h, 0, &next, &p);) {
        h->bytes += p.number * p.size;
        number += p.number;
        if (p.dtype != h->dtype) h->dtype = dtype_find(FFI_U8);
    }
    h->is_sent_in_place = number == 1 && !h->place.on_host;
    h->is_received_in_place = h->is_sent_in_place && !h->adds;
}

/* Messages */

static int has_neighbour(const halo *h, int sending, int64_t slot) {
    return facts_neighbours(&h->f->facts, sending)->ranks[slot] != MPIXLA_PROC_NULL;
}

/* Finds where messages are sent from and received, in the arrays or in a block of memory, and packs those that go from
 * there. */
static int transfers_prepare(halo *h, transfer both[2], pool_block **block) {
    int64_t bytes = (h->bytes + 15) / 16 * 16;
    if (!h->is_received_in_place) {
        const device *gpu = h->place.device;
        *block = pool_get(gpu, !gpu ? POOL_HOST : h->place.on_host ? POOL_PINNED : POOL_DEVICE, 4 * bytes);
        if (!*block) return REFUSED;
        /* For each direction what is sent, and what is received; pieces_add works in the one that is not needed. */
        both[0].sent = (*block)->data;
        both[0].received = both[0].sent + bytes;
        both[1].sent = both[0].received + bytes;
        both[1].received = both[1].sent + bytes;
        h->place.room = h->is_itself ? bytes : -bytes;
    }
    for (transfer *t = both; t < both + 2; t++) {
        if (h->is_received_in_place) t->received = lines_first(h, t->to);
        if (h->is_sent_in_place)
            t->sent = lines_first(h, t->from);
        else if (has_neighbour(h, 1, t->dest) && lines_each(h, t->from, pieces_pack, t->sent))
            return REFUSED;
    }
    return 0;
}

static message message_of(const halo *h, int is_sent, int64_t slot, char *data) {
    const topology_slots *slots = facts_neighbours(&h->f->facts, is_sent);
    return (message){.is_sent = is_sent,
                     .peer = slots->ranks[slot],
                     .tag = slots->tags[slot],
                     .slot = slot,
                     .data = data,
                     .items = h->bytes / h->dtype->row->itemsize,
                     .dtype = h->dtype};
}

static int transfers_make(const halo *h, const transfer both[2]) {
    frame *f = h->f;
    messages m;
    if (messages_begin(&m, f, 4)) return REFUSED;
    m.rule = "neighbours must pass arrays of the same types that differ in size only along the axis between them";
    for (int i = 0; i < 2; i++) messages_add(&m, message_of(h, 0, both[i].source, both[i].received));
    for (int i = 0; i < 2; i++) messages_add(&m, message_of(h, 1, both[i].dest, both[i].sent));
    return messages_run(&m, f);
}

/* What is sent is not what then changes, except that lines may be added to twice. */
static int transfers_finish(const halo *h, const transfer both[2]) {
    for (const transfer *t = both; t < both + 2; t++) {
        char *arrived = h->is_itself ? t->sent : t->received;
        int is_there = h->is_received_in_place && !h->is_itself;
        if (has_neighbour(h, 0, t->source) && !is_there &&
            lines_each(h, t->to, h->adds ? pieces_add : pieces_unpack, arrived))
            return REFUSED;
        if (h->adds && has_neighbour(h, 1, t->dest) && lines_each(h, t->from, pieces_clear, NULL)) return REFUSED;
    }
    return 0;
}

/* Dimensions */

/* MPI is given what is there; messages of a GPU's stream are behind the rest of its work. */
static int messages_are_ready(const halo *h) {
    const device *gpu = h->place.device;
    return !gpu || route_on_gpu(h->f)->messages_run || device_wait(gpu) == 0;
}

/* Lines at the borders go to the neighbours' ghosts; in the transpose ghosts go back the same ways. */
static int dimension_run(halo *h) {
    const int64_t w = h->width, low = 2 * h->dimension, high = low + 1;
    transfer exchanged[2] = {{.from = -2 * w, .dest = high, .source = low, .to = 0},
                             {.from = w, .dest = low, .source = high, .to = -w}};
    transfer given_back[2] = {{.from = 0, .dest = low, .source = high, .to = -2 * w},
                              {.from = -w, .dest = high, .source = low, .to = w}};
    transfer *both = h->adds ? given_back : exchanged;
    pool_block *block = NULL;
    int code = 0;
    lines_measure(h);
    int failed = transfers_prepare(h, both, &block);
    if (!failed && !h->is_itself) {
        failed = !messages_are_ready(h);
        if (!failed) code = transfers_make(h, both);
    }
    if (!failed && code == 0) failed = transfers_finish(h, both);
    pool_give_back(h->place.device, block);
    return failed ? job_fail(h->f->facts.communicator) : code;
}

static int dimensions_run(frame *f, int adds) {
    halo h = {.f = f, .adds = adds, .place = {.device = frame_array_device(f)}};
    int64_t dimensions = f->arrays[ATTRIBUTE_WIDTH].size, rank = f->facts.communicator->rank;
    int code = 0;
    h.place.on_host = h.place.device && (adds || !route_on_gpu(f)->reaches_gpu);
    if (pieces_results_fill(f)) return job_fail(f->facts.communicator);
    for (int64_t i = 0; i < dimensions && code == 0; i++) {
        h.dimension = adds ? dimensions - 1 - i : i; /* the transpose goes backwards */
        h.width = f->arrays[ATTRIBUTE_WIDTH].items[h.dimension];
        const int64_t *neighbours = &facts_neighbours(&f->facts, 1)->ranks[2 * h.dimension];
        h.is_itself = neighbours[0] == rank && neighbours[1] == rank;
        if (h.width > 0) code = dimension_run(&h);
    }
    return code;
}

int halo_exchange(frame *f) {
    return dimensions_run(f, 0);
}

int halo_transpose(frame *f) {
    for (int64_t i = frame_next(f->results, 0); i < f->results->size; i = frame_next(f->results, i + 1))
        if (pieces_check_adding(dtype_find(((const ffi_buffer *)f->results->buffers[i])->dtype))) return REFUSED;
    return dimensions_run(f, 1);
}
