/* Dimension by dimension, each block sends whole lines at its border, including the ghosts at their ends: so corners
 * are filled without messages to diagonal neighbours, and a message is a few equal pieces of each array, at equal
 * distances.
 *
 * The pieces of all arrays are one message. A message of one piece is sent and received in place; else it is packed
 * here, since a derived type of MPI for several arrays would have to be made again whenever XLA moves one of them. A
 * rank that is its own neighbour copies.
 */
#include "neighbours/halo.h"

#include "call/route.h"
#include "device/pool.h"
#include "mpi/job.h"
#include "neighbours/messages.h"
#include "ops/pieces.h"

/* The state of a call in one dimension. `width` lines are given by their first index along the axis; a negative index
 * counts from the end. */
typedef struct halo {
    frame *f;
    int adds; /* the call is the transpose */
    pieces_place place;
    int64_t dimension, width;
    int is_own_neighbour;     /* this rank is its own neighbour on both sides */
    int64_t bytes;            /* of a message, the same for all lines */
    const dtype_entry *dtype; /* of a message; bytes if the types of the arrays differ */
    int is_sent_in_place, is_received_in_place;
} halo;

/* One of the two directions of a dimension: the message sent in this direction, and the one received from the other
 * side. */
typedef struct halo_transfer {
    int64_t from, to;      /* the lines that are sent, and those that receive */
    int64_t dest, source;  /* slots of the neighbours */
    char *sent, *received; /* the messages */
} halo_transfer;

/* Lines */

typedef struct halo_lines_walk {
    int64_t buffer, array; /* the next one */
} halo_lines_walk;

/* Sets `*p` to the pieces of the lines from index `at` on in the next array. Returns 0 behind the last array. */
static int halo_lines_next(const halo *h, int64_t at, halo_lines_walk *next, pieces *p) {
    const frame *f = h->f;
    next->buffer = frame_buffer_next(f->results, next->buffer);
    if (next->buffer == f->results->size) return 0;
    int64_t axis = f->arrays[ATTRIBUTE_AXES].items[next->array++ * f->arrays[ATTRIBUTE_WIDTH].size + h->dimension];
    *p = pieces_of(f->results->buffers[next->buffer++], axis, h->width, at);
    return 1;
}

/* Packs, unpacks, adds or clears (`act`) the lines from index `at` on of all arrays, whose pieces follow each other in
 * the message. Returns 0 or REFUSED. */
static int halo_lines_apply(const halo *h, int64_t at, pieces_action *act, char *message) {
    halo_lines_walk next = {0};
    int64_t packed = 0;
    for (pieces p; halo_lines_next(h, at, &next, &p); packed += p.number * p.size)
        if (act(&h->place, p, message ? message + packed : NULL)) return REFUSED;
    return 0;
}

/* Returns the address of the first piece of the lines from index `at` on that is not empty; NULL if there is none. */
static char *halo_lines_first(const halo *h, int64_t at) {
    halo_lines_walk next = {0};
    for (pieces p; halo_lines_next(h, at, &next, &p);)
        if (p.number > 0) return p.first;
    return NULL;
}

/* Sets h->bytes and h->dtype, the size and the type of a dimension's messages, and whether they are sent and received
 * in place: if a message is one piece, and MPI or NCCL reads and writes the memory of the arrays. In the transpose it
 * is not received in place, as it is added. */
static void halo_message_measure(halo *h) {
    int64_t number = 0;
    halo_lines_walk next = {0};
    h->bytes = 0;
    h->dtype = h->f->recv.dtype;
    for (pieces p; halo_lines_next(h, 0, &next, &p);) {
        h->bytes += p.number * p.size;
        number += p.number;
        if (p.dtype != h->dtype) h->dtype = dtype_find(FFI_U8);
    }
    h->is_sent_in_place = number == 1 && !h->place.on_host;
    h->is_received_in_place = h->is_sent_in_place && !h->adds;
}

/* Messages */

/* Returns whether the slot has a neighbour to send to, or to receive from; else it is at a wall. */
static int halo_has_neighbour(const halo *h, int sending, int64_t slot) {
    return facts_neighbours(&h->f->facts, sending)->ranks[slot] != MPIXLA_PROC_NULL;
}

/* Sets the addresses of a dimension's messages, in the arrays or in a block of scratch memory (`*block`), and packs the
 * messages to send; with a block also sets h->place.room. Returns 0 or REFUSED. The caller gives the block back in both
 * cases. */
static int halo_transfers_prepare(halo *h, halo_transfer both[2], pool_block **block) {
    int64_t bytes = (h->bytes + 15) / 16 * 16;
    if (!h->is_received_in_place) {
        const device *gpu = h->place.device;
        *block = pool_get(gpu, !gpu ? POOL_HOST : h->place.on_host ? POOL_PINNED : POOL_DEVICE, 4 * bytes);
        if (!*block) return REFUSED;
        /* For each direction the sent and the received message; pieces_add uses the unused one of the two as scratch
         * memory. */
        both[0].sent = (*block)->data;
        both[0].received = both[0].sent + bytes;
        both[1].sent = both[0].received + bytes;
        both[1].received = both[1].sent + bytes;
        h->place.room = h->is_own_neighbour ? bytes : -bytes;
    }
    for (halo_transfer *t = both; t < both + 2; t++) {
        if (h->is_received_in_place) t->received = halo_lines_first(h, t->to);
        if (h->is_sent_in_place)
            t->sent = halo_lines_first(h, t->from);
        else if (halo_has_neighbour(h, 1, t->dest) && halo_lines_apply(h, t->from, pieces_pack, t->sent))
            return REFUSED;
    }
    return 0;
}

