"""halo_start: as halo_exchange, with computation between start and wait in both directions."""

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
from hlo import Program

SIZE = MPI.COMM_WORLD.Get_size()
GRIDS = [
    Grid(dims_of(len(widths), SIZE)[0], periods, widths, axes, ndim)
    for widths, axes, ndim in [
        ((2,), (1,), 3),
        ((2, 1), (1, 0), 2),
        ((0, 2), (0, 1), 3),
        ((1, 2, 1), (2, 0, 1), 3),
    ]
    for periods in itertools.product((False, True), repeat=len(widths))
    if len(widths) < 3 or periods[1] != periods[2]  # each is 26 messages to compile
]
# A third dimension adds messages, and no rule: they are derived one by one.
SOME = [g for g in GRIDS if any(g.periods) and not all(g.periods) and len(g.dims) < 3]
MIXED = Grid(dims_of(2, SIZE)[0], (False, True), (1, 2), (0, 1), 2)


def name(grid):
    return f"{grid.dims} {grid.periods} {grid.widths}".replace(", ", ",")


def halves(grid, comm, work=lambda x: None):
    def exchange(x):
        return mpixla.overlap(mpixla.halo_start(x, comm, width=grid.widths, axes=grid.axes), work, x)

    return exchange


@pytest.mark.parametrize("grid", GRIDS, ids=name)
def test_value(grid, cart, rank, size):
    """Corners, edges and walls are those of halo_exchange."""
    blocks, exchange = blocks_of(grid, size), halves(grid, cart(grid), lambda x: x * 2)
    x = jnp.asarray(blocks[rank])
    filled, work = jax.jit(exchange)(x)
    np.testing.assert_array_equal(filled, grid.exchanged(blocks, rank))
    np.testing.assert_array_equal(work, blocks[rank] * 2)
    np.testing.assert_array_equal(x, blocks[rank])


@pytest.mark.two_ranks
def test_eagerly_and_across_functions(cart, rank, size):
    """A request is a pytree, and like any other."""
    c, blocks = cart(MIXED), blocks_of(MIXED, size)
    x = jnp.asarray(blocks[rank])
    want = MIXED.exchanged(blocks, rank)
    for how in (lambda f: f, mpixla.jit):
        filled, nothing = how(halves(MIXED, c))(x)
        np.testing.assert_array_equal(filled, want)
        assert nothing is None
    start = jax.jit(lambda x: mpixla.halo_start(x, c, width=MIXED.widths))
    request, other = start(x), start(x * 2)
    add = jax.jit(lambda requests, x: mpixla.overlap(requests, lambda x: {"a": x + 1}, x))
    (filled, twice), work = add([request, other], x)
    np.testing.assert_array_equal(filled, want)
    np.testing.assert_array_equal(twice, 2 * want)
    np.testing.assert_array_equal(work["a"], x + 1)
    request = mpixla.halo_start(x, c, width=MIXED.widths)
    np.testing.assert_array_equal(mpixla.wait(request), want)
    with pytest.raises(Exception, match="already waited"):
        jax.block_until_ready(mpixla.wait(request))


@pytest.mark.parametrize("how", ["jit", "vmap"])
def test_trees(how, cart, rank, size):
    """Several arrays of one type are one message; keys travel as well."""
    c = cart(MIXED)
    floats = [blocks_of(MIXED, size, draw=draw) for draw in range(2)]
    whole = blocks_of(MIXED, size, np.int8)
    raw = [np.random.default_rng(r).integers(0, 2**32, (*MIXED.shape(r), 2), np.uint32) for r in range(size)]
    tree = {
        "floats": [jnp.asarray(b[rank]) for b in floats],
        "key": jax.random.wrap_key_data(raw[rank], impl="threefry2x32"),
        "whole": (jnp.asarray(whole[rank]), None),
    }

    def exchange(x):
        return mpixla.overlap(mpixla.halo_start(x, c, width=MIXED.widths), lambda x: x["floats"][0].sum(), x)[0]

    text = jax.jit(exchange).lower(tree).as_text()
    assert len(re.findall(r"@mpixla_isendrecv\(", text)) == 3 * 8  # types, and neighbours of a plane
    if how == "vmap":
        exchange = jax.vmap(exchange, axis_size=3, in_axes=None, out_axes=0)
        got = jax.tree.map(lambda x: x[1], jax.jit(exchange)(tree))
        batch = jax.vmap(halves(MIXED, c), in_axes=1, out_axes=(1, None))
        filled, _ = jax.jit(batch)(jnp.stack([b[rank] for b in floats], 1))
        for i, blocks in enumerate(floats):
            np.testing.assert_array_equal(filled[:, i], MIXED.exchanged(blocks, rank))
    else:
        got = jax.jit(exchange)(tree)
    for one, blocks in zip(got["floats"], floats, strict=True):
        np.testing.assert_array_equal(one, MIXED.exchanged(blocks, rank))
    np.testing.assert_array_equal(jax.random.key_data(got["key"]), MIXED.exchanged(raw, rank))
    np.testing.assert_array_equal(got["whole"][0], MIXED.exchanged(whole, rank))
    assert got["whole"][0].dtype == np.int8
    assert got["whole"][1] is None


