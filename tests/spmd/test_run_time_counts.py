"""Counts that are traced, and a capacity. That they do what static ones do is in the table of tests/reference.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import mpixla

SIZE = MPI.COMM_WORLD.Get_size()
ROOM = 4 * SIZE


def _drawn(seed):
    """Return for each rank its rows, of which the first count, and the number of rows for each rank."""
    rng = np.random.default_rng([SIZE, seed])
    return rng.normal(size=(SIZE, ROOM, 3)), rng.integers(0, 4, (SIZE, SIZE))


def _sent(x, counts, source, dest):
    start = counts[source, :dest].sum()
    return x[source, start : start + counts[source, dest]]


def _received(x, counts, rank, behind):
    rows = np.concatenate([_sent(x, counts, source, rank) for source in range(SIZE)])
    return np.concatenate([rows, behind[len(rows) :]])


def test_one_program_for_any_counts(comm, rank):
    """Forward and backward, as the counts change from call to call, and inside a scan."""
    call = jax.jit(lambda x, n: mpixla.alltoallv(x, n, capacity=ROOM, comm=comm))
    grad = jax.jit(jax.grad(lambda x, n, w: (w * call(x, n)[0]).sum()))
    weights, zeros = np.random.default_rng(7).normal(size=(SIZE, ROOM, 3)), np.zeros((ROOM, 3))
    drawn = [_drawn(seed) for seed in range(5)]
    for x, counts in drawn:
        rows, received = call(x[rank], counts[rank])
        np.testing.assert_array_equal(received, counts[:, rank])
        np.testing.assert_array_equal(rows, _received(x, counts, rank, zeros))
        np.testing.assert_array_equal(
            grad(x[rank], counts[rank], weights[rank]), _received(weights, counts.T, rank, zeros)
        )
    assert call._cache_size() == grad._cache_size() == 1
    xs, ns = np.stack([x[rank] for x, _ in drawn]), np.stack([counts[rank] for _, counts in drawn])
    _, all_rows = jax.lax.scan(lambda none, pair: (none, call(*pair)[0]), None, (jnp.asarray(xs), jnp.asarray(ns)))
    np.testing.assert_array_equal(all_rows, np.stack([_received(x, counts, rank, zeros) for x, counts in drawn]))


@pytest.mark.parametrize("jit", [jax.jit, mpixla.jit, lambda f: f], ids=["jax.jit", "mpixla.jit", "eager"])
def test_templates_and_pytrees(comm, rank, jit):
    """The rows of the template remain behind those that came; counts travel once for a pytree."""
    x, counts = _drawn(0)
    behind = np.arange(ROOM * 3.0).reshape(ROOM, 3) + 100
    keys = jax.random.split(jax.random.key(rank), ROOM)
    tree = {"rows": jnp.asarray(x[rank]), "tag": jnp.asarray(x[rank, :, 0] > 0), "key": keys}
    template = {"rows": jnp.asarray(behind), "tag": jnp.ones(ROOM, bool), "key": jnp.broadcast_to(keys[0], ROOM)}
    call = jit(lambda tree, n, template: mpixla.alltoallv(tree, n, capacity=ROOM, template=template, comm=comm))
    rows, received = call(tree, jnp.asarray(counts[rank]), template)
    np.testing.assert_array_equal(rows["rows"], _received(x, counts, rank, behind))
    np.testing.assert_array_equal(rows["tag"], _received(x[..., 0] > 0, counts, rank, np.ones(ROOM, bool)))
    words = np.stack([jax.random.key_data(jax.random.split(jax.random.key(i), ROOM)) for i in range(SIZE)])
    kept = np.broadcast_to(words[rank, 0], words[rank].shape)
    np.testing.assert_array_equal(jax.random.key_data(rows["key"]), _received(words, counts, rank, kept))
    grad = jit(
        jax.grad(lambda t: mpixla.alltoallv(x[rank], counts[rank], capacity=ROOM, template=t, comm=comm)[0].sum())
    )
    np.testing.assert_array_equal(grad(jnp.asarray(behind))[:, 0], np.arange(ROOM) >= int(received.sum()))


def test_batches_of_counts(comm, rank):
    """Each part has counts of its own, and travels on its own."""
    drawn = [_drawn(seed) for seed in range(3)]
    xs, ns = np.stack([x[rank] for x, _ in drawn]), np.stack([counts[rank] for _, counts in drawn])
    call = jax.vmap(lambda x, n: mpixla.alltoallv(x, n, capacity=ROOM, comm=comm))
    wanted = np.stack([_received(x, counts, rank, np.zeros((ROOM, 3))) for x, counts in drawn])
    for wrapped in (call, jax.jit(call)):
        rows, received = wrapped(xs, ns)
        np.testing.assert_array_equal(rows, wanted)
        np.testing.assert_array_equal(received, np.stack([counts[:, rank] for _, counts in drawn]))


def test_counts_of_other_ranks_are_returned(comm, rank):
    """gatherv and allgatherv give those of all ranks, scatterv this rank's; the root's are taken."""
    counts = np.arange(SIZE) % 3
    x = np.arange(3.0) + 10 * rank
    for given in (counts, int(counts[rank])):
        for call in (
            lambda x, n: mpixla.allgatherv(x, n, capacity=ROOM, comm=comm),
            lambda x, n: mpixla.gatherv(x, n, SIZE - 1, capacity=ROOM, comm=comm),
        ):
            np.testing.assert_array_equal(jax.jit(call)(x, given)[1], counts)
    whole = np.arange(ROOM) + 1.0
    mine = counts if rank == SIZE - 1 else np.full(SIZE, -7)
    scatter = jax.jit(lambda x, n: mpixla.scatterv(x, n, SIZE - 1, capacity=ROOM, template=-whole, comm=comm))
    rows, own = scatter(whole, mine)
    start = counts[:rank].sum()
    assert int(own) == counts[rank]
    np.testing.assert_array_equal(rows, np.where(np.arange(ROOM) < own, np.roll(whole, -start), -whole))


def test_neighbours_with_any_counts(comm, rank):
    """On a graph in which each rank sends to itself and to all above it, with rows that differ."""
    sources, dests = list(range(rank + 1)), list(range(rank, SIZE))
    graph = comm.Create_dist_graph_adjacent(sources, dests)
    call = jax.jit(lambda x, n: mpixla.neighbor_alltoallv(x, n, capacity=ROOM, template=x * 0 - 1, comm=graph))
    for seed in range(4):
        x, counts = _drawn(seed)
        counts = np.triu(counts)
        rows, received = call(x[rank], counts[rank, rank:])
        np.testing.assert_array_equal(received, counts[: rank + 1, rank])
        np.testing.assert_array_equal(rows, _received(x, counts, rank, np.full((ROOM, 3), -1.0)))
    assert call._cache_size() == 1
    graph.Free()


# ragged_all_to_all


def _ragged(seed, each):
    """Return slices of each rank's operand, `each` for each rank, and where they go; and the result on each rank."""
    rng = np.random.default_rng([SIZE, each, seed])
    n = SIZE * each
    operand, output = rng.normal(size=(SIZE, 5 * n, 2)), rng.normal(size=(SIZE, 6 * n, 2))
    sizes = rng.integers(0, 5, (SIZE, n))
    starts = np.stack([rng.permutation(n) * 5 for _ in range(SIZE)])  # in any order, with gaps
    blocks = [rng.permutation(n) * 6 for _ in range(SIZE)]  # where what comes to a rank is put
    places = np.zeros_like(sizes)
    wanted = output.copy()
    for source in range(SIZE):
        for i in range(n):
            dest = i // each
            place = places[source, i] = blocks[dest][source * each + i % each]
            wanted[dest, place : place + sizes[source, i]] = operand[
                source, starts[source, i] : starts[source, i] + sizes[source, i]
            ]
    came = np.stack([sizes[:, r * each : (r + 1) * each].reshape(-1) for r in range(SIZE)])
    return operand, output, starts, sizes, places, came, wanted