/* Returns the message to send to, or to receive from, the neighbour of a slot. */
static message halo_message_of(const halo *h, int is_sent, int64_t slot, char *data) {
    const topology_slots *slots = facts_neighbours(&h->f->facts, is_sent);
    return (message){.is_sent = is_sent,
                     .peer = slots->ranks[slot],
                     .tag = slots->tags[slot],
                     .slot = slot,
                     .data = data,
                     .items = h->bytes / h->dtype->row->itemsize,
                     .dtype = h->dtype};
}

/* Sends and receives the messages of both directions. Returns as messages_run. */
static int halo_transfers_run(const halo *h, const halo_transfer both[2]) {
    frame *f = h->f;
    messages m;
    if (messages_begin(&m, f, 4)) return REFUSED;
    m.rule = "neighbours must pass arrays of the same types that differ in size only along the axis between them";
    for (int i = 0; i < 2; i++) messages_add(&m, halo_message_of(h, 0, both[i].source, both[i].received));
    for (int i = 0; i < 2; i++) messages_add(&m, halo_message_of(h, 1, both[i].dest, both[i].sent));
    return messages_run(&m, f);
}

/* Unpacks, or adds, the received messages; in the transpose also clears the sent ghosts. Returns 0 or REFUSED. Lines
 * that are sent do not change, but lines may be added to twice. */
static int halo_transfers_finish(const halo *h, const halo_transfer both[2]) {
    for (const halo_transfer *t = both; t < both + 2; t++) {
        char *arrived = h->is_own_neighbour ? t->sent : t->received;
        int is_there = h->is_received_in_place && !h->is_own_neighbour;
        if (halo_has_neighbour(h, 0, t->source) && !is_there &&
            halo_lines_apply(h, t->to, h->adds ? pieces_add : pieces_unpack, arrived))
            return REFUSED;
        if (h->adds && halo_has_neighbour(h, 1, t->dest) && halo_lines_apply(h, t->from, pieces_clear, NULL))
            return REFUSED;
    }
    return 0;
}

/* Dimensions */

/* Waits until the GPU has written the messages, unless the stream itself sends them. Returns whether that succeeded. */
static int halo_messages_await(const halo *h) {
    const device *gpu = h->place.device;
    return !gpu || route_on_gpu(h->f)->messages_run || device_wait(gpu) == 0;
}

/* Exchanges the lines of one dimension: lines at the borders go to the neighbours' ghosts; in the transpose ghosts go
 * back. Returns 0 or an error code; a local failure ends the job, or returns REFUSED on one rank (job_fail). */
static int halo_dimension_run(halo *h) {
    const int64_t w = h->width, low = 2 * h->dimension, high = low + 1;
    halo_transfer exchanged[2] = {{.from = -2 * w, .dest = high, .source = low, .to = 0},
                                  {.from = w, .dest = low, .source = high, .to = -w}};
    halo_transfer given_back[2] = {{.from = 0, .dest = low, .source = high, .to = -2 * w},
                                   {.from = -w, .dest = high, .source = low, .to = w}};
    halo_transfer *both = h->adds ? given_back : exchanged;
    pool_block *block = NULL;
    int code = 0;
    halo_message_measure(h);
    int failed = halo_transfers_prepare(h, both, &block);
    if (!failed && !h->is_own_neighbour) {
        failed = !halo_messages_await(h);
        if (!failed) code = halo_transfers_run(h, both);
    }
    if (!failed && code == 0) failed = halo_transfers_finish(h, both);
    pool_give_back(h->place.device, block);
    return failed ? job_fail(h->f->facts.communicator) : code;
}

/* Runs a halo exchange, or with `adds` its transpose, dimension by dimension. Returns 0 or an error code; a
 * local failure ends the job, or returns REFUSED on one rank (job_fail). */
static int halo_run(frame *f, int adds) {
    halo h = {.f = f, .adds = adds, .place = {.device = frame_array_device(f)}};
    int64_t dimensions = f->arrays[ATTRIBUTE_WIDTH].size, rank = f->facts.communicator->rank;
    int code = 0;
    h.place.on_host = h.place.device && (adds || !route_on_gpu(f)->reaches_gpu);
    if (pieces_operands_copy(f)) return job_fail(f->facts.communicator);
    for (int64_t i = 0; i < dimensions && code == 0; i++) {
        h.dimension = adds ? dimensions - 1 - i : i; /* the transpose goes backwards */
        h.width = f->arrays[ATTRIBUTE_WIDTH].items[h.dimension];
        const int64_t *neighbours = &facts_neighbours(&f->facts, 1)->ranks[2 * h.dimension];
        h.is_own_neighbour = neighbours[0] == rank && neighbours[1] == rank;
        if (h.width > 0) code = halo_dimension_run(&h);
    }
    return code;
}

int halo_exchange(frame *f) {
    return halo_run(f, 0);
}

int halo_transpose(frame *f) {
    for (int64_t i = frame_buffer_next(f->results, 0); i < f->results->size; i = frame_buffer_next(f->results, i + 1))
        if (pieces_add_check(dtype_find(((const ffi_buffer *)f->results->buffers[i])->dtype))) return REFUSED;
    return halo_run(f, 1);
}
