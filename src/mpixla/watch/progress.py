"""Whether messages move while programs compute: ``MPIXLA_PROGRESS``, for native/mpi/progress.c."""

import os

from ..base import settings
from ..mpi import hosts, native
from ..mpi.arrival import limited
from ..mpi.comm import get_default_comm
from ..mpi.mpi import MPI

# Between two calls of MPI. The buffers of a connection last longer, and each call takes its time from what computes.
_NANOSECONDS = 1_000_000


def wish() -> tuple[float]:
    """Whether it is to be found out if some ranks are on another host: what this rank does depends on it."""
    return (not os.environ.get(settings.PROGRESS),)


def begin(depends_on_hosts: float) -> None:
    """Starts the thread if it is asked for, or not refused and some ranks are on another host.

    Raises:
        RuntimeError: it is asked for, but MPI was initialized with less than ``MPI_THREAD_MULTIPLE``.
    """
    has_several_hosts = bool(depends_on_hosts) and _has_several_hosts()
    if not settings.is_on(settings.PROGRESS, otherwise=has_several_hosts):
        return
    if MPI.Query_thread() == MPI.THREAD_MULTIPLE:
        native.check(native.lib.mpixla_progress_set(_NANOSECONDS))
    elif settings.is_on(settings.PROGRESS):
        raise RuntimeError(
            f"{settings.PROGRESS} takes a thread that calls MPI while others do, but MPI was initialized without "
            "MPI_THREAD_MULTIPLE. Leave mpi4py.rc.thread_level at 'multiple', or do not set the variable."
        )


def _has_several_hosts() -> bool:
    comm = get_default_comm()
    if comm.Get_size() == 1:
        return False
    with limited():
        return hosts.has_several(comm)
