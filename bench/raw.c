/* The raw MPI peer of the benchmarks: what a call costs without JAX, without Python, on memory that was touched.
 *
 *   raw SOCKET [multiple]
 *
 * With `multiple` it starts MPI with MPI_THREAD_MULTIPLE, as mpi4py does.
 *
 * Each rank connects to the runner's socket, says who it is, and then answers one line for each line that it reads
 * (bench/worker.py says which; this peer knows `chain OP f32 BYTES LONG SHORT TIMES` only).
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { LEAVES = 100 }; /* of a tree */

typedef struct {
    float *in, *out; /* the result of one call is the operand of the next */
    float *packed;   /* as large, for a tree */
    int count;       /* floats in the operand */
    int rank, size;
    MPI_Comm comm;
} chain;

static void chain_swap(chain *c) {
    float *in = c->in;
    c->in = c->out;
    c->out = in;
}

static void chain_allgather(chain *c) {
    MPI_Allgather(c->in, c->count, MPI_FLOAT, c->out, c->count, MPI_FLOAT, c->comm);
}

static void chain_allreduce(chain *c) {
    MPI_Allreduce(c->in, c->out, c->count, MPI_FLOAT, MPI_SUM, c->comm);
    chain_swap(c);
}

static void chain_allreduce_in_place(chain *c) {
    MPI_Allreduce(MPI_IN_PLACE, c->in, c->count, MPI_FLOAT, MPI_SUM, c->comm);
}

static void chain_allreduce_max(chain *c) {
    MPI_Allreduce(MPI_IN_PLACE, c->in, c->count, MPI_FLOAT, MPI_MAX, c->comm);
}

static void chain_alltoall(chain *c) {
    int count = c->count / c->size;
    MPI_Alltoall(c->in, count, MPI_FLOAT, c->out, count, MPI_FLOAT, c->comm);
    chain_swap(c);
}

static void chain_barrier(chain *c) {
    MPI_Barrier(c->comm);
}

static void chain_bcast(chain *c) {
    MPI_Bcast(c->in, c->count, MPI_FLOAT, 0, c->comm);
}

/* Rows of a ring's blocks, whose first and last are halos. */
enum { ROWS = 10 };
static void chain_halo_exchange(chain *c) {
    const int n = c->count, low = (c->rank + c->size - 1) % c->size, high = (c->rank + 1) % c->size;
    MPI_Request requests[4];
    MPI_Irecv(c->in, n, MPI_FLOAT, low, 1, c->comm, &requests[0]);
    MPI_Irecv(c->in + (size_t)(ROWS - 1) * (size_t)n, n, MPI_FLOAT, high, 0, c->comm, &requests[1]);
    MPI_Isend(c->in + (size_t)(ROWS - 2) * (size_t)n, n, MPI_FLOAT, high, 1, c->comm, &requests[2]);
    MPI_Isend(c->in + n, n, MPI_FLOAT, low, 0, c->comm, &requests[3]);
    MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
}

static void chain_reduce(chain *c) {
    MPI_Reduce(c->in, c->out, c->count, MPI_FLOAT, MPI_SUM, 0, c->comm);
    if (c->rank == 0) chain_swap(c);
}

static void chain_reduce_in_place(chain *c) {
    void *in = c->rank == 0 ? MPI_IN_PLACE : (void *)c->in;
    MPI_Reduce(in, c->in, c->count, MPI_FLOAT, MPI_SUM, 0, c->comm);
}

static void chain_scan(chain *c) {
    MPI_Scan(c->in, c->out, c->count, MPI_FLOAT, MPI_SUM, c->comm);
    chain_swap(c);
}

static void chain_scan_in_place(chain *c) {
    MPI_Scan(MPI_IN_PLACE, c->in, c->count, MPI_FLOAT, MPI_SUM, c->comm);
}

static void chain_sendrecv(chain *c) {
    int next = (c->rank + 1) % c->size, last = (c->rank + c->size - 1) % c->size;
    MPI_Sendrecv(c->in, c->count, MPI_FLOAT, next, 0, c->out, c->count, MPI_FLOAT, last, MPI_ANY_TAG, c->comm,
                 MPI_STATUS_IGNORE);
    chain_swap(c);
}

/* A pytree's leaves in one call: what mpixla does, without XLA. */
static void chain_tree(chain *c) {
    int leaf = c->count / LEAVES;
    for (int i = 0; i < LEAVES; i++) memcpy(c->packed + i * leaf, c->in + i * leaf, (size_t)leaf * sizeof(float));
    MPI_Allreduce(MPI_IN_PLACE, c->packed, c->count, MPI_FLOAT, MPI_SUM, c->comm);
    for (int i = 0; i < LEAVES; i++) memcpy(c->out + i * leaf, c->packed + i * leaf, (size_t)leaf * sizeof(float));
    chain_swap(c);
}

