"""python -m mpixla bench: the time of a message between ranks, for a first look at an installation."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from mpi4py import MPI

import mpixla

from ..extend import host_of_each, wrong_launcher
from . import info
from .info import print_line

SIZES = (4, 1 << 10, 1 << 15, 1 << 20, 1 << 24)  # bytes

# The seconds of one measurement, and the number of measurements; the shortest time counts.
_SECONDS = 0.1
_REPEATS = 3


def run() -> int:
    """Measure sendrecv and allreduce, print a table on rank 0, return the exit status. All ranks must call it."""
    comm = MPI.COMM_WORLD.Clone()
    rank, size = comm.Get_rank(), comm.Get_size()
    if wrong := wrong_launcher():
        print(wrong, flush=True)
        return 1
    below, above = (rank - 1) % size, (rank + 1) % size
    calls: dict[str, Callable[[Any], Any]] = {
        "sendrecv": lambda x: mpixla.sendrecv(x, x, below, above),
        "allreduce": lambda x: mpixla.allreduce(x, MPI.SUM),
    }
    count = len(set(host_of_each(comm)))
    print_line(f"mpixla bench: {size} rank{'s' * (size > 1)} on {count} host{'s' * (count > 1)}, {info.mpi_name()}")
    rate = "; MB/s in one direction" if size > 1 else ""
    print_line(f"Time of one call in a jitted loop. sendrecv: each rank to the next one, around a ring{rate}.")
    if size == 1:
        print_line("There is one rank, which sends to itself: python -m mpixla run -n 2 -m mpixla bench starts two.")
    print_line("".join([f"{'bytes':>10}", *(f"{name + ' us':>15}" + f"{'MB/s':>10}" * (size > 1) for name in calls)]))
    for nbytes in SIZES:
        row = f"{nbytes:>10}"
        for call in calls.values():
            seconds = _measure_call(call, jnp.zeros(nbytes // 4, jnp.float32), comm)
            row += f"{seconds * 1e6:>15.2f}" + f"{nbytes / seconds / 1e6:>10.1f}" * (size > 1)
        print_line(row)
    return 0


def _measure_call(call: Callable[[Any], Any], x: jax.Array, comm: MPI.Intracomm) -> float:
    """Return the shortest of several times of a call in a jitted loop, in seconds, on the slowest rank."""

    @jax.jit
    def run_loop(n: Any, x: Any) -> Any:
        return jax.lax.fori_loop(0, n, lambda i, x: call(x), x)

    def time_loop(n: int) -> float:
        """Return the seconds of ``n`` calls in a loop, on the rank where they take longest."""
        comm.Barrier()
        start = time.perf_counter()
        jax.block_until_ready(run_loop(n, x))
        return comm.allreduce(time.perf_counter() - start, MPI.MAX)

    time_loop(1)  # compiles
    n = 1
    while (taken := time_loop(n)) < _SECONDS / 4:
        n *= 4
    n = max(1, round(n * _SECONDS / taken))
    return min(time_loop(n) for _ in range(_REPEATS)) / n
