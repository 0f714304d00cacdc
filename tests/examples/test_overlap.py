"""examples/overlap.py: both forms are the model that NumPy computes on the whole plate."""

from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

FORMS = """
import sys
sys.path.insert(0, sys.argv[1])
import jax, numpy as np, overlap
from mpi4py import MPI

comm, ny, nx, steps = MPI.COMM_WORLD, 13, 9, 7
strip, _ = overlap.start(comm, ny, nx)
plates = [np.concatenate(comm.allgather(np.asarray(strip, np.float64)))]
for _ in range(steps):
    padded = np.pad(plates[-1], ((1, 1), (0, 0)), mode="wrap")
    padded = np.pad(padded, ((0, 0), (1, 1)))
    here = padded[1:-1, 1:-1]
    around = padded[:-2, 1:-1] + padded[2:, 1:-1] + padded[1:-1, :-2] + padded[1:-1, 2:]
    plates.append(here + overlap.SPREAD * (around - 4 * here))
firsts = [rank * ny // comm.size for rank in range(comm.size)]
change = np.abs(plates[-1] - plates[-2])[firsts].sum()
for make in (overlap.make_blocking, overlap.make_overlapped):
    got, sum_of_changes = make(MPI.COMM_WORLD)(overlap.start(comm, ny, nx), steps)
    mine = slice(firsts[comm.rank], firsts[comm.rank] + len(got))
    np.testing.assert_allclose(got, plates[-1][mine], atol=1e-6)
    np.testing.assert_allclose(sum_of_changes, change, rtol=1e-4)
    assert change > 1e-3
print("ok")
"""


@pytest.mark.parametrize("ranks", [1, 3, *(pytest.param(n, marks=pytest.mark.long) for n in (2, 4))])
def test_forms(job, ranks):
    assert job(ranks, FORMS, EXAMPLES).stdout.split() == ["ok"] * ranks


@pytest.mark.long
def test_program(example):
    lines = example(2, "overlap", "--size", 8, 6, "--steps", 2, "--repeat", 1).stdout.splitlines()
    assert lines[0].startswith("8 x 6 cells on 2 ranks, 2 steps; the forms differ by ")
    assert float(lines[0].split()[-1]) < 1e-6
    assert [line.split()[0] for line in lines[1:]] == ["blocking", "overlapped", "overlapped"]
    assert example(2, "overlap", "--help").stdout.count("usage: ") == 1