@pytest.mark.parametrize("each", [1, 2])
def test_ragged_all_to_all(comm, rank, each):
    call = jax.jit(lambda *args: mpixla.ragged_all_to_all(*args, comm=comm))
    for seed in range(4):
        *args, wanted = _ragged(seed, each)
        np.testing.assert_array_equal(call(*(x[rank] for x in args)), wanted[rank])
    assert call._cache_size() == 1


@pytest.mark.parametrize(("sizes", "said"), [([3, -2], "-1, which is negative"), ([2**63 - 1] * 2, str(2**63 - 1))])
def test_ragged_sizes_that_add_up_well(sizes, said):
    """Only their sums get to the C library."""
    zero = jnp.zeros(2, int)
    with pytest.raises(Exception, match=said):
        jax.block_until_ready(
            mpixla.ragged_all_to_all(
                jnp.ones(4), jnp.ones(4), zero, jnp.array(sizes), zero, jnp.array(sizes), comm=MPI.COMM_SELF
            )
        )


@pytest.mark.parametrize(
    ("start", "place", "wanted"),
    [(-1, 0, [0, 1, -1, -1]), (3, 0, [4, 0, -1, -1]), (0, -1, [2, -1, -1, -1]), (0, 3, [-1, -1, -1, 1])],
)
def test_ragged_slices_beyond_the_arrays(start, place, wanted):
    """No row comes from the other end, as an index of JAX's would."""
    numbers = [jnp.array([i]) for i in (start, 2, place, 2)]
    y = mpixla.ragged_all_to_all(jnp.arange(1.0, 5), jnp.full(4, -1.0), *numbers, comm=MPI.COMM_SELF)
    np.testing.assert_array_equal(y, wanted)


