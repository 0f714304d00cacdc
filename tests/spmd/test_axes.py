"""The axes of allgather, alltoall and reduce_scatter, which have the names and the meaning that they have in JAX."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import mpixla

HOW = {"eager": lambda f: f, "jit": jax.jit}


def of_rank(shape, rank):
    """Return an array of numbers that no two ranks share."""
    return np.arange(np.prod(shape, dtype=int), dtype=float).reshape(shape) + 100 * rank


def tile(parts, axis, tiled):
    return np.concatenate(parts, axis) if tiled else np.stack(parts, axis)


def cut(x, size, axis, tiled):
    """Return the part for each rank."""
    return np.split(x, size, axis) if tiled else [np.take(x, i, axis) for i in range(size)]


def with_parts(shape, size, axis, tiled):
    """Return a shape with an entry for each rank along an axis, or two of them if it is tiled."""
    shape = list(shape)
    shape[axis] = 2 * size if tiled else size
    return tuple(shape)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2])
def test_allgather(rank, size, axis, tiled, how):
    call = HOW[how](lambda x: mpixla.allgather(x, axis=axis, tiled=tiled))
    if tiled and axis == 2:
        with pytest.raises(
            ValueError, match=r"axis of allgather is 2, but must be one of 2 axes: x has shape \(2, 3\)"
        ):
            call(of_rank((2, 3), rank))
        return
    y = call(jnp.asarray(of_rank((2, 3), rank)))
    np.testing.assert_array_equal(y, tile([of_rank((2, 3), i) for i in range(size)], axis, tiled))


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("axes", list(itertools.product([0, 1, -1], repeat=2)))
def test_alltoall(rank, size, axes, tiled, how):
    split, concat = axes
    shape = with_parts((2, 3, 4), size, split, tiled)
    call = HOW[how](lambda x: mpixla.alltoall(x, split_axis=split, concat_axis=concat, tiled=tiled))
    y = call(jnp.asarray(of_rank(shape, rank)))
    parts = [cut(of_rank(shape, i), size, split, tiled)[rank] for i in range(size)]
    np.testing.assert_array_equal(y, tile(parts, concat, tiled))


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_reduce_scatter(rank, size, axis, tiled, how):
    shape = with_parts((2, 3, 4), size, axis, tiled)
    call = HOW[how](lambda x: mpixla.reduce_scatter(x, MPI.SUM, axis=axis, tiled=tiled))
    y = call(jnp.asarray(of_rank(shape, rank)))
    np.testing.assert_array_equal(y, cut(sum(of_rank(shape, i) for i in range(size)), size, axis, tiled)[rank])


CALLS = {
    "allgather": lambda x: mpixla.allgather(x, axis=1, tiled=True, cotangent="varying"),
    "alltoall": lambda x: mpixla.alltoall(x, split_axis=1, concat_axis=0, tiled=True),
    "reduce_scatter": lambda x: mpixla.reduce_scatter(x, MPI.SUM, axis=1, tiled=True),
}
# Whose transpose each is, of all ranks' arrays.
TRANSPOSED = {
    "allgather": CALLS["reduce_scatter"],
    "alltoall": lambda y: mpixla.alltoall(y, split_axis=0, concat_axis=1, tiled=True),
    "reduce_scatter": CALLS["allgather"],
}


@pytest.mark.parametrize("name", CALLS)
def test_transformations(rank, size, name):
    call, x = CALLS[name], jnp.asarray(of_rank((3, 2, 2 * size), rank))
    each = jnp.stack([call(one) for one in x])
    np.testing.assert_array_equal(jax.jit(jax.vmap(call))(x), each)
    np.testing.assert_array_equal(
        jax.vmap(call, in_axes=2, out_axes=2)(jnp.moveaxis(x, 0, 2)), jnp.moveaxis(each, 0, 2)
    )
    scanned = jax.jit(lambda x: jax.lax.scan(lambda carry, one: (carry, call(one)), 0, x)[1])(x)
    np.testing.assert_array_equal(scanned, each)
    y, t = jax.jvp(call, (x[0],), (x[1],))
    np.testing.assert_array_equal([y, t], each[:2])
    _, pull = jax.vjp(call, x[0])
    np.testing.assert_array_equal(pull(y)[0], TRANSPOSED[name](y))


def test_pytrees_keys_and_pairs(rank, size):
    tree = {"a": jnp.full((2, size), rank), "b": jnp.full((3, 2 * size), 0.5 * rank)}
    ranks = np.arange(size)
    y = mpixla.alltoall(tree, split_axis=1, concat_axis=0, tiled=True)
    np.testing.assert_array_equal(y["a"], np.repeat(ranks, 2)[:, None])
    np.testing.assert_array_equal(y["b"], np.broadcast_to(0.5 * np.repeat(ranks, 3)[:, None], (3 * size, 2)))
    y = mpixla.reduce_scatter(tree, MPI.SUM, axis=1, tiled=True)
    np.testing.assert_array_equal(y["a"], np.full((2, 1), ranks.sum()))
    np.testing.assert_array_equal(y["b"], np.full((3, 2), 0.5 * ranks.sum()))
    keys = jax.random.split(jax.random.key(rank), 3)
    gathered = mpixla.allgather(keys, axis=-1, tiled=True)
    assert gathered.shape == (3 * size,)
    assert (gathered[3 * rank : 3 * rank + 3] == keys).all()
    pair = jnp.full((2, size), rank), jnp.full((2, size), 10 * rank)
    values, places = mpixla.reduce_scatter(pair, MPI.MAXLOC, axis=1)
    np.testing.assert_array_equal([values, places], np.outer([1, 10], [size - 1] * 2))


@pytest.mark.two_ranks
def test_refused_axes(size):
    x = jnp.ones((3, size + 1))
    with pytest.raises(ValueError, match=r"whose axis 1 \(split_axis\) has one entry for each of the .* ranks"):
        mpixla.alltoall(x, split_axis=1)
    with pytest.raises(
        ValueError, match=r"whose axis 1 \(axis\) has a multiple of .* entries, as many for each of the"
    ):
        mpixla.reduce_scatter(x, MPI.SUM, axis=1, tiled=True)
    with pytest.raises(ValueError, match=r"axis of reduce_scatter is 2, but must be one of 2 axes: x has shape"):
        mpixla.reduce_scatter(x, MPI.SUM, axis=2)
    with pytest.raises(ValueError, match="alltoall needs an array whose first axis has one entry"):
        mpixla.alltoall(jnp.ones(()))
    with pytest.raises(TypeError, match="tiled of allgather must be True or False, but is 1"):
        mpixla.allgather(x, tiled=1)
    with pytest.raises(TypeError, match="axis of allgather must be an integer, but is None"):
        mpixla.allgather(x, axis=None)
    with pytest.raises(TypeError, match="axis of reduce_scatter is a traced value"):
        jax.jit(lambda x, axis: mpixla.reduce_scatter(x, MPI.SUM, axis=axis))(x, 0)
