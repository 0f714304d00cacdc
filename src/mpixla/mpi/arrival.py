"""Time limits for collective starts: a timer reports that a rank has not come, or ends the job."""

import contextlib
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager

from ..base import host_lock, settings, started
from ..base.speaker import print_message
from .abort import abort_job
from .mpi import MPI

# Seconds until the report, and the least limit: ranks import at different speeds, and no call of the program is late
# yet.
_LEAST = 20.0
_PAUSE = 1.0  # seconds between two checks whether another rank has ended
_LATER = 0.1  # seconds of delay for each rank, up to a bound, so that the lowest waiting rank reports

_WHY = (
    "Importing mpixla is collective. Another rank has not imported it, so import it on every rank; or MPI's messages "
    "do not arrive, since MPI has chosen a network that does not connect the hosts (docs/clusters.md, Several hosts)."
)
_WHY_IN_A_POOL = (
    "Importing mpixla is collective, and the program has mpi4py.futures: the workers of a pool import it, and mpixla "
    "with it, when they get their first task. Import mpixla on this rank after each worker was asked to, by a task "
    "that does (docs/other_tools.md, Pools of workers)."
)


@contextlib.contextmanager
def run_timer(timer: threading.Timer) -> Iterator[None]:
    """Run a timer in a daemon thread during the with body; then cancel it, and wait for its thread."""
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # it may be ending the job


def limit_wait(what: str = "import mpixla", why: str = "") -> AbstractContextManager[None]:
    """Return a context that reports a long wait in ``what``, once, or ends the job if ``MPIXLA_TIMEOUT`` is set.

    The job ends when the body takes longer than ``MPIXLA_TIMEOUT`` and than ``_LEAST``.
    """
    rank, limit = MPI.COMM_WORLD.Get_rank(), settings.time_limit()
    seconds = max(limit or 0, _LEAST)
    waits = f"mpixla: rank {rank} has waited for {seconds:g} s in `{what}`"
    why = why or (_WHY_IN_A_POOL if "mpi4py.futures" in sys.modules else _WHY)
    if not limit:
        seconds += min(rank, 10) * _LATER
        timer = threading.Timer(
            seconds, lambda: _report_waiting(what, f"{waits}, and goes on waiting. {why}\n", timer.finished)
        )
        return run_timer(timer)
    end = (
        f"{waits}, longer than {settings.TIMEOUT}={limit:g} allows (here, {_LEAST:g} s at least), so the "
        f"whole job ends. {why}"
    )
    return run_timer(threading.Timer(seconds, abort_job, [end]))


def _report_waiting(what: str, sentence: str, done: threading.Event) -> None:
    """Print ``sentence``, once for a launcher; then, until ``done``, abort if a rank here ends without the import."""
    if host_lock.take_lock(f"{what} {started.launcher_process()}"):  # once for the ranks of one launcher
        print_message(sentence)
    while not done.wait(_PAUSE):
        if host_lock.is_held(started.ended_without()) and settings.aborts_job():
            if host_lock.take_lock(f"end of {what} {started.launcher_process()}"):
                abort_job(
                    f"mpixla: rank {MPI.COMM_WORLD.Get_rank()} waits in `{what}`, and the script of another rank has "
                    "come to its end without importing mpixla, so the whole job ends. Import mpixla on every rank."
                )
            return
