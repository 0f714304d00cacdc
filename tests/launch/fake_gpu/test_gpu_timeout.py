"""MPIXLA_TIMEOUT on the fake GPU: calls hang, and wait for what comes before, by each transport."""

import os

import pytest

from jobs import ROOT

SEAM = ROOT / "tests" / "seam"

PROGRAM = """
import sys, time
from mpi4py import MPI
import jax, jax.numpy as jnp
import mpixla
rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
x = jnp.arange(3.0)
MPI.COMM_WORLD.Barrier()
mpixla.allreduce(x, op=MPI.SUM).block_until_ready()
"""


@pytest.fixture
def run(job):
    """Return a job of two ranks with a fake GPU each."""

    def run(code, transport, **options):
        paths = os.pathsep.join(filter(None, [str(SEAM), os.environ.get("PYTHONPATH", "")]))
        environment = {"MPIXLA_FAKE_DEVICE": "1", "MPIXLA_GPU_TRANSPORT": transport, "PYTHONPATH": paths}
        return job(2, PROGRAM + code, **options, **environment)

    return run


@pytest.mark.parametrize("transport", ["host", "nccl"])
def test_rank_that_never_comes(run, transport):
    done = run(
        """
if rank == 0:
    jax.jit(lambda x: mpixla.allreduce(x, op=MPI.SUM))(x).block_until_ready()
else:
    time.sleep(1000)
""",
        transport,
        check=False,
        MPIXLA_TIMEOUT="2",
    )
    assert done.returncode != 0
    assert "rank 0 has waited" in done.stderr, done.stderr
    assert "MPI_Allreduce with 3 items of float32, op MPI_SUM, on rank 0 of 2" in done.stderr
    assert "Rank 1 has not come: it is in no call of mpixla" in done.stderr
    assert "time.sleep(1000)" in done.stderr


@pytest.mark.parametrize("transport", ["host", "nccl"])
def test_calls_that_end(run, transport):
    done = run(
        """
for i in range(20):
    x = mpixla.bcast(mpixla.allreduce(x, op=MPI.SUM) / size, root=0)
    x = mpixla.sendrecv(x, x, source=1 - rank, dest=1 - rank)
print(float(x[1]))
""",
        transport,
        MPIXLA_TIMEOUT="10",
    )
    assert done.stdout.split() == ["1.0", "1.0"]
    assert done.stderr == ""
