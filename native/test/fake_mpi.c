/* See fake_mpi.h. Compiled once for each kind of MPI:
 *
 *   FAKE_POINTER_HANDLES   handles are pointers, else ints
 *   FAKE_NO_LARGE_COUNTS   there are no large-count functions
 */
#include "fake_mpi.h"

#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Bases for which a handle that is narrowed or widened wrongly does not survive: a negative int, as MPICH's
 * are, and a pointer that does not fit into 32 bits. */
#ifdef FAKE_POINTER_HANDLES
typedef void *HANDLE;
#define BASE INT64_C(0x7f5500000000)
#else
typedef int HANDLE;
#define BASE INT64_C(-0x7bffff00)
#endif

enum { NUMBERS = 4096, COMMS = 1024, OPS = 3000, KEYVALS = 8, ERR_COMM = 5, ERR_KEYVAL = 48 };

typedef int copy_function(HANDLE comm, int keyval, void *extra, void *in, void *out, int *flag);
typedef int delete_function(HANDLE comm, int keyval, void *value, void *extra);

static struct {
    copy_function *copy;
    delete_function *drop;
    void *extra;
} keyvals[KEYVALS];
static int keyvals_used;

static struct {
    int alive, rank, size, inter;
    int kind, dimensions, sources, dests; /* of the topology */
    const int *sizes, *periods, *place, *from, *to;
    int set[KEYVALS];
    void *values[KEYVALS];
} comms[COMMS] = {[FAKE_WORLD] = {.alive = 1, .size = 4}, [FAKE_SELF] = {.alive = 1, .size = 1}};

static pthread_mutex_t recording = PTHREAD_MUTEX_INITIALIZER;

static uint64_t handle(int number) {
    return (uint64_t)(BASE + number);
}

static HANDLE narrow(int number) {
    return (HANDLE)(intptr_t)handle(number);
}

/* -1 for what is no handle. */
static int number(HANDLE h) {
    int64_t n = (int64_t)(intptr_t)h - BASE;
    return n >= 0 && n < NUMBERS ? (int)n : -1;
}

static int comm_number(HANDLE comm) {
    int n = number(comm);
    return n >= 0 && n < COMMS && comms[n].alive ? n : -1;
}

static int comm_new(int rank, int size, int inter) {
    for (int n = 0; n < COMMS; n++) {
        if (comms[n].alive) continue;
        memset(&comms[n], 0, sizeof comms[n]);
        comms[n].alive = 1;
        comms[n].rank = rank;
        comms[n].size = size;
        comms[n].inter = inter;
        return n;
    }
    return -1;
}

static void cart_set(int n, int dimensions, const int *sizes, const int *periods, const int *place) {
    comms[n].kind = FAKE_CART;
    comms[n].dimensions = dimensions;
    comms[n].sizes = sizes;
    comms[n].periods = periods;
    comms[n].place = place;
}

static void graph_set(int n, int kind, int sources, const int *from, int dests, const int *to) {
    comms[n].kind = kind;
    comms[n].sources = sources;
    comms[n].from = from;
    comms[n].dests = dests;
    comms[n].to = to;
}

static void attributes_delete(int n) {
    for (int k = 0; k < keyvals_used; k++) {
        if (comms[n].set[k]) keyvals[k].drop(narrow(n), k, comms[n].values[k], keyvals[k].extra);
        comms[n].set[k] = 0;
    }
}

int MPI_Comm_free(HANDLE *comm);
int MPI_Comm_free(HANDLE *comm) {
    int n = comm_number(*comm);
    if (n < 0) return ERR_COMM;
    attributes_delete(n);
    comms[n].alive = 0;
    *comm = 0;
    return 0;
}

static int comm_free(int n) {
    HANDLE comm = narrow(n);
    return MPI_Comm_free(&comm);
}

static int comm_dup(int n) {
    int copy = comm_new(comms[n].rank, comms[n].size, comms[n].inter);
    for (int k = 0; k < keyvals_used; k++)
        if (comms[n].set[k])
            keyvals[k].copy(narrow(n), k, keyvals[k].extra, comms[n].values[k], &comms[copy].values[k],
                            &comms[copy].set[k]);
    return copy;
}

