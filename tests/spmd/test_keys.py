"""PRNG keys: every operation that moves arrays moves them, every one that reduces refuses them."""

import jax
import numpy as np
import pytest
from mpi4py import MPI

import mpixla
from cases import check_refused
from reference import ROW, ROWS, expected, operands

SIZE = MPI.COMM_WORLD.Get_size()
WORDS = np.dtype(np.uint32)
SHAPE = (3,)
DATA_SHAPE = (*SHAPE, 2)  # of threefry keys

REDUCING = [row for row in ROWS if "op" in row.variants(1)[0]]
MOVING = [row for row in ROWS if row not in REDUCING and row.name != "barrier"]


def names(row):
    return row.name


def keys_of(row, rank, variant):
    return [jax.random.wrap_key_data(x) for x in operands(row, WORDS, DATA_SHAPE, rank, SIZE, **variant)]


@pytest.mark.parametrize("how", ["eager", "jit"])
@pytest.mark.parametrize("row", MOVING, ids=names)
def test_moves(row, comm, rank, how):
    """They arrive as their data does."""
    variant = row.variants(SIZE)[0]
    keys = keys_of(row, rank, variant)

    def call(*keys):
        return row.call(*keys, comm=comm, **variant)

    want = expected(row, WORDS, DATA_SHAPE, rank, SIZE, **variant)
    for _ in range(2):  # a second eager call may go another way (core/eager.py)
        got = (jax.jit(call) if how == "jit" else call)(*keys)
        if want is None:
            assert got is None
            continue
        assert got.dtype == keys[0].dtype
        np.testing.assert_array_equal(jax.random.key_data(got), want, strict=True)


ROWS_OF_KEYS = {
    **{
        name: lambda x, comm, name=name: ROW[name].call(x, comm=comm, **ROW[name].variants(SIZE)[0])
        for name in ("alltoall", "ialltoall", "neighbor_alltoall")
    },
    "scatter": lambda x, comm: mpixla.scatter(x, comm.Get_rank(), comm=comm),
    "allgatherv": lambda x, comm: mpixla.allgatherv(x, [2] * SIZE, comm=comm),
    "ragged_all_to_all": lambda x, comm: mpixla.ragged_all_to_all(x, x, *[[0] * SIZE] * 4, comm=comm),
}


@pytest.mark.parametrize("name", ROWS_OF_KEYS)
def test_refusals_show_the_shapes_of_keys(comm, name):
    """Not of their data, which have an axis more."""
    call, keys = ROWS_OF_KEYS[name], jax.random.split(jax.random.key(0), SIZE + 3)
    check_refused(lambda: call(keys[0], comm), ValueError, r"x has shape \(\)|x is a scalar|are key<fry>\[\]")
    if name != "ragged_all_to_all":  # which takes any number
        check_refused(lambda: call(keys, comm), ValueError, rf"x has shape \({SIZE + 3},\)")


@pytest.mark.parametrize("row", REDUCING, ids=names)
def test_refuses(row, comm, rank):
    variant = row.variants(SIZE)[0]
    keys = keys_of(row, rank, variant)
    check_refused(lambda: row.call(*keys, comm=comm, **variant), TypeError, f"^{row.name} cannot reduce PRNG keys, ")
