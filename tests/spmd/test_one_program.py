"""How many programs an operation is: its text is the same on every rank, unless the user has made the ranks differ.

Ranks may differ where the table below says so. All other ranks must have one text, for the operation and for all that
JAX makes of it. So N ranks compile one program, and find one entry in a compilation cache.
"""

import re
from types import FunctionType

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import mpixla
from cases import cases
from mpixla.mpi.comm import comm_of
from reference import normal, operands

SIZE = MPI.COMM_WORLD.Get_size()

# Operations whose programs differ between ranks, and why. Beside them a rank has a program of its own by the shapes of
# its arrays, and the root of an operation that has one.
EXCEPTIONS = {
    "alltoallv": "the counts of a rank are its own, and shapes follow from them",
}


def differs_by(row, variant, rank):
    """Return the rank's properties on which its program may depend."""
    of_user = variant.get("by") in ("ranks", "traced") or "room" in variant  # numbers that are computed from the rank
    if row.name in EXCEPTIONS or of_user:
        return rank
    everywhere = {"shape": (3,), "size": SIZE, **variant}
    result = row.model([normal(row, (3,), r, SIZE, **variant) for r in range(SIZE)], rank, **variant)
    return tuple(row.shapes(rank=rank, **everywhere)), np.shape(result), variant.get("root") == rank


def texts_of(fun, *xs):
    """Return the programs' texts of all ranks, without numbers of communicators, which earlier tests change."""
    return MPI.COMM_WORLD.allgather(re.sub(r"comm = \d+ : i64", "comm", jax.jit(fun).lower(*xs).as_text()))


def assert_alike(texts, keys):
    """Check that ranks of one key have one text."""
    for key in set(keys):
        alike = {text for text, own in zip(texts, keys, strict=True) if own == key}
        assert len(alike) == 1, "\n".join(alike)


def _some(row, variant):
    return variant.get("op", "SUM") in ("SUM", "PROD", "MAX", "LAND")


def _floats(row, variant, rank):
    return [jnp.asarray(x) for x in normal(row, (3,), rank, SIZE, **variant)]


@pytest.mark.parametrize(("row", "variant"), cases(_some))
def test_operations(row, variant, comm, rank):
    dtype = next(d for d in map(np.dtype, (np.float32, np.int32)) if row.takes(dtype=d, **variant))
    xs = [jnp.asarray(x) for x in operands(row, dtype, (3,), rank, SIZE, **variant)]
    keys = [differs_by(row, variant, r) for r in range(SIZE)]

    def fun(*xs):
        return row.call(*xs, comm=comm, **variant)

    assert_alike(texts_of(fun, *xs), keys)
    assert_alike(texts_of(mpixla.jit(fun), *xs), keys)
    if xs:
        batch = [jnp.stack([x, x]) for x in xs]
        assert_alike(texts_of(jax.vmap(fun), *batch), keys)
        assert_alike(texts_of(jax.vmap(fun, in_axes=-1, out_axes=-1), *[jnp.moveaxis(x, 0, -1) for x in batch]), keys)


@pytest.mark.parametrize(("row", "variant"), cases(lambda row, v: _some(row, v) and row.differentiable(**v)))
def test_derivatives(row, variant, comm, rank):
    xs = _floats(row, variant, rank)
    keys = [differs_by(row, variant, r) for r in range(SIZE)]

    def fun(*xs):
        return row.call(*xs, comm=comm, **variant)

    def forward(*xs):
        return jax.jvp(fun, xs, xs)

    def gradient(*xs):
        return jax.grad(lambda *xs: jnp.sum(jnp.sin(fun(*xs))), argnums=tuple(range(len(xs))))(*xs)

    assert_alike(texts_of(forward, *xs), keys)
    if row.reverse:
        assert_alike(texts_of(gradient, *xs), keys)
        assert_alike(texts_of(jax.vmap(gradient), *[jnp.stack([x, x]) for x in xs]), keys)
        assert_alike(texts_of(lambda *xs: jax.jvp(gradient, xs, xs), *xs), keys)
        assert_alike(texts_of(jax.checkpoint(gradient), *xs), keys)


def test_blocks_at_walls_and_in_corners():
    """Nobody's program says where in the domain it is."""
    cart = MPI.COMM_WORLD.Create_cart(MPI.Compute_dims(SIZE, 2), periods=[False, True])
    x = {"a": jnp.ones((6, 7)), "b": jnp.ones((6, 7), jnp.float32)}

    def exchange(x):
        return mpixla.halo_exchange(x, cart, width=(1, 2))

    def energy(x):
        y = exchange(x)
        return jnp.sum(y["a"] ** 2) + jnp.sum(y["b"] ** 2)

    assert len(set(texts_of(exchange, x))) == 1
    assert len(set(texts_of(jax.grad(energy), x))) == 1
    for fun in (mpixla.neighbor_allgather, mpixla.neighbor_alltoall):
        assert len(set(texts_of(jax.jacrev(lambda x, fun=fun: fun(x, comm=cart)), jnp.ones((4, 3))))) == 1
    cart.Free()


def test_graphs():
    """Ranks with as many neighbours have one program, whoever these are."""
    rank = MPI.COMM_WORLD.Get_rank()
    to = [(rank + 1) % SIZE, (rank + 2) % SIZE]
    graph = MPI.COMM_WORLD.Create_dist_graph_adjacent([(rank - 1) % SIZE, (rank - 2) % SIZE], to)
    for fun in (mpixla.neighbor_allgather, mpixla.neighbor_alltoall):
        program = jax.grad(lambda x, fun=fun: jnp.sum(fun(x, comm=graph) ** 2))
        assert len(set(texts_of(program, jnp.ones((2, 3))))) == 1
    graph.Free()


def test_any_order_of_ranks():
    """A communicator of the same processes in another order has the same programs, but for its number."""
    rank = MPI.COMM_WORLD.Get_rank()
    turned = MPI.COMM_WORLD.Split(0, -rank)
    cart = turned.Create_cart([SIZE], periods=[False])

    def step(x):
        x = mpixla.halo_exchange(x, cart)
        x = mpixla.sendrecv(x, x, mpixla.Shift(0, -1), mpixla.Shift(0, 1), comm=cart)
        return mpixla.exscan(x, MPI.SUM, comm=turned)

    assert len(set(texts_of(jax.grad(lambda x: jnp.sum(step(x) ** 2)), jnp.ones(5)))) == 1
    cart.Free()
    turned.Free()


def test_programs_of_eager_calls():
    """What an operation runs that is called with arrays is one program as well."""
    from mpixla.core import eager

    comm = MPI.COMM_WORLD.Dup()  # which nobody has used before
    x = jnp.ones((SIZE, 2))
    mpixla.exscan(x, MPI.SUM, comm=comm)
    jax.grad(lambda x: jnp.sum(mpixla.scan(x, MPI.MAX, comm=comm)))(x)
    jax.grad(lambda x: jnp.sum(mpixla.allgather(x, comm=comm)))(x)
    shift = mpixla.Shift(0, 1), mpixla.Shift(0, -1)
    jax.grad(lambda x: jnp.sum(mpixla.sendrecv(x, x, *shift, comm=comm)))(x)
    made = [
        repr([x for x in key if not isinstance(x, (int, FunctionType))])  # an int is a handle of MPI's
        for key, program in list(eager._programs.items())
        if comm_of(comm) in program.owners
    ]
    assert made
    assert len(set(map(tuple, MPI.COMM_WORLD.allgather(sorted(made))))) == 1
    comm.Free()