static void finalize(void) {
    attributes_delete(FAKE_SELF);
}

extern fake_mpi fake;
fake_mpi fake = {
    .handle_size = sizeof(HANDLE),
#ifndef FAKE_NO_LARGE_COUNTS
    .has_large = 1,
#endif
    .handle = handle,
    .comm_new = comm_new,
    .cart_set = cart_set,
    .graph_set = graph_set,
    .comm_dup = comm_dup,
    .comm_free = comm_free,
    .finalize = finalize,
};

int fake_result(const char *function) {
    for (int i = 0; i < 2; i++)
        if (fake.failing[i] && strcmp(fake.failing[i], function) == 0)
            return __atomic_fetch_sub(&fake.spared, 1, __ATOMIC_RELAXED) > 0 ? 0 : fake.code;
    return 0;
}

__attribute__((format(printf, 4, 5))) static int called(const char *function, const void *send, void *recv,
                                                        const char *format, ...) {
    va_list arguments;
    pthread_mutex_lock(&recording);
    fake.calls++;
    fake.send = send;
    fake.recv = recv;
    int used = snprintf(fake.call, sizeof fake.call, "%s ", function);
    va_start(arguments, format);
    vsnprintf(fake.call + used, sizeof fake.call - (size_t)used, format, arguments);
    va_end(arguments);
    pthread_mutex_unlock(&recording);
    if (fake.during) fake.during();
    return fake_result(function);
}

int MPI_Abort(HANDLE comm, int code);
int MPI_Abort(HANDLE comm, int code) {
    (void)comm;
    (void)code;
    if (fake.aborting) fake.aborting();
    return fake_result("MPI_Abort");
}

static int received(int code, void *buffer, int64_t items, int64_t item, int source, void *status) {
    pthread_mutex_lock(&recording);
    int64_t arrived = fake.arrives_whole ? items : fake.arrived;
    fake_status s = {.source = source == FAKE_ANY_SOURCE ? fake.sender : source,
                     .item = (int)item,
                     .elements = source == FAKE_PROC_NULL ? 0 : arrived};
    if (code == 0 && source != FAKE_PROC_NULL && fake.arrived_bytes > 0) memset(buffer, 0x7f, fake.arrived_bytes);
    fake.status = status;
    memcpy(status, &s, sizeof s);
    pthread_mutex_unlock(&recording);
    return code;
}

static int size_of(HANDLE comm) {
    int n = comm_number(comm);
    return n < 0 ? 0 : comms[n].size;
}

static int is_root(HANDLE comm, int root) {
    int n = comm_number(comm);
    return n >= 0 && comms[n].rank == root;
}

/* "(1 2 0 3 @ 0 1 3 3)": the counts and displacements of the parts, of at most four. */
enum { PARTS_TEXT = 192, PARTS = 4 };
#define WRITE_PARTS(name, COUNT)                                                                            \
    static const char *name(char text[PARTS_TEXT], const COUNT *counts, const COUNT *displs, HANDLE comm) { \
        if (!counts || !displs) return "(none)";                                                            \
        int used = 0, n = size_of(comm) < PARTS ? size_of(comm) : PARTS;                                    \
        for (int i = 0; i < 2 * n; i++)                                                                     \
            used += snprintf(text + used, PARTS_TEXT - (size_t)used, "%s%lld",                              \
                             i == 0   ? "("                                                                 \
                             : i == n ? " @ "                                                               \
                                      : " ",                                                                \
                             (long long)(i < n ? counts[i] : displs[i - n]));                               \
        snprintf(text + used, PARTS_TEXT - (size_t)used, ")");                                              \
        return text;                                                                                        \
    }
WRITE_PARTS(parts_of, int)
/* Derived types: structs are numbered from STRUCTS on, others from DERIVED on. */
enum { STRUCTS = 300, DERIVED = 340, DERIVED_END = 380 };
static struct {
    int alive, base;
    int64_t items;
} derived[DERIVED_END];

static int base_of(HANDLE type) {
    int n = number(type);
    return n >= STRUCTS && n < DERIVED_END ? derived[n].base : n;
}

