"""AMD: the handlers for ROCm, with HIP's functions, on the fake GPU."""

import os

import pytest
from mpi4py import MPI

from jobs import ROOT

# Calls of all kinds: reductions, messages, parts that differ, halos, requests, a derivative, a failure.
PROGRAM = """
import jax, jax.numpy as jnp, numpy as np, mpixla
from mpi4py import MPI
from mpixla.mpi.gpu import describe, transport_of
import fake_gpu
comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
right, left = (rank + 1) % size, (rank - 1) % size
line = comm.Create_cart([size], periods=[True])

@jax.jit
def program(x):
    total = mpixla.allreduce(x, op=MPI.SUM)
    most = mpixla.allreduce(x, op=MPI.MAX)
    everything = mpixla.allgather(x)
    received = mpixla.sendrecv(x, x, left, right)
    parts = mpixla.allgatherv(x[: rank + 1], counts=[r + 1 for r in range(size)])
    ghosts = mpixla.halo_exchange(jnp.pad(jnp.outer(x, x), 1), line, axes=1)
    later = mpixla.wait(mpixla.iallreduce(x, op=MPI.SUM))
    return total, most, everything, received, parts, ghosts, later

x = np.arange(1.0, 5.0, dtype=np.float32)
each = [x + r for r in range(size)]
total, most, everything, received, parts, ghosts, later = program(each[rank])
np.testing.assert_array_equal(total, sum(each))
np.testing.assert_array_equal(later, sum(each))
np.testing.assert_array_equal(most, each[-1])
np.testing.assert_array_equal(everything, each)
np.testing.assert_array_equal(received, each[left])
np.testing.assert_array_equal(parts, np.concatenate([y[: r + 1] for r, y in enumerate(each)]))
np.testing.assert_array_equal(ghosts[1:-1, 0], np.outer(each[left], each[left])[:, -1])
np.testing.assert_array_equal(ghosts[1:-1, -1], np.outer(each[right], each[right])[:, 0])
np.testing.assert_array_equal(jax.grad(lambda y: mpixla.allreduce(y, op=MPI.SUM).sum())(each[rank]), np.ones(4))
assert mpixla.has_rocm_support() and not mpixla.has_cuda_support()
assert describe() == "2, platform ROCm", describe()
assert fake_gpu.count("hipStreamGetDevice") > 0 and fake_gpu.count("cuStreamGetCtx") == 0
# They ran on the second GPU, which is current only during calls.
assert fake_gpu.count("hipSetDevice") == 2 * fake_gpu.count("hipStreamGetDevice")
with fake_gpu.failing("hipStreamGetDevice", 1, 719):
    try:
        mpixla.allreduce(each[rank], op=MPI.SUM, comm=MPI.COMM_SELF).block_until_ready()
    except Exception as e:
        text = "hipStreamGetDevice of the ROCm driver returned error code 719, hipErrorLaunchFailure: unspecified"
        assert text in str(e), e
    else:
        raise AssertionError("nothing failed")
print(transport_of(None))
"""


def _rocm(job, code, *arguments, **environment):
    paths = [str(ROOT / "tests" / "seam"), os.environ.get("PYTHONPATH", "")]
    return job(
        2,
        code,
        *arguments,
        PYTHONPATH=os.pathsep.join(filter(None, paths)),
        MPIXLA_FAKE_DEVICE="1",
        MPIXLA_FAKE_DEVICE_PLATFORM="ROCM",
        MPIXLA_FAKE_DEVICE_COUNT="2",
        MPIXLA_FAKE_DEVICE_ORDINAL="1",
        **environment,
    )


# The gate needs MPI's large counts.
TRANSPORTS = ("host", "nccl", "mpi") if MPI.Get_version() >= (4, 0) else ("host", "nccl")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_calls_of_all_kinds(job, transport):
    said = _rocm(job, PROGRAM, MPIXLA_GPU_TRANSPORT=transport).stdout.splitlines()
    assert len(said) == 2
    assert all(line.startswith(f"{transport}: ") for line in said)


def test_where_libraries_are(tmp_path, job):
    """HIP is where JAX's plugin, which may not be loaded yet, finds it: beside itself. NCCL is in a package."""
    files = [tmp_path / "_rocm_sdk_core/lib/libamdhip64.so.7", tmp_path / "own/libamdhip64.so.7"]
    files.append(tmp_path / "nvidia/nccl/lib/libnccl.so.2")
    for file in files:
        file.parent.mkdir(parents=True)
        file.touch()
    code = """
        import os, sys
        sys.path.insert(0, sys.argv[1])
        from mpixla.mpi.gpu import _hip_file, _nccl_file
        print(_hip_file())
        os.environ["LD_LIBRARY_PATH"] = os.path.join(sys.argv[1], "own")
        print(_hip_file())
        print(_nccl_file())
        """
    assert job(1, code, tmp_path).stdout.split() == list(map(str, files))
