"""Settings on which all ranks agree although their environments may differ, by one allgather at the import of mpixla.

Each part has a function that reads this rank's settings, and one that starts the part with the settings of all ranks,
in their order. The small parts are here.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

from ..base import settings
from ..base.state import state
from ..mpi import gpu, hosts, native
from ..mpi.arrival import limit_wait
from ..mpi.comm import channel_of_reports, comm_of, own_comm
from ..mpi.mpi import MPI
from . import timeline, timeout

# Values of MPIXLA_CHECK, and the C library's modes (native/check/check.h).
_CHECKS = {"": "first"} | dict.fromkeys(settings.OFF, "off") | dict.fromkeys(settings.ON, "lines")
_CHECKS |= {"lines": "lines", "calls": "calls"}

_PROGRESS = "MPIXLA_PROGRESS"
# Interval between two calls of MPI by the progress thread (native/mpi/progress.c). The buffers of a connection last
# longer, and each call takes time from the threads that compute.
_NANOSECONDS = 1_000_000


def _read_check_mode() -> str | None:
    return _CHECKS.get(os.environ.get(settings.CHECK, "").lower())


def _start_checks(modes: Sequence[str | None]) -> None:
    """Compare calls between ranks as MPIXLA_CHECK says, by default first ones; raise if it is invalid or differs.

    Raises:
        ValueError: on all ranks, if ``MPIXLA_CHECK`` has no valid value on one of them.
        RuntimeError: if the value differs between the ranks.
    """
    given, mode = os.environ.get(settings.CHECK, "").lower(), modes[0]
    if None in modes:
        raise ValueError(
            f"{settings.CHECK} is {given!r} on this rank, and on some rank it is nothing that mpixla knows. Set it to "
            "1, calls or 0, the same on all ranks, or leave it out."
        )
    if len(set(modes)) > 1:
        raise RuntimeError(
            f"{settings.CHECK} is {given!r} on this rank, but must be the same on all ranks. "
            "Have the launcher pass it on: mpirun -x MPIXLA_CHECK (Open MPI), mpirun -genvlist MPIXLA_CHECK (MPICH)."
        )
    if mode and mode != "off":
        native.check_result(native.lib.mpixla_check_set(mode.encode(), channel_of_reports()))
        native.check_result(native.lib.mpixla_check_own_set(comm_of(None).id))
        state.compares_all = mode != "first"


def _read_local() -> bool:
    """Return whether this rank's ``MPIXLA_LOCAL`` allows shared memory; if unset, True unless a tool intercepts MPI."""
    return settings.is_on("MPIXLA_LOCAL", otherwise=not native.lib.mpixla_mpi_tool())


def _start_local(rank_settings: Sequence[bool]) -> None:
    """Let collective calls of ranks of one host use shared memory (native/local), if all ranks agree."""
    if all(rank_settings):
        native.lib.mpixla_local_start()


def _read_progress() -> bool:
    """Return whether ``MPIXLA_PROGRESS`` is unset or empty on this rank: then several hosts get a progress thread."""
    return not os.environ.get(_PROGRESS)


def _start_progress(rank_settings: Sequence[bool]) -> None:
    """Start MPI's progress thread if asked, by default on several hosts; RuntimeError if MPI lacks thread support.

    Raises:
        RuntimeError: if the user asks for it without ``MPI_THREAD_MULTIPLE``.
    """
    pays = len(rank_settings) > 1 and any(rank_settings)
    if pays:
        with limit_wait():
            pays = hosts.has_several(own_comm())
    if not settings.is_on(_PROGRESS, otherwise=pays):
        return
    if MPI.Query_thread() == MPI.THREAD_MULTIPLE:
        native.check_result(native.lib.mpixla_progress_set(_NANOSECONDS))
    elif settings.is_on(_PROGRESS):
        raise RuntimeError(
            f"{_PROGRESS} takes a thread that calls MPI while others do, but MPI was initialized without "
            "MPI_THREAD_MULTIPLE. Leave mpi4py.rc.thread_level at 'multiple', or do not set the variable."
        )


# The parts, in the order in which they start.
_PARTS: Sequence[tuple[Callable[[], Any], Callable[[Sequence[Any]], None]]] = (
    (timeout.read_settings, timeout.start_watchdog),
    (_read_check_mode, _start_checks),
    (gpu.read_settings, gpu.start_gpus),
    (_read_local, _start_local),
    (_read_progress, _start_progress),
    (timeline.read_settings, timeline.start_timelines),
)


def begin_agreed_parts() -> None:
    """Exchange settings by an allgather, then start time limit, checks, GPUs, shared memory, progress and timeline."""
    mine = [settings.asks_for_reports(), *(read() for read, _ in _PARTS)]
    reports, *rank_settings = zip(*own_comm().allgather(mine), strict=True)
    state.reports = any(reports)
    for (_, start), of_all in zip(_PARTS, rank_settings, strict=True):
        start(of_all)
