"""Where launchers say how many processes they have started."""

import os

_LAUNCHERS = {
    "OMPI_COMM_WORLD_SIZE": "Open MPI's mpirun",
    "PMI_SIZE": "an mpirun or srun that speaks PMI (MPICH, Intel MPI, Cray, Slurm)",
    "SLURM_STEP_NUM_TASKS": "Slurm's srun",
}


def started_by() -> tuple[str, str, int] | None:
    """The variable that says it, the launcher, and the number of processes, if this is one of several."""
    for variable, launcher in _LAUNCHERS.items():
        number = os.environ.get(variable, "")
        if number.isdigit() and int(number) > 1:
            return variable, launcher, int(number)
    return None
