#include "mpi/topology.h"

#include <stdlib.h>

#include "base/error.h"

/* Allocates zeros for so many items and one more, so that even none are not NULL. NULL with error_set without memory.
 */
static void *topology_zeros_allocate(int64_t number, size_t bytes) {
    void *made = calloc((size_t)number + 1, bytes);
    if (!made) (void)error_set("out of memory for the neighbours on a communicator");
    return made;
}

static int topology_function_refuse(const char *function) {
    return error_set("%s failed on this communicator", function);
}

/* Sets sources and dests of a topology from MPI's ranks, `in` and `out` of them. What arrives in a slot of a grid was
 * sent from the other slot of its dimension, and has its tag. Returns 0 or REFUSED. */
static int topology_slots_make(topology *t, const int *sources, int64_t in, const int *dests, int64_t out,
                               int64_t proc_null) {
    int64_t *ranks = topology_zeros_allocate(2 * (in + out), sizeof *ranks);
    if (!ranks) return REFUSED;
    int64_t *tags = ranks + in + out;
    for (int64_t i = 0; i < in + out; i++) {
        const int rank = i < in ? sources[i] : dests[i - in];
        ranks[i] = rank == proc_null ? MPIXLA_PROC_NULL : rank;
        if (t->dimensions >= 0) tags[i] = i < in ? i ^ 1 : i - in;
    }
    t->sources = (topology_slots){.number = in, .ranks = ranks, .tags = tags};
    t->dests = (topology_slots){.number = out, .ranks = ranks + in, .tags = tags + in};
    return 0;
}

/* Reads a Cartesian topology and the neighbours of `rank` in it. Returns 0 or REFUSED. */
static int topology_cartesian_read(const mpi_library *mpi, mpixla_handle comm, int rank, topology *t) {
    int dimensions = 0;
    if (mpi->cartdim_get(comm, &dimensions) != 0) return topology_function_refuse("MPI_Cartdim_get");
    const int64_t slots = 2 * (int64_t)dimensions;
    int *sizes = topology_zeros_allocate(3 * (int64_t)dimensions + slots, sizeof *sizes);
    if (!sizes) return REFUSED;
    int *periods = sizes + dimensions, *place = periods + dimensions, *ranks = place + dimensions;
    *t = (topology){.dimensions = dimensions, .sizes = sizes, .periods = periods, .place = place};
    if (mpi->cart_get(comm, dimensions, sizes, periods, place) != 0) return topology_function_refuse("MPI_Cart_get");
    for (int64_t i = 0; i < slots; i++) {
        int64_t neighbour = 0;
        (void)topology_shift(t, rank, 0, i / 2, i % 2 ? 1 : -1, &neighbour);
        ranks[i] = (int)neighbour; /* of 0 dimensions or more; NOLINT(clang-analyzer-security.ArrayBound) */
    }
    return topology_slots_make(t, ranks, slots, ranks, slots, MPIXLA_PROC_NULL);
}

/* Reads the neighbours of `rank` in a graph topology. Returns 0 or REFUSED. */
static int topology_graph_read(const mpi_library *mpi, mpixla_handle comm, int rank, topology *t) {
    int number = 0;
    if (mpi->graph_neighbors_count(comm, rank, &number) != 0)
        return topology_function_refuse("MPI_Graph_neighbors_count");
    int *ranks = topology_zeros_allocate(number, sizeof *ranks);
    if (!ranks) return REFUSED;
    int result = mpi->graph_neighbors(comm, rank, number, ranks) != 0
                     ? topology_function_refuse("MPI_Graph_neighbors")
                     : topology_slots_make(t, ranks, number, ranks, number, mpi->facts.proc_null);
    free(ranks);
    return result;
}

/* Reads the sources and destinations of this process in a distributed graph. Returns 0 or REFUSED. */
static int topology_dist_graph_read(const mpi_library *mpi, mpixla_handle comm, topology *t) {
    int in = 0, out = 0, is_weighted = 0;
    if (mpi->dist_graph_neighbors_count(comm, &in, &out, &is_weighted) != 0)
        return topology_function_refuse("MPI_Dist_graph_neighbors_count");
    int *sources = topology_zeros_allocate(2 * ((int64_t)in + out), sizeof *sources);
    if (!sources) return REFUSED;
    int *dests = sources + in, *weights = dests + out;
    int result = mpi->dist_graph_neighbors(comm, in, sources, weights, out, dests, weights + in) != 0
                     ? topology_function_refuse("MPI_Dist_graph_neighbors")
                     : topology_slots_make(t, sources, in, dests, out, mpi->facts.proc_null);
    free(sources);
    return result;
}

int topology_read(const mpi_library *mpi, mpixla_handle comm, int rank, const topology **made) {
    int kind = 0;
    *made = NULL;
    if (mpi->topo_test(comm, &kind) != 0) return topology_function_refuse("MPI_Topo_test");
    int is_cartesian = kind == mpi->facts.cart, is_graph = kind == mpi->facts.graph;
    if (!is_cartesian && !is_graph && kind != mpi->facts.dist_graph) return 0;
    topology *t = topology_zeros_allocate(1, sizeof *t);
    if (!t) return REFUSED;
    t->dimensions = -1;
    if (is_cartesian ? topology_cartesian_read(mpi, comm, rank, t)
        : is_graph   ? topology_graph_read(mpi, comm, rank, t)
                     : topology_dist_graph_read(mpi, comm, t)) {
        free((void *)(uintptr_t)t->sizes);
        free(t);
        return REFUSED;
    }
    *made = t;
    return 0;
}

int topology_shift(const topology *t, int rank, int size, int64_t direction, int64_t disp, int64_t *rank_found) {
    int64_t n = size, at = rank, stride = 1, to;
    int is_periodic = 1;
    if (t && t->dimensions >= 0) {
        if (direction < 0 || direction >= t->dimensions) return 0;
        n = t->sizes[direction];
        at = t->place[direction];
        is_periodic = t->periods[direction];
        for (int64_t d = direction + 1; d < t->dimensions; d++) stride *= t->sizes[d];
    } else if (direction != 0) {
        return 0;
    }
    if (is_periodic && n > 0)
        to = (at + disp % n + n) % n;
    else if (__builtin_add_overflow(at, disp, &to) || to < 0 || to >= n)
        to = MPIXLA_PROC_NULL;
    *rank_found = to == MPIXLA_PROC_NULL ? MPIXLA_PROC_NULL : rank + (to - at) * stride;
    return 1;
}
