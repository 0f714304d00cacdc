"""AMD and Intel: the handlers for ROCM and ONEAPI, with HIP's and dpctl's functions, on the fake GPU."""

import os
import shutil
from pathlib import Path

import pytest
from mpi4py import MPI

from jobs import ROOT

FAKE = Path(os.environ.get("MPIXLA_FAKE_DEVICE_LIBRARY") or ROOT / "build/fake-device/libmpixla_fake_gpu.so")

# Calls of all kinds: reductions, messages, parts that differ, halos, requests, a derivative, a failure.
PROGRAM = """
import jax, jax.numpy as jnp, numpy as np, mpixla
from mpi4py import MPI
from mpixla.mpi.gpu import describe_gpus, transport_of
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
"""

ROCM = """
assert mpixla.has_rocm_support() and not mpixla.has_cuda_support()
assert describe_gpus() == "2, platform ROCm", describe_gpus()
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

SYCL = """
assert mpixla.has_sycl_support() and not mpixla.has_cuda_support() and not mpixla.has_rocm_support()
assert describe_gpus() == "2, platform SYCL", describe_gpus()
assert fake_gpu.count("DPCTLQueue_GetDevice") > 0 and fake_gpu.count("cuStreamGetCtx") == 0
assert fake_gpu.count("DPCTLEvent_Delete") > 0 and fake_gpu.live()[2] <= fake_gpu.live()[1] + fake_gpu.live()[0]
for function, nth in ("DPCTLQueue_GetDevice", 1), ("DPCTLQueue_Memcpy", 1), ("DPCTLQueue_Memcpy", 2):
    with fake_gpu.failing(function, nth, 1):
        try:
            y = mpixla.allreduce(each[rank], op=MPI.SUM, comm=MPI.COMM_SELF)
            y.block_until_ready()
        except Exception as e:
            text = f"{function} of the SYCL driver returned error code 1, a failure of SYCL: DPCTL_VERBOSITY=warning"
            assert text in str(e), e
        else:
            assert transport_of(MPI.COMM_SELF).startswith("mpi"), function  # which copies nothing
