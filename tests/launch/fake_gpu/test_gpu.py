"""Programs on the fake GPU (tests/seam): which transport the ranks choose, what they say of it, and what goes wrong."""

import os
import re
import sys

import pytest
from mpi4py import MPI

from jobs import ROOT

SEAM = ROOT / "tests" / "seam"

# A sum and a message to the next rank, and how the sum travelled.
PROGRAM = """
import jax, jax.numpy as jnp, numpy as np, mpixla
from mpi4py import MPI
from mpixla.mpi.gpu import transport_of
comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
x = jnp.arange(3.0) + rank
total = jax.jit(lambda x: mpixla.allreduce(x, op=MPI.SUM))(x)
np.testing.assert_array_equal(total, size * np.arange(3.0) + sum(range(size)))
received = mpixla.sendrecv(x, x, (rank - 1) % size, (rank + 1) % size)
np.testing.assert_array_equal(received, np.arange(3.0) + (rank - 1) % size)
print(f"{rank}: {transport_of(None)}\\n", end="", flush=True)
"""


@pytest.fixture
def gpu_job(job):
    """Return ``job``, for processes that have a fake GPU."""

    def run(n, code, *arguments, transport="", **environment):
        environment = {"MPIXLA_FAKE_DEVICE": "1", "MPIXLA_GPU_TRANSPORT": transport, **environment}
        paths = [str(SEAM), os.environ.get("PYTHONPATH", "")]
        return job(n, code, *arguments, PYTHONPATH=os.pathsep.join(filter(None, paths)), **environment)

    return run


def _said(done):
    """Return each rank's sentence on the transport."""
    return [line.split(": ", 1)[1] for line in sorted(done.stdout.splitlines())]


def test_nccl_where_each_rank_has_a_gpu(gpu_job):
    for text in _said(gpu_job(2, PROGRAM)):
        assert text.startswith("nccl: NCCL 2.30")
        assert text.endswith("a GPU for each rank")


@pytest.mark.parametrize("transport", ["host", "mpi"])
def test_status_of_a_checked_receive(gpu_job, transport):
    """An eager receive has its status as a result, in the GPU's memory, which the processor may not write."""
    code = """
        import jax.numpy as jnp, mpixla
        from mpi4py import MPI
        rank, status = MPI.COMM_WORLD.Get_rank(), MPI.Status()
        if rank == 0:
            mpixla.send(jnp.ones(3), 1, tag=5)
        else:
            mpixla.recv(jnp.zeros(4), status=status)
            print(status.Get_source(), status.Get_tag(), status.Get_count(MPI.FLOAT))
    """
    assert gpu_job(2, code, transport=transport, MPIXLA_CHECK="1").stdout == "0 5 3\n"


def test_host_where_ranks_share_a_gpu(gpu_job):
    for text in _said(gpu_job(2, PROGRAM, MPIXLA_FAKE_DEVICE_SHARED="1")):
        assert text.startswith("host: ranks 0 and 1 use the same GPU (NCCL from 2.30 on allows it with")
    allowed = gpu_job(2, PROGRAM, MPIXLA_FAKE_DEVICE_SHARED="1", NCCL_MULTI_RANK_GPU_ENABLE="1")
    assert all(text.startswith("nccl: ") for text in _said(allowed))


def test_host_where_nccl_cannot_be_loaded(gpu_job):
    for text in _said(gpu_job(2, PROGRAM, MPIXLA_NCCL_LIBRARY="/nowhere/libnccl.so.2")):
        assert text.startswith("host: on rank 0 NCCL cannot be loaded: /nowhere/libnccl.so.2: cannot open")


def test_host_where_a_rank_calls_with_the_hosts_memory(gpu_job):
    """One process has a fake GPU and the other has none."""
    on_rank_0 = "import os\nif int(os.environ.get('PMI_RANK', os.environ.get('OMPI_COMM_WORLD_RANK', '0'))):\n"
    on_rank_0 += "    del os.environ['MPIXLA_FAKE_DEVICE']\n    import sys; sys.meta_path.pop(0)\n"
    for text in _said(gpu_job(2, on_rank_0 + PROGRAM)):
        assert text.startswith("host: rank 1 calls with the host's memory and others with a GPU's")


