"""The neighbor_* operations on every kind of topology, against NumPy and the edges of all ranks.

tests/reference.py has rows for a line and a ring of ranks; here are grids, graphs, and what can go wrong.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import mpixla
from cases import check_refused

SIZE = MPI.COMM_WORLD.Get_size()
NOBODY = None


@dataclass(frozen=True)
class Topology:
    """A communicator, and its edges.

    For each rank these are its destinations and, for each of its sources, the source's rank and the slot of the source
    from which the message is sent.
    """

    make: object
    dests: list
    sources: list


def grid(dims, periods):
    """Return a Cartesian communicator, written down from MPI's definition of it."""
    dests, sources = [], []
    for rank in range(SIZE):
        here = np.unravel_index(rank, dims)
        slots = []
        for axis, (length, periodic) in enumerate(zip(dims, periods, strict=True)):
            for step in (-1, 1):
                there = list(here)
                there[axis] += step
                inside = 0 <= there[axis] < length
                there[axis] %= length
                slots.append(int(np.ravel_multi_index(there, dims)) if inside or periodic else NOBODY)
        dests.append(slots)
        # What was sent down comes from above, and the other way round.
        sources.append([NOBODY if r is NOBODY else (r, s + 1 if s % 2 == 0 else s - 1) for s, r in enumerate(slots)])
    return Topology(lambda: MPI.COMM_WORLD.Create_cart(dims, periods), dests, sources)


def edges(lists, make):
    """Return a graph by the destinations of each rank. Sources come in rank order, edges between two ranks by slot."""
    sources = [
        [(r, slot) for r, dests in enumerate(lists) for slot, dest in enumerate(dests) if dest == rank]
        for rank in range(SIZE)
    ]
    return Topology(lambda: make(lists, [[r for r, _ in s] for s in sources]), lists, sources)


def dist_graph(lists, sources):
    rank = MPI.COMM_WORLD.Get_rank()
    return MPI.COMM_WORLD.Create_dist_graph_adjacent(sources[rank], lists[rank])


def graph(lists, sources):
    flat = [dest for dests in lists for dest in dests]
    return MPI.COMM_WORLD.Create_graph(np.cumsum([len(dests) for dests in lists]).tolist(), flat)


