"""What launchers say to the processes that they start. Loads nothing."""

import os

# Where they say how many these are.
STARTED = {
    "OMPI_COMM_WORLD_SIZE": "Open MPI's mpirun",
    "PMI_SIZE": "an mpirun or srun that speaks PMI (MPICH, Intel MPI, Cray, Slurm)",
    "SLURM_STEP_NUM_TASKS": "Slurm's srun",
}


# The number of a process that mpixla runs as a rank, and the number of its launcher's process. Other processes that
# inherit the variable have other numbers.
PROCESS = "PROCESS_OF_MPIXLA"


def launcher() -> int:
    """Return the number of the process by which a launcher has started the ranks of this host.

    It is the parent, but for ranks of ``python -m mpixla run``, which have a parent each (launch/rank.py).
    """
    process, _, starter = os.environ.get(PROCESS, "").partition(" ")
    return int(starter) if process == str(os.getpid()) else os.getppid()


def by_launcher() -> tuple[str, str, int] | None:
    """The variable that says it, the launcher, and the number of processes, if this is one of several."""
    for variable, launcher in STARTED.items():
        number = os.environ.get(variable, "")
        if number.isdigit() and int(number) > 1:
            return variable, launcher, int(number)
    return None