@pytest.mark.parametrize("transport", ["host", "nccl"])
def test_transport_that_the_user_chose_is_used(gpu_job, transport):
    for text in _said(gpu_job(2, PROGRAM, transport=transport)):
        assert text.startswith(transport + ": ")


REFUSED = """
import jax, jax.numpy as jnp, mpixla
from mpi4py import MPI
rank = MPI.COMM_WORLD.Get_rank()
for _ in range(2):
    try:
        jax.block_until_ready(mpixla.allreduce(jnp.ones(3), op=MPI.SUM))
    except Exception as e:
        print(f"{rank}: {str(e).splitlines()[0]}\\n", end="", flush=True)
"""


def test_nccl_that_cannot_be_is_refused(gpu_job):
    for text in _said(gpu_job(2, REFUSED, transport="nccl", MPIXLA_FAKE_DEVICE_SHARED="1")):
        assert "MPI_Allreduce on communicator 'mpixla default' cannot be made in the way that" in text
        assert "MPIXLA_GPU_TRANSPORT asks for: ranks 0 and 1 use the same GPU" in text


def test_transports_that_differ_between_ranks_are_refused(gpu_job):
    differ = "import os\nif int(os.environ.get('PMI_RANK', os.environ.get('OMPI_COMM_WORLD_RANK', '0'))):\n"
    differ += "    os.environ['MPIXLA_GPU_TRANSPORT'] = 'nccl'\n"
    for text in _said(gpu_job(2, differ + REFUSED, transport="host")):
        assert "MPIXLA_GPU_TRANSPORT is host on rank 0, and nccl on rank 1" in text


def test_mpi_that_takes_no_gpus_is_refused(gpu_job):
    """As it is without the seam's gate, which says that it does."""
    late = "import fake_gpu, contextlib\nfake_gpu._gate = contextlib.nullcontext\n"
    for text in _said(gpu_job(2, late + REFUSED, transport="mpi")):
        assert "MPI_Allreduce was called with a GPU's memory and MPIXLA_GPU_TRANSPORT=mpi, but this MPI " in text
        assert "; unset it, or set it to host (at script.py:" in text


def test_nonsense_is_refused(gpu_job):
    done = gpu_job(1, "import mpixla", transport="rdma", check=False)
    assert "MPIXLA_GPU_TRANSPORT is 'rdma', but must be auto, nccl, mpi or host" in done.stderr
    assert done.returncode != 0


def test_process_whose_jax_has_no_gpu_is_reported(job):
    """Though it might have had one: from then on its calls exchange nothing."""
    code = """
    import jax, mpixla
    from mpi4py import MPI
    from mpixla.mpi import gpu, native
    gpu._here = gpu.in_job = True
    native.lib.mpixla_gpus_expect(1, 1)
    mpixla.allreduce(1.0, op=MPI.SUM)
    assert not gpu._here
    mpixla.allreduce(1.0, op=MPI.SUM)
    print(f"{MPI.COMM_WORLD.Get_rank()}: {gpu.transport_of(None)}\\n", end="", flush=True)
    """
    for text in _said(job(2, code)):
        assert text == "host: no rank has a GPU"


def test_each_rank_of_a_host_gets_a_gpu(gpu_job):
    code = """
    import jax, mpixla
    from mpi4py import MPI
    rank = MPI.COMM_WORLD.Get_rank()
    try:
        mpixla.select_local_gpu(3)
    except TypeError as e:
        assert "communicator" in str(e)
    else:
        raise AssertionError("3 was taken for a communicator")
    gpu = mpixla.select_local_gpu()
    assert gpu == rank % 2, gpu
    assert jax.config.values["jax_cuda_visible_devices"] == str(gpu)
    assert mpixla.has_cuda_support() and not mpixla.has_sycl_support()
    jax.devices()
    try:
        mpixla.select_local_gpu()
    except RuntimeError as e:
        print(f"{rank}: {e}")
    """
    for text in _said(gpu_job(3, code, MPIXLA_FAKE_DEVICE_COUNT="2")):
        assert text.startswith("select_local_gpu was called after JAX had started")
    without = "import mpixla\nassert mpixla.select_local_gpu() is None and not mpixla.has_cuda_support()"
    gpu_job(2, without, MPIXLA_FAKE_DEVICE="0")