@pytest.mark.parametrize("grid", SOME, ids=name)
def test_derivatives(grid, cart, rank, size):
    exchange = halves(grid, cart(grid), lambda x: x * 3)
    x, t, ct, of_work = (blocks_of(grid, size, draw=draw) for draw in range(4))
    (_, _), (dy, dwork) = jax.jvp(jax.jit(exchange), (x[rank],), (t[rank],))
    np.testing.assert_array_equal(dy, grid.exchanged(t, rank))
    np.testing.assert_array_equal(dwork, 3 * t[rank])
    want = grid.transposed(ct, rank) + 3 * of_work[rank]
    for f in (exchange, jax.checkpoint(exchange)):
        (pulled,) = jax.jit(lambda x, cts, f=f: jax.vjp(f, x)[1](cts))(x[rank], (ct[rank], of_work[rank]))
        np.testing.assert_array_equal(pulled, want)
    transpose = jax.linear_transpose(lambda x: exchange(x)[0], x[rank])
    twice = jax.linear_transpose(lambda ct: transpose(ct)[0], ct[rank])
    np.testing.assert_array_equal(jax.jit(twice)(x[rank])[0], grid.exchanged(x, rank))


@pytest.mark.two_ranks
@pytest.mark.parametrize("reverse", [False, True])
def test_computation_between_halo_start_and_wait_overlaps(reverse, cart, rank, size):
    """The product, and the one of its derivative, come after all messages were started and before the first wait."""
    grid = Grid((SIZE,), (True,), (1,), (0,), 2)
    blocks, c = blocks_of(grid, size), cart(grid)
    matrix = jnp.asarray(np.random.default_rng(3).normal(size=(blocks[rank].shape[1],) * 2))

    def f(x):
        filled, work = halves(grid, c, lambda x: x @ matrix)(x)
        return jnp.vdot(work, work) / 2 + filled.sum()

    x = jnp.asarray(blocks[rank])
    program = jax.jit(jax.grad(f) if reverse else f)
    starts, products, waits = Program(program.lower(x).compile().as_text()).places("isendrecv", "dot", "wait_recv")
    n = 1 + reverse
    assert len(starts) == len(waits) == 2 * n
    # The last product is the loss itself.
    for i in range(n):
        assert max(starts[2 * i : 2 * i + 2]) < products[i if i == 0 else -1] < min(waits[2 * i : 2 * i + 2])
    ones = [np.ones_like(b) for b in blocks]
    if reverse:
        want = blocks[rank] @ matrix @ matrix.T + grid.transposed(ones, rank)
        np.testing.assert_allclose(program(x), want)


@pytest.mark.parametrize("grid", SOME, ids=name)
def test_one_program_for_all_ranks(grid, comm, cart, rank, size):
    """Wherever a rank is, at a wall or in a corner, with blocks of one size."""
    c, x = cart(grid), jnp.zeros((7,) * grid.ndim)

    def slope(x):
        return jax.grad(lambda x: halves(grid, c)(x)[0].sum())(x)

    text = re.sub(r"comm = \d+ : i64", "comm", jax.jit(slope).lower(x).as_text())
    assert len(set(comm.allgather(text))) == 1


def test_bad_arguments(cart):
    """As of halo_exchange, by another name."""
    x, c = np.zeros((4, 5)), cart(MIXED)
    check_refused(lambda: mpixla.halo_start(x, None), TypeError, "halo_start needs a Cartesian communicator")
    check_refused(lambda: mpixla.halo_start(x, c, width=0), ValueError, "width of halo_start is 0, so there are no")
    check_refused(
        lambda: mpixla.halo_start(x[:2], c), ValueError, "halo_start of width 1 along axis 0 needs at least 3"
    )


def test_nothing_to_exchange(cart):
    for x in ({}, (jnp.zeros((4, 0, 5)),)):
        for fun in (lambda x: x, lambda x: None):
            filled, _ = mpixla.overlap(mpixla.halo_start(x, cart(MIXED), width=(1, 0)), fun, x)
            assert jax.tree.map(jnp.shape, filled) == jax.tree.map(jnp.shape, x)


@pytest.mark.parametrize("reverse", [False, True])
def test_the_block_is_in_one_place(reverse, cart, size):
    """What is computed with is what the messages are put into: XLA copies no more than where it is computed after."""
    c = cart(Grid((size,), (True,), (1,), (0,), 2))

    def work(x):
        return (x[1:-1] * 2).sum()

    def overlapped(x, _):
        x, total = mpixla.overlap(mpixla.halo_start(x, c), work, x)
        return x * 2, total

    def one_by_one(x, _):
        x = mpixla.wait(mpixla.halo_start(x, c))
        return x * 2, work(x)

    def copies(step):
        loop = lambda x: jax.lax.scan(step, x, length=4)  # noqa: E731
        loss = lambda x: sum(y.sum() for y in loop(x))  # noqa: E731
        text = jax.jit(jax.grad(loss) if reverse else loop).lower(jnp.ones((40, 50))).compile().as_text()
        return sum(loops for loops, _ in Program(text).copies(40 * 50))

    assert copies(overlapped) == copies(one_by_one)
