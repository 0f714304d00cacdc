"""halo_exchange against a model that cuts the blocks out of the whole domain."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import mpixla
from cases import check_refused
from halo_model import Grid, blocks_of, dims_of
from reference import DTYPES

SIZE = MPI.COMM_WORLD.Get_size()


GRIDS = [
    Grid(dims, periods, widths, axes, ndim)
    for dimensions, widths, axes, ndim in [
        (1, (1,), (0,), 1),
        (1, (3,), (0,), 2),
        (1, (2,), (2,), 3),
        (1, (2,), (1,), 3),
        (2, (1, 1), (0, 1), 2),
        (2, (2, 3), (1, 0), 2),
        (2, (0, 2), (0, 1), 3),
        (2, (1, 2), (3, 1), 4),
        (3, (1, 2, 3), (2, 0, 1), 3),
        (3, (2, 0, 1), (3, 0, 2), 4),
    ]
    for dims in dims_of(dimensions, SIZE)
    for periods in itertools.product((False, True), repeat=dimensions)
]
# Fewer, which have a wall and a ring where there are two dimensions.
SOME = [g for g in GRIDS if g.widths in [(3,), (2,), (2, 3), (1, 2), (1, 2, 3)] and any(g.periods)]
SOME = [g for g in SOME if len(g.dims) == 1 or (not all(g.periods) and g.dims == dims_of(len(g.dims), SIZE)[0])]
MIXED = Grid(dims_of(2, SIZE)[0], (False, True), (1, 2), (0, 1), 2)


def call(grid, comm):
    return lambda x: mpixla.halo_exchange(x, comm, width=grid.widths, axes=grid.axes)


def name(value):
    if not isinstance(value, Grid):
        return None
    dims = "x".join(f"{n}{'o' if p else '|'}" for n, p in zip(value.dims, value.periods, strict=True))
    return f"{dims} width {value.widths} axes {value.axes} of {value.ndim}".replace(", ", ",")


@pytest.mark.parametrize("grid", GRIDS, ids=name)
def test_value(grid, cart, rank, size):
    blocks = blocks_of(grid, size)
    before = blocks[rank].copy()
    c = cart(grid)
    want = grid.exchanged(blocks, rank)
    x = jnp.asarray(blocks[rank])
    np.testing.assert_array_equal(call(grid, c)(x), want)
    np.testing.assert_array_equal(jax.jit(call(grid, c))(x), want)
    np.testing.assert_array_equal(x, before)


@pytest.mark.two_ranks
def test_keys(cart, rank, size):
    """Axes are those of the arrays of keys, however they are counted, and not those of their data."""
    c = cart(MIXED)
    rng = np.random.default_rng(1)
    raw = [[rng.integers(0, 2**32, (*MIXED.shape(r), words), np.uint32) for r in range(size)] for words in (2, 4)]
    floats = blocks_of(MIXED, size)
    tree = {
        "threefry": jax.random.wrap_key_data(raw[0][rank], impl="threefry2x32"),
        "floats": jnp.asarray(floats[rank]),
        "rbg": jax.random.wrap_key_data(raw[1][rank], impl="rbg"),
    }

    def exchange(x):
        return mpixla.halo_exchange(x, c, width=MIXED.widths, axes=(-2, -1))

    batch = jax.vmap(exchange, in_axes=1, out_axes=1)(jax.tree.map(lambda x: jnp.stack([x] * 3, 1), tree))
    for got in (exchange(tree), jax.tree.map(lambda x: x[:, -1], batch)):
        assert jax.tree.map(jnp.shape, got) == jax.tree.map(jnp.shape, tree)
        for name, blocks in zip(("threefry", "rbg"), raw, strict=True):
            assert got[name].dtype == tree[name].dtype
            np.testing.assert_array_equal(jax.random.key_data(got[name]), MIXED.exchanged(blocks, rank))
        np.testing.assert_array_equal(got["floats"], MIXED.exchanged(floats, rank))
    with pytest.raises(ValueError, match=r"are \(-3, -1\), but an array of shape \(\d, \d\) has 2 axes"):
        mpixla.halo_exchange(tree, c, width=MIXED.widths, axes=(-3, -1))


def test_rows_of_any_length(cart, rank, size):
    """In one program, so that short messages and long ones are mixed; the longest are 16 MiB."""
    c = cart(Grid((SIZE,), (True,), (1,), (0,), 2))
    lengths = [1, 111, 112, 16_368, 16_369, 300_000, 1 << 24]

    def block(r, n):
        return (np.arange(3 * n).reshape(3, n) + 50 * r).astype(np.int8)

    @jax.jit
    def exchange(blocks):
        return [mpixla.halo_exchange(x, c, axes=0) for x in blocks]

    for n, got in zip(lengths, exchange([jnp.asarray(block(rank, n)) for n in lengths]), strict=True):
        want = block(rank, n)
        want[0], want[2] = block((rank - 1) % size, n)[1], block((rank + 1) % size, n)[1]
        np.testing.assert_array_equal(got, want)


def test_default_axes_and_one_width(cart, rank, size):
    grid = Grid(dims_of(2, SIZE)[0], (False, True), (2, 2), (0, 1), 3)
    blocks, c = blocks_of(grid, size), cart(grid)
    want = grid.exchanged(blocks, rank)
    for width, axes in ((2, None), (np.int32(2), (-3, -2)), ([2, 2], np.array([0, -2]))):
        np.testing.assert_array_equal(mpixla.halo_exchange(blocks[rank], c, width=width, axes=axes), want)


def test_one_dimension_of_a_grid(cart, rank, size):
    """A sub-communicator has dimensions, walls and neighbours of its own."""
    c = cart(Grid(dims_of(2, SIZE)[0], (False, True), (), (), 0))
    for kept in (0, 1):
        sub = c.Sub([kept == 0, kept == 1])
        grid = Grid((sub.Get_size(),), (kept == 1,), (2,), (1,), 2)
        blocks = blocks_of(grid, sub.Get_size(), draw=rank - sub.Get_rank())
        blocks = sub.allgather(blocks[sub.Get_rank()])
        got = call(grid, sub)(blocks[sub.Get_rank()])
        np.testing.assert_array_equal(got, grid.exchanged(blocks, sub.Get_rank()))
        sub.Free()


def test_integers_for_one_dimension(cart, rank, size):
    grid = Grid((SIZE,), (True,), (1,), (1,), 2)
    blocks, c = blocks_of(grid, size), cart(grid)
    np.testing.assert_array_equal(mpixla.halo_exchange(blocks[rank], c, axes=-1), grid.exchanged(blocks, rank))
    with pytest.raises(TypeError, match=r"axes of halo_exchange must be an integer"):
        mpixla.halo_exchange(blocks[rank], c, axes=0.5)


def test_no_dimension(cart):
    c = cart(MIXED).Sub([False, False])
    if c == MPI.COMM_NULL:
        pytest.skip("this MPI gives such a communicator to one rank only")
    np.testing.assert_array_equal(mpixla.halo_exchange(jnp.arange(3.0), c), [0, 1, 2])
    c.Free()


def test_nothing_to_exchange(cart):
    c = cart(Grid((SIZE,), (True,), (), (), 0))
    assert mpixla.halo_exchange(jnp.zeros((3, 0)), c).shape == (3, 0)
    empty, full = mpixla.halo_exchange((jnp.zeros((3, 0)), jnp.zeros(3)), c)
    assert (empty.shape, full.shape) == ((3, 0), (3,))
    assert mpixla.halo_exchange({}, c) == {}


# Several arrays

FIELDS = [
    (np.float32, Grid((SIZE,), (True,), (2,), (0,), 2)),
    (np.int8, Grid((SIZE,), (True,), (2,), (0,), 1)),
    (np.complex128, Grid((SIZE,), (True,), (2,), (0,), 3)),
]


@pytest.mark.parametrize("how", ["eager", "jit"])
@pytest.mark.parametrize("same", [True, False])
def test_pytree(how, same, cart, rank, size):
    """Arrays of one or of several types and shapes."""
    fields = [(np.float32, grid) for _, grid in FIELDS] if same else FIELDS
    c = cart(fields[0][1])
    blocks = [blocks_of(grid, size, dtype, draw) for draw, (dtype, grid) in enumerate(fields)]
    want = [grid.exchanged(b, rank) for b, (_, grid) in zip(blocks, fields, strict=True)]

    def f(a, b, last):
        return mpixla.halo_exchange({"a": a, "rest": (b, [last, None])}, c, width=2)

    if how == "jit":
        f = jax.jit(f)
    got = f(*(b[rank] for b in blocks))
    assert got["rest"][1][1] is None
    for one, expected in zip([got["a"], got["rest"][0], got["rest"][1][0]], want, strict=True):
        assert one.dtype == expected.dtype
        np.testing.assert_array_equal(one, expected)


def test_fields_with_negative_axes(cart, rank, size):
    """Counted from the end, the axes are others for an array that has more of them."""
    flat = Grid(dims_of(2, SIZE)[0], (True, False), (1, 1), (0, 1), 2)
    deep = Grid(flat.dims, flat.periods, (1, 1), (1, 2), 3)
    blocks = [blocks_of(grid, size, draw=i) for i, grid in enumerate((flat, deep))]
    got = mpixla.halo_exchange((blocks[0][rank], blocks[1][rank]), cart(flat), axes=(-2, -1))
    for one, grid, b in zip(got, (flat, deep), blocks, strict=True):
        np.testing.assert_array_equal(one, grid.exchanged(b, rank))


@pytest.mark.parametrize("how", ["eager", "jit"])
def test_an_array_twice(how, cart, rank, size):
    blocks, c = blocks_of(MIXED, size), cart(MIXED)

    def f(x):
        return *call(MIXED, c)((x, x)), x

    first, second, x = (jax.jit(f) if how == "jit" else f)(jnp.asarray(blocks[rank]))
    np.testing.assert_array_equal(first, MIXED.exchanged(blocks, rank))
    np.testing.assert_array_equal(second, first)
    np.testing.assert_array_equal(x, blocks[rank])


# Derivatives


@pytest.mark.parametrize("grid", SOME, ids=name)
def test_derivatives(grid, cart, rank, size):
    f = call(grid, cart(grid))
    x, t, ct = (blocks_of(grid, size, draw=draw) for draw in range(3))
    y, dy = jax.jvp(f, (x[rank],), (t[rank],))
    np.testing.assert_array_equal(y, grid.exchanged(x, rank))
    np.testing.assert_array_equal(dy, grid.exchanged(t, rank))
    want = grid.transposed(ct, rank)
    (pulled,) = jax.vjp(f, x[rank])[1](ct[rank])
    np.testing.assert_array_equal(pulled, want)
    (pulled,) = jax.jit(lambda x, ct: jax.vjp(jax.checkpoint(f), x)[1](ct))(x[rank], ct[rank])
    np.testing.assert_array_equal(pulled, want)
    # The model's two maps are each other's transpose.
    pairs = [(np.vdot(c, grid.exchanged(t, r)), np.vdot(grid.transposed(ct, r), t[r])) for r, c in enumerate(ct)]
    np.testing.assert_allclose(*np.sum(pairs, axis=0))


@pytest.mark.parametrize("grid", SOME, ids=name)
def test_transposing_twice(grid, cart, rank, size):
    f = call(grid, cart(grid))
    x = blocks_of(grid, size)

    def transpose(g):
        return lambda ct: jax.linear_transpose(g, x[rank])(ct)[0]

    np.testing.assert_array_equal(transpose(transpose(f))(x[rank]), grid.exchanged(x, rank))
    # Both directions of the transpose.
    back = transpose(f)
    _, tangent = jax.jvp(back, (x[rank],), (x[rank],))
    np.testing.assert_array_equal(tangent, grid.transposed(x, rank))


@pytest.mark.two_ranks
@pytest.mark.parametrize("dtype", [t for t in DTYPES if t.name not in ("bool", "float8_e8m0fnu")], ids=str)
def test_transpose_of_dtype(dtype, cart, rank, size):
    blocks = blocks_of(MIXED, size, dtype)
    blocks = [x % 5 if dtype.kind == "u" else x for x in blocks]
    (got,) = jax.linear_transpose(call(MIXED, cart(MIXED)), blocks[rank])(jnp.asarray(blocks[rank]))
    assert got.dtype == dtype
    wide = {"c": complex, "i": int, "u": int}.get(dtype.kind, float)
    want = MIXED.transposed([x.astype(wide) for x in blocks], rank).astype(dtype)
    np.testing.assert_array_equal(got.astype(wide), want.astype(wide))


def test_derivative_of_some_of_the_arrays(cart, rank, size):
    """An array that is not differentiated, or has integers, travels with the others all the same."""
    c = cart(MIXED)
    x, y, ct = (blocks_of(MIXED, size, draw=draw) for draw in range(3))
    whole = [a.astype(np.int32) for a in x]

    def f(x, y, whole):
        x, whole, y = call(MIXED, c)((x, whole, y))
        return x * 2, y, whole

    results, pull_back = jax.vjp(lambda x: f(x, y[rank], whole[rank]), x[rank])
    np.testing.assert_array_equal(results[2], MIXED.exchanged(whole, rank))
    zero = np.zeros(whole[rank].shape, jax.dtypes.float0)
    (pulled,) = pull_back((ct[rank], ct[rank], zero))
    np.testing.assert_array_equal(pulled, 2 * MIXED.transposed(ct, rank))
    (slope,) = jax.grad(lambda x: (f(x, y[rank], whole[rank])[0] * ct[rank]).sum(), argnums=(0,))(x[rank])
    np.testing.assert_array_equal(slope, pulled)


def test_second_derivative(cart, rank, size):
    f = call(MIXED, cart(MIXED))
    x, t = (blocks_of(MIXED, size, draw=draw) for draw in range(2))

    def energy(x):
        return (f(x) ** 3).sum()

    got = jax.jvp(jax.grad(energy), (x[rank],), (t[rank],))[1]
    y, dy = ([MIXED.exchanged(b, r) for r in range(size)] for b in (x, t))
    np.testing.assert_allclose(got, MIXED.transposed([6 * a * b for a, b in zip(y, dy, strict=True)], rank))


# Batches


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("transpose", [False, True])
def test_vmap(axis, transpose, cart, rank, size):
    c = cart(MIXED)
    draws = [blocks_of(MIXED, size, draw=draw) for draw in range(3)]
    f = call(MIXED, c)
    if transpose:
        f = lambda x: jax.linear_transpose(call(MIXED, c), draws[0][rank])(x)[0]  # noqa: E731
    want = np.stack([(MIXED.transposed if transpose else MIXED.exchanged)(b, rank) for b in draws], axis)
    batch = jax.jit(jax.vmap(f, in_axes=axis, out_axes=axis))
    x = np.stack([b[rank] for b in draws], axis)
    np.testing.assert_array_equal(batch(x), want)
    assert len(re.findall(r"@mpixla_halo\w+\(", batch.lower(x).as_text())) == 1


def test_vmap_of_some_of_the_arrays(cart, rank, size):
    f = call(MIXED, cart(MIXED))
    one, *draws = [blocks_of(MIXED, size, draw=draw) for draw in range(4)]
    a, b = jax.vmap(lambda x: f((x, jnp.asarray(one[rank]))), in_axes=1, out_axes=(0, None))(
        np.stack([x[rank] for x in draws], 1)
    )
    np.testing.assert_array_equal(a, [MIXED.exchanged(x, rank) for x in draws])
    np.testing.assert_array_equal(b, MIXED.exchanged(one, rank))


# Inside programs


def test_a_loop_exchanges_in_place(cart, rank, size):
    """XLA copies what a loop carries in no iteration."""
    c = cart(MIXED)
    x = jnp.asarray(blocks_of(MIXED, size)[rank])

    def loop(x, y):
        return jax.lax.fori_loop(0, 5, lambda i, xy: call(MIXED, c)((xy[0] * 2, xy[1])), (x, y))

    text = jax.jit(loop, donate_argnums=(0, 1)).lower(x, x).compile().as_text()
    body = next(part for part in text.split("\n\n") if "mpixla_halo_exchange" in part)
    assert "output_to_operand_aliasing={{0}: (0, {}), {1}: (1, {})}" in body
    assert "ENTRY" not in body
    assert " copy(" not in body
    assert len(re.findall(rf"f64\[{x.shape[0]},{x.shape[1]}\]\S* fusion\(", body)) == 1  # x * 2, and nothing for y


def test_eager_calls_compile_once(cart, rank, size, compilations):
    c = cart(MIXED)
    x = jnp.asarray(blocks_of(MIXED, size)[rank])
    call(MIXED, c)((x, x))
    compilations.clear()
    for _ in range(3):
        call(MIXED, MPI.Cartcomm(c))((x, x))
    assert compilations == []


# Messages


def test_halo_takes_no_message_of_the_program(cart, rank, size):
    """A message that waits on the same communicator is not taken for a halo."""
    grid = Grid((SIZE,), (True,), (1,), (0,), 1)
    c = cart(grid)
    below, above = c.Shift(0, 1)
    blocks = blocks_of(grid, size)
    sent = np.full(1, 77.0)
    requests = [c.Isend(sent, dest, tag) for dest in (below, above) for tag in (0, 1)]
    got = np.asarray(call(grid, c)(blocks[rank]))
    np.testing.assert_array_equal(got, grid.exchanged(blocks, rank))
    for source in (below, above):
        for tag in (0, 1):
            received = np.zeros(1)
            c.Recv(received, source, tag)
            assert received == 77
    MPI.Request.Waitall(requests)


@pytest.mark.not_checked
@pytest.mark.not_through_nccl
@pytest.mark.skipif(SIZE != 2, reason="for two ranks, which both learn of it at once")
def test_blocks_that_do_not_fit(cart, rank):
    c = cart(Grid((2,), (True,), (1,), (0,), 2))
    short = r"a message of 16 bytes came from rank 1, but source slot \d was to receive 24"
    sentence = short if rank == 0 else r"r1 \| MPI_\w+ returned error code"
    with pytest.raises(Exception, match=sentence):
        jax.block_until_ready(mpixla.halo_exchange(jnp.zeros((3, 3 if rank == 0 else 2)), c))
    x = mpixla.halo_exchange(jnp.full((3, 2), rank), c)
    np.testing.assert_array_equal(x[:, 0], [1 - rank, rank, 1 - rank])


# Arguments

X = np.zeros((4, 5))
BAD = [
    ({"comm": None}, TypeError, "needs a Cartesian communicator"),
    ({"comm": MPI.COMM_WORLD}, TypeError, "'MPI_COMM_WORLD' has no Cartesian topology. Make a communicator"),
    ({"comm": 3}, TypeError, "comm must be an mpi4py communicator"),
    ({"width": -1}, ValueError, "width of halo_exchange is -1"),
    ({"width": (1, -2)}, ValueError, "cannot be negative"),
    ({"width": 0}, ValueError, "width of halo_exchange is 0, so there are no ghost zones"),
    ({"width": (0, 0), "x": {}}, ValueError, r"is \(0, 0\), .* of several dimensions 0 is for those without any"),
    ({"width": 1.5}, TypeError, "width of halo_exchange must be an integer"),
    ({"width": "1"}, TypeError, "width of halo_exchange must be an integer"),
    ({"width": {0: 1, 1: 1}}, TypeError, "width of halo_exchange must be an integer, but is {0: 1, 1: 1}"),
    ({"axes": {1: 0, 0: 1}}, TypeError, "axes of halo_exchange must be an integer"),
    ({"width": (1, 1.5)}, TypeError, r"width\[1\] of halo_exchange must be an integer"),
    ({"width": (1,)}, ValueError, "width of halo_exchange has 1 entries, but the communicator has 2"),
    ({"width": (1, 1, 1)}, ValueError, "width of halo_exchange has 3 entries"),
    ({"axes": (0,)}, ValueError, "axes of halo_exchange has 1 entries"),
    ({"axes": (0, 2)}, ValueError, r"are \(0, 2\), but an array of shape \(4, 5\) has 2 axes"),
    ({"axes": (-3, 0)}, ValueError, r"are \(-3, 0\), but an array"),
    ({"axes": (1, 1)}, ValueError, "names an axis twice"),
    ({"axes": (1, -1)}, ValueError, "names an axis twice"),
    ({"axes": (0, "y")}, TypeError, r"axes\[1\] of halo_exchange must be an integer"),
    ({"axes": 0}, ValueError, "axes of halo_exchange has 1 entries"),
    ({"axes": 0.5}, TypeError, "axes of halo_exchange must be an integer"),
    ({"width": 2}, ValueError, r"width 2 along axis 0 needs at least 6 items .* has shape \(4, 5\)"),
    ({"width": (1, 2)}, ValueError, "width 2 along axis 1 needs at least 6"),
    ({"x": (X, X[0])}, ValueError, r"an array of shape \(5,\) has 1 axes"),
    ({"x": 1.0}, ValueError, r"an array of shape \(\) has 0 axes"),
    ({"x": "text"}, TypeError, "x of halo_exchange must be an array"),
    ({"x": None}, TypeError, "x of halo_exchange must be an array or a number, but is None"),
]


@pytest.mark.parametrize(("given", "kind", "sentence"), BAD, ids=lambda v: str(v)[:40] if isinstance(v, dict) else "")
def test_bad_arguments(given, kind, sentence, cart):
    arguments = {"x": X, "comm": cart(MIXED), **given}
    check_refused(lambda: mpixla.halo_exchange(**arguments), kind, sentence)


@pytest.mark.parametrize("width", [1, (1, 1)])
def test_traced_width(width, cart):
    c = cart(MIXED)
    with pytest.raises(TypeError, match=r"width.* of halo_exchange is a traced value .* static"):
        jax.jit(lambda x, w: mpixla.halo_exchange(x, c, width=w))(X, width)
    with pytest.raises(TypeError, match="width of halo_exchange is a traced value"):
        jax.jit(lambda x, w: mpixla.halo_exchange(x, c, width=w))(X, jnp.array(width))
