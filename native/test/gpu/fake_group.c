/* Every operation is a few messages. A collective sends one to every other rank, many of them without data: so each
 * rank sees what the others call, and says so if it is not the same.
 */
#include "test/gpu/fake_group.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/gpu/fake_calls.h"
#include "test/gpu/fake_memory.h"
#include "test/gpu/fake_reduce.h"

/* NCCL, too, matches messages and collectives on their own. */
enum { LANE_MESSAGES, LANE_COLLECTIVES };

/* What goes before the data, to be compared. */
typedef struct head {
    uint64_t count;
    int32_t kind, type, op, root;
} head;

typedef struct message {
    const fake_operation *operation;
    struct message *before; /* must have ended first: it uses the same pipe */
    int peer, lane, is_send, has_ended;
    head ours, theirs;
    char *data;
    size_t bytes, done; /* of head and data */
} message;

typedef struct running {
    message *messages;
    size_t count;
    char **parts; /* for each operation, what the others contribute to a reduction, or NULL */
} running;

static int is_message(fake_kind kind) {
    return kind == FAKE_SEND || kind == FAKE_RECV;
}

static int has_root(fake_kind kind) {
    return kind == FAKE_REDUCE || kind == FAKE_BROADCAST;
}

static int has_op(fake_kind kind) {
    return kind == FAKE_ALL_REDUCE || kind == FAKE_REDUCE || kind == FAKE_REDUCE_SCATTER;
}

static void describe(int kind, uint64_t count, int type, int op, int peer, char *text, size_t bytes) {
    static const char *const names[] = {"ncclAllReduce", "ncclReduce", "ncclReduceScatter", "ncclBroadcast",
                                        "ncclAllGather", "ncclSend",   "ncclRecv"};
    const char *word = kind == FAKE_SEND ? "to rank" : kind == FAKE_RECV ? "from rank" : "with root";
    int length =
        snprintf(text, bytes, "%s of %llu %s", names[kind], (unsigned long long)count, fake_reduce_type_name(type));
    if (has_op((fake_kind)kind))
        length += snprintf(text + length, bytes - (size_t)length, ", %s", fake_reduce_op_name(op));
    if (is_message((fake_kind)kind) || has_root((fake_kind)kind))
        snprintf(text + length, bytes - (size_t)length, " %s %d", word, peer);
}

void fake_operation_describe(const fake_operation *o, char *text, size_t bytes) {
    describe((int)o->kind, o->count, o->type, o->op, o->peer, text, bytes);
}

static size_t bytes_of(const fake_operation *o) {
    return o->count * fake_reduce_itemsize(o->type);
}

size_t fake_operation_reads(const fake_operation *o) {
    if (o->kind == FAKE_RECV || (o->kind == FAKE_BROADCAST && o->comm->rank != o->peer)) return 0;
    return bytes_of(o) * (o->kind == FAKE_REDUCE_SCATTER ? (size_t)o->comm->size : 1);
}

size_t fake_operation_writes(const fake_operation *o) {
    if (o->kind == FAKE_SEND || (o->kind == FAKE_REDUCE && o->comm->rank != o->peer)) return 0;
    return bytes_of(o) * (o->kind == FAKE_ALL_GATHER ? (size_t)o->comm->size : 1);
}

