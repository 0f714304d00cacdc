"""MAX and MIN of NaNs, infinities and signed zeros: NaN where a rank has one, and the same bits on every rank."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

from reference import FLOAT_DTYPES, NAN_ON, ROWS, bits, special

SIZE = MPI.COMM_WORLD.Get_size()
LENGTHS = (1, 3, 5003)  # MPI reduces short arrays and long ones in different ways
ORDERED = ("MAX", "MIN")
CALLS = {
    row: [v for v in row.variants(SIZE) if v.get("op") in ORDERED and "cotangent" not in v]
    for row in ROWS
    if "op" in row.variants(SIZE)[0]
}


def numbers(x):
    """Convert to doubles, which represent all types exactly; NumPy compares zeros as equal, and NaN as NaN."""
    return np.asarray(x).astype(np.float64)


@np.errstate(invalid="ignore")
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=lambda t: t.name)
@pytest.mark.parametrize("row", CALLS, ids=lambda row: row.name)
def test_nan_wins(row, dtype, comm):
    """All calls of a type in one program: compiling is what takes the time."""
    calls = [(variant, (n,)) for variant in CALLS[row] for n in LENGTHS]
    program = jax.jit(lambda inputs: [row.call(*x, comm=comm, **c[0]) for x, c in zip(inputs, calls, strict=True)])
    for nan_on in NAN_ON:
        inputs = [
            [special(row, dtype, shape, rank, SIZE, nan_on, **variant) for rank in range(SIZE)]
            for variant, shape in calls
        ]
        got = program([[jnp.asarray(x) for x in ranks[comm.rank]] for ranks in inputs])
        for result, ranks, (variant, _) in zip(got, inputs, calls, strict=True):
            want = row.model(ranks, comm.rank, **variant)
            assert (result.shape, result.dtype) == (want.shape, want.dtype)
            is_number = ~np.isnan(numbers(want))
            np.testing.assert_array_equal(numbers(result), numbers(want), f"{variant}, NaN on {nan_on}")
            np.testing.assert_array_equal(bits(np.asarray(result)[is_number]), bits(want[is_number]))
            if row.replicated:
                for other in comm.allgather(bits(result)):
                    np.testing.assert_array_equal(bits(result), other, f"ranks differ: {variant}, NaN on {nan_on}")
