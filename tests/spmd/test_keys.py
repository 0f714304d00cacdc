"""PRNG keys: every operation that moves arrays moves them, every one that reduces refuses them."""

import jax
import numpy as np
import pytest
from mpi4py import MPI

from cases import check_refused
from reference import ROWS, expected, operands

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
    for _ in range(2):  # a second eager call may go another way (core/repeat.py)
        got = (jax.jit(call) if how == "jit" else call)(*keys)
        if want is None:
            assert got is None
            continue
        assert got.dtype == keys[0].dtype
        np.testing.assert_array_equal(jax.random.key_data(got), want, strict=True)


@pytest.mark.parametrize("row", REDUCING, ids=names)
def test_refuses(row, comm, rank):
    variant = row.variants(SIZE)[0]
    keys = keys_of(row, rank, variant)
    check_refused(lambda: row.call(*keys, comm=comm, **variant), TypeError, f"^{row.name} cannot reduce PRNG keys, ")
