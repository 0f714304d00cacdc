/* A function here notes its call, checks what it is given, and puts operations on the stream. */
#include "test/gpu/fake_nccl.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "test/gpu/fake_access.h"
#include "test/gpu/fake_calls.h"
#include "test/gpu/fake_context.h"
#include "test/gpu/fake_group.h"
#include "test/gpu/fake_memory.h"
#include "test/gpu/fake_reduce.h"
#include "test/gpu/fake_stream.h"

static const char prefix[] = "/mpixla-fake-nccl-";

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static fake_comm *comms; /* those that ended stay, so that no handle is used again */
static atomic_llong live;

static _Thread_local char last_error[512];

/* The group that this thread is in. */
static _Thread_local struct {
    int depth;
    int code; /* of the first operation that was refused */
    fake_operation *operations;
    size_t count, room;
    fake_stream *stream;
} group;

/* Where an operation fails, so does its group. */
static int group_note(int code) {
    if (group.depth > 0 && group.code == FAKE_NCCL_SUCCESS) group.code = code;
    return code;
}

static int refuse(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int refuse(int code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    fake_complain("%s", last_error);
    return code;
}

/* How every function begins. */
#define ENTER(function, bytes)                                                                 \
    do {                                                                                       \
        int code_ = fake_call(FAKE_##function, bytes);                                         \
        fake_access_release();                                                                 \
        if (code_ != FAKE_NCCL_SUCCESS) return code_ == FAKE_SKIP ? FAKE_NCCL_SUCCESS : code_; \
    } while (0)

static int version(void) {
    return (int)fake_setting("MPIXLA_FAKE_NCCL_VERSION", 23004);
}

int ncclGetVersion(int *number) {
    ENTER(ncclGetVersion, 0);
    *number = version();
    return FAKE_NCCL_SUCCESS;
}

int ncclGetUniqueId(nccl_id *id) {
    static atomic_uint made;
    struct timespec now;
    ENTER(ncclGetUniqueId, 0);
    clock_gettime(CLOCK_REALTIME, &now);
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "%s%ld-%u-%lld%09ld", prefix, (long)getpid(),
             atomic_fetch_add(&made, 1), (long long)now.tv_sec, now.tv_nsec);
    return FAKE_NCCL_SUCCESS;
}

const char *ncclGetErrorString(int code) {
    static const char *const texts[] = {"no error",
                                        "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
                                        "unhandled system error (run with NCCL_DEBUG=INFO for details)",
                                        "internal error - please report this issue to the NCCL developers",
                                        "invalid argument (run with NCCL_DEBUG=WARN for details)",
                                        "invalid usage (run with NCCL_DEBUG=WARN for details)",
                                        "remote process exited or there was a network error",
                                        "NCCL operation in progress"};
    fake_call(FAKE_ncclGetErrorString, 0);
    return code >= 0 && (size_t)code < sizeof texts / sizeof texts[0] ? texts[code] : "unknown result code";
}

const char *ncclGetLastError(nccl_comm comm) {
    (void)comm;
    fake_call(FAKE_ncclGetLastError, 0);
    return last_error;
}

static fake_comm *comm_find(nccl_comm handle) {
    pthread_mutex_lock(&lock);
    fake_comm *c = comms;
    while (c && !(c->is_live && c == handle)) c = c->next;
    pthread_mutex_unlock(&lock);
    return c;
}

/* The communicator's call has returned `code`. */
static int comm_note(nccl_comm handle, int code) {
    fake_comm *comm = code != FAKE_NCCL_SUCCESS ? comm_find(handle) : NULL;
    if (comm) atomic_store(&comm->has_failed, 1);
    return code;
}

/* Two ranks on one GPU, or 0. */
static int comm_shares(const wire *w, int size, int *one, int *other) {
    const char *enabled = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    if (version() >= 23000 && enabled && strcmp(enabled, "1") == 0) return 0;
    for (*one = 0; *one < size; ++*one)
        for (*other = *one + 1; *other < size; ++*other) {
            driver_uuid a = wire_uuid(w, *one), b = wire_uuid(w, *other);
            if (memcmp(&a, &b, sizeof a) == 0) return 1;
        }
    return 0;
}

int ncclCommInitRank(nccl_comm *handle, int size, nccl_id id, int rank) {
    char text[WIRE_SENTENCE];
    int one, other;
    ENTER(ncclCommInitRank, 0);
    id.internal[sizeof id.internal - 1] = '\0';
    /* As the real one, which asks CUDA's runtime, this takes the first device where none is current. */
    int device = fake_context_current() < 0 ? 0 : fake_context_current();
    if (device >= fake_devices()) return refuse(FAKE_NCCL_CUDA, "ncclCommInitRank: there is no GPU");
    if (group.depth > 0) return refuse(FAKE_NCCL_INVALID_USAGE, "the fake NCCL makes no communicators within a group");
    if (size < 1 || size > WIRE_RANKS || rank < 0 || rank >= size)
        return refuse(FAKE_NCCL_INVALID_ARGUMENT, "ncclCommInitRank: %d is no rank of %d", rank, size);
    if (strncmp(id.internal, prefix, sizeof prefix - 1) != 0)
        return refuse(FAKE_NCCL_INVALID_ARGUMENT, "ncclCommInitRank was given an id that ncclGetUniqueId did not make");
    driver_uuid uuid = fake_device_uuid(device);
    wire *w = wire_join(id.internal, size, rank, &uuid, text, sizeof text);
    if (!w) return refuse(FAKE_NCCL_SYSTEM, "ncclCommInitRank: %s", text);
    if (comm_shares(w, size, &one, &other)) {
        wire_free(w);
        return refuse(FAKE_NCCL_INVALID_USAGE, "Duplicate GPU detected : rank %d and rank %d both on one GPU", one,
                      other);
    }
    fake_comm *comm = calloc(1, sizeof *comm);
    if (!comm) abort();
    comm->is_live = 1;
    comm->wire = w;
    comm->size = size;
    comm->rank = rank;
    comm->device = device;
    pthread_mutex_lock(&lock);
    comm->next = comms;
    comms = comm;
    live++;
    pthread_mutex_unlock(&lock);
    *handle = comm;
    return FAKE_NCCL_SUCCESS;
}

static void comm_end(fake_comm *comm) {
    pthread_mutex_lock(&lock);
    comm->is_live = 0;
    live--;
    pthread_mutex_unlock(&lock);
    wire_leave(comm->wire);
    if (atomic_load(&comm->late) == 0) wire_free(comm->wire);
}

int ncclCommDestroy(nccl_comm handle) {
    ENTER(ncclCommDestroy, 0);
    fake_comm *comm = comm_find(handle);
    if (!comm) return refuse(FAKE_NCCL_INVALID_ARGUMENT, "ncclCommDestroy was given no communicator, or a dead one");
    if (atomic_load(&comm->has_failed) || atomic_load(&comm->error))
        return refuse(FAKE_NCCL_INVALID_USAGE,
                      "ncclCommDestroy waits for ever: the communicator has failed, and must be aborted");
    if (atomic_load(&comm->late) > 0)
        return refuse(FAKE_NCCL_INVALID_USAGE,
                      "a communicator was destroyed while the stream still had %d of its operations to run",
                      atomic_load(&comm->late));
    comm_end(comm);
    return FAKE_NCCL_SUCCESS;
}

/* What is late on the stream does nothing when its turn comes. */
int ncclCommAbort(nccl_comm handle) {
    ENTER(ncclCommAbort, 0);
    fake_comm *comm = comm_find(handle);
    if (!comm) return refuse(FAKE_NCCL_INVALID_ARGUMENT, "ncclCommAbort was given no communicator, or a dead one");
    atomic_store(&comm->is_aborted, 1);
    comm_end(comm);
    return FAKE_NCCL_SUCCESS;
}

int ncclCommGetAsyncError(nccl_comm handle, int *error) {
    int injected = fake_call(FAKE_ncclCommGetAsyncError, 0);
    const fake_comm *comm = comm_find(handle);
    if (!comm)
        return refuse(FAKE_NCCL_INVALID_ARGUMENT, "ncclCommGetAsyncError was given no communicator, or a dead one");
    *error = injected ? injected : atomic_load(&comm->error);
    if (*error != NCCL_IN_PROGRESS) (void)comm_note(handle, *error);
    return FAKE_NCCL_SUCCESS;
}

int64_t fake_comms_live(void) {
    return atomic_load(&live);
}

/* Groups */
typedef struct late_group {
    size_t count;
    fake_operation operations[];
} late_group;

static void late_run(void *data) {
    late_group *late = data;
    fake_group_run(late->operations, late->count);
    for (size_t i = 0; i < late->count; i++) atomic_fetch_sub(&late->operations[i].comm->late, 1);
    free(late);
}

static int overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes) {
    uintptr_t p = (uintptr_t)a, q = (uintptr_t)b;
    return a_bytes > 0 && b_bytes > 0 && p < q + b_bytes && q < p + a_bytes;
}

