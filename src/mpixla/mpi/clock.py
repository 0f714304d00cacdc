"""Clocks of several hosts: how far rank 0's is ahead, found by short messages there and back."""

import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

# The best of these messages counts: it was held up least.
_ROUNDS = 32
_TAG = 1


class Reading(NamedTuple):
    """A comparison with rank 0's clock, all in nanoseconds: at ``when`` it said ``ahead`` more."""

    when: int
    ahead: int
    round_trip: int


def host(namespace: str) -> str:
    """What processes have in common that run on one host since its start, on Linux in one namespace of a kind.

    Args:
        namespace: "time" for those that have the same monotonic clock, "pid" for those that see each other's numbers.
    """
    text = socket.gethostname()
    with suppress(OSError):
        text = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    with suppress(OSError):
        text += " " + os.readlink(f"/proc/self/ns/{namespace}")
    return text


def compare(comm: Any, ranks: Sequence[int], now: Callable[[], int], seconds: float) -> Reading | None:
    """What this rank finds; None on rank 0, on ranks that do not compare, and if it waits longer than ``seconds``.

    Rank 0 and ``ranks``, which compare their clocks with its, must call it at about the same time, with a communicator
    of mpi4py's on which nothing else is under way. ``now`` is the clock.
    """
    deadline = time.monotonic() + seconds
    if comm.Get_rank() == 0:
        _answer(comm, ranks, now, deadline)
        return None
    return _ask(comm, now, deadline) if comm.Get_rank() in ranks else None


def _answer(comm: Any, ranks: Sequence[int], now: Callable[[], int], deadline: float) -> None:
    left, message = dict.fromkeys(ranks, _ROUNDS), np.zeros(1, np.int64)
    while any(left.values()) and time.monotonic() < deadline:
        # By rank: who is done may already ask for the next comparison, and must not be counted twice in this one.
        for rank in ranks:
            if left[rank] and comm.Iprobe(rank, _TAG):
                comm.Recv(message, rank, _TAG)
                message[0] = now()
                comm.Send(message, rank, _TAG)
                left[rank] -= 1


def _ask(comm: Any, now: Callable[[], int], deadline: float) -> Reading | None:
    readings, message, answer = list[Reading](), np.zeros(1, np.int64), np.zeros(1, np.int64)
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
        readings.append(Reading(middle, int(answer[0]) - middle, end - begin))
    return min(readings, key=lambda reading: reading.round_trip)
