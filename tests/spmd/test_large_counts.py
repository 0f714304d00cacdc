"""Counts beyond MPI's int, with a lowered limit.

The calls use MPI's large-count functions; without them, the library's replacements, or they are refused.
"""

import contextlib
import ctypes

import jax
import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI
from test_value import check

from mpixla.mpi import native
from reference import ROWS

SIZE = MPI.COMM_WORLD.Get_size()
HAS_LARGE_COUNTS = hasattr(ctypes.CDLL(MPI.__file__), "MPI_Send_c")
REFUSED = (
    *(
        "allgatherv",
        "alltoallv",
        "gatherv",
        "iallreduce",
        "ialltoallv",
        "iexscan",
        "ireduce",
        "ireduce_scatter",
        "iscan",
        "scatterv",
    ),
)


def refused(name):
    """Return the error with which a large call of this operation ends."""
    if HAS_LARGE_COUNTS or name not in REFUSED:
        return contextlib.nullcontext()
    return pytest.raises(jax.errors.JaxRuntimeError, match="this MPI has no function .*: send the array in pieces")


@pytest.fixture(params=[1, 7])
def limit(request):
    before = native.lib.mpixla_count_limit_set(request.param)
    yield request.param
    native.lib.mpixla_count_limit_set(before)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_operation(row, limit, comm):
    """Also of a type that MPI itself does not reduce."""
    variant = row.variants(SIZE)[0]
    for dtype in [np.float32, *([ml_dtypes.bfloat16] if "op" in variant else [])]:
        with refused(row.name):
            check(row, variant, np.dtype(dtype), (5, 3), comm, "eager")