ERRORS = """
import sys, jax, jax.numpy as jnp, numpy as np, mpixla, fake_gpu
from mpi4py import MPI
call = jax.jit(lambda x: mpixla.allreduce(x, op=MPI.SUM, comm=MPI.COMM_SELF))
call(jnp.ones(3)).block_until_ready()
for function, code in zip(sys.argv[1::2], sys.argv[2::2]):
    with fake_gpu.failing(function, 1, int(code)):
        try:
            jax.block_until_ready(call(jnp.ones(3)))
            print(f"{function}: nothing failed")
        except Exception as e:
            print(f"{function}: {str(e).splitlines()[0]}")
    np.testing.assert_array_equal(call(jnp.ones(3)), np.ones(3))
"""

FAILURES = {
    "host": [
        (
            "cuMemcpyDtoHAsync_v2",
            700,
            "cuMemcpyDtoHAsync_v2 of the CUDA driver returned error code 700, CUDA_ER",
        ),
        (
            "cuMemcpyHtoDAsync_v2",
            1,
            "cuMemcpyHtoDAsync_v2 of the CUDA driver returned error code 1, CUDA_ERROR_I",
        ),
        ("cuStreamGetCtx", 400, "cuStreamGetCtx of the CUDA driver returned error code 400"),
        ("cuStreamSynchronize", 719, "cuStreamSynchronize of the CUDA driver returned error code 719"),
    ],
    "nccl": [
        ("ncclAllReduce", 3, "ncclAllReduce returned error code 3"),
        (
            "ncclCommGetAsyncError",
            2,
            "an earlier call through NCCL has failed since, so start the job again: NCCL's error code 2",
        ),
    ],
}


@pytest.mark.parametrize("transport", FAILURES)
def test_errors_are_sentences(gpu_job, transport):
    """The call after each works."""
    arguments = [item for function, code, _ in FAILURES[transport] for item in (function, code)]
    said = _said(gpu_job(1, ERRORS, *arguments, transport=transport))
    assert len(said) == len(FAILURES[transport])
    for text, (_, _, sentence) in zip(said, FAILURES[transport], strict=True):
        assert sentence in text


def test_a_failure_that_nccl_finds_after_the_last_call(gpu_job):
    code = """
    import jax, jax.numpy as jnp, mpixla, fake_gpu
    from mpi4py import MPI
    jax.block_until_ready(mpixla.allreduce(jnp.ones(3), op=MPI.SUM))
    fake_gpu.library().fake_fail(b"ncclCommGetAsyncError", 0, 2)
    """
    done = gpu_job(2, code, transport="nccl", check=False)
    assert done.returncode == 1
    assert re.search(r"r[01] \| .* NCCL has failed", done.stderr)


def test_a_failure_that_nccl_finds_while_nobody_calls(gpu_job):
    """Without a time limit, too: the stream of a call that has returned may never come to its end."""
    code = """
    import time, jax, jax.numpy as jnp, mpixla, fake_gpu
    from mpi4py import MPI
    jax.block_until_ready(mpixla.allreduce(jnp.ones(3), op=MPI.SUM))
    if MPI.COMM_WORLD.rank == 0:
        fake_gpu.library().fake_fail(b"ncclCommGetAsyncError", 1, 6)
    time.sleep(1000)
    """
    done = gpu_job(2, code, transport="nccl", check=False)
    assert done.returncode == 1
    assert "mpixla: r0 | an earlier call through NCCL has failed since" in done.stderr
    assert "No result that depends on that call is right, so the job ends." in done.stderr


def test_info(gpu_job):
    code = "import runpy, sys; sys.argv = ['mpixla']; runpy.run_module('mpixla', run_name='__main__')"
    done = gpu_job(2, code)
    assert "GPUs of rank 0  1, platform CUDA" in done.stdout
    assert "GPU transport   nccl: NCCL 2.30" in done.stdout


@pytest.mark.skipif("Open MPI" in MPI.Get_library_version(), reason="the gate needs an MPI with large counts")
def test_the_self_test_tries_mpi(gpu_job):
    """In a job of its own, in which the gate stands for an MPI that takes a GPU's memory."""
    code = "import sys; from mpixla.tools import selftest; sys.exit(selftest.run())"
    done = gpu_job(
        2, code, timeout=200, transport="mpi", PATH=f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    )
    assert "GPU arrays travel by mpi: MPIXLA_GPU_TRANSPORT is mpi" in done.stdout
    assert "MPI with a GPU's memory: " in done.stdout
