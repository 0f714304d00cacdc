"""How long messages between ranks take, on one host and between hosts, and whether they go through TCP."""

import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import numpy as np

from ..runtime.abort import abort
from ..runtime.arrival import running
from ..runtime.mpi import MPI

_TAG = 1
# Short messages there and back, of which the best counts: so many, or for so long, but not too few.
_ROUNDS = 1000
_SECONDS = 0.1
_LEAST_ROUNDS = 20
_PATIENCE = 30.0  # for all of it, seconds
_LARGE = 1 << 20  # bytes, by which one sees the connection that they take

# Where Linux has these in TCP_INFO: bytes that have come, a 64-bit number.
_RECEIVED_AT = 128

# Device files of networks that MPI uses without the kernel.
_DEVICES = {
    "/dev/infiniband/": "InfiniBand, RoCE or EFA",
    "/dev/cxi": "Slingshot",
    "/dev/hfi1": "Omni-Path",
}


class Pair(NamedTuple):
    """Two ranks, by their numbers, between which messages are measured."""

    asks: int
    answers: int


def rows(hosts: list[str]) -> Iterator[tuple[str, str]]:
    """Titles and texts of the report, on rank 0. All ranks must call it, and go through all rows.

    Args:
        hosts: the host of each rank.
    """
    for title, pair, none in (
        ("on one host", _on_one_host(hosts), "no two ranks are on one host"),
        ("between hosts", _between_hosts(hosts), "all ranks are on one host"),
    ):
        if len(hosts) == 1:
            yield title, "there is one rank"
        elif pair is None:
            yield title, none
        else:
            seconds, way = _measure(pair, hosts)
            places = [f"rank {rank} on {hosts[rank]}" for rank in pair]
            text = f"{seconds * 1e6:.2f} us for 4 bytes, between {' and '.join(places)}"
            yield title, f"{text}; {way}" if way else text


def _on_one_host(hosts: list[str]) -> Pair | None:
    """The first two."""
    first: dict[str, int] = {}
    for rank, host in enumerate(hosts):
        if host in first:
            return Pair(first[host], rank)
        first[host] = rank
    return None


def _between_hosts(hosts: list[str]) -> Pair | None:
    """Rank 0, and the first that is elsewhere."""
    return next((Pair(0, rank) for rank, host in enumerate(hosts) if host != hosts[0]), None)


def _measure(pair: Pair, hosts: list[str]) -> tuple[float, str]:
    """Seconds of a short message in one direction, and the way of a long one in words, on all ranks."""
    comm = MPI.COMM_WORLD
    rank, seconds, way = comm.Get_rank(), 0.0, ""
    if rank == pair.asks:
        with limited(f"rank {rank} on {hosts[rank]} and rank {pair.answers} on {hosts[pair.answers]}"):
            seconds = _ask(pair.answers)
    elif rank == pair.answers:
        way = _answer(pair.asks)
    _wait_for_all()
    return comm.bcast(seconds, pair.asks), comm.bcast(way, pair.answers)


def _ask(other: int) -> float:
    comm, word, best = MPI.COMM_WORLD, np.ones(1, np.int32), float("inf")
    until, rounds = time.perf_counter() + _SECONDS, 0
    while rounds < _ROUNDS and (time.perf_counter() < until or rounds < _LEAST_ROUNDS):
        begin = time.perf_counter()
        comm.Send(word, other, _TAG)
        comm.Recv(word, other, _TAG)
        best = min(best, time.perf_counter() - begin)
        rounds += 1
    word[0] = 0
    comm.Send(word, other, _TAG)
    comm.Recv(word, other, _TAG)  # it has counted, and waits
    comm.Send(np.zeros(_LARGE, np.uint8), other, _TAG)
    return best / 2


def _answer(other: int) -> str:
    comm, word = MPI.COMM_WORLD, np.ones(1, np.int32)
    while True:
        comm.Recv(word, other, _TAG)
        if word[0] == 0:
            break
        comm.Send(word, other, _TAG)
    before = tcp_received()
    comm.Send(word, other, _TAG)
    comm.Recv(np.empty(_LARGE, np.uint8), other, _TAG)
    return way_of(_LARGE, before, tcp_received(), _open_files())


def way_of(size: int, before: dict[tuple[str, str], int], after: dict[tuple[str, str], int], files: list[str]) -> str:
    """How a message of this size came, in words; "" if that cannot be told.

    Args:
        size: bytes.
        before: bytes that had come through each connection, from the other side's address to this one's.
        after: bytes that have come since.
        files: those that the process has open.
    """
    came = {ends: n - before.get(ends, 0) for ends, n in after.items()}
    if sum(came.values()) >= size:
        ways = [f"{there} to {here}" for (there, here), n in came.items() if n > size / 10]
        return f"through TCP, {' and '.join(dict.fromkeys(ways))}"
    for start, name in _DEVICES.items():
        for file in files:
            if file.startswith(start):
                return f"not through TCP; {name} is open ({file})"
    return "not through TCP" if files else ""


def tcp_received() -> dict[tuple[str, str], int]:
    """Bytes that have come through each TCP connection of this process, from the other side's address to this one's."""
    received: dict[tuple[str, str], int] = {}
    for descriptor in _descriptors():
        # It may be no socket, or have no other side.
        with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as copy:
            if copy.type != socket.SOCK_STREAM or copy.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            ends = (copy.getpeername()[0], copy.getsockname()[0])
            info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            if len(info) >= _RECEIVED_AT + 8:
                (n,) = struct.unpack_from("Q", info, _RECEIVED_AT)
                received[ends] = received.get(ends, 0) + n
    return received


def _descriptors() -> list[int]:
    with suppress(OSError):
        return [int(name) for name in os.listdir("/proc/self/fd")]
    return []


def _open_files() -> list[str]:
    files = []
    for descriptor in _descriptors():
        with suppress(OSError):
            files.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return files


def _wait_for_all() -> None:
    """A barrier that leaves the processor to those that measure."""
    request = MPI.COMM_WORLD.Ibarrier()
    while not request.Test():
        time.sleep(0.002)


@contextmanager
def limited(between: str) -> Iterator[None]:
    """Ends the job if what is inside takes too long: then messages between these do not arrive."""
    with running(threading.Timer(_PATIENCE, _end_job, [between])):
        yield


def _end_job(between: str) -> None:
    abort(
        f"mpixla: MPI has started, but messages between {between} have not arrived within {_PATIENCE:g} s, so the job "
        "ends. MPI may have chosen a network that does not connect the hosts, or a firewall is between them: tell MPI "
        "which network to use (docs/clusters.md, Several hosts)."
    )
