"""python -m mpixla test: an operation of each kind, compared with NumPy, on any number of ranks.

It checks an installation; the contract of each operation is checked by the test suite. It always ends: a rank on which
a check fails prints a report, and ends the job if the other ranks do not return from that check.
"""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

import mpixla

from ..extend import abort, gpu, run_timer, wrong_launcher
from . import info, trial
from .info import say

# Seconds that a check may take, and that a rank waits for the others after a failed check.
TIMEOUT = 60.0
_PATIENCE = 10.0


class World:
    """The communicators of the checks, and this rank's neighbours in a ring."""

    def __init__(self) -> None:
        self.comm = MPI.COMM_WORLD.Clone()
        self.results = MPI.COMM_WORLD.Clone()  # of its own, as ranks may be stuck in a check on the other one
        self.rank, self.size = self.comm.Get_rank(), self.comm.Get_size()
        self.below, self.above = (self.rank - 1) % self.size, (self.rank + 1) % self.size
        self.last = self.size - 1
        self.ring = self.comm.Create_cart([self.size], periods=[True])

    def rows(self, rank: int) -> list[int]:
        """Return the number of rows that a rank sends to, and receives from, each rank in alltoallv: 0 or 1."""
        return [(rank + r + 1) % 2 for r in range(self.size)]

    def input(self, rank: int, dtype: Any) -> np.ndarray:
        """Return the operand of a rank: small integers, so that every order of summation gives the same result."""
        return (np.arange(3 * self.size).reshape(self.size, 3) % 5 + rank % 3).astype(dtype)


@dataclass(frozen=True)
class Check:
    """A call that must work, and its expected result on a rank, computed from the operands of all ranks."""

    name: str
    call: Callable[[World, Any], Any]
    expected: Callable[[World, list[np.ndarray]], np.ndarray]
    dtype: Any = np.float32
    jit: bool = True


def _total(w: World, xs: list[np.ndarray]) -> np.ndarray:
    return sum(xs[1:], xs[0])


# bfloat16 represents only small integers exactly: the sum over eight ranks is exact.
def _eight(w: World, x: Any) -> Any:
    return mpixla.allreduce(x if w.rank < 8 else jnp.zeros_like(x), MPI.SUM, comm=w.comm)


def _from_rows(w: World, xs: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.split(x, np.cumsum(w.rows(r)))[w.rank] for r, x in enumerate(xs)])


_LARGE = 2**18  # elements: too many for MPI's eager protocol


def _chain(w: World, x: Any) -> Any:
    """Receive a large message from the rank below, and send it to the rank above."""
    large = jnp.full(_LARGE, x[0, 1])
    y = mpixla.recv(large, w.rank - 1, tag=1, comm=w.comm) if w.rank > 0 else large
    if w.rank < w.last:
        mpixla.send(large, w.rank + 1, tag=1, comm=w.comm)
    return y


def _requests(w: World, x: Any) -> Any:
    receive = mpixla.irecv(x, w.below, comm=w.comm)
    send = mpixla.isend(x, w.above, comm=w.comm)
    return jnp.stack(mpixla.waitall([receive, send]))


_STEPS = 5


def _derivative(w: World, x: Any) -> Any:
    """Differentiate a loop that sends a batch's rows up the ring, and return the gradient; cotangents go down."""

    def up(row: Any) -> Any:
        return jax.lax.fori_loop(0, _STEPS, lambda i, y: mpixla.sendrecv(y, y, w.below, w.above, comm=w.comm), row)

    return jax.grad(lambda y: (jax.vmap(up)(y) * x).sum())(x)


# One of each kind: rooted, reducing, of our own reductions and called eagerly, a prefix over ranks, with counts,
# messages, neighbours, requests, derivatives.
CHECKS = [
    Check("bcast", lambda w, x: mpixla.bcast(x, w.last, comm=w.comm), lambda w, xs: xs[-1]),
    Check(
        "gather", lambda w, x: mpixla.gather(x, 0, comm=w.comm), lambda w, xs: xs[w.rank] if w.rank else np.stack(xs)
    ),
    Check("allreduce", lambda w, x: mpixla.allreduce(x, MPI.SUM, comm=w.comm), _total),
    Check("allreduce of bfloat16, eager", _eight, lambda w, xs: _total(w, xs[:8]), jnp.bfloat16, jit=False),
    Check("scan", lambda w, x: mpixla.scan(x, MPI.SUM, comm=w.comm), lambda w, xs: _total(w, xs[: w.rank + 1])),
    Check(
        "alltoallv",
        lambda w, x: mpixla.alltoallv(x[: sum(w.rows(w.rank))], w.rows(w.rank), w.rows(w.rank), comm=w.comm),
        _from_rows,
    ),
    Check("send and recv of 1 MiB", _chain, lambda w, xs: np.full(_LARGE, xs[max(w.rank - 1, 0)][0, 1])),
    Check(
        "halo_exchange",
        lambda w, x: mpixla.halo_exchange(jnp.pad(x[0], 1), w.ring),
        lambda w, xs: np.concatenate([xs[w.below][0, -1:], xs[w.rank][0], xs[w.above][0, :1]]),
    ),
    Check("isend, irecv and waitall", _requests, lambda w, xs: np.stack([xs[w.below], xs[w.rank]])),
    Check("derivative of sendrecv in a loop", _derivative, lambda w, xs: xs[(w.rank + _STEPS) % w.size]),
]


