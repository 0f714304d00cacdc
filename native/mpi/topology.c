#include "mpi/topology.h"

#include <stdlib.h>

#include "base/error.h"

/* Memory for so many items and one more, so that it is none of NULL. */
static void *zeros(int64_t number, size_t bytes) {
    void *made = calloc((size_t)number + 1, bytes);
    if (!made) (void)error_set("out of memory for the neighbours on a communicator");
    return made;
}

static int failed(const char *function) {
    return error_set("%s failed on this communicator", function);
}

/* How slots are numbered by tags: not at all, or with those of the two directions of a dimension as they are or turned
 * round. */
enum { UNNUMBERED = -1, NUMBERED = 0, TURNED = 1 };

static int slots_make(topology_slots *s, const int *ranks, int64_t number, int64_t nobody, int tagged) {
    int64_t *widened = zeros(number, sizeof *widened), *tags = zeros(number, sizeof *tags);
    if (!widened || !tags) {
        free(widened);
        free(tags);
        return REFUSED;
    }
    for (int64_t i = 0; i < number; i++) {
        widened[i] = ranks[i] == nobody ? MPIXLA_PROC_NULL : ranks[i];
        tags[i] = tagged == UNNUMBERED ? 0 : i ^ tagged;
    }
    *s = (topology_slots){.number = number, .ranks = widened, .tags = tags};
    return 0;
}

static int cartesian(const mpi_library *mpi, mpixla_handle comm, int rank, topology *t) {
    int dimensions = 0;
    if (mpi->cartdim_get(comm, &dimensions) != 0) return failed("MPI_Cartdim_get");
    const int64_t slots = 2 * (int64_t)dimensions;
    int *sizes = zeros(3 * (int64_t)dimensions, sizeof *sizes), *ranks = zeros(slots, sizeof *ranks);
    if (!sizes || !ranks) {
        free(sizes);
        free(ranks);
        return REFUSED;
    }
    int *periods = sizes + dimensions, *place = periods + dimensions, result = 0;
    if (mpi->cart_get(comm, dimensions, sizes, periods, place) != 0) result = failed("MPI_Cart_get");
    *t = (topology){.dimensions = dimensions, .sizes = sizes, .periods = periods, .place = place};
    for (int64_t i = 0; result == 0 && i < slots; i++) {
        int64_t neighbour = 0;
        (void)topology_shift(t, rank, 0, i / 2, i % 2 ? 1 : -1, &neighbour);
        ranks[i] = (int)neighbour;
    }
    if (result == 0) result = slots_make(&t->sources, ranks, slots, MPIXLA_PROC_NULL, TURNED);
    if (result == 0) result = slots_make(&t->dests, ranks, slots, MPIXLA_PROC_NULL, NUMBERED);
    free(ranks);
    if (result != 0) free(sizes);
    return result;
}

static int graph(const mpi_library *mpi, mpixla_handle comm, int rank, topology *t) {
    int number = 0;
    if (mpi->graph_neighbors_count(comm, rank, &number) != 0) return failed("MPI_Graph_neighbors_count");
    int *ranks = zeros(number, sizeof *ranks), result = 0;
    if (!ranks) return REFUSED;
    if (mpi->graph_neighbors(comm, rank, number, ranks) != 0) result = failed("MPI_Graph_neighbors");
    if (result == 0) result = slots_make(&t->sources, ranks, number, mpi->facts.proc_null, UNNUMBERED);
    if (result == 0) result = slots_make(&t->dests, ranks, number, mpi->facts.proc_null, UNNUMBERED);
    free(ranks);
    return result;
}

static int edges(const mpi_library *mpi, mpixla_handle comm, topology *t) {
    int in = 0, out = 0, is_weighted = 0;
    if (mpi->dist_graph_neighbors_count(comm, &in, &out, &is_weighted) != 0)
        return failed("MPI_Dist_graph_neighbors_count");
    int *sources = zeros(2 * ((int64_t)in + out), sizeof *sources), result = 0;
    if (!sources) return REFUSED;
    int *dests = sources + in, *weights = dests + out;
    if (mpi->dist_graph_neighbors(comm, in, sources, weights, out, dests, weights + in) != 0)
        result = failed("MPI_Dist_graph_neighbors");
    if (result == 0) result = slots_make(&t->sources, sources, in, mpi->facts.proc_null, UNNUMBERED);
    if (result == 0) result = slots_make(&t->dests, dests, out, mpi->facts.proc_null, UNNUMBERED);
    free(sources);
    return result;
}

int topology_read(const mpi_library *mpi, mpixla_handle comm, int rank, const topology **made) {
    int kind = 0;
    *made = NULL;
    if (mpi->topo_test(comm, &kind) != 0) return failed("MPI_Topo_test");
    int is_cartesian = kind == mpi->facts.cart, is_graph = kind == mpi->facts.graph;
    if (!is_cartesian && !is_graph && kind != mpi->facts.dist_graph) return 0;
    topology *t = zeros(1, sizeof *t);
    if (!t) return REFUSED;
    t->dimensions = -1;
    if (is_cartesian ? cartesian(mpi, comm, rank, t) : is_graph ? graph(mpi, comm, rank, t) : edges(mpi, comm, t)) {
        free((void *)(uintptr_t)t->sources.ranks);
        free((void *)(uintptr_t)t->sources.tags);
        free(t);
        return REFUSED;
    }
    *made = t;
    return 0;
}

/* MPI counts the ranks of a Cartesian communicator row by row. */
int topology_shift(const topology *t, int rank, int size, int64_t direction, int64_t disp, int64_t *there) {
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
    *there = to == MPIXLA_PROC_NULL ? MPIXLA_PROC_NULL : rank + (to - at) * stride;
    return 1;
}