TALL = (SIZE // 2, 2) if SIZE % 2 == 0 else (SIZE, 1)
TOPOLOGIES = {
    "line": grid([SIZE], [False]),
    "ring": grid([SIZE], [True]),
    "grid": grid(TALL, [False, True]),
    "torus": grid(TALL, [True, True]),
    "cube": grid([1, SIZE, 1], [False, False, True]),
    # Everybody knows everybody else, and themselves too. (MPICH makes no graph without edges.)
    "graph": edges([[r for r in range(SIZE) if r != rank] for rank in range(SIZE)], graph),
    "graph with itself": edges([list(range(SIZE)) for _ in range(SIZE)], graph),
    # All ranks send to the last: the others have no sources, the last has no destinations.
    "star": edges([[] if rank == SIZE - 1 else [SIZE - 1] for rank in range(SIZE)], dist_graph),
    # Two edges to the next rank, one to itself, one more from rank 0 to each.
    "double": edges(
        [[(rank + 1) % SIZE, rank, (rank + 1) % SIZE, *(range(SIZE) if rank == 0 else [])] for rank in range(SIZE)],
        dist_graph,
    ),
    "nobody": edges([[] for _ in range(SIZE)], dist_graph),
}
if SIZE == 1:
    del TOPOLOGIES["graph"]
HOW = pytest.mark.parametrize("how", ["eager", "jit"])
OPS = ["neighbor_allgather", "neighbor_alltoall", "neighbor_alltoallv"]


@pytest.fixture(params=TOPOLOGIES)
def topology(request):
    return TOPOLOGIES[request.param]


@pytest.fixture
def made(topology):
    comm = topology.make()
    yield comm
    comm.Free()


def rows(source, slot):
    """Return how many rows rank `source` sends from a slot: none now and then, and never the same number everywhere."""
    return (source + 2 * slot) % 4


def sendcounts(topology, rank):
    return [rows(rank, slot) for slot in range(len(topology.dests[rank]))]


def recvcounts(topology, rank):
    """Return the rows of each slot; 2 rows of zeros where there is no neighbour."""
    return [2 if edge is NOBODY else rows(*edge) for edge in topology.sources[rank]]


def shape_of(op, topology, rank, rest):
    if op == "neighbor_allgather":
        return rest
    if op == "neighbor_alltoall":
        return (len(topology.dests[rank]), *rest)
    return (sum(sendcounts(topology, rank)), *rest)


def model(op, topology, inputs, rank):
    """Return the result on a rank from the operands of all."""
    if op == "neighbor_alltoallv":
        # Some rows of each sender, so take the pieces apart by its counts.
        pieces = []
        for edge, count in zip(topology.sources[rank], recvcounts(topology, rank), strict=True):
            if edge is NOBODY:
                pieces.append(np.zeros_like(inputs[rank], shape=(count, *inputs[rank].shape[1:])))
                continue
            source, slot = edge
            start = sum(sendcounts(topology, source)[:slot])
            pieces.append(inputs[source][start : start + count])
        empty = np.zeros_like(inputs[rank], shape=(0, *inputs[rank].shape[1:]))
        return np.concatenate([empty, *pieces])
    slices = []
    item = inputs[rank].shape if op == "neighbor_allgather" else inputs[rank].shape[1:]
    for edge in topology.sources[rank]:
        if edge is NOBODY:
            slices.append(np.zeros_like(inputs[rank], shape=item))
        else:
            slices.append(inputs[edge[0]] if op == "neighbor_allgather" else inputs[edge[0]][edge[1]])
    return np.stack(slices) if slices else np.zeros_like(inputs[rank], shape=(0, *item))


def call(op, topology, comm):
    rank = comm.Get_rank()
    if op == "neighbor_alltoallv":
        send, receive = sendcounts(topology, rank), recvcounts(topology, rank)
        return lambda x: mpixla.neighbor_alltoallv(x, send, receive, comm=comm)
    return lambda x: getattr(mpixla, op)(x, comm=comm)


def draw(op, topology, rest, seed):
    """Return the operands of all ranks."""
    return [np.random.default_rng([seed, r]).normal(size=shape_of(op, topology, r, rest)) for r in range(SIZE)]


def test_the_oracle_agrees_with_mpi(topology, made, rank):
    """The slots are MPI's own."""
    dests, sources = topology.dests[rank], topology.sources[rank]
    if made.Get_topology() == MPI.DIST_GRAPH:
        assert list(made.Get_dist_neighbors()[:2]) == [[r for r, _ in sources], dests] or SIZE == 1
        return
    assert made.outdegree == len(dests)
    assert made.indegree == len(sources)
    assert list(made.outedges) == [MPI.PROC_NULL if r is NOBODY else r for r in dests]
    assert list(made.inedges) == [MPI.PROC_NULL if edge is NOBODY else edge[0] for edge in sources]


@HOW
@pytest.mark.parametrize("op", OPS)
def test_value(op, topology, made, rank, how):
    f = call(op, topology, made)
    f = jax.jit(f) if how == "jit" else f
    for rest in ((3,), (), (2, 0)):
        inputs = draw(op, topology, rest, 1)
        got, want = f(inputs[rank]), model(op, topology, inputs, rank)
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        np.testing.assert_array_equal(got, want)


@pytest.mark.two_ranks  # tests/spmd/test_transpose.py has the rows on any number of them
@pytest.mark.parametrize("op", OPS)
def test_derivatives(op, topology, made, rank):
    """Forward mode is the operation itself; reverse mode by the dot product over all ranks, and twice is once."""
    inputs, tangents = draw(op, topology, (3,), 3), draw(op, topology, (3,), 4)
    cotangents = [np.random.default_rng([5, r]).normal(size=model(op, topology, inputs, r).shape) for r in range(SIZE)]
    f = call(op, topology, made)

    value, tangent = jax.jit(lambda x, t: jax.jvp(f, (x,), (t,)))(inputs[rank], tangents[rank])
    np.testing.assert_array_equal(value, model(op, topology, inputs, rank))
    np.testing.assert_array_equal(tangent, model(op, topology, tangents, rank))

    (got,) = jax.jit(lambda x, ct: jax.vjp(f, x)[1](ct))(inputs[rank], cotangents[rank])
    assert got.shape == inputs[rank].shape
    # Entry by entry: what becomes of a unit vector on this rank, on all ranks.
    want = np.zeros_like(inputs[rank])
    for i in np.ndindex(want.shape):
        units = [np.zeros_like(x) for x in inputs]
        units[rank][i] = 1.0
        want[i] = sum(np.vdot(cotangents[r], model(op, topology, units, r)) for r in range(SIZE))
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)

    x, y = inputs[rank], cotangents[rank]
    transpose = jax.linear_transpose(f, x)
    twice = jax.linear_transpose(lambda ct: transpose(ct)[0], y)
    np.testing.assert_array_equal(jax.jit(lambda x: twice(x)[0])(x), value)


