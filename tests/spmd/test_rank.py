"""The rank as a value of the program, and the number of ranks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from mpi4py import MPI

import mpixla


def test_eagerly_and_in_programs(comm, rank, size):
    """On communicators whose ranks are in another order, too."""
    turned = comm.Split(0, -rank)
    for given in (None, comm, turned, MPI.COMM_SELF):
        own = rank if given is None else given.Get_rank()
        for got in (mpixla.rank(given), jax.jit(functools.partial(mpixla.rank, given))()):
            assert (got.dtype, got.shape, int(got)) == (np.int32, (), own)
        assert mpixla.size(given) == (size if given is None else given.Get_size())
    turned.Free()


def test_under_transformations(rank, size):
    xs = jnp.arange(6.0).reshape(3, 2)

    def scaled(x):
        return x * (mpixla.rank() + 1)

    want = np.arange(6.0).reshape(3, 2) * (rank + 1)
    for f in (scaled, jax.vmap(scaled), jax.jit(jax.vmap(scaled)), jax.checkpoint(scaled)):
        np.testing.assert_array_equal(f(xs), want)
    np.testing.assert_array_equal(jax.jit(jax.grad(lambda x: scaled(x).sum()))(xs), np.full((3, 2), rank + 1.0))
    np.testing.assert_array_equal(jax.jvp(scaled, (xs,), (xs,))[1], want)
    np.testing.assert_array_equal(jax.hessian(lambda x: (scaled(x) ** 2).sum())(2.0), 2.0 * (rank + 1) ** 2)


def test_in_loops_and_branches(rank, size):
    @jax.jit
    def program(x):
        total, each = lax.scan(lambda c, _: (c + mpixla.rank(), mpixla.rank()), jnp.int32(0), length=4)
        x = lax.cond(mpixla.rank() == size - 1, lambda x: -x, lambda x: x, x)
        return total, each, x, jnp.zeros(mpixla.size())

    total, each, x, zeros = program(jnp.float32(3))
    assert int(total) == 4 * rank
    np.testing.assert_array_equal(each, [rank] * 4)
    assert float(x) == (-3 if rank == size - 1 else 3)
    assert zeros.shape == (size,)


def test_partners_that_the_program_computes(comm, rank, size):
    """One program for all ranks: its text is equal."""

    def program(x):
        up, down = (mpixla.rank() + 1) % size, (mpixla.rank() - 1) % size
        return mpixla.sendrecv(x, x, source=down, dest=up) + mpixla.rank()

    assert float(jax.jit(program)(jnp.float32(rank))) == (rank - 1) % size + rank
    assert len(set(comm.allgather(jax.jit(program).lower(jnp.float32(0)).as_text()))) == 1


def test_it_is_not_communication(rank):
    """A rank may leave it out."""
    if rank == 0:
        assert int(jax.jit(mpixla.rank)()) == 0
    assert not jax.make_jaxpr(mpixla.rank)().effects


def test_refusals(comm):
    for function in (mpixla.rank, mpixla.size):
        with pytest.raises(TypeError, match="comm must be an mpi4py communicator"):
            function(0)
        with pytest.raises(ValueError, match=r"MPI\.COMM_NULL"):
            function(MPI.COMM_NULL)
    clone = comm.Clone()
    program = jax.jit(lambda: mpixla.rank(clone))
    assert int(program()) == comm.Get_rank()
    clone.Free()
    with pytest.raises(Exception, match="freed"):
        program().block_until_ready()


# shift: its values, derivatives and batches are those of its row in tests/reference.py.


def test_shift_is_a_sendrecv(comm, rank, size):
    """Also for pytrees and keys, along either dimension."""
    grid = comm.Create_cart([1, size], periods=[False, True])
    tree = {"a": jnp.float32(rank), "key": jax.random.key(rank)}
    got = jax.jit(lambda x: mpixla.shift(x, 1, comm=grid, dimension=1))(tree)
    below = (rank - 1) % size
    assert float(got["a"]) == below
    np.testing.assert_array_equal(jax.random.key_data(got["key"]), jax.random.key_data(jax.random.key(below)))
    assert float(mpixla.shift(jnp.float32(rank), 1, comm=grid, dimension=0)) == rank  # a wall on both sides
    grid.Free()


def test_shift_makes_one_program(comm, rank):
    texts = comm.allgather(jax.jit(lambda x: mpixla.shift(x, 1)).lower(jnp.float32(rank)).as_text())
    assert len(set(texts)) == 1


def test_wrong_shifts(comm):
    with pytest.raises(ValueError, match="dest of shift is .* is not Cartesian: its ranks are one ring"):
        mpixla.shift(1.0, 1, dimension=1)
    with pytest.raises(TypeError, match="disp of shift must be an integer, but is 0.5"):
        mpixla.shift(1.0, 0.5)
    with pytest.raises(TypeError, match=r"disp of shift is a traced value .* must be known when tracing"):
        jax.jit(mpixla.shift)(1.0, 1)
    with pytest.raises(TypeError, match="dimension of shift must be an integer"):
        mpixla.shift(1.0, 1, dimension="x")
