"""What launchers say to the processes that they start. Loads nothing."""

import os
from contextlib import suppress

# Where they say how many these are.
STARTED = {
    "OMPI_COMM_WORLD_SIZE": "Open MPI's mpirun",
    "PMI_SIZE": "an mpirun or srun that speaks PMI (MPICH, Intel MPI, Cray, Slurm)",
    "SLURM_STEP_NUM_TASKS": "Slurm's srun",
}


# Where they say which rank a process is.
_RANKS = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")

# The number of a process that mpixla runs as a rank, and the number of its launcher's process. Other processes that
# inherit the variable have other numbers.
PROCESS = "PROCESS_OF_MPIXLA"


def rank() -> int | None:
    """Return the rank of this process, as its launcher has told it; None if it has not."""
    return next((int(os.environ[name]) for name in _RANKS if os.environ.get(name, "").isdecimal()), None)


def launcher() -> int:
    """Return the number of the process by which a launcher has started the ranks of this host.

    It is the parent, but for ranks of ``python -m mpixla run``, which have a parent each (launch/rank.py).
    """
    process, _, starter = os.environ.get(PROCESS, "").partition(" ")
    return int(starter) if process == str(os.getpid()) else os.getppid()


def job() -> str:
    """Return a name that the ranks of one launcher on this host have in common, and no others have."""
    number, start = launcher(), b""
    with suppress(OSError), open(f"/proc/{number}/stat", "rb") as file:  # where there is none, the number must do
        start = file.read().rpartition(b")")[2].split()[19]
    return f"{number}-{start.decode()}"


def by_launcher() -> tuple[str, str, int] | None:
    """The variable that says it, the launcher, and the number of processes, if this is one of several."""
    for variable, launcher in STARTED.items():
        number = os.environ.get(variable, "")
        if number.isdigit() and int(number) > 1:
            return variable, launcher, int(number)
    return None
