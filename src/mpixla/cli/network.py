"""How long messages between ranks take, on one host and between hosts."""

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager

import numpy as np

from ..mpi.abort import abort
from ..mpi.arrival import running
from ..mpi.mpi import MPI

_TAG = 1
_ROUNDS = 100  # messages there and back, of which the best counts
_PATIENCE = 30.0  # for all of them, seconds


def rows(hosts: list[str]) -> Iterator[tuple[str, str]]:
    """Titles and texts of the report, on rank 0. All ranks must call it, and go through all rows.

    Args:
        hosts: the host of each rank.
    """
    near, far = _pairs(hosts)
    for title, pair, none in (
        ("on one host", near, "no two ranks are on one host"),
        ("between hosts", far, "all ranks are on one host"),
    ):
        if pair is None:
            yield title, none
        else:
            between = " and ".join(f"rank {rank} on {hosts[rank]}" for rank in pair)
            yield title, f"{_seconds(pair, between) * 1e6:.2f} us for 4 bytes, between {between}"


def _pairs(hosts: list[str]) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
    """The first two ranks on one host; and rank 0, with the first that is elsewhere."""
    near = ((hosts.index(host), rank) for rank, host in enumerate(hosts) if hosts.index(host) != rank)
    far = ((0, rank) for rank, host in enumerate(hosts) if host != hosts[0])
    return next(near, None), next(far, None)


def _seconds(pair: tuple[int, int], between: str) -> float:
    """How long a short message takes in one direction, on all ranks."""
    comm, word, best = MPI.COMM_WORLD, np.zeros(1, np.int32), float("inf")
    asks, answers = pair
    if comm.Get_rank() == asks:
        with limited(between):
            for _ in range(_ROUNDS):
                begin = time.perf_counter()
                comm.Send(word, answers, _TAG)
                comm.Recv(word, answers, _TAG)
                best = min(best, time.perf_counter() - begin)
    elif comm.Get_rank() == answers:
        for _ in range(_ROUNDS):
            comm.Recv(word, asks, _TAG)
            comm.Send(word, asks, _TAG)
    wait_for_all()
    return comm.bcast(best / 2, asks)


def wait_for_all() -> None:
    """A barrier that leaves the processor to those that measure."""
    request = MPI.COMM_WORLD.Ibarrier()
    while not request.Test():
        time.sleep(0.002)


def limited(between: str) -> AbstractContextManager[None]:
    """Ends the job if what is inside takes too long: then messages between these do not arrive."""
    why = (
        f"mpixla: MPI has started, but messages between {between} have not arrived within {_PATIENCE:g} s, so the job "
        "ends. MPI may have chosen a network that does not connect the hosts, or a firewall is between them: tell MPI "
        "which network to use (docs/clusters.md, Several hosts)."
    )
    return running(threading.Timer(_PATIENCE, abort, [why]))
