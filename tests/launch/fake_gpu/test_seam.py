"""The seam (tests/seam): each transport is the one that is asked for, and what breaks it is seen.

The suite itself runs through the seam in `make test-fake-gpu`; here jobs run through it that must not end well.
"""

import ctypes
import os
import textwrap
from pathlib import Path

import pytest
from mpi4py import MPI

SEAM = Path(__file__).parents[2] / "seam"
LIBRARY = Path(
    os.environ.get("MPIXLA_FAKE_DEVICE_LIBRARY") or SEAM.parents[1] / "build/fake-device/libmpixla_fake_gpu.so"
)
pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="there is no fake GPU: make fake-device")

HAS_LARGE_COUNTS = hasattr(ctypes.CDLL(MPI.__file__), "MPI_Send_c")

START = """
import jax
import jax.numpy as jnp
import fake_gpu
import mpixla
from mpi4py import MPI

rank = MPI.COMM_WORLD.Get_rank()
x = jnp.full((2, 1000), 1.0 + rank)
"""


@pytest.fixture
def seam(job):
    """Return a `job` with the seam and a transport: seam(transport, code, ...)."""

    def run(transport, code, **options):
        if transport == "mpi" and not HAS_LARGE_COUNTS:
            pytest.skip("the gate to MPI needs large counts (MPI 4.0)")
        path = os.pathsep.join(filter(None, [str(SEAM), os.environ.get("PYTHONPATH")]))
        environment = {"MPIXLA_FAKE_DEVICE": "1", "MPIXLA_GPU_TRANSPORT": transport, "PYTHONPATH": path}
        result = job(2, START + textwrap.dedent(code), **{**environment, **options})
        return result

    return run


@pytest.mark.parametrize(
    ("transport", "calls"),
    [
        ("host", "cuMemcpyDtoHAsync_v2 cuMemcpyHtoDAsync_v2"),
        ("nccl", "ncclAllReduce"),
        ("mpi", "nothing"),
    ],
)
def test_the_bytes_travel_as_asked(seam, transport, calls):
    code = """
        mpixla.allreduce(x, op=MPI.SUM)  # the first call makes communicators
        fake_gpu.forget()
        y = mpixla.allreduce(x, op=MPI.SUM)
        assert (y == 3).all(), y
        moves = sorted({call.function for call in fake_gpu.calls() if call.bytes})
        assert not fake_gpu.complaint()
        print(" ".join(moves) or "nothing")
    """
    out = seam(transport, code).stdout
    assert out.splitlines() == [calls, calls]


FORGETFUL = """
    with fake_gpu.skipping("cuStreamSynchronize"):
        y = mpixla.allreduce(x, op=MPI.SUM)
    print("right" if (y == 3).all() else "wrong", flush=True)
"""


def test_through_the_host_an_early_look_gives_rubbish(seam):
    assert seam("host", FORGETFUL).stdout.splitlines() == ["wrong", "wrong"]


def test_nccl_calls_without_a_group_lock_up(seam):
    code = """
        with fake_gpu.skipping("ncclGroupStart"), fake_gpu.skipping("ncclGroupEnd"):
            try:
                verdict = str(mpixla.alltoall(x))
            except jax.errors.JaxRuntimeError as e:
                verdict = str(e).splitlines()[0]
        print(verdict, flush=True)
    """
    out = seam("nccl", code, MPIXLA_FAKE_DEVICE_TIMEOUT="2", check=False).stdout  # the end tells of it as well
    assert out.count("waited too long") + out.count("sends itself more messages") >= 1, out


def test_mpi_that_gets_memory_too_early_crashes(seam):
    result = seam("mpi", FORGETFUL, check=False)
    assert result.returncode != 0
    assert "right" not in result.stdout
    assert "wrong" not in result.stdout


FAILS = """
    mpixla.allreduce(x, op=MPI.SUM)
    with fake_gpu.failing("{function}", 1, {number}):
        try:
            mpixla.allreduce(x, op=MPI.SUM).block_until_ready()
            print("no error")
        except (jax.errors.JaxRuntimeError, ValueError) as e:
            print("nobody minded" if "nobody minded" in str(e) else str(e).splitlines()[0])
    assert (mpixla.allreduce(x, op=MPI.SUM) == 3).all()
"""


def test_errors_of_nccl_become_exceptions(seam):
    """In words of mpixla's own, on all ranks; the next call works."""
    lines = seam("nccl", FAILS.format(function="ncclAllReduce", number=2)).stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert "ncclAllReduce " in line
        assert "returned error code 2" in line


@pytest.mark.parametrize(
    ("transport", "function", "number"), [("host", "cuMemcpyDtoHAsync_v2", 700), ("mpi", "cuStreamSynchronize", 719)]
)
def test_a_driver_that_fails_in_a_collective_call_ends_the_job(seam, transport, function, number):
    """The others would wait for this rank."""
    done = seam(transport, FAILS.format(function=function, number=number), check=False)
    assert done.returncode != 0
    assert f"{function} of the CUDA driver returned error code {number}" in done.stderr
    assert "wait for this one in the same call and cannot go on, so the job ends." in done.stderr