static const struct {
    const char *name;
    void (*call)(chain *c);
} ops[] = {
    {"allgather", chain_allgather},
    {"allreduce", chain_allreduce},
    {"allreduce_in_place", chain_allreduce_in_place},
    {"allreduce_max", chain_allreduce_max},
    {"alltoall", chain_alltoall},
    {"barrier", chain_barrier},
    {"bcast", chain_bcast},
    {"halo_exchange", chain_halo_exchange},
    {"reduce", chain_reduce},
    {"reduce_in_place", chain_reduce_in_place},
    {"scan", chain_scan},
    {"scan_in_place", chain_scan_in_place},
    {"sendrecv", chain_sendrecv},
    {"tree", chain_tree},
};

static void (*op_find(const char *name))(chain *c) {
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
        if (strcmp(ops[i].name, name) == 0) return ops[i].call;
    return NULL;
}

/* How long a chain of this many calls takes on this rank. All ranks begin together. */
static double chain_time(chain *c, void (*call)(chain *c), int length) {
    MPI_Barrier(c->comm);
    double begin = MPI_Wtime();
    for (int i = 0; i < length; i++) call(c);
    return MPI_Wtime() - begin;
}

static void answer(const char *line, FILE *to, chain *c) {
    char name[64], dtype[16];
    long bytes;
    int lengths[2], times;
    void (*call)(chain *c) = NULL;
    if (sscanf(line, "chain %63s %15s %ld %d %d %d", name, dtype, &bytes, &lengths[0], &lengths[1], &times) == 6 &&
        strcmp(dtype, "f32") == 0)
        call = op_find(name);
    if (!call) {
        fprintf(to, "{\"error\": \"the raw peer does not know this measurement\"}\n");
        return;
    }
    int cut = strcmp(name, "alltoall") == 0 ? c->size : 1; /* one float to each rank at least */
    size_t count = (size_t)bytes / sizeof(float), room;
    if (count < (size_t)cut) count = (size_t)cut;
    room = count * (strcmp(name, "allgather") == 0 ? (size_t)c->size : strcmp(name, "halo_exchange") == 0 ? ROWS : 1);
    /* As XLA aligns its buffers. */
    size_t size = (room * sizeof(float) + 63) / 64 * 64;
    float *in = aligned_alloc(64, size), *out = aligned_alloc(64, size), *packed = aligned_alloc(64, size);
    if (!in || !out || !packed) {
        fprintf(stderr, "raw: no memory for %ld bytes\n", bytes);
        MPI_Abort(MPI_COMM_WORLD, 1);
        return;
    }
    for (size_t i = 0; i < room; i++) in[i] = out[i] = packed[i] = 1;
    c->in = in;
    c->out = out;
    c->packed = packed;
    c->count = (int)count;
    fprintf(to, "[");
    for (int i = 0; i < times; i++) {
        double longer = chain_time(c, call, lengths[0]), shorter = chain_time(c, call, lengths[1]);
        fprintf(to, "%s[%.9g, %.9g]", i ? ", " : "", longer, shorter);
    }
    fprintf(to, "]\n");
    free(in);
    free(out);
    free(packed);
}

int main(int argc, char **argv) {
    chain c = {0};
    int multiple = argc == 3 && strcmp(argv[2], "multiple") == 0, level = MPI_THREAD_SINGLE;
    if (multiple)
        MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    else
        MPI_Init(&argc, &argv);
    if (multiple && level != MPI_THREAD_MULTIPLE) {
        fprintf(stderr, "raw: this MPI has no MPI_THREAD_MULTIPLE\n");
        MPI_Abort(MPI_COMM_WORLD, 1);
        return 1;
    }
    MPI_Comm_dup(MPI_COMM_WORLD, &c.comm);
    MPI_Comm_rank(c.comm, &c.rank);
    MPI_Comm_size(c.comm, &c.size);

    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int file = socket(AF_UNIX, SOCK_STREAM, 0);
    if (argc > 1) snprintf(address.sun_path, sizeof address.sun_path, "%s", argv[1]);
    if (argc != 2 + multiple || file < 0 || connect(file, (struct sockaddr *)&address, sizeof address) != 0) {
        fprintf(stderr, "usage: raw SOCKET [multiple], where the benchmarks' runner listens on SOCKET\n");
        MPI_Abort(MPI_COMM_WORLD, 1);
        return 1;
    }
    FILE *from = fdopen(file, "r"), *to = fdopen(dup(file), "w");
    char line[512];
    if (!from || !to) return 1;
    fprintf(to, "%d\n", c.rank);
    fflush(to);
    while (fgets(line, sizeof line, from)) {
        answer(line, to, &c);
        fflush(to);
    }
    fclose(from);
    fclose(to);
    MPI_Comm_free(&c.comm);
    MPI_Finalize();
    return 0;
}
