"""The reductions of 16- and 8-bit floats, which are ours: every pair of values, or a million, against ml_dtypes."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

import mpixla
from reference import DIFFERENTIABLE, REDUCTIONS, SHORT_DTYPES, bits


@pytest.fixture(scope="module")
def pair():
    """Yield the first two ranks, between whom each reduction is one call of our operation."""
    world = MPI.COMM_WORLD
    if world.size < 2:
        pytest.skip("needs two ranks")
    comm = world.Split(0 if world.rank < 2 else MPI.UNDEFINED, world.rank)
    if comm == MPI.COMM_NULL:
        pytest.skip("two ranks are enough")
    yield comm
    comm.Free()


def values(dtype):
    """Return all pairs of codes of an 8-bit type; of a 16-bit type random codes, and pairs of special codes."""
    if dtype.itemsize == 1:
        a, b = np.meshgrid(np.arange(256, dtype=np.uint8), np.arange(256, dtype=np.uint8))
    else:
        rng = np.random.default_rng(0)
        a, b = rng.integers(0, 2**16, (2, 10**6), dtype=np.uint16)
        near = (a ^ 0x8000) + rng.integers(-3, 4, a.shape, dtype=np.int16).astype(np.uint16)
        b[::3] = near[::3]  # sums that cancel, and round
        special = np.array([0, 1, 0x3FF, 0x400, 0x7BFF, 0x7C00, 0x7E00, 0x7F7F, 0x7F80, 0x7FC0], np.uint16)
        special = np.concatenate([special, special | 0x8000])
        a, b = (np.concatenate([x, s.ravel()]) for x, s in zip((a, b), np.meshgrid(special, special), strict=True))
    return a.ravel().view(dtype), b.ravel().view(dtype)


@pytest.mark.parametrize("op", DIFFERENTIABLE)
@pytest.mark.parametrize("dtype", SHORT_DTYPES, ids=lambda t: t.name)
def test_every_pair(dtype, op, pair):
    a, b = values(dtype)
    got = np.asarray(mpixla.allreduce(jnp.asarray(a if pair.rank == 0 else b), getattr(MPI, op), comm=pair))
    model, compares = REDUCTIONS[op][0], op in ("MAX", "MIN")
    # XLA's threads flush numbers that are subnormal as float32 to zero where they compute: some of bfloat16 and
    # float8_e8m0fnu.
    tiny = np.finfo(np.float32).tiny
    flushes = dtype.name in ("bfloat16", "float8_e8m0fnu") and not compares
    ignored = flushes & ((abs(a.astype(np.float64)) < tiny) | (abs(b.astype(np.float64)) < tiny))
    with np.errstate(all="ignore"):
        ignored |= flushes & (abs(model(a.astype(np.float64), b.astype(np.float64))) <= tiny)
        want = model(a.astype(np.float32), b.astype(np.float32)).astype(dtype)
        is_nan = np.isnan(want.astype(np.float32))
        np.testing.assert_array_equal(np.isnan(got.astype(np.float32)) & ~ignored, is_nan & ~ignored)
    keep = ~is_nan & ~ignored
    np.testing.assert_array_equal(bits(got[keep]), bits(want[keep]))


def test_derivative(pair):
    x = jnp.array([1.5, -2.0], ml_dtypes.bfloat16) * (pair.rank + 1)
    got = jax.grad(lambda x: mpixla.allreduce(x, MPI.PROD, comm=pair).astype(np.float32).sum())(x)
    np.testing.assert_array_equal(got.astype(np.float32), np.array([1.5, -2.0]) * (2 - pair.rank))