@pytest.mark.two_ranks
@pytest.mark.parametrize("op", OPS)
def test_vmap(op, topology, made, rank):
    """The batch is one exchange, forward and back."""
    f, batch = call(op, topology, made), [draw(op, topology, (2, 4), 10 + i) for i in range(3)]
    stacked = np.stack([inputs[rank] for inputs in batch], -1)
    batched = jax.jit(jax.vmap(f, in_axes=-1, out_axes=-1))
    np.testing.assert_array_equal(batched(stacked), np.stack([model(op, topology, x, rank) for x in batch], -1))
    assert batched.lower(stacked).as_text().count("@mpixla_exchange(") == 1

    cts = np.random.default_rng(rank).normal(size=(3, *model(op, topology, batch[0], rank).shape))
    pull_back = jax.vjp(f, batch[0][rank])[1]
    one_by_one = np.stack([pull_back(ct)[0] for ct in cts])
    got = jax.jit(jax.vmap(lambda ct: pull_back(ct)[0]))
    np.testing.assert_array_equal(got(cts), one_by_one)
    assert got.lower(cts).as_text().count("@mpixla_exchange(") == 1


@pytest.mark.parametrize("op", OPS)
def test_vmap_of_nothing(op, rank):
    topology = TOPOLOGIES["double"]
    comm = topology.make()
    empty = jax.vmap(call(op, topology, comm))(np.zeros((0, *shape_of(op, topology, rank, (2,)))))
    assert empty.shape == (0, *model(op, topology, draw(op, topology, (2,), 0), rank).shape)
    comm.Free()


def test_walls_are_zeros_in_used_memory(rank):
    comm = MPI.COMM_WORLD.Create_cart([SIZE], [False])
    walls = np.array([rank == 0, rank == SIZE - 1])
    x = np.array([3.0, 4.0]) + rank

    def noise(x):  # memory that is not zero, freed before the call
        return mpixla.neighbor_alltoall(x + 0 * jnp.sum(jnp.sin(jnp.arange(1000.0) + x[0])), comm=comm)

    got = np.asarray(jax.jit(noise)(x))
    assert (got[walls] == 0).all()
    assert (got[~walls] != 0).all()
    comm.Free()


@HOW
def test_messages_of_the_program_are_not_met(rank, how):
    """A receive from anybody with any tag is pending, and a message that nobody has received yet is under way."""
    if SIZE == 1:
        pytest.skip("needs a partner")
    comm = MPI.COMM_WORLD.Create_cart([SIZE], [True])
    below, above = comm.Shift(0, 1)
    pending, early, mine = np.zeros(1), np.zeros(1), np.full(1, -1.0 - rank)
    request = comm.Irecv(pending, MPI.ANY_SOURCE, MPI.ANY_TAG)

    def f(x):
        return mpixla.neighbor_alltoall(x, comm=comm)

    f = jax.jit(f) if how == "jit" else f
    np.testing.assert_array_equal(f(np.full((2, 1), float(rank))), [[below], [above]])
    assert not request.Test()
    comm.Barrier()
    sends = [comm.Isend(mine, above, 0), comm.Isend(mine, above, 1)]
    np.testing.assert_array_equal(f(np.full((2, 1), float(rank))), [[below], [above]])
    comm.Recv(early, below, 1)
    request.Wait()
    MPI.Request.Waitall(sends)
    assert pending == early == -1.0 - below
    comm.Free()


@pytest.mark.not_checked
@pytest.mark.not_through_nccl
@pytest.mark.parametrize("excess", [-1, 1], ids=["fewer", "more"])
@HOW
def test_counts_that_do_not_match(rank, how, excess):
    """The rank that expects another number of rows says so, names its neighbour, and goes on."""
    if SIZE == 1:
        pytest.skip("Open MPI 4 reports nothing for a message to oneself")
    comm = MPI.COMM_WORLD.Create_cart([SIZE], [False])
    x = np.full((4, 3), float(rank))
    send, receive = (2, 2), (2, 2 + excess if rank == 0 else 2)

    def f(x):
        return mpixla.neighbor_alltoallv(x, send, receive, comm=comm)

    f = jax.jit(f) if how == "jit" else f
    if rank == 0:
        what = r"a message of 48 bytes came from rank 1, but source slot 1 was to receive 72"
        if excess < 0:
            what = r"(?s)r0 \| MPI_\w+ returned error code \d+: .*in source slot 1 <- 1 with tag 0 and 3 items"
        with pytest.raises(Exception, match=what) as raised:
            f(x).block_until_ready()
        assert "rank 0 of" in str(raised.value)
    else:
        got = np.asarray(f(x))
        np.testing.assert_array_equal(got[:2], np.full((2, 3), rank - 1.0))
    y = mpixla.neighbor_alltoallv(x, (2, 2), (2, 2), comm=comm)
    np.testing.assert_array_equal(y[2:], np.full((2, 3), rank + 1.0 if rank < SIZE - 1 else 0.0))
    comm.Free()