/* What a group writes, nothing else in it may read or write; the operations themselves were looked at before. */
static int group_overlaps(void) {
    for (size_t i = 0; i < group.count; i++)
        for (size_t j = 0; j < group.count; j++) {
            const fake_operation *a = &group.operations[i], *b = &group.operations[j];
            size_t written = fake_operation_writes(a);
            if (i != j && (overlap(a->to, written, b->to, fake_operation_writes(b)) ||
                           overlap(a->to, written, b->from, fake_operation_reads(b)))) {
                char one[160], other[160];
                fake_operation_describe(a, one, sizeof one);
                fake_operation_describe(b, other, sizeof other);
                refuse(FAKE_NCCL_INVALID_USAGE, "within a group, %s writes where %s reads or writes", one, other);
                return 1;
            }
        }
    return 0;
}

/* A message to oneself must be sent and received in one group. */
static int group_is_alone(void) {
    for (size_t i = 0; i < group.count; i++) {
        const fake_operation *o = &group.operations[i];
        int balance = 0;
        for (size_t j = 0; j < group.count; j++) {
            const fake_operation *other = &group.operations[j];
            if (other->comm == o->comm && other->peer == o->comm->rank)
                balance += other->kind == FAKE_SEND ? 1 : other->kind == FAKE_RECV ? -1 : 0;
        }
        if (balance != 0) {
            refuse(FAKE_NCCL_INVALID_USAGE, "rank %d %s itself more messages than it %s within the group",
                   o->comm->rank, balance > 0 ? "sends" : "receives from", balance > 0 ? "receives" : "sends");
            return 1;
        }
    }
    return 0;
}

