"""The timeline of a job on fake GPUs: how its arrays travelled, and what was waiting for the GPU."""

import pytest
from mpi4py import MPI
from test_gpu import gpu_job  # noqa: F401

from mpixla.trace.match import match_calls
from mpixla.trace.read import read_timelines

PROGRAM = """
import time
import jax, jax.numpy as jnp, mpixla
from mpi4py import MPI
comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
x = jnp.ones(1000)
mpixla.allreduce(x, op=MPI.SUM).block_until_ready()
comm.Barrier()
if rank == 1:
    time.sleep(0.4)
mpixla.allreduce(x, op=MPI.SUM).block_until_ready()
mpixla.sendrecv(x, x, (rank - 1) % size, (rank + 1) % size).block_until_ready()
mpixla.wait(mpixla.iallreduce(x, op=MPI.SUM)).block_until_ready()
"""
TRANSPORTS = ["host", "nccl"] + (["mpi"] if "MPICH" in MPI.Get_library_version() else [])


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_transports(gpu_job, tmp_path, transport):  # noqa: F811
    gpu_job(2, PROGRAM, transport=transport, MPIXLA_TRACE="traces")
    job = read_timelines(tmp_path / "traces")
    match_calls(job)
    assert job.notes == []
    for rank in range(2):
        calls = job.timelines[rank].calls
        assert [call.title for call in calls] == [
            "allreduce",
            "allreduce",
            "sendrecv",
            "iallreduce",
            "wait for iallreduce",
        ]
        message = "mpi" if transport == "mpi" else "host"
        assert [call.transport for call in calls] == [transport, transport, message, "host", "host"]
        late = calls[1]
        if transport == "nccl":  # which only gets it: nobody waits
            assert late.waiting == late.gpu == 0
        else:
            assert 0 < late.gpu < late.time
            assert late.ready == late.begin + late.gpu
    if transport != "nccl":
        first, second = (job.timelines[rank].calls[1] for rank in range(2))
        assert first.late == 1
        assert first.waiting > second.waiting
