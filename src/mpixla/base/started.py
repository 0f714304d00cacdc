"""What launchers say to the processes that they start. Loads nothing."""

import os

# Where they say how many these are.
STARTED = {
    "OMPI_COMM_WORLD_SIZE": "Open MPI's mpirun",
    "PMI_SIZE": "an mpirun or srun that speaks PMI (MPICH, Intel MPI, Cray, Slurm)",
    "SLURM_STEP_NUM_TASKS": "Slurm's srun",
}


def by_launcher() -> tuple[str, str, int] | None:
    """The variable that says it, the launcher, and the number of processes, if this is one of several."""
    for variable, launcher in STARTED.items():
        number = os.environ.get(variable, "")
        if number.isdigit() and int(number) > 1:
            return variable, launcher, int(number)
    return None