int fake_nccl_group_drop(void) {
    int was_open = group.depth > 0;
    free(group.operations);
    memset(&group, 0, sizeof group);
    return was_open;
}

/* The group is complete: its operations go onto the stream. */
static int group_issue(void) {
    int code = group.code;
    if (code == FAKE_NCCL_SUCCESS && group.count > 0) {
        if (group_overlaps() || group_is_alone()) {
            code = FAKE_NCCL_INVALID_USAGE;
        } else {
            late_group *late = malloc(sizeof *late + group.count * sizeof late->operations[0]);
            if (!late) abort();
            late->count = group.count;
            for (size_t i = 0; i < group.count; i++) {
                late->operations[i] = group.operations[i];
                atomic_fetch_add(&group.operations[i].comm->late, 1);
            }
            const fake_work work = {.call = late_run, .data = late};
            if (fake_stream_add(group.stream, &work)) abort();
        }
    }
    fake_nccl_group_drop();
    return code;
}

int ncclGroupStart(void) {
    ENTER(ncclGroupStart, 0);
    group.depth++;
    return FAKE_NCCL_SUCCESS;
}

/* It ends the group, whatever it returns. */
int ncclGroupEnd(void) {
    int code = fake_call(FAKE_ncclGroupEnd, 0);
    fake_access_release();
    if (code == FAKE_SKIP) return FAKE_NCCL_SUCCESS;
    if (group.depth == 0) return refuse(FAKE_NCCL_INVALID_USAGE, "ncclGroupEnd without ncclGroupStart");
    if (code != FAKE_NCCL_SUCCESS) group_note(code);
    return --group.depth > 0 ? FAKE_NCCL_SUCCESS : group_issue();
}

/* Operations */
static int memory_is_wrong(const char *side, const void *memory, size_t bytes, size_t itemsize, const char *what) {
    const char *wrong = bytes > 0 ? fake_memory_wrong(memory, bytes) : NULL;
    if (!wrong && bytes > 0 && (uintptr_t)memory % itemsize != 0) wrong = "is not aligned to its type";
    if (wrong) refuse(FAKE_NCCL_INVALID_ARGUMENT, "%s: the %s, %zu bytes at %p, %s", what, side, bytes, memory, wrong);
    return wrong != NULL;
}

/* What an operation reads and writes are one memory, or have nothing in common. */
static int is_in_place(const fake_operation *o) {
    size_t bytes = o->count * fake_reduce_itemsize(o->type), offset = (size_t)o->comm->rank * bytes;
    const char *from = o->from, *to = o->to;
    if (!overlap(from, fake_operation_reads(o), to, fake_operation_writes(o))) return 1;
    if (o->kind == FAKE_ALL_GATHER) return from == to + offset;
    if (o->kind == FAKE_REDUCE_SCATTER) return to == from + offset;
    return from == to;
}

