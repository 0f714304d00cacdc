"""Clocks of several hosts: the offset of rank 0's clock, measured by short round trips."""

import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

# The shortest of these round trips counts.
_ROUNDS = 32
_TAG = 1


class ClockReading(NamedTuple):
    """A comparison with rank 0's clock, in nanoseconds: at ``when`` on this rank's clock, it was ``ahead`` further."""

    when: int
    ahead: int
    round_trip: int


def host_identifier(namespace: str) -> str:
    """Return an identifier shared by all processes of one host since its boot, on Linux in one namespace of a kind.

    Args:
        namespace: "time" for processes with the same monotonic clock, "pid" for processes with the same process IDs.
    """
    text = socket.gethostname()
    with suppress(OSError):
        text = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    with suppress(OSError):
        text += " " + os.readlink(f"/proc/self/ns/{namespace}")
    return text


def compare_clocks(comm: Any, ranks: Sequence[int], now: Callable[[], int], seconds: float) -> ClockReading | None:
    """Return the best reading of rank 0's clock against this rank's; None on rank 0, on others, or past the limit.

    Rank 0 and ``ranks`` must call it at about the same time.

    Args:
        comm: an mpi4py communicator without other communication in progress.
        ranks: the ranks that compare their clocks with rank 0's.
        now: the clock.
        seconds: the time limit.

    Returns:
        The reading; None on rank 0, on ranks that do not compare, and after the time limit.
    """
    deadline = time.monotonic() + seconds
    if comm.Get_rank() == 0:
        _answer_clock_requests(comm, ranks, now, deadline)
        return None
    return _read_remote_clock(comm, now, deadline) if comm.Get_rank() in ranks else None


def _answer_clock_requests(comm: Any, ranks: Sequence[int], now: Callable[[], int], deadline: float) -> None:
    """Reply with rank 0's clock to each rank's messages until all rounds are done, or the deadline has passed."""
    left, message = dict.fromkeys(ranks, _ROUNDS), np.zeros(1, np.int64)
    while any(left.values()) and time.monotonic() < deadline:
        # Counted by rank: a rank that is done may already begin its next comparison, which does not belong to this one.
        for rank in ranks:
            if left[rank] and comm.Iprobe(rank, _TAG):
                comm.Recv(message, rank, _TAG)
                message[0] = now()
                comm.Send(message, rank, _TAG)
                left[rank] -= 1


def _read_remote_clock(comm: Any, now: Callable[[], int], deadline: float) -> ClockReading | None:
    """Read rank 0's clock several times; return the reading with the shortest round trip, None past the deadline."""
    readings, message, answer = list[ClockReading](), np.zeros(1, np.int64), np.zeros(1, np.int64)
    for _ in range(_ROUNDS):
        request = comm.Irecv(answer, 0, _TAG)
        begin = now()
        comm.Send(message, 0, _TAG)
        while not request.Test():
            if time.monotonic() > deadline:
                request.Cancel()
                request.Wait()
                return None
        end = now()
        middle = (begin + end) // 2
        readings.append(ClockReading(middle, int(answer[0]) - middle, end - begin))
    return min(readings, key=lambda reading: reading.round_trip)