@pytest.mark.parametrize("how", ["grad", "linear_transpose"])
def test_gradients_of_ragged_all_to_all(comm, rank, how):
    """Of what was not overwritten, and of slices where they came from."""
    operand, output, *numbers, _ = _ragged(0, 1)
    weights = np.random.default_rng(1).normal(size=output.shape)

    def call(operand, output):
        return mpixla.ragged_all_to_all(operand, output, *(x[rank] for x in numbers), comm=comm)

    arrays = operand[rank], output[rank]
    if how == "grad":
        got = jax.jit(jax.grad(lambda *arrays: (weights[rank] * call(*arrays)).sum(), argnums=(0, 1)))(*arrays)
    else:
        got = jax.jit(lambda ct: jax.linear_transpose(call, *arrays)(ct))(weights[rank])
    of_operand, of_output = np.zeros_like(operand), weights.copy()
    starts, sizes, places, _ = numbers
    for source in range(SIZE):
        for dest in range(SIZE):
            start, size, place = (x[source, dest] for x in (starts, sizes, places))
            of_operand[source, start : start + size] = weights[dest, place : place + size]
            of_output[dest, place : place + size] = 0
    np.testing.assert_array_equal(got[0], of_operand[rank])
    np.testing.assert_array_equal(got[1], of_output[rank])


def test_gradients_without_rows(comm, rank):
    """Of a rank that has none to send, and with room for none."""
    rows = np.full((SIZE if rank else 0, 2), rank + 1.0)
    mine = np.arange(SIZE) * bool(rank), np.full(SIZE, int(rank > 0))
    from_all = np.full(SIZE, rank), np.arange(SIZE).clip(0, 1)

    def sent(x):
        places = np.arange(SIZE) * 0 + rank
        return mpixla.ragged_all_to_all(x, jnp.zeros((SIZE, 2)), mine[0] * 0, mine[1], places, from_all[1], comm=comm)

    got = jax.grad(lambda x: (sent(x) ** 2).sum())(rows)
    expected = np.zeros_like(rows)
    expected[:1] = 2 * SIZE * (rank + 1)
    np.testing.assert_array_equal(got, expected)
    got = jax.grad(lambda x: (mpixla.allgatherv(x, x.shape[0] * 0, capacity=0, comm=comm)[0] ** 2).sum())(rows + 0.0)
    assert not got.any()