print(transport_of(None))
"""


def _job(job, platform, code, *arguments, **environment):
    paths = [str(ROOT / "tests" / "seam"), os.environ.get("PYTHONPATH", "")]
    return job(
        2,
        code,
        *arguments,
        PYTHONPATH=os.pathsep.join(filter(None, paths)),
        MPIXLA_FAKE_DEVICE="1",
        MPIXLA_FAKE_DEVICE_PLATFORM=platform,
        MPIXLA_FAKE_DEVICE_COUNT="2",
        MPIXLA_FAKE_DEVICE_ORDINAL="1",
        **environment,
    )


# The gate needs MPI's large counts.
TRANSPORTS = ("host", "nccl", "mpi") if MPI.Get_version() >= (4, 0) else ("host", "nccl")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_calls_of_all_kinds_on_rocm(job, transport):
    said = _job(job, "ROCM", PROGRAM + ROCM, MPIXLA_GPU_TRANSPORT=transport).stdout.splitlines()
    assert len(said) == 2
    assert all(line.startswith(f"{transport}: ") for line in said)


@pytest.mark.parametrize("transport", [name for name in TRANSPORTS if name != "nccl"])
def test_calls_of_all_kinds_on_sycl(job, transport):
    said = _job(job, "ONEAPI", PROGRAM + SYCL, MPIXLA_GPU_TRANSPORT=transport).stdout.splitlines()
    assert len(said) == 2
    assert all(line.startswith(f"{transport}: ") for line in said)


def test_sycl_has_no_nccl(job):
    """By default arrays go through the host, and a call that must go through NCCL says why it cannot."""
    said = _job(job, "ONEAPI", PROGRAM + "print(transport_of(None))").stdout.splitlines()
    assert said == ["host: on rank 0 there is no NCCL for Intel's GPUs"] * 2
    code = """
    import jax.numpy as jnp, mpixla
    try:
        mpixla.bcast(jnp.ones(3), 0)
    except Exception as e:
        print("there is no NCCL for Intel's GPUs" in str(e))
    """
    assert _job(job, "ONEAPI", code, MPIXLA_GPU_TRANSPORT="nccl").stdout.split() == ["True"] * 2


@pytest.mark.parametrize("variable", ["MPI4JAX_USE_CUDA_MPI", "MPI4JAX_USE_SYCL_MPI"])
def test_variables_of_mpi4jax_ask_for_mpi(job, variable):
    code = """
    import jax.numpy as jnp
    from mpi4py import MPI
    from mpixla.compat import _mpi4jax
    try:
        vars(_mpi4jax.make_modules(tokens=False)["mpi4jax"])["allreduce"](jnp.ones(3), MPI.SUM)
    except Exception as e:
        print("MPIXLA_GPU_TRANSPORT=mpi, but this MPI" in str(e))
    """
    assert _job(job, "ONEAPI", code, **{variable: "1"}).stdout.split() == ["True"] * 2


def test_each_rank_of_a_host_gets_a_gpu_of_intels(job):
    code = """
    import jax, mpixla
    from mpi4py import MPI
    gpu = mpixla.select_local_gpu()
    assert gpu == MPI.COMM_WORLD.Get_rank(), gpu
    assert jax.config.values["jax_oneapi_visible_devices"] == str(gpu)
    """
    _job(job, "ONEAPI", code)


def test_where_libraries_are(tmp_path, job):
    """HIP is where JAX's plugin, which may not be loaded yet, finds it: beside itself. NCCL is in a package."""
    names = ("_rocm_sdk_core/lib/libamdhip64.so.7", "rocm/lib/libamdhip64.so.7", "own/libamdhip64.so.7")
    files = [tmp_path / name for name in (*names, "nvidia/nccl/lib/libnccl.so.2")]
    for file in files:
        file.parent.mkdir(parents=True)
        file.touch()
    (tmp_path / "rocm").rename(tmp_path / "later")
    code = """
        import importlib, os, sys
        sys.path.insert(0, sys.argv[1])
        from mpixla.mpi.gpu import _hip_file, _nccl_file
        print(_hip_file())
        os.rename(os.path.join(sys.argv[1], "later"), os.path.join(sys.argv[1], "rocm"))
        importlib.invalidate_caches()
        print(_hip_file())
        os.environ["LD_LIBRARY_PATH"] = os.path.join(sys.argv[1], "own")
        print(_hip_file())
        print(_nccl_file())
        """
    assert job(1, code, tmp_path).stdout.split() == list(map(str, files))


def test_dpctl_is_used_with_jaxs_plugin_only(tmp_path, job):
    code = """
        import importlib, os, sys
        sys.path.insert(0, sys.argv[1])
        from mpixla.mpi.gpu import _sycl_file
        print(_sycl_file())
        os.mkdir(os.path.join(sys.argv[1], "jax_oneapi_plugin"))
        importlib.invalidate_caches()
        print(_sycl_file())
        """
    file = tmp_path / "dpctl/libDPCTLSyclInterface.so"
    file.parent.mkdir()
    file.touch()
    assert job(1, code, tmp_path).stdout.split() == ["None", str(file)]


def test_a_second_mpi_is_warned_of(tmp_path, job):
    """JAX's plugin for Intel's GPUs loads libmpi.so.12, whichever MPI the program uses."""
    (tmp_path / "jax_oneapi_plugin").mkdir()
    second = tmp_path / "libmpi.so.12"
    shutil.copy(FAKE, second)
    code = """
        import ctypes, sys, warnings
        sys.path.insert(0, sys.argv[1])
        import mpixla
        from mpixla.mpi import gpu
        with warnings.catch_warnings(record=True) as before:
            gpu._warn_of_second_mpi()
        gpu._warn_of_second_mpi.cache_clear()
        ctypes.CDLL(sys.argv[2])
        with warnings.catch_warnings(record=True) as after:
            gpu._warn_of_second_mpi()
            gpu._warn_of_second_mpi()
        print(len(before), *[str(w.message) for w in after])
        """
    start = f"0 JAX's plugin for Intel's GPUs has loaded a second MPI, {second}, beside the program's, "
    said = job(1, code, tmp_path, second).stdout
    assert said.startswith(start)
    assert said.count("second MPI") == 1
