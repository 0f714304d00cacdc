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

from ..extend import abort_job, gpu, run_timer, wrong_launcher
from . import info, trial
from .info import print_line

# Seconds that a check may take, and that a rank waits for the others after a failed check.
TIMEOUT = 60.0
_PATIENCE = 10.0


class CheckContext:
    """The communicators of the checks, and this rank's neighbours in a ring."""

    def __init__(self) -> None:
        self.comm = MPI.COMM_WORLD.Clone()
        self.results = MPI.COMM_WORLD.Clone()  # of its own, as ranks may be stuck in a check on the other one
        self.rank, self.size = self.comm.Get_rank(), self.comm.Get_size()
        self.below, self.above = (self.rank - 1) % self.size, (self.rank + 1) % self.size
        self.last = self.size - 1
        self.ring = self.comm.Create_cart([self.size], periods=[True])

    def row_counts(self, rank: int) -> list[int]:
        """Return the number of rows that a rank sends to, and receives from, each rank in alltoallv: 0 or 1."""
        return [(rank + r + 1) % 2 for r in range(self.size)]

    def make_operand(self, rank: int, dtype: Any) -> np.ndarray:
        """Return the operand of a rank: small integers, so that every order of summation gives the same result."""
        return (np.arange(3 * self.size).reshape(self.size, 3) % 5 + rank % 3).astype(dtype)


@dataclass(frozen=True)
class SelfCheck:
    """A call that must work, and its expected result on a rank, computed from the operands of all ranks."""

    name: str
    call: Callable[[CheckContext, Any], Any]
    expected: Callable[[CheckContext, list[np.ndarray]], np.ndarray]
    dtype: Any = np.float32
    jit: bool = True


def _sum_operands(w: CheckContext, xs: list[np.ndarray]) -> np.ndarray:
    return sum(xs[1:], xs[0])


# bfloat16 represents only small integers exactly: the sum over eight ranks is exact.
def _sum_eight_ranks(w: CheckContext, x: Any) -> Any:
    return mpixla.allreduce(x if w.rank < 8 else jnp.zeros_like(x), MPI.SUM, comm=w.comm)


def _expect_rows(w: CheckContext, xs: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.split(x, np.cumsum(w.row_counts(r)))[w.rank] for r, x in enumerate(xs)])


_LARGE = 2**18  # elements: too many for MPI's eager protocol


def _pass_up_chain(w: CheckContext, x: Any) -> Any:
    """Receive a large message from the rank below, and send it to the rank above."""
    large = jnp.full(_LARGE, x[0, 1])
    y = mpixla.recv(large, w.rank - 1, tag=1, comm=w.comm) if w.rank > 0 else large
    if w.rank < w.last:
        mpixla.send(large, w.rank + 1, tag=1, comm=w.comm)
    return y


def _exchange_by_requests(w: CheckContext, x: Any) -> Any:
    receive = mpixla.irecv(x, w.below, comm=w.comm)
    send = mpixla.isend(x, w.above, comm=w.comm)
    return jnp.stack(mpixla.waitall([receive, send]))


_STEPS = 5


def _differentiate_ring(w: CheckContext, x: Any) -> Any:
    """Differentiate a loop that sends a batch's rows up the ring, and return the gradient; cotangents go down."""

    def send_up(row: Any) -> Any:
        return jax.lax.fori_loop(0, _STEPS, lambda i, y: mpixla.sendrecv(y, y, w.below, w.above, comm=w.comm), row)

    return jax.grad(lambda y: (jax.vmap(send_up)(y) * x).sum())(x)