def one_way():
    lists = [[(rank + 1) % 3] for rank in range(3)]
    return graph(lists + [[]] * (SIZE - 3), None)


BAD_CALLS = [
    ("no topology", lambda c: mpixla.neighbor_allgather(1.0, comm=MPI.COMM_WORLD), ValueError, "'MPI_COMM_WORLD' has"),
    ("none", lambda c: mpixla.neighbor_alltoall(1.0, comm=None), ValueError, r"none. Make one with comm.Create_cart\("),
    ("an int", lambda c: mpixla.neighbor_alltoallv(1.0, [], [], comm=3), TypeError, "must be an mpi4py communicator"),
    ("slots", lambda c: mpixla.neighbor_alltoall(np.ones((3, 2)), comm=c), ValueError, r"2 destinations .* \(3, 2\)"),
    ("scalar", lambda c: mpixla.neighbor_alltoall(1.0, comm=c), ValueError, r"x has shape \(\)"),
    (
        "rows",
        lambda c: mpixla.neighbor_alltoallv(np.ones(3), (1, 1), (1, 1), comm=c),
        ValueError,
        "2 rows .* the sum of sendcounts, but x",
    ),
    (
        "counts",
        lambda c: mpixla.neighbor_alltoallv(np.ones(3), (3,), (1, 1), comm=c),
        ValueError,
        "each of this rank's 2 destinations, but has 1",
    ),
    ("recvcounts", lambda c: mpixla.neighbor_alltoallv(np.ones(2), (1, 1), (1,), comm=c), ValueError, "^recvcounts"),
]


@pytest.mark.parametrize(("bad", "kind", "sentence"), [pytest.param(*c[1:], id=c[0]) for c in BAD_CALLS])
def test_bad_arguments(bad, kind, sentence):
    comm = MPI.COMM_WORLD.Create_cart([SIZE], [True])
    check_refused(lambda: bad(comm), kind, sentence)
    comm.Free()


def test_graph_on_one_rank_with_unequal_edges_is_refused():
    comm = MPI.COMM_SELF.Create_dist_graph_adjacent([0, 0], [0])
    with pytest.raises(Exception, match="rank 0 sends rank 0 3 items.*\n.*expects 6 items in 2 messages from rank 0"):
        jax.block_until_ready(mpixla.neighbor_allgather(jnp.ones(3), comm=comm))
    comm.Free()


def test_graphs_whose_edges_go_one_way():
    if SIZE < 3:
        pytest.skip("needs three ranks")
    comm = one_way()
    with pytest.raises(ValueError, match=r"has 1 from rank 0 to rank 1 and 0 back.*Create_dist_graph_adjacent"):
        mpixla.neighbor_allgather(1.0, comm=comm)
    comm.Free()


def test_rank_without_neighbours(rank):
    """Its lists are empty."""
    if SIZE < 3:
        pytest.skip("needs three ranks")
    neighbours = [1 - rank] if rank < 2 else []
    comm = MPI.COMM_WORLD.Create_dist_graph_adjacent(neighbours, neighbours)
    rows = np.full((2, 3), float(rank))
    received, counts = mpixla.neighbor_alltoallv(rows, [2 for _ in neighbours], capacity=3, comm=comm)
    expected = [[1.0 - rank] * 3] * 2 + [[0.0] * 3] if neighbours else np.zeros((3, 3))
    np.testing.assert_array_equal(received, expected)
    assert counts.tolist() == [2 for _ in neighbours]
    comm.Free()


@pytest.mark.not_checked
def test_other_objects_for_the_same_communicator(rank, compilations):
    """What counts is the communicator, not mpi4py's class; eager calls compile once."""
    comm = MPI.COMM_WORLD.Create_cart([SIZE], [True])
    x = jnp.arange(4.0) + rank
    first = mpixla.neighbor_allgather(x, comm=comm)
    compilations.clear()
    np.testing.assert_array_equal(mpixla.neighbor_allgather(x, comm=MPI.Intracomm(comm)), first)
    assert compilations == []
    comm.Free()