static HANDLE derived_new(int first, int64_t items, HANDLE base) {
    while (first < DERIVED_END - 1 && derived[first].alive) first++;
    derived[first].alive = 1;
    derived[first].items = items;
    derived[first].base = base_of(base);
    fake.types++;
    return narrow(first);
}

static int64_t items_of(HANDLE type) {
    int n = number(type);
    return n >= STRUCTS && n < DERIVED_END ? derived[n].items : 1;
}

/* Bytes of what the type is made of. */
static int64_t item_of(HANDLE type) {
    return fake.item_bytes ? fake.item_bytes(base_of(type)) : FAKE_ITEM;
}

static int64_t known_item_of(HANDLE type) {
    return fake.item_bytes ? item_of(type) : 0;
}

static int64_t bytes_of(int64_t n, HANDLE type) {
    return n * items_of(type) * item_of(type);
}

/* What a call is given to send, or to receive into. */
static void touch(const void *memory, int64_t n, HANDLE type, int is_received) {
    if (!fake.touches || n == 0 || (intptr_t)memory == FAKE_IN_PLACE) return;
    fake.touches((void *)(uintptr_t)memory, bytes_of(n, type), is_received);
}

/* The same of parts. */
#define TOUCH_PARTS(name, COUNT)                                                                             \
    static void name(const void *memory, const COUNT *counts, const COUNT *displs, HANDLE type, HANDLE comm, \
                     int is_received) {                                                                      \
        for (int i = 0; fake.touches && counts && displs && i < size_of(comm); i++)                          \
            touch((const char *)memory + bytes_of(displs[i], type), counts[i], type, is_received);           \
    }
TOUCH_PARTS(touch_parts, int)
#ifndef FAKE_NO_LARGE_COUNTS
TOUCH_PARTS(touch_parts_c, int64_t)
#endif