# One of each kind: rooted, reducing, of our own reductions and called eagerly, a prefix over ranks, with counts,
# messages, neighbours, requests, derivatives.
CHECKS = [
    SelfCheck("bcast", lambda w, x: mpixla.bcast(x, w.last, comm=w.comm), lambda w, xs: xs[-1]),
    SelfCheck(
        "gather", lambda w, x: mpixla.gather(x, 0, comm=w.comm), lambda w, xs: xs[w.rank] if w.rank else np.stack(xs)
    ),
    SelfCheck("allreduce", lambda w, x: mpixla.allreduce(x, MPI.SUM, comm=w.comm), _sum_operands),
    SelfCheck(
        "allreduce of bfloat16, eager",
        _sum_eight_ranks,
        lambda w, xs: _sum_operands(w, xs[:8]),
        jnp.bfloat16,
        jit=False,
    ),
    SelfCheck(
        "scan", lambda w, x: mpixla.scan(x, MPI.SUM, comm=w.comm), lambda w, xs: _sum_operands(w, xs[: w.rank + 1])
    ),
    SelfCheck(
        "alltoallv",
        lambda w, x: mpixla.alltoallv(
            x[: sum(w.row_counts(w.rank))], w.row_counts(w.rank), w.row_counts(w.rank), comm=w.comm
        ),
        _expect_rows,
    ),
    SelfCheck("send and recv of 1 MiB", _pass_up_chain, lambda w, xs: np.full(_LARGE, xs[max(w.rank - 1, 0)][0, 1])),
    SelfCheck(
        "halo_exchange",
        lambda w, x: mpixla.halo_exchange(jnp.pad(x[0], 1), w.ring),
        lambda w, xs: np.concatenate([xs[w.below][0, -1:], xs[w.rank][0], xs[w.above][0, :1]]),
    ),
    SelfCheck("isend, irecv and waitall", _exchange_by_requests, lambda w, xs: np.stack([xs[w.below], xs[w.rank]])),
    SelfCheck("derivative of sendrecv in a loop", _differentiate_ring, lambda w, xs: xs[(w.rank + _STEPS) % w.size]),
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
    world = CheckContext()
    ranks = f"{world.size} rank{'s' if world.size > 1 else ''}"
    print_line(f"mpixla test: {len(CHECKS)} checks on {ranks}, {info.mpi_name()}")
    failed = []
    for check in CHECKS:
        reports = _run_on_all_ranks(check, world, timeout)
        print_line(f"{'FAILED' if reports else 'ok':6}  {check.name}")
        for text in reports:
            print_line(f"        {text}")
        if reports:
            failed.append(check.name)
    if gpu.in_job:
        print_line(f"        GPU arrays travel by {gpu.transport_of(world.comm)}")
        if tries_mpi:
            # Rank 0 tries MPIXLA_GPU_TRANSPORT=mpi in a job of its own, and the others wait.
            if world.rank == 0:
                print_line(f"        MPI with a GPU's memory: {trial.gpu_memory_through_mpi()}")
            _wait_without_spinning()
    if failed:
        print_line(f"mpixla does NOT work here: {len(failed)} of {len(CHECKS)} checks failed: {'; '.join(failed)}.")
    else:
        print_line(f"mpixla works here: all {len(CHECKS)} checks passed on {ranks}.")
    world.comm.Barrier()
    return int(bool(failed))


def _wait_without_spinning() -> None:
    """Wait for all ranks, and sleep between tests, which leaves the CPU to the rank that works meanwhile."""
    request = MPI.COMM_WORLD.Ibarrier()
    while not request.Test():
        time.sleep(0.002)


def _run_on_all_ranks(check: SelfCheck, world: CheckContext, timeout: float) -> list[str]:
    """Run a check on all ranks; return a line for each rank where it failed. Abort the job if one does not return."""

    def limit_check(seconds: float, why: str) -> AbstractContextManager[None]:
        """Return a context that aborts the job with a report if its body takes longer than ``seconds``."""
        end = (
            f"FAILED  {check.name}\n        rank {world.rank}: {why}\n"
            f"mpixla does NOT work here: the ranks cannot go on after '{check.name}', so the job is aborted."
        )
        return run_timer(threading.Timer(seconds, abort_job, [end]))

    with limit_check(timeout, f"did not end within {timeout:g} s"):
        wrong = _attempt_check(check, world)
    # A rank on which the check failed may have left the others in the middle of the operation: it waits less long.
    why = wrong or "went well, but another rank did not come back from it"
    with limit_check(min(timeout, _PATIENCE) if wrong else timeout, why):
        answers = world.results.allgather(wrong)
    return [f"rank {rank}: {text}" for rank, text in enumerate(answers) if text]


def _attempt_check(check: SelfCheck, world: CheckContext) -> str | None:
    """Run a check on this rank, and return why it failed; None if it passed."""
    inputs = [world.make_operand(rank, check.dtype) for rank in range(world.size)]

    def make_call(x: Any) -> Any:
        return check.call(world, x)

    try:
        result = jax.block_until_ready(
            (jax.jit(make_call) if check.jit else make_call)(jax.device_put(inputs[world.rank]))
        )
    except Exception as e:
        return f"{type(e).__name__}: {e}"
    expected, got = check.expected(world, inputs), jax.device_get(result)
    if got.shape == expected.shape and (got == expected).all():
        return None
    return f"expected {_shorten_array(expected)}, got {_shorten_array(got)}"


def _shorten_array(x: np.ndarray) -> str:
    shown = np.array2string(x.ravel()[:6], separator=" ")
    return f"{x.dtype}{list(x.shape)} {shown}{' and more' if x.size > 6 else ''}"