/* Something went wrong with an operation: all ranks of its communicator hear of it. */
static void fail(const fake_operation *o, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void fail(const fake_operation *o, int code, const char *format, ...) {
    char text[WIRE_SENTENCE];
    int none = FAKE_NCCL_SUCCESS;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    wire_fail(o->comm->wire, text);
    atomic_compare_exchange_strong(&o->comm->error, &none, code);
    fake_complain("%s", text);
}

/* The engine's memory of a part of what the operation reads or writes. */
static char *engine(const void *start, size_t offset) {
    return start ? (char *)fake_memory_engine(start) + offset : NULL;
}

/* What the operation sends to another rank: how much, and from where. */
static size_t part_sent(const fake_operation *o, int to, char **data) {
    size_t bytes = bytes_of(o);
    int rank = o->comm->rank;
    *data = engine(o->from, o->kind == FAKE_REDUCE_SCATTER ? (size_t)to * bytes : 0);
    if ((o->kind == FAKE_REDUCE && to != o->peer) || (o->kind == FAKE_BROADCAST && rank != o->peer)) return 0;
    return bytes;
}

/* What it receives. `parts` has room for what all ranks contribute to a reduction. */
static size_t part_received(const fake_operation *o, int from, char *parts, char **data) {
    size_t bytes = bytes_of(o);
    int rank = o->comm->rank;
    if (has_op(o->kind)) {
        *data = parts ? parts + (size_t)from * bytes : NULL;
        return o->kind == FAKE_REDUCE && rank != o->peer ? 0 : bytes;
    }
    *data = engine(o->to, o->kind == FAKE_ALL_GATHER ? (size_t)from * bytes : 0);
    return o->kind == FAKE_BROADCAST && from != o->peer ? 0 : bytes;
}

static void message_add(running *r, const fake_operation *o, int peer, int is_send, char *parts) {
    message *m = &r->messages[r->count];
    *m = (message){.operation = o, .peer = peer, .is_send = is_send};
    m->lane = is_message(o->kind) ? LANE_MESSAGES : LANE_COLLECTIVES;
    /* Both sides of a message are to say the same. */
    m->ours = (head){.count = o->count,
                     .kind = o->kind == FAKE_RECV ? FAKE_SEND : (int32_t)o->kind,
                     .type = o->type,
                     .op = has_op(o->kind) ? o->op : 0,
                     .root = has_root(o->kind) ? o->peer : 0};
    m->bytes = is_send ? part_sent(o, peer, &m->data) : part_received(o, peer, parts, &m->data);
    for (message *other = r->messages; other < m; other++)
        if (other->operation->comm == o->comm && other->peer == peer && other->lane == m->lane &&
            other->is_send == is_send)
            m->before = other;
    r->count++;
}

static int memory_is_wrong(const fake_operation *o) {
    char what[160];
    const char *from = fake_operation_reads(o) ? fake_memory_wrong(o->from, fake_operation_reads(o)) : NULL;
    const char *to = fake_operation_writes(o) ? fake_memory_wrong(o->to, fake_operation_writes(o)) : NULL;
    if (!from && !to) return 0;
    fake_operation_describe(o, what, sizeof what);
    fail(o, FAKE_NCCL_CUDA, "when the stream came to it, memory of %s %s", what, from ? from : to);
    return 1;
}

/* Reads or writes what it can of a message's head and data. Returns whether anything moved. */
static int message_move(message *m) {
    wire *w = m->operation->comm->wire;
    size_t before = m->done, total = sizeof m->ours + m->bytes;
    if (wire_failure(w)) return 0; /* what comes after a head that does not fit is not for this message */
    for (;;) {
        int in_head = m->done < sizeof m->ours;
        char *at = in_head ? (m->is_send ? (char *)&m->ours : (char *)&m->theirs) + m->done
                           : m->data + (m->done - sizeof m->ours);
        size_t left = (in_head ? sizeof m->ours : total) - m->done;
        size_t moved = left == 0    ? 0
                       : m->is_send ? wire_write(w, m->peer, m->lane, at, left)
                                    : wire_read(w, m->peer, m->lane, at, left);
        m->done += moved;
        if (in_head && m->done == sizeof m->ours && !m->is_send && memcmp(&m->ours, &m->theirs, sizeof m->ours) != 0) {
            char mine[160], other[160];
            fake_operation_describe(m->operation, mine, sizeof mine);
            describe(m->theirs.kind, m->theirs.count, m->theirs.type, m->theirs.op,
                     m->theirs.kind == FAKE_SEND ? m->operation->comm->rank : m->theirs.root, other, sizeof other);
            fail(m->operation, FAKE_NCCL_INTERNAL, "rank %d calls %s, but rank %d calls %s", m->operation->comm->rank,
                 mine, m->peer, other);
        }
        if (moved == 0 || wire_failure(w)) break;
    }
    /* A send lasts until it is received, as a real one may: what is not grouped locks up. */
    m->has_ended = m->done == total && (!m->is_send || m->lane != LANE_MESSAGES || wire_is_read(w, m->peer, m->lane));
    return m->done > before;
}

/* Whether the operations cannot go on any more; says why. */
static int is_over(const running *r, double *since) {
    int too_long = wire_pause(since);
    for (size_t i = 0; i < r->count; i++) {
        const message *m = &r->messages[i];
        const fake_operation *o = m->operation;
        char what[160];
        if (m->has_ended) continue;
        if (atomic_load(&o->comm->is_aborted)) return 1;
        if (wire_failure(o->comm->wire)) {
            fail(o, FAKE_NCCL_REMOTE, "%s", wire_failure(o->comm->wire));
            return 1;
        }
        fake_operation_describe(o, what, sizeof what);
        /* What the peer did before it left may have ended the message meanwhile. */
        if (!m->before && wire_has_left(o->comm->wire, m->peer) && !message_move(r->messages + i) && !m->has_ended) {
            fail(o, FAKE_NCCL_REMOTE, "rank %d calls %s, but rank %d has left the communicator", o->comm->rank, what,
                 m->peer);
            return 1;
        }
        if (too_long) {
            fail(o, FAKE_NCCL_SYSTEM, "rank %d waited too long for rank %d in %s", o->comm->rank, m->peer, what);
            return 1;
        }
    }
    return 0;
}

static int has_failed(const running *r) {
    for (size_t i = 0; i < r->count; i++)
        if (atomic_load(&r->messages[i].operation->comm->error)) return 1;
    return 0;
}

/* Returns whether all messages arrived, and fitted. */
static int messages_pieces_move(running *r) {
    double since = 0;
    for (;;) {
        int moved = 0, left = 0;
        for (size_t i = 0; i < r->count; i++) {
            message *m = &r->messages[i];
            if (m->has_ended) continue;
            if (m->before && m->before->has_ended) m->before = NULL;
            if (!m->before) moved |= message_move(m);
            left += !m->has_ended;
        }
        if (left == 0) return !has_failed(r);
        if (moved)
            since = 0;
        else if (is_over(r, &since))
            return 0;
    }
}

/* When all is there: reductions in the order of the ranks, so that all have equal results, and copies to oneself. */
static void operation_end(const fake_operation *o, char *parts) {
    size_t bytes = bytes_of(o);
    int rank = o->comm->rank;
    if (bytes == 0) return;
    if (o->kind == FAKE_ALL_GATHER) {
        memmove(engine(o->to, (size_t)rank * bytes), engine(o->from, 0), bytes);
    } else if (o->kind == FAKE_BROADCAST && rank == o->peer) {
        memmove(engine(o->to, 0), engine(o->from, 0), bytes);
    } else if (has_op(o->kind) && parts) {
        memcpy(parts + (size_t)rank * bytes, engine(o->from, o->kind == FAKE_REDUCE_SCATTER ? (size_t)rank * bytes : 0),
               bytes);
        for (int i = 1; i < o->comm->size; i++) fake_reduce(parts, parts + (size_t)i * bytes, o->count, o->type, o->op);
        memcpy(engine(o->to, 0), parts, bytes);
    }
}

static void *allocate(size_t count, size_t bytes) {
    void *memory = calloc(count + 1, bytes);
    if (!memory) abort();
    return memory;
}

void fake_group_run(const fake_operation *operations, size_t count) {
    running r = {.count = 0};
    size_t messages = 0;
    int goes = 1;
    for (size_t i = 0; i < count; i++) {
        const fake_comm *comm = operations[i].comm;
        if (atomic_load(&comm->is_aborted) || atomic_load(&comm->error) || memory_is_wrong(&operations[i])) goes = 0;
        messages += is_message(operations[i].kind) ? 1 : 2 * (size_t)comm->size;
    }
    if (!goes) return;
    r.messages = allocate(messages, sizeof *r.messages);
    r.parts = allocate(count, sizeof *r.parts);
    for (size_t i = 0; i < count; i++) {
        const fake_operation *o = &operations[i];
        if (is_message(o->kind)) {
            message_add(&r, o, o->peer, o->kind == FAKE_SEND, NULL);
            continue;
        }
        if (has_op(o->kind) && (o->kind != FAKE_REDUCE || o->comm->rank == o->peer))
            r.parts[i] = allocate((size_t)o->comm->size, bytes_of(o));
        for (int peer = 0; peer < o->comm->size; peer++)
            for (int is_send = 0; is_send < 2 && peer != o->comm->rank; is_send++)
                message_add(&r, o, peer, is_send, r.parts[i]);
    }
    if (messages_pieces_move(&r))
        for (size_t i = 0; i < count; i++) operation_end(&operations[i], r.parts[i]);
    for (size_t i = 0; i < count; i++) free(r.parts[i]);
    free(r.parts);
    free(r.messages);
}
