"""A trial of MPI with pointers to a GPU's memory, in a job of its own: an MPI without support ends the process."""

import os
import subprocess
import sys

from ..extend import gpu

_SECONDS = 180
# Prefixes of variables that mpirun or srun sets for its processes: without these a process can start another job.
_LAUNCHERS = ("PMI", "PMIX", "OMPI_", "PRTE_", "HYDRA_", "HYDI_", "I_MPI_", "MPI_LOCAL", "MPI_PROC", "SLURM_")
_CONFIGURATION = ("OMPI_MCA_", "PRTE_MCA_", "OMPI_ALLOW", "I_MPI_FABRICS", "I_MPI_ROOT")

# The self test, without a further trial.
_JOB = "import sys; from mpixla.tools import selftest; sys.exit(selftest.run(tries_mpi=False))"


def gpu_memory_through_mpi() -> str:
    """Run a job of two ranks that sends a GPU's memory by MPI; return in words if it works. Call it on one rank."""
    if why_not := gpu.mpi_refuses():
        return f"not tried: {why_not}"
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_LAUNCHERS) or name.startswith(_CONFIGURATION)
    }
    environment["MPIXLA_GPU_TRANSPORT"] = "mpi"
    environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    command = [sys.executable, "-m", "mpixla", "run", "-n", "2", "--no-pin", "-c", _JOB]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_SECONDS, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return f"does not work: a job of 2 ranks did not end within {_SECONDS} s"
    if done.returncode == 0:
        return "works: set MPIXLA_GPU_TRANSPORT=mpi to use it"
    if done.returncode == 2:  # no job was started
        return f"not tried: {done.stderr.strip().removeprefix('python -m mpixla run: ')}"
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    wrong = next((line.strip() for line in lines if "FAILED" in line or "signal" in line.lower()), "")
    return f"does not work: a job of 2 ranks ended with status {done.returncode}. {wrong}".strip()