/* The functions that come with two kinds of counts. */
#define I(h) number(h)
#define L(n) (long long)(n)
#define FUNCTIONS(COUNT, c)                                                                                          \
    int MPI_Allgather##c(const void *s, COUNT sn, HANDLE st, void *r, COUNT rn, HANDLE rt, HANDLE comm) {            \
        touch(s, sn, st, 0);                                                                                         \
        touch(r, size_of(comm) * (int64_t)rn, rt, 1);                                                                \
        return called("MPI_Allgather" #c, s, r, "%lld t%d to %lld t%d c%d", L(sn), I(st), L(rn), I(rt), I(comm));    \
    }                                                                                                                \
    int MPI_Allreduce##c(const void *s, void *r, COUNT n, HANDLE t, HANDLE op, HANDLE comm) {                        \
        touch(s, n, t, 0);                                                                                           \
        touch(r, n, t, 1);                                                                                           \
        return called("MPI_Allreduce" #c, s, r, "%lld t%d op %d c%d", L(n), I(t), I(op), I(comm));                   \
    }                                                                                                                \
    int MPI_Alltoall##c(const void *s, COUNT sn, HANDLE st, void *r, COUNT rn, HANDLE rt, HANDLE comm) {             \
        touch(s, size_of(comm) * (int64_t)sn, st, 0);                                                                \
        touch(r, size_of(comm) * (int64_t)rn, rt, 1);                                                                \
        return called("MPI_Alltoall" #c, s, r, "%lld t%d to %lld t%d c%d", L(sn), I(st), L(rn), I(rt), I(comm));     \
    }                                                                                                                \
    int MPI_Bcast##c(void *b, COUNT n, HANDLE t, int root, HANDLE comm) {                                            \
        touch(b, n, t, !is_root(comm, root));                                                                        \
        return called("MPI_Bcast" #c, b, b, "%lld t%d root %d c%d", L(n), I(t), root, I(comm));                      \
    }                                                                                                                \
    int MPI_Gather##c(const void *s, COUNT sn, HANDLE st, void *r, COUNT rn, HANDLE rt, int root, HANDLE comm) {     \
        touch(s, sn, st, 0);                                                                                         \
        if (is_root(comm, root)) touch(r, size_of(comm) * (int64_t)rn, rt, 1);                                       \
        return called("MPI_Gather" #c, s, r, "%lld t%d to %lld t%d root %d c%d", L(sn), I(st), L(rn), I(rt), root,   \
                      I(comm));                                                                                      \
    }                                                                                                                \
    int MPI_Recv##c(void *b, COUNT n, HANDLE t, int source, int tag, HANDLE comm, void *status) {                    \
        touch(b, source == FAKE_PROC_NULL ? 0 : n, t, 1);                                                            \
        int code = called("MPI_Recv" #c, NULL, b, "%lld t%d <- %d tag %d c%d", L(n), I(t), source, tag, I(comm));    \
        return received(code, b, n * items_of(t), known_item_of(t), source, status);                                 \
    }                                                                                                                \
    int MPI_Reduce##c(const void *s, void *r, COUNT n, HANDLE t, HANDLE op, int root, HANDLE comm) {                 \
        touch(s, n, t, 0);                                                                                           \
        if (is_root(comm, root)) touch(r, n, t, 1);                                                                  \
        return called("MPI_Reduce" #c, s, r, "%lld t%d op %d root %d c%d", L(n), I(t), I(op), root, I(comm));        \
    }                                                                                                                \
    int MPI_Scan##c(const void *s, void *r, COUNT n, HANDLE t, HANDLE op, HANDLE comm) {                             \
        touch(s, n, t, 0);                                                                                           \
        touch(r, n, t, 1);                                                                                           \
        return called("MPI_Scan" #c, s, r, "%lld t%d op %d c%d", L(n), I(t), I(op), I(comm));                        \
    }                                                                                                                \
    int MPI_Exscan##c(const void *s, void *r, COUNT n, HANDLE t, HANDLE op, HANDLE comm) {                           \
        touch(s, n, t, 0);                                                                                           \
        touch(r, n, t, 1);                                                                                           \
        return called("MPI_Exscan" #c, s, r, "%lld t%d op %d c%d", L(n), I(t), I(op), I(comm));                      \
    }                                                                                                                \
    int MPI_Reduce_scatter_block##c(const void *s, void *r, COUNT n, HANDLE t, HANDLE op, HANDLE comm) {             \
        touch(s, size_of(comm) * (int64_t)n, t, 0);                                                                  \
        touch(r, n, t, 1);                                                                                           \
        return called("MPI_Reduce_scatter_block" #c, s, r, "%lld t%d op %d c%d", L(n), I(t), I(op), I(comm));        \
    }                                                                                                                \
    int MPI_Scatter##c(const void *s, COUNT sn, HANDLE st, void *r, COUNT rn, HANDLE rt, int root, HANDLE comm) {    \
        if (is_root(comm, root)) touch(s, size_of(comm) * (int64_t)sn, st, 0);                                       \
        touch(r, rn, rt, 1);                                                                                         \
        return called("MPI_Scatter" #c, s, r, "%lld t%d to %lld t%d root %d c%d", L(sn), I(st), L(rn), I(rt), root,  \
                      I(comm));                                                                                      \
    }                                                                                                                \
    int MPI_Send##c(const void *b, COUNT n, HANDLE t, int dest, int tag, HANDLE comm) {                              \
        touch(b, dest == FAKE_PROC_NULL ? 0 : n, t, 0);                                                              \
        return called("MPI_Send" #c, b, NULL, "%lld t%d -> %d tag %d c%d", L(n), I(t), dest, tag, I(comm));          \
    }                                                                                                                \
    int MPI_Sendrecv##c(const void *s, COUNT sn, HANDLE st, int dest, int sendtag, void *r, COUNT rn, HANDLE rt,     \
                        int source, int recvtag, HANDLE comm, void *status) {                                        \
        touch(s, dest == FAKE_PROC_NULL ? 0 : sn, st, 0);                                                            \
        touch(r, source == FAKE_PROC_NULL ? 0 : rn, rt, 1);                                                          \
        int code = called("MPI_Sendrecv" #c, s, r, "%lld t%d -> %d tag %d, %lld t%d <- %d tag %d c%d", L(sn), I(st), \
                          dest, sendtag, L(rn), I(rt), source, recvtag, I(comm));                                    \
        return received(code, r, rn * items_of(rt), known_item_of(rt), source, status);                              \
    }

