"""MAXLOC and MINLOC: of all ranks' values the greatest or least, and its place, the first one of equals."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

import mpixla
from cases import HOWS

SIZE = MPI.COMM_WORLD.Get_size()
OPS = {"MAXLOC": (MPI.MAXLOC, np.argmax, np.max), "MINLOC": (MPI.MINLOC, np.argmin, np.min)}
VALUES = [np.float32, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.int8, np.int64, np.uint32]
PLACES = [np.int8, np.int32, np.int64, np.uint16]

each_op = pytest.mark.parametrize("op", OPS)


def inputs(value=np.float32, place=np.int32, shape=(4, 3)):
    """Return all ranks' values, with many ties, and their places, which are not in the order of the ranks."""
    values = [np.random.default_rng(rank).integers(0, 3, shape).astype(value) for rank in range(SIZE)]
    places = [(np.arange(np.prod(shape)).reshape(shape) + 7 * (SIZE - rank)).astype(place) for rank in range(SIZE)]
    return values, places


def located(op, values, places):
    """Return the extreme, and the least place of those that hold it."""
    stacked = np.stack(values).astype(np.float64)
    extreme = OPS[op][2](stacked, axis=0)
    found = np.min(np.where(stacked == extreme, np.stack(places).astype(np.int64), 10**6), axis=0)
    return extreme, found


@each_op
@pytest.mark.parametrize("value", VALUES, ids=lambda t: np.dtype(t).name)
def test_every_type_of_values(op, value, rank):
    values, places = inputs(value)
    got = mpixla.allreduce((values[rank], places[rank]), OPS[op][0])
    assert isinstance(got, tuple)
    assert got[0].dtype == value
    assert got[1].dtype == np.int32
    for g, want in zip(got, located(op, values, places), strict=True):
        np.testing.assert_array_equal(np.asarray(g, np.float64), want)


@each_op
@pytest.mark.parametrize("place", PLACES, ids=lambda t: np.dtype(t).name)
def test_every_type_of_places(op, place, rank):
    values, places = inputs(place=place)
    got = jax.jit(lambda *pair: mpixla.allreduce(pair, OPS[op][0]))(values[rank], places[rank])
    assert got[1].dtype == place
    for g, want in zip(got, located(op, values, places), strict=True):
        np.testing.assert_array_equal(g, want)


@each_op
def test_special_values(op, rank):
    """Signed zeros are equal, subnormals are numbers; NaN goes before infinities; places may be negative."""
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, -1e-40, 1e-40], np.float32)
    values = [np.roll(special, rank) for rank in range(SIZE)]
    places = [np.full(8, -rank, np.int32) for rank in range(SIZE)]
    value, place = mpixla.allreduce([values[rank], places[rank]], OPS[op][0])
    stacked = np.stack(values)
    want = OPS[op][2](stacked, axis=0)
    np.testing.assert_array_equal(value, want)
    holds = (stacked == want) | (np.isnan(stacked) & np.isnan(want))
    np.testing.assert_array_equal(place, np.min(np.where(holds, np.stack(places), 1), axis=0))


@each_op
def test_every_reduction(op, rank):
    values, places = inputs(shape=(SIZE, 3))
    pair = (values[rank], places[rank])
    mpi_op = OPS[op][0]
    whole = located(op, values, places)
    for root in {0, SIZE - 1}:
        for g, want in zip(mpixla.reduce(pair, mpi_op, root), whole if rank == root else pair, strict=True):
            np.testing.assert_array_equal(g, want)
    for g, want in zip(mpixla.reduce_scatter(pair, mpi_op), whole, strict=True):
        np.testing.assert_array_equal(g, want[rank])
    for g, want in zip(mpixla.scan(pair, mpi_op), located(op, values[: rank + 1], places[: rank + 1]), strict=True):
        np.testing.assert_array_equal(g, want)
    value, place = mpixla.exscan(pair, op=mpi_op)
    if rank == 0:  # what every pair goes before
        assert (value == (-np.inf if op == "MAXLOC" else np.inf)).all()
        assert (place == np.iinfo(np.int32).max).all()
    else:
        for g, want in zip((value, place), located(op, values[:rank], places[:rank]), strict=True):
            np.testing.assert_array_equal(g, want)


