"""A computation that loses processes and goes on: heat on a plate, with checkpoints and a communicator that shrinks.

    mpirun -n 4 --with-ft ulfm --mca async_mpi_finalize 1 python examples/survive.py --kill 2 --at 70
    mpirun -n 4 --with-ft ulfm --mca async_mpi_finalize 1 python examples/survive.py --kill random

The plate is warm on the inside and cold at its edges. It is split into strips of rows, one for each process. Every few
steps the first process writes the whole plate to a file. A process that dies (--kill says which one kills itself, and
--at in which step) makes the calls of the others fail. They revoke the communicator, so that nobody goes on waiting in
it, shrink it to the remaining ranks, split the plate of the last file among themselves, and go on from there. So the
result does not depend on who died, or when.

It needs an MPI with fault tolerance (ULFM), such as Open MPI 5. docs/trouble.md lists the options of mpirun.
"""

import argparse
import itertools
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

import mpixla

jax.config.update("jax_enable_x64", True)

# What a call raises that has failed: mpi4py's the last; JAX's the first, or where it waits for the program the second.
FAILURES = (jax.errors.JaxRuntimeError, ValueError, MPI.Exception)

SPREAD = 0.2  # diffusivity times time step over the square of a cell's width
Array = Any


def warm_plate(ny: int, nx: int) -> np.ndarray:
    """Return the plate at the beginning."""
    y, x = np.meshgrid(np.linspace(0, 1, ny), np.linspace(0, 1, nx), indexing="ij")
    return np.sin(np.pi * x) * np.sin(np.pi * y) + 0.3 * np.sin(3 * np.pi * x) * np.sin(2 * np.pi * y)


# The plate, on some processes


class Strips:
    """How the rows of a plate are shared by the processes of a communicator."""

    def __init__(self, comm: MPI.Comm, ny: int) -> None:
        """Split the inner rows; the first and the last one of the plate are its edges, and never change."""
        self.comm, self.rank = comm, comm.rank
        firsts = [1 + rank * (ny - 2) // comm.size for rank in range(comm.size + 1)]
        self.first, self.end = firsts[self.rank], firsts[self.rank + 1]
        self.rows = [end - first for first, end in itertools.pairwise(firsts)]

    def cut(self, plate: np.ndarray) -> Array:
        """Return this process's strip, with the row above and the row below it."""
        return jnp.asarray(plate[self.first - 1 : self.end + 1])

    def join(self, strip: Array, plate: np.ndarray) -> np.ndarray:
        """Return the whole plate, on the first process; the edges are taken from a plate that has them.

        Everyone waits for the result: that is where a process hears of what has failed in the steps before.
        """
        inner = mpixla.gatherv(strip[1:-1], self.rows, 0, comm=self.comm).block_until_ready()
        return np.concatenate([plate[:1], inner, plate[-1:]]) if self.rank == 0 else plate

    def make_step(self) -> Callable[[Array], Array]:
        """Return the function from a strip to the strip one time step later."""

        above = self.rank - 1 if self.rank > 0 else MPI.PROC_NULL
        below = self.rank + 1 if self.rank < self.comm.size - 1 else MPI.PROC_NULL

        @mpixla.jit
        def step(strip: Array) -> Array:
            top = mpixla.sendrecv(strip[-2], strip[0], source=above, dest=below, comm=self.comm)
            bottom = mpixla.sendrecv(strip[1], strip[-1], source=below, dest=above, comm=self.comm)
            strip = strip.at[0].set(top).at[-1].set(bottom)
            here = strip[1:-1, 1:-1]
            around = strip[:-2, 1:-1] + strip[2:, 1:-1] + strip[1:-1, :-2] + strip[1:-1, 2:]
            return strip.at[1:-1, 1:-1].add(SPREAD * (around - 4 * here))

        return step


# Checkpoints


def write(file: Path, step: int, plate: np.ndarray) -> None:
    """Write beside the file first: a process that dies while writing leaves the old file whole."""
    beside = file.with_suffix(".new.npz")
    np.savez(beside, step=step, plate=plate)
    beside.replace(file)


def read(file: Path) -> tuple[int, np.ndarray]:
    with np.load(file) as saved:
        return int(saved["step"]), saved["plate"]


# Computing, and surviving


def compute(strips: Strips, args: argparse.Namespace) -> np.ndarray:
    """Compute from the last checkpoint to the end. Any call in here may find that a process has died."""
    at, plate = read(args.file)
    strip, step = strips.cut(plate), strips.make_step()
    while at < args.steps:
        if MPI.COMM_WORLD.rank == args.kill and at == args.at:
            os.kill(os.getpid(), signal.SIGKILL)
        strip = step(strip)
        at += 1
        if at % args.every == 0 or at == args.steps:
            plate = strips.join(strip, plate)
            if strips.rank == 0:
                write(args.file, at, plate)
    return plate


def are_all_well(comm: MPI.Comm, well: bool) -> bool:
    """Return whether every process was well and none has died: the same answer on all that are left."""
    try:
        return bool(comm.Agree(int(well)))
    except MPI.Exception as e:
        if e.Get_error_class() != MPI.ERR_PROC_FAILED:
            raise
        return False


def compute_despite_deaths(args: argparse.Namespace) -> tuple[np.ndarray, MPI.Comm]:
    comm: MPI.Comm = MPI.COMM_WORLD.Dup()
    while True:
        try:
            plate, well = compute(Strips(comm, args.size[0]), args), True
        except FAILURES as e:
            well = False
            what = str(e).splitlines()[0].rpartition("Error dispatching computation: ")[2]
            sys.stderr.write(f"process {MPI.COMM_WORLD.rank}: {what}\n")
            comm.Revoke()  # those who wait in it for this process wait no longer
        if are_all_well(comm, well):
            return plate, comm
        left = comm.Shrink()
        if left.rank == 0:
            sys.stderr.write(f"{comm.size - left.size} of {comm.size} processes died; {left.size} go on\n")
        comm = left


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, nargs=2, default=[64, 48], metavar=("NY", "NX"), help="rows and columns")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=20, help="steps from one checkpoint to the next")
    parser.add_argument("--file", type=Path, default=Path("survive.npz"), help="where the checkpoints are, and the end")
    parser.add_argument("--kill", help="the process that kills itself, or `random`")
    parser.add_argument("--at", type=int, help="before which step it does; by default at a random one")
    args = parser.parse_args()
    world = MPI.COMM_WORLD
    chosen = world.bcast((random.randrange(world.size), random.randrange(args.steps)), 0)
    if args.kill is not None:
        args.kill = chosen[0] if args.kill == "random" else int(args.kill)
    args.at = chosen[1] if args.at is None else args.at
    if world.rank == 0:
        write(args.file, 0, warm_plate(*args.size))
    world.Barrier()
    plate, comm = compute_despite_deaths(args)
    if comm.rank == 0:
        print(f"{comm.size} of {world.size} processes have come to step {args.steps}")
        print(f"in the middle it is {plate[args.size[0] // 2, args.size[1] // 2]:.6f}")


if __name__ == "__main__":
    main()