#define FUNCTIONS_OF_PARTS(COUNT, c)                                                                                \
    int MPI_Allgatherv##c(const void *s, COUNT sn, HANDLE st, void *r, const COUNT *rn, const COUNT *rd, HANDLE rt, \
                          HANDLE comm) {                                                                            \
        touch(s, sn, st, 0);                                                                                        \
        touch_parts##c(r, rn, rd, rt, comm, 1);                                                                     \
        char text[PARTS_TEXT];                                                                                      \
        return called("MPI_Allgatherv" #c, s, r, "%lld t%d to %s t%d c%d", L(sn), I(st),                            \
                      parts_of##c(text, rn, rd, comm), I(rt), I(comm));                                             \
    }                                                                                                               \
    int MPI_Alltoallv##c(const void *s, const COUNT *sn, const COUNT *sd, HANDLE st, void *r, const COUNT *rn,      \
                         const COUNT *rd, HANDLE rt, HANDLE comm) {                                                 \
        touch_parts##c(s, sn, sd, st, comm, 0);                                                                     \
        touch_parts##c(r, rn, rd, rt, comm, 1);                                                                     \
        char text[2][PARTS_TEXT];                                                                                   \
        return called("MPI_Alltoallv" #c, s, r, "%s t%d to %s t%d c%d", parts_of##c(text[0], sn, sd, comm), I(st),  \
                      parts_of##c(text[1], rn, rd, comm), I(rt), I(comm));                                          \
    }                                                                                                               \
    int MPI_Gatherv##c(const void *s, COUNT sn, HANDLE st, void *r, const COUNT *rn, const COUNT *rd, HANDLE rt,    \
                       int root, HANDLE comm) {                                                                     \
        touch(s, sn, st, 0);                                                                                        \
        if (is_root(comm, root)) touch_parts##c(r, rn, rd, rt, comm, 1);                                            \
        char text[PARTS_TEXT];                                                                                      \
        return called("MPI_Gatherv" #c, s, r, "%lld t%d to %s t%d root %d c%d", L(sn), I(st),                       \
                      parts_of##c(text, rn, rd, comm), I(rt), root, I(comm));                                       \
    }                                                                                                               \
    int MPI_Scatterv##c(const void *s, const COUNT *sn, const COUNT *sd, HANDLE st, void *r, COUNT rn, HANDLE rt,   \
                        int root, HANDLE comm) {                                                                    \
        if (is_root(comm, root)) touch_parts##c(s, sn, sd, st, comm, 0);                                            \
        touch(r, rn, rt, 1);                                                                                        \
        char text[PARTS_TEXT];                                                                                      \
        return called("MPI_Scatterv" #c, s, r, "%s t%d to %lld t%d root %d c%d", parts_of##c(text, sn, sd, comm),   \
                      I(st), L(rn), I(rt), root, I(comm));                                                          \
    }

FUNCTIONS(int, )
FUNCTIONS_OF_PARTS(int, )
#ifndef FAKE_NO_LARGE_COUNTS
WRITE_PARTS(parts_of_c, int64_t)
FUNCTIONS(int64_t, _c)
FUNCTIONS_OF_PARTS(int64_t, _c)
#endif

#include "fake_mpi_requests.inc"

static int op_create(const char *function, void *combine, HANDLE *op) {
    int code = fake_result(function);
    if (code != 0) return code;
    if (fake.ops < FAKE_OPS) fake.combine[fake.ops] = combine;
    *op = narrow(OPS + fake.ops++);
    return 0;
}

int MPI_Op_create(void *combine, int commutes, HANDLE *op) {
    (void)commutes;
    return op_create("MPI_Op_create", combine, op);
}

#ifndef FAKE_NO_LARGE_COUNTS
int MPI_Op_create_c(void *combine, int commutes, HANDLE *op) {
    (void)commutes;
    fake.large_ops++;
    return op_create("MPI_Op_create_c", combine, op);
}
#endif