static int check(const fake_operation *o, driver_stream handle, const fake_stream *stream) {
    char what[160];
    size_t itemsize = fake_reduce_itemsize(o->type);
    int error = atomic_load(&o->comm->error);
    if (itemsize == 0) return refuse(FAKE_NCCL_INVALID_ARGUMENT, "the fake NCCL has no type %d", o->type);
    fake_operation_describe(o, what, sizeof what);
    if (error) return refuse(error, "%s: the communicator has the asynchronous error %d already", what, error);
    if (!stream) return refuse(FAKE_NCCL_INVALID_ARGUMENT, "%s was given %p, which is no stream", what, handle);
    if (fake_stream_device(stream) != o->comm->device)
        return refuse(FAKE_NCCL_INVALID_USAGE, "%s: the stream is of device %d, the communicator of device %d", what,
                      fake_stream_device(stream), o->comm->device);
    if (o->op < 0 || o->op >= FAKE_REDUCTIONS)
        return refuse(FAKE_NCCL_INVALID_ARGUMENT, "%s: the fake NCCL has no reduction %d", what, o->op);
    if (o->peer < 0 || o->peer >= o->comm->size)
        return refuse(FAKE_NCCL_INVALID_ARGUMENT, "%s: the communicator has %d ranks", what, o->comm->size);
    if (memory_is_wrong("source", o->from, fake_operation_reads(o), itemsize, what) ||
        memory_is_wrong("destination", o->to, fake_operation_writes(o), itemsize, what))
        return FAKE_NCCL_INVALID_ARGUMENT;
    if (!is_in_place(o))
        return refuse(FAKE_NCCL_INVALID_USAGE, "%s: source and destination overlap in another way than in place", what);
    if (group.count > 0 && group.stream != stream)
        return refuse(FAKE_NCCL_INVALID_USAGE, "the fake NCCL takes a group on one stream only");
    return FAKE_NCCL_SUCCESS;
}

static void group_add(const fake_operation *o, fake_stream *stream) {
    if (group.count == group.room) {
        group.room = group.room ? 2 * group.room : 16;
        group.operations = realloc(group.operations, group.room * sizeof *o);
        if (!group.operations) abort();
    }
    group.operations[group.count++] = *o;
    group.stream = stream;
}

static int issue(const char *function, fake_operation o, nccl_comm handle, driver_stream stream_handle) {
    o.comm = comm_find(handle);
    fake_stream *stream = fake_stream_find(stream_handle);
    int code = o.comm ? check(&o, stream_handle, stream)
                      : refuse(FAKE_NCCL_INVALID_ARGUMENT, "%s was given no communicator, or a dead one", function);
    if (code == FAKE_NCCL_SUCCESS) group_add(&o, stream);
    if (group.depth == 0) return code == FAKE_NCCL_SUCCESS ? group_issue() : comm_note(handle, code);
    return group_note(comm_note(handle, code));
}

#define OPERATION(function, kind_, ...)                                                                           \
    do {                                                                                                          \
        int code_ = fake_call(FAKE_##function, count * fake_reduce_itemsize(type));                               \
        fake_access_release();                                                                                    \
        if (code_ == FAKE_SKIP) return FAKE_NCCL_SUCCESS;                                                         \
        if (code_ != FAKE_NCCL_SUCCESS) return group_note(comm_note(comm, code_));                                \
        return issue(#function, (fake_operation){.kind = kind_, .count = count, .type = type, __VA_ARGS__}, comm, \
                     stream);                                                                                     \
    } while (0)

int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, nccl_comm comm, driver_stream stream) {
    OPERATION(ncclAllReduce, FAKE_ALL_REDUCE, .from = from, .to = to, .op = op);
}

int ncclReduce(const void *from, void *to, size_t count, int type, int op, int root, nccl_comm comm,
               driver_stream stream) {
    OPERATION(ncclReduce, FAKE_REDUCE, .from = from, .to = to, .op = op, .peer = root);
}

int ncclReduceScatter(const void *from, void *to, size_t count, int type, int op, nccl_comm comm,
                      driver_stream stream) {
    OPERATION(ncclReduceScatter, FAKE_REDUCE_SCATTER, .from = from, .to = to, .op = op);
}

int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, nccl_comm comm, driver_stream stream) {
    OPERATION(ncclBroadcast, FAKE_BROADCAST, .from = from, .to = to, .peer = root);
}

int ncclAllGather(const void *from, void *to, size_t count, int type, nccl_comm comm, driver_stream stream) {
    OPERATION(ncclAllGather, FAKE_ALL_GATHER, .from = from, .to = to);
}

int ncclSend(const void *from, size_t count, int type, int peer, nccl_comm comm, driver_stream stream) {
    OPERATION(ncclSend, FAKE_SEND, .from = from, .peer = peer);
}

int ncclRecv(void *to, size_t count, int type, int peer, nccl_comm comm, driver_stream stream) {
    OPERATION(ncclRecv, FAKE_RECV, .to = to, .peer = peer);
}