# Bad calls

X = np.ones((3, 2))
BAD_CALLS = {
    "capacity": (lambda n: mpixla.alltoallv(X, n, capacity=-1), ValueError, "^capacity of alltoallv is -1"),
    "traced capacity": (lambda n: mpixla.alltoallv(X, n, capacity=n[0]), TypeError, "^capacity of .* traced .* static"),
    "floats": (lambda n: mpixla.allgatherv(X, n * 1.5, capacity=3), TypeError, "^counts of .* must be integers"),
    "large": (lambda n: mpixla.alltoallv(X, [2**70] * SIZE, capacity=3), TypeError, "^sendcounts of .* must be int"),
    "no template": (lambda n: mpixla.alltoallv(X, n, capacity=3, template="x"), TypeError, "^template of .* must be"),
    "large array": (
        lambda n: mpixla.alltoallv(X, np.full(SIZE, 2**63, np.uint64), capacity=3),
        TypeError,
        "^sendcounts of .* must be integers that JAX has a type for",
    ),
    "text": (lambda n: mpixla.gatherv(X, "many", 0, capacity=3), TypeError, "^counts of gatherv must be integers"),
    "too few": (
        lambda n: mpixla.alltoallv(X, n[:0], capacity=3),
        ValueError,
        "^sendcounts of .* one for each of the . ranks",
    ),
    "scalar": (lambda n: mpixla.alltoallv(1.0, n, capacity=3), ValueError, "but x is a scalar"),
    "template": (lambda n: mpixla.alltoallv(X, n, capacity=3, template=X[:1]), ValueError, "^template of alltoallv"),
    "no capacity": (lambda n: mpixla.alltoallv(X, n, n), TypeError, "^sendcounts .* Pass capacity"),
    "template alone": (
        lambda n: mpixla.alltoallv(X[:SIZE], [1] * SIZE, [1] * SIZE, template=X),
        TypeError,
        "template only with a capacity",
    ),
    "no recvcounts": (lambda n: mpixla.alltoallv(X, [1] * SIZE), TypeError, "^recvcounts of alltoallv must be a seq"),
    "ragged dtypes": (lambda n: mpixla.ragged_all_to_all(X, n, n, n, n, n), ValueError, "must have the same dtype"),
    "ragged sizes": (
        lambda n: mpixla.ragged_all_to_all(X, X, n, jnp.tile(n, 2), n, n),
        ValueError,
        "^ragged_all_to_all needs as many offsets as sizes",
    ),
    "ragged nothing": (lambda n: mpixla.ragged_all_to_all(X, X, *[n[:0]] * 4), ValueError, "one integer for each of"),
}


@pytest.mark.parametrize("bad", BAD_CALLS)
def test_bad_calls(bad):
    call, kind, sentence = BAD_CALLS[bad]
    with pytest.raises(kind, match=sentence) as raised:
        jax.jit(call)(jnp.ones(SIZE, int))
    assert str(raised.value).endswith(".")


def test_too_many_rows(comm):
    """What is sent, and what comes; and a number that is none. Each rank says which call it is, and where."""
    call = jax.jit(lambda x, n, m: mpixla.alltoallv(x, n, m, capacity=SIZE, comm=comm))
    ones = np.ones(SIZE, int)
    for n, m, sentence in (
        (2 * ones, ones, rf"the send buffer of MPI_Alltoallv has {SIZE} rows, but its counts say {2 * SIZE} \(at"),
        (
            ones,
            2 * ones,
            rf"the receive buffer of MPI_Alltoallv has {SIZE} .* {2 * SIZE}: a larger capacity takes them",
        ),
        (ones, -ones, r"MPI_Alltoallv got recvcounts\[0\] = -1, which is negative \(at .*test_run_time_counts.py"),
    ):
        with pytest.raises(Exception, match=sentence):
            jax.block_until_ready(call(np.ones((SIZE, 2)), n, m))