int MPI_Barrier(HANDLE comm) {
    return called("MPI_Barrier", NULL, NULL, "c%d", number(comm));
}

/* Every type is a 32-bit integer, and every reduction a sum. */
int MPI_Reduce_local(const void *s, void *r, int n, HANDLE t, HANDLE op) {
    (void)t, (void)op;
    for (int i = 0; i < n; i++) ((int32_t *)r)[i] += ((const int32_t *)s)[i];
    return fake_result("MPI_Reduce_local");
}

int MPI_Iprobe(int source, int tag, HANDLE comm, int *there, void *status) {
    fake.calls++;
    fake.probes++;
    *there = fake.is_there && fake.is_there(source, tag, number(comm));
    const fake_status s = {
        .source = source == FAKE_ANY_SOURCE ? fake.sender : source, .tag = tag, .elements = fake.arrived};
    if (*there) memcpy(status, &s, sizeof s);
    return fake_result("MPI_Iprobe");
}

int MPI_Get_elements_x(const void *status, HANDLE type, int64_t *n) {
    fake_status s;
    memcpy(&s, status, sizeof s);
    *n = s.item > 0 && s.elements > 0 ? s.elements * s.item / item_of(type) : s.elements;
    return fake_result("MPI_Get_elements_x");
}

int MPI_Comm_rank(HANDLE comm, int *rank) {
    int n = comm_number(comm);
    if (n < 0) return ERR_COMM;
    *rank = n == FAKE_WORLD ? fake.world_rank : comms[n].rank;
    return fake_result("MPI_Comm_rank");
}

int MPI_Comm_size(HANDLE comm, int *size) {
    int n = comm_number(comm);
    if (n < 0) return ERR_COMM;
    *size = comms[n].size;
    return fake_result("MPI_Comm_size");
}

int MPI_Comm_test_inter(HANDLE comm, int *flag) {
    int n = comm_number(comm);
    if (n < 0) return ERR_COMM;
    *flag = comms[n].inter;
    return fake_result("MPI_Comm_test_inter");
}

int MPI_Topo_test(HANDLE comm, int *kind) {
    int n = comm_number(comm);
    if (n < 0) return ERR_COMM;
    *kind = comms[n].kind ? comms[n].kind : FAKE_UNDEFINED;
    return fake_result("MPI_Topo_test");
}

int MPI_Cartdim_get(HANDLE comm, int *dimensions) {
    *dimensions = comms[comm_number(comm)].dimensions;
    return fake_result("MPI_Cartdim_get");
}

static void numbers_copy(int *to, const int *from, int n) {
    for (int i = 0; i < n; i++) to[i] = from[i];
}

int MPI_Cart_get(HANDLE comm, int dimensions, int sizes[], int periods[], int place[]) {
    int n = comm_number(comm);
    numbers_copy(sizes, comms[n].sizes, dimensions);
    numbers_copy(periods, comms[n].periods, dimensions);
    numbers_copy(place, comms[n].place, dimensions);
    return fake_result("MPI_Cart_get");
}

int MPI_Graph_neighbors_count(HANDLE comm, int rank, int *count) {
    int n = comm_number(comm);
    *count = rank == comms[n].rank ? comms[n].dests : -1;
    return fake_result("MPI_Graph_neighbors_count");
}

int MPI_Graph_neighbors(HANDLE comm, int rank, int most, int ranks[]) {
    int n = comm_number(comm);
    numbers_copy(ranks, comms[n].to, rank == comms[n].rank ? most : 0);
    return fake_result("MPI_Graph_neighbors");
}

int MPI_Dist_graph_neighbors_count(HANDLE comm, int *sources, int *dests, int *is_weighted) {
    int n = comm_number(comm);
    *sources = comms[n].sources;
    *dests = comms[n].dests;
    *is_weighted = 0;
    return fake_result("MPI_Dist_graph_neighbors_count");
}

