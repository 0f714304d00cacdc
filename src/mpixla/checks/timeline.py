"""MPIXLA_TRACE: each rank writes its calls into a file of its own (native/watch/trace.h)."""

import ctypes
import os
import time
from collections.abc import Sequence
from typing import Any

from ..base import settings
from ..mpi import clock, native
from ..mpi.comm import own_comm
from ..mpi.mpi import MPI

_LIMIT = "MPIXLA_TRACE_LIMIT"
_LIMIT_MIB = 256
# The time limit for the last comparison of clocks: other ranks may have ended, or may still run for long.
_SECONDS = 2.0

_now = native.lib.mpixla_trace_now
_comm: Any = None  # the communicator for comparisons of clocks, where there are several clocks
_comparing: list[int] = []  # the first rank of each further host


def read_settings() -> tuple[bool, str, str]:
    """Return whether this rank writes a timeline, a name for the job, and an identifier of this rank's clock."""
    return settings.is_on(settings.TRACE), f"{time.time_ns():x}-{os.getpid():x}", clock.host_identifier("time")


def start_timelines(rank_settings: Sequence[tuple[bool, str, str]]) -> None:
    """Start to write timelines on ranks whose environment asks for them, collectively; ImportError on all if one fails.

    Raises:
        ImportError: on all ranks, if one of them cannot write.
    """
    global _comm
    traces, jobs, clocks = zip(*rank_settings, strict=True)
    if not any(traces):
        return
    comm = own_comm()
    mine = clocks[comm.Get_rank()]
    failures = comm.allgather(_start_timeline(len(traces), jobs[0], mine) if settings.is_on(settings.TRACE) else None)
    first = next((rank for rank, failure in enumerate(failures) if failure), None)
    if first is not None:
        native.lib.mpixla_trace_end()
        raise ImportError(f"mpixla cannot trace on rank {first} (MPIXLA_TRACE): {failures[first]}")
    _comparing[:] = [rank for rank, name in enumerate(clocks) if name != clocks[0] and clocks.index(name) == rank]
    if _comparing:
        _comm = MPI.COMM_WORLD.Dup()
        readings = comm.allgather(clock.compare_clocks(_comm, _comparing, _now, float("inf")))
        _note_clock(readings[clocks.index(mine)])


def _start_timeline(ranks: int, job: str, host: str) -> str | None:
    """Start this rank's timeline; return None, or a message with the failure and the remedy."""
    way_out = f"Name a directory that every rank can write to, or unset {settings.TRACE}."
    directory = os.path.abspath(os.environ[settings.TRACE])
    if MPI.Comm.Get_parent() != MPI.COMM_NULL:  # spawned ranks count from 0, like their parents
        directory = os.path.join(directory, f"spawned-{job}")
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as e:
        return f"the directory {directory} cannot be made: {e.strerror}. {way_out}"
    text = os.environ.get(_LIMIT) or str(_LIMIT_MIB)
    try:
        limit = int(float(text) * 2**20)
    except (ValueError, OverflowError):
        limit = -1
    if not 2**20 <= limit < 2**62:
        wrong = f"{_LIMIT} must be a number of MiB, at least 1, but is '{text}'"
        return f"{wrong}. Set it to such a number, or unset {_LIMIT}."
    facts = native.TraceFacts(
        struct_size=ctypes.sizeof(native.TraceFacts),
        directory=os.fsencode(directory),
        limit=limit,
        ranks=ranks,
        job=job.encode(),
        clock=host.encode(),
    )
    if native.lib.mpixla_trace_start(ctypes.byref(facts)) == 0:
        return None
    return f"{native.lib.mpixla_last_error().decode()}. {way_out}"


def _note_clock(reading: clock.ClockReading | None) -> None:
    if reading:
        native.lib.mpixla_trace_clock(*reading)


def end_timeline() -> None:
    """End the timeline, if there is one; first compare clocks of hosts, for ``_SECONDS`` at most. No call may run."""
    if _comparing and not MPI.Is_finalized():
        _note_clock(clock.compare_clocks(_comm, _comparing, _now, _SECONDS))
    native.lib.mpixla_trace_end()  # omissions have been reported already
