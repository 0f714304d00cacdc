"""Importing mpixla waits for all ranks: what ends the job if one of them never comes, where there is a time limit."""

import contextlib
import sys
import threading
from collections.abc import Iterator

from . import settings
from .abort import abort
from .mpi import MPI

# Ranks import at different speeds, and no call of the program's is late yet: seconds that they have at least.
_LEAST = 20.0

# Without a limit: seconds after which the commands of mpixla, which are to tell what is wrong, say that they wait.
_NOTICE = 20.0
_WHY = (
    "Importing mpixla is collective. Another rank has not imported it, so import it on every rank; or MPI's messages "
    "do not arrive, since MPI has chosen a network that does not connect the hosts (docs/clusters.md, Several hosts)."
)


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Ends the job if what is inside waits for another rank for too long and ``MPIXLA_TIMEOUT`` is set."""
    limit = settings.time_limit()
    if limit:
        timer = threading.Timer(max(limit, _LEAST), _end_job, [limit])
    elif sys.argv[:1] == ["-m"] and MPI.COMM_WORLD.Get_rank() == 0:  # what `python -m mpixla` has while it imports
        timer = threading.Timer(_NOTICE, _tell)
    else:
        yield
        return
    with running(timer):
        yield


@contextlib.contextmanager
def running(timer: threading.Timer) -> Iterator[None]:
    """The timer runs while what is inside does, and keeps no process from ending."""
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _tell() -> None:
    sys.stderr.write(f"mpixla: rank 0 has waited for {_NOTICE:g} s in `import mpixla`, and goes on waiting. {_WHY}\n")
    sys.stderr.flush()


def _end_job(limit: float) -> None:
    abort(
        f"mpixla: rank {MPI.COMM_WORLD.Get_rank()} has waited for {max(limit, _LEAST):g} s in `import mpixla`, longer "
        f"than {settings.TIMEOUT}={limit:g} allows (for the import, {_LEAST:g} s at least), so the whole job ends. "
        f"{_WHY}"
    )