def run(timeout: float = TIMEOUT, *, tries_mpi: bool = True) -> int:
    """Run the checks, print a line for each on rank 0, and return the exit status. All ranks must call it.

    Args:
        timeout: seconds that a check may take.
        tries_mpi: True to test, where there are GPUs, whether MPI accepts pointers to their memory.
    """
    if wrong := wrong_launcher():
        print(f"mpixla does NOT work here: {wrong}", flush=True)
        return 1
    world = World()
    ranks = f"{world.size} rank{'s' if world.size > 1 else ''}"
    say(f"mpixla test: {len(CHECKS)} checks on {ranks}, {info.mpi_name()}")
    failed = []
    for check in CHECKS:
        reports = _on_all_ranks(check, world, timeout)
        say(f"{'FAILED' if reports else 'ok':6}  {check.name}")
        for text in reports:
            say(f"        {text}")
        if reports:
            failed.append(check.name)
    if gpu.in_job:
        say(f"        GPU arrays travel by {gpu.transport_of(world.comm)}")
        if tries_mpi:
            # Rank 0 tries MPIXLA_GPU_TRANSPORT=mpi in a job of its own, and the others wait.
            if world.rank == 0:
                say(f"        MPI with a GPU's memory: {trial.gpu_memory_through_mpi()}")
            _wait_without_spinning()
    if failed:
        say(f"mpixla does NOT work here: {len(failed)} of {len(CHECKS)} checks failed: {'; '.join(failed)}.")
    else:
        say(f"mpixla works here: all {len(CHECKS)} checks passed on {ranks}.")
    world.comm.Barrier()
    return int(bool(failed))


def _wait_without_spinning() -> None:
    """Wait for all ranks, and sleep between tests, which leaves the CPU to the rank that works meanwhile."""
    request = MPI.COMM_WORLD.Ibarrier()
    while not request.Test():
        time.sleep(0.002)


def _on_all_ranks(check: Check, world: World, timeout: float) -> list[str]:
    """Run a check on all ranks; return a line for each rank where it failed. Abort the job if one does not return."""

    def limit_check(seconds: float, why: str) -> AbstractContextManager[None]:
        """Return a context that aborts the job with a report if its body takes longer than ``seconds``."""
        end = (
            f"FAILED  {check.name}\n        rank {world.rank}: {why}\n"
            f"mpixla does NOT work here: the ranks cannot go on after '{check.name}', so the job is aborted."
        )
        return run_timer(threading.Timer(seconds, abort, [end]))

    with limit_check(timeout, f"did not end within {timeout:g} s"):
        wrong = _attempt(check, world)
    # A rank on which the check failed may have left the others in the middle of the operation: it waits less long.
    why = wrong or "went well, but another rank did not come back from it"
    with limit_check(min(timeout, _PATIENCE) if wrong else timeout, why):
        answers = world.results.allgather(wrong)
    return [f"rank {rank}: {text}" for rank, text in enumerate(answers) if text]


def _attempt(check: Check, world: World) -> str | None:
    """Run a check on this rank, and return why it failed; None if it passed."""
    inputs = [world.input(rank, check.dtype) for rank in range(world.size)]

    def call(x: Any) -> Any:
        return check.call(world, x)

    try:
        result = jax.block_until_ready((jax.jit(call) if check.jit else call)(jax.device_put(inputs[world.rank])))
    except Exception as e:
        return f"{type(e).__name__}: {e}"
    expected, got = check.expected(world, inputs), jax.device_get(result)
    if got.shape == expected.shape and (got == expected).all():
        return None
    return f"expected {_brief(expected)}, got {_brief(got)}"


def _brief(x: np.ndarray) -> str:
    shown = np.array2string(x.ravel()[:6], separator=" ")
    return f"{x.dtype}{list(x.shape)} {shown}{' and more' if x.size > 6 else ''}"