@each_op
@pytest.mark.parametrize("value", [np.int16, ml_dtypes.float8_e4m3fn], ids=lambda t: np.dtype(t).name)
def test_exscan_of_types_without_infinity(op, value, rank):
    values, places = inputs(value)
    got, _ = mpixla.exscan((values[rank], places[rank]), OPS[op][0])
    limits = jnp.iinfo(value) if value == np.int16 else jnp.finfo(value)
    if rank == 0:
        assert (got == (limits.min if op == "MAXLOC" else limits.max)).all()


@each_op
def test_vmap_is_one_call(op, rank):
    values, places = inputs(shape=(4, 3, 2))
    f = jax.jit(jax.vmap(lambda v, p: mpixla.allreduce((v, p), OPS[op][0]), in_axes=1, out_axes=2))
    assert f.lower(values[rank], places[rank]).as_text().count("@mpixla_allreduce(") == 1
    for g, want in zip(f(values[rank], places[rank]), located(op, values, places), strict=True):
        np.testing.assert_array_equal(g, np.moveaxis(want, 1, 2))


@each_op
def test_derivative_of_pairs_equals_that_of_values(op, rank):
    values, places = inputs(np.float64)
    alone = {"MAXLOC": MPI.MAX, "MINLOC": MPI.MIN}[op]
    t = np.random.default_rng(10 + rank).normal(size=(4, 3))

    def pairs(v):
        return mpixla.scan((v, places[rank]), OPS[op][0])[0]

    got = jax.jvp(pairs, (values[rank],), (t,))
    for g, want in zip(got, jax.jvp(lambda v: mpixla.scan(v, alone), (values[rank],), (t,)), strict=True):
        np.testing.assert_allclose(g, want, rtol=1e-12)
    got = jax.grad(lambda v: jnp.sum(t * pairs(v)))(values[rank])
    want = jax.grad(lambda v: jnp.sum(t * mpixla.scan(v, alone)))(values[rank])
    np.testing.assert_allclose(got, want, rtol=1e-12)
    got = jax.jvp(jax.grad(lambda v: jnp.sum(pairs(v) ** 3)), (values[rank],), (t,))[1]
    want = jax.jvp(jax.grad(lambda v: jnp.sum(mpixla.scan(v, alone) ** 3)), (values[rank],), (t,))[1]
    np.testing.assert_allclose(got, want, rtol=1e-12)
    assert np.abs(mpixla.allgather(got)).max() > 0


@pytest.mark.parametrize(
    ("x", "sentence"),
    [
        (np.ones(3), "takes a pair of arrays of one shape, the values and their places, but x is a numpy.ndarray"),
        ((np.ones(3), np.ones(3)), "Places are integers, but these are float64"),
        ((np.ones(3), np.ones(2, int)), r"but the values have shape \(3,\) and the places \(2,\)"),
        ((np.ones(3, ">f8"), np.ones(3, int)), r"x\[0\] of allreduce has dtype >f8, .* Pass x\[0\]\.astype\("),
        ((np.ones(3, complex), np.ones(3, int)), "Values are integers or floats, but these are complex128"),
        ((np.ones(3), np.ones(3, int), np.ones(3)), "but x is a tuple"),
    ],
)
def test_refuses(x, sentence):
    with pytest.raises(TypeError, match=sentence):
        mpixla.allreduce(x, MPI.MAXLOC)


@pytest.mark.parametrize("how", HOWS)
def test_result_is_of_the_kind_of_the_pair(how):
    class Best(NamedTuple):
        value: object
        place: object

    x, i = np.arange(3.0), np.full(3, 4)
    for kind in (tuple, list, Best._make):
        got = HOWS[how](lambda *pair, kind=kind: mpixla.allreduce(kind(pair), MPI.MAXLOC))(x, i)
        assert type(got) is type(kind((x, i)))
        np.testing.assert_array_equal(got, (x, i))


def test_refused_by_other_operations():
    with pytest.raises(TypeError, match="iallreduce cannot reduce with op MAXLOC, which is for pairs"):
        mpixla.iallreduce(np.ones(3), MPI.MAXLOC)
