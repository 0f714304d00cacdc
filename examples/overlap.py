"""Communication behind computation: heat that spreads on a plate, in the blocking form and in the overlapped one.

    python -m mpixla run -n 2 examples/overlap.py
    python -m mpixla run -n 4 examples/overlap.py --size 4096 4096 --steps 200

The plate is periodic from top to bottom, and cold at its sides. It is split into strips of rows, one for each process.
In each time step a process needs the row above its strip and the row below it, and all sum up how much their first rows
changed.

    blocking     exchange the rows, then compute the strip; wait for the sum of all processes' changes
    overlapped   start the exchange, compute all rows but the first and the last, wait for the neighbours' rows and for
                 the sum that the last step has started, and compute those two rows; start the sum

Both forms compute the same. Printed is the time of a step of each, the slowest process's. What the second one hides is
waiting for processes that are late, and the messages themselves where something moves them meanwhile: the network
without the processor, or between hosts mpixla's own thread.

Of mpixla this shows isendrecv(), iallreduce() and overlap(), and a request in the carry of a loop.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

# For a job on several hosts that is not started by `mpixla run`, which does the same: see docs/performance.md.
os.environ.setdefault("UCX_TCP_TX_SEG_SIZE", "256k")
os.environ.setdefault("UCX_TCP_RX_SEG_SIZE", "256k")

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from mpi4py import MPI

import mpixla

SPREAD = 0.2  # diffusivity times time step over the square of a cell's width
State = tuple[Any, Any]  # the strip, and the sum over all processes of the last step's change
# From a plate, another of which nothing is read, and the last step's sum, or the request for it: to the same plate,
# the other with the plate one time step later, and this step's.
Step = Callable[[Any, Any, Any], tuple[Any, Any, Any]]


def spread(rows: Any) -> Any:
    """Return the rows but the first and the last, one time step later, without the cold columns at both ends."""
    here = rows[1:-1, 1:-1]
    return here + SPREAD * (rows[:-2, 1:-1] + rows[2:, 1:-1] + rows[1:-1, :-2] + rows[1:-1, 2:] - 4 * here)


def put(plate: Any, rows: Any, first: int) -> Any:
    """Return the plate with other rows, or another row, from the first of them on, but for the cold columns."""
    return lax.dynamic_update_slice(plate, jnp.atleast_2d(rows), (first, 1))


def first_row(plate: Any, top: Any) -> Any:
    return spread(jnp.stack([top, plate[0], plate[1]]))[0]


def last_row(plate: Any, bottom: Any) -> Any:
    return spread(jnp.stack([plate[-2], plate[-1], bottom]))[0]


def change_of(row: Any, before: Any) -> Any:
    return jnp.abs(row - before[1:-1]).sum()


def make(step: Step, begin: Callable[[], Any], end: Callable[[Any], Any]) -> Callable[[State, int], State]:
    """Return the function that advances a state by some time steps.

    ``begin`` returns the change of the plate before the first step; ``end`` gets the change after the last.

    There are two plates, each the strip with a cold column at both sides, and a step writes the one that it does not
    read. Two steps make a turn of the loop, after which each plate is where it was: else XLA would copy one in each.
    """

    def two(_: int, carry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        plate, other, change = step(*carry)
        other, plate, change = step(other, plate, change)
        return plate, other, change

    def advance(state: State, steps: int) -> State:
        plate = jnp.pad(state[0], ((0, 0), (1, 1)))
        plate, other, change = lax.fori_loop(0, steps // 2, two, (plate, jnp.zeros_like(plate), begin()))
        if steps % 2:
            _, plate, change = step(plate, other, change)
        return plate[:, 1:-1], end(change)

    return mpixla.jit(advance, static_argnums=1)


def neighbours(comm: MPI.Comm) -> tuple[int, int]:
    """Return the ranks above and below this one."""
    return (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size


def make_blocking(comm: MPI.Comm) -> Callable[[State, int], State]:
    """Return the function that advances a state by some time steps, one thing after the other."""
    above, below = neighbours(comm)

    def step(plate: Any, other: Any, _: Any) -> tuple[Any, Any, Any]:
        top = mpixla.sendrecv(plate[-1], plate[0], source=above, dest=below, comm=comm)
        bottom = mpixla.sendrecv(plate[0], plate[-1], source=below, dest=above, comm=comm)
        # First what takes a row of another rank: it is written after the last step's sum has read the other plate.
        first = first_row(plate, top)
        new = put(put(other, first, 0), spread(plate), 1)
        new = put(new, last_row(plate, bottom), len(plate) - 1)
        return plate, new, mpixla.allreduce(change_of(first, plate[0]), op=MPI.SUM, comm=comm)

    return make(step, lambda: jnp.zeros(()), lambda change: change)


def make_overlapped(comm: MPI.Comm) -> Callable[[State, int], State]:
    """Return the same function, which computes while messages are on their way."""
    above, below = neighbours(comm)

    def step(plate: Any, other: Any, sum_of_changes: Any) -> tuple[Any, Any, Any]:
        exchange = [
            mpixla.isendrecv(plate[-1], plate[0], source=above, dest=below, comm=comm),
            mpixla.isendrecv(plate[0], plate[-1], source=below, dest=above, comm=comm),
        ]

        def inner(plate: Any) -> tuple[Any, Any]:
            return put(other, spread(plate), 1), plate  # which is used again below: else XLA would copy it

        (top, bottom, _), (new, plate) = mpixla.overlap([*exchange, sum_of_changes], inner, plate)
        first = first_row(plate, top)
        new = put(put(new, first, 0), last_row(plate, bottom), len(plate) - 1)
        # Of `first`, and not of new[0]: while something else reads a plate, XLA copies it before it writes a row.
        return plate, new, mpixla.iallreduce(change_of(first, plate[0]), op=MPI.SUM, comm=comm)

    return make(step, lambda: mpixla.iallreduce(jnp.zeros(()), op=MPI.SUM, comm=comm), mpixla.wait)


def start(comm: MPI.Comm, ny: int, nx: int) -> State:
    """Return a hot spot on a cold plate: this process's strip of it."""
    rows = np.arange(comm.rank * ny // comm.size, (comm.rank + 1) * ny // comm.size)
    hot = np.exp(-(((rows[:, None] / ny - 0.4) ** 2 + (np.arange(nx) / nx - 0.5) ** 2) / 0.01))
    return jnp.asarray(hot, jnp.float32), jnp.zeros((), jnp.float32)


def seconds(advance: Callable[[State, int], State], state: State, steps: int, comm: MPI.Comm) -> float:
    """Return how long ``steps`` time steps take the slowest process."""
    comm.Barrier()
    begin = time.perf_counter()
    jax.block_until_ready(advance(state, steps))
    return float(comm.allreduce(time.perf_counter() - begin, op=MPI.MAX))


def difference(a: Any, b: Any) -> float:
    """Return the largest difference of the entries, relative to the largest entry if that is greater than 1."""
    return float(jnp.abs(a - b).max() / jnp.maximum(jnp.abs(a).max(), 1))


class Parser(argparse.ArgumentParser):
    """Speaks on rank 0 only, and before any rank ends."""

    def _print_message(self, message: str, file: Any = None) -> None:
        if MPI.COMM_WORLD.rank == 0:
            super()._print_message(message, file)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        self._print_message(message or "", sys.stderr)
        sys.stderr.flush()
        MPI.COMM_WORLD.Barrier()
        sys.exit(status)


def main() -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--size", nargs=2, type=int, default=(1024, 1024), metavar=("NY", "NX"), help="cells, by default 1024 1024"
    )
    parser.add_argument("--steps", type=int, default=100, help="time steps (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=5, help="of each form, in turn (default: %(default)s)")
    args = parser.parse_args()
    comm = MPI.COMM_WORLD.Dup()  # mpi4py's own calls, so that they never meet mpixla's
    ny, nx = args.size
    if ny < 3 * comm.size or nx < 3 or args.steps < 1 or args.repeat < 1:
        parser.error(
            f"{ny} x {nx} cells cannot be split into {comm.size} strips of at least three rows of three cells; "
            "or --steps or --repeat is not positive."
        )

    state = start(comm, ny, nx)
    forms = {"blocking": make_blocking(MPI.COMM_WORLD), "overlapped": make_overlapped(MPI.COMM_WORLD)}
    ends = [jax.block_until_ready(advance(state, args.steps)) for advance in forms.values()]  # compiles
    apart = comm.allreduce(max(difference(a, b) for a, b in zip(*ends, strict=True)), op=MPI.MAX)
    times: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(args.repeat):
        for name, advance in forms.items():
            times[name].append(seconds(advance, state, args.steps, comm) / args.steps)
    if comm.rank == 0:
        print(f"{ny} x {nx} cells on {comm.size} ranks, {args.steps} steps; the forms differ by {apart:.1e}")
        for name, measured in times.items():
            print(f"{name:10}  {statistics.median(measured) * 1e6:10.1f} us a step")
        ratio = statistics.median(b / a for a, b in zip(*times.values(), strict=True))
        print(f"overlapped / blocking: {ratio:.2f}")


if __name__ == "__main__":
    main()
