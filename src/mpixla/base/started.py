"""Variables by which launchers describe a job to the processes that they start. Imports nothing of mpixla or JAX."""

import os
from contextlib import suppress

# Variables that have the number of processes of the job, and the launchers that set them.
STARTED = {
    "OMPI_COMM_WORLD_SIZE": "Open MPI's mpirun",
    "PMI_SIZE": "an mpirun or srun that speaks PMI (MPICH, Intel MPI, Cray, Slurm)",
    "SLURM_STEP_NUM_TASKS": "Slurm's srun",
}


# Variables that have the rank of the process; MPI's start reads the first two.
_PLACES = ("PMI_RANK", "PMIX_RANK")
_RANKS = (*_PLACES, "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")

# The parent of a rank of ``python -m mpixla run`` sets it (run/rank.py) to three numbers: the rank's process, the
# launcher's process, and a descriptor of standard error. Processes that inherit the variable have other numbers.
PROCESS = "PROCESS_OF_MPIXLA"


def _read_run_variable() -> tuple[int, int] | None:
    """Return the launcher's process and stderr's descriptor in a rank of ``python -m mpixla run``; None elsewhere."""
    words = os.environ.get(PROCESS, "").split()
    return (int(words[1]), int(words[2])) if words[:1] == [str(os.getpid())] else None


def _read_first(variables: tuple[str, ...]) -> int | None:
    """Return the number in the first of these variables that has one; None if no variable has."""
    return next((int(os.environ[name]) for name in variables if os.environ.get(name, "").isdecimal()), None)


def rank_of_launcher() -> int | None:
    """Return the rank of this process by its launcher's variables; None if there are none."""
    return _read_first(_RANKS)


def rank_for_mpi() -> int | None:
    """Return the rank with which MPI would start this process; None if MPI would start a job of one process."""
    return _read_first(_PLACES)


def is_of_run() -> bool:
    """Return whether this process is a rank of ``python -m mpixla run``, which owns it."""
    return _read_run_variable() is not None


def launcher_process() -> int:
    """Return the process ID of the MPI launcher's process on this host, which has started the ranks.

    It is the parent, except for ranks of ``python -m mpixla run``, each of which has its own parent (run/rank.py).
    """
    found = _read_run_variable()
    return found[0] if found else os.getppid()


def standard_error() -> int:
    """Return a descriptor of the standard error that this process was started with; 2 if it is unknown.

    A program may redirect descriptor 2, as pytest does.
    """
    found = _read_run_variable()
    return found[1] if found else 2


def job_name() -> str:
    """Return a name shared by the ranks of one launcher on this host, and by no other processes."""
    number = launcher_process()
    return f"{number}-{_fact_of(number, 19)}"


def parent_of(process: int) -> str:
    """Return the process ID of a process's parent; "" where the system does not tell."""
    return _fact_of(process, 1)


def _fact_of(process: int, number: int) -> str:
    with suppress(OSError), open(f"/proc/{process}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[number].decode()
    return ""


def ended_without() -> str:
    """Return the name of the lock that a rank takes if it ends without having imported mpixla (host_lock.py)."""
    return f"ended without importing mpixla {launcher_process()}"


def detect_launcher() -> tuple[str, str, int] | None:
    """Return the variable, the launcher and the number of processes, if a launcher started several; else None."""
    for variable, launcher in STARTED.items():
        number = os.environ.get(variable, "")
        if number.isdigit() and int(number) > 1:
            return variable, launcher, int(number)
    return None
