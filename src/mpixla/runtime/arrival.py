"""Importing mpixla waits for all ranks: what ends the job if one of them never comes, where there is a time limit."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator

from . import settings
from .mpi import MPI

# Ranks import at different speeds, and no call of the program's is late yet: seconds that they have at least.
_LEAST = 20.0

_FORWARDING = 0.3  # seconds for mpirun to forward what was printed


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Ends the job if what is inside waits for another rank for too long and ``MPIXLA_TIMEOUT`` is set."""
    try:
        limit = float(os.environ.get(settings.TIMEOUT, ""))
    except ValueError:
        limit = 0.0
    if not 0 < limit < threading.TIMEOUT_MAX:
        yield
        return
    timer = threading.Timer(max(limit, _LEAST), _end_job, [limit])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _end_job(limit: float) -> None:
    sys.stderr.write(
        f"mpixla: rank {MPI.COMM_WORLD.Get_rank()} has waited for {max(limit, _LEAST):g} s in `import mpixla`, longer "
        f"than {settings.TIMEOUT}={limit:g} allows (for the import, {_LEAST:g} s at least), so the whole job ends. "
        "Importing mpixla is collective, and another rank has not imported it: import it on every rank.\n"
    )
    sys.stderr.flush()
    time.sleep(_FORWARDING)
    if MPI.Query_thread() == MPI.THREAD_MULTIPLE:
        MPI.COMM_WORLD.Abort(1)
    os._exit(1)