int MPI_Dist_graph_neighbors(HANDLE comm, int most_sources, int sources[], int source_weights[], int most_dests,
                             int dests[], int dest_weights[]) {
    int n = comm_number(comm);
    numbers_copy(sources, comms[n].from, most_sources);
    numbers_copy(dests, comms[n].to, most_dests);
    for (int i = 0; i < most_sources; i++) source_weights[i] = 1;
    for (int i = 0; i < most_dests; i++) dest_weights[i] = 1;
    return fake_result("MPI_Dist_graph_neighbors");
}

int MPI_Type_size(HANDLE type, int *bytes) {
    *bytes = (int)item_of(type);
    return fake_result("MPI_Type_size");
}

int MPI_Type_contiguous(int n, HANDLE type, HANDLE *made) {
    int code = fake_result("MPI_Type_contiguous");
    if (code == 0) *made = derived_new(DERIVED, n * items_of(type), type);
    return code;
}

int MPI_Type_create_struct(int n, const int lengths[], const intptr_t places[], HANDLE const *types, HANDLE *made) {
    int64_t items = 0;
    for (int i = 0; i < n; i++) items += lengths[i] * items_of(types[i]);
    /* Two pieces, the second behind the first. */
    if (n != 2 || places[0] != 0 || places[1] != lengths[0] * items_of(types[0]) * item_of(types[0])) return ERR_COMM;
    int code = fake_result("MPI_Type_create_struct");
    if (code == 0) *made = derived_new(STRUCTS, items, types[0]);
    return code;
}

int MPI_Type_free(HANDLE *type) {
    derived[number(*type)].alive = 0;
    fake.types--;
    return 0;
}

int MPI_Comm_dup(HANDLE comm, HANDLE *copy) {
    int n = comm_number(comm);
    if (n < 0) return ERR_COMM;
    if (fake_result("MPI_Comm_dup")) return fake.code;
    *copy = narrow(comm_dup(n));
    return 0;
}

/* Not in the table: most MPIs do not have it. */
int MPIX_Comm_revoke(HANDLE comm);
int MPIX_Comm_revoke(HANDLE comm) {
    if (comm_number(comm) < 0) return ERR_COMM;
    fake.revoked++;
    return fake_result("MPIX_Comm_revoke");
}

int MPI_Comm_split(HANDLE comm, int color, int key, HANDLE *part) {
    int n = comm_number(comm);
    if (n < 0) return ERR_COMM;
    if (fake_result("MPI_Comm_split")) return fake.code;
    /* Of the fake's pretended ranks there is one: its key decides whether it comes first or last. */
    *part = narrow(comm_new(key < 0 ? comms[n].size - 1 + key : color, comms[n].size, 0));
    return 0;
}

int MPI_Comm_create_keyval(copy_function *copy, delete_function *drop, int *keyval, void *extra) {
    if (fake_result("MPI_Comm_create_keyval")) return fake.code;
    if (keyvals_used == KEYVALS) return ERR_KEYVAL;
    keyvals[keyvals_used].copy = copy;
    keyvals[keyvals_used].drop = drop;
    keyvals[keyvals_used].extra = extra;
    *keyval = keyvals_used++;
    return 0;
}

int MPI_Comm_set_attr(HANDLE comm, int keyval, void *value) {
    int n = comm_number(comm);
    if (n < 0) return ERR_COMM;
    if (fake_result("MPI_Comm_set_attr")) return fake.code;
    comms[n].values[keyval] = value;
    comms[n].set[keyval] = 1;
    return 0;
}

int MPI_Comm_get_attr(HANDLE comm, int keyval, void *value, int *flag) {
    int n = comm_number(comm);
    if (n < 0) return ERR_COMM;
    *flag = comms[n].set[keyval];
    if (*flag) *(void **)value = comms[n].values[keyval];
    /* Whoever registers without a lock shall be interrupted here. */
    sched_yield();
    return fake_result("MPI_Comm_get_attr");
}

int MPI_Error_string(int code, char *text, int *length) {
    *length = snprintf(text, FAKE_ERROR_STRING, "the fake MPI's text for error %d", code);
    return fake_result("MPI_Error_string");
}

int MPI_Error_class(int code, int *error_class) {
    *error_class = code & 0xff;
    return fake_result("MPI_Error_class");
}
