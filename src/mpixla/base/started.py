"""What launchers say to the processes that they start. Loads nothing."""

import os
from contextlib import suppress

# Where they say how many these are.
STARTED = {
    "OMPI_COMM_WORLD_SIZE": "Open MPI's mpirun",
    "PMI_SIZE": "an mpirun or srun that speaks PMI (MPICH, Intel MPI, Cray, Slurm)",
    "SLURM_STEP_NUM_TASKS": "Slurm's srun",
}


# Where they say which rank a process is; MPI's start reads the first two.
_PLACES = ("PMI_RANK", "PMIX_RANK")
_RANKS = (*_PLACES, "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")

# The parent of a rank of ``python -m mpixla run`` sets it (launch/rank.py) to three numbers: the rank's process, the
# launcher's process, and a descriptor of standard error. Processes that inherit the variable have other numbers.
PROCESS = "PROCESS_OF_MPIXLA"


def _from_run() -> tuple[int, int] | None:
    """Return the process of the launcher and the descriptor, in a rank of ``python -m mpixla run``; None elsewhere."""
    words = os.environ.get(PROCESS, "").split()
    return (int(words[1]), int(words[2])) if words[:1] == [str(os.getpid())] else None


def _read_first(variables: tuple[str, ...]) -> int | None:
    """Return the number in the first of these variables that has one; None if none has."""
    return next((int(os.environ[name]) for name in variables if os.environ.get(name, "").isdecimal()), None)


def rank() -> int | None:
    """Return the rank of this process, as its launcher has told it; None if it has not."""
    return _read_first(_RANKS)


def place() -> int | None:
    """Return the rank that MPI would start this process as; None if that is a job of its own."""
    return _read_first(_PLACES)


def is_of_run() -> bool:
    """Return whether this process is a rank of ``python -m mpixla run``, which owns it."""
    return _from_run() is not None


def launcher() -> int:
    """Return the number of the process by which a launcher has started the ranks of this host.

    It is the parent, but for ranks of ``python -m mpixla run``, which have a parent each (launch/rank.py).
    """
    found = _from_run()
    return found[0] if found else os.getppid()


def standard_error() -> int:
    """Return a descriptor of the standard error that this process has started with, as far as that is known.

    A program may put something else in the place of descriptor 2, as pytest does.
    """
    found = _from_run()
    return found[1] if found else 2


def job() -> str:
    """Return a name that the ranks of one launcher on this host have in common, and no others have."""
    number = launcher()
    return f"{number}-{_fact_of(number, 19)}"


def parent_of(process: int) -> str:
    """Return the number of a process's parent; "" where that is not known."""
    return _fact_of(process, 1)


def _fact_of(process: int, number: int) -> str:
    with suppress(OSError), open(f"/proc/{process}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[number].decode()
    return ""


def ended_without() -> str:
    """Return the lock (host_lock.py) of ranks of ``python -m mpixla run`` that end without having imported mpixla."""
    return f"ended without importing mpixla {launcher()}"


def by_launcher() -> tuple[str, str, int] | None:
    """The variable that says it, the launcher, and the number of processes, if this is one of several."""
    for variable, launcher in STARTED.items():
        number = os.environ.get(variable, "")
        if number.isdigit() and int(number) > 1:
            return variable, launcher, int(number)
    return None
