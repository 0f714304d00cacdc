"""Random sharded programs, with every value and gradient compared with NumPy's: make soak SHARDED=1."""

import argparse
import functools
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import numpy as np
from mpi4py import MPI

import mpixla.distributed
from soak.sharded_program import Program, Spec, draw, text_of


def _wrong(got: Any, want: np.ndarray) -> str | None:
    for shard in got.addressable_shards:
        own = np.asarray(shard.data)
        if got.shape != want.shape or own.dtype != want.dtype or not np.array_equal(own, want[shard.index]):
            part = want[shard.index]
            return f"{own.dtype} {got.shape} {own.tolist()}, and not {want.dtype} {want.shape} {part.tolist()}"
    return None


def run(program: Program, times: int) -> list[str]:
    """Run it on this rank, and return its errors."""
    scope: dict[str, Any] = {}
    exec(compile(program.script, "<program>", "exec"), scope)

    def place(x: np.ndarray, spec: Spec) -> jax.Array:
        named = jax.NamedSharding(scope["mesh"], eval(text_of(spec), scope))
        return jax.make_array_from_callback(x.shape, named, lambda index: x[index])

    inputs = [place(x, spec) for x, spec in program.inputs]
    wants = program.evaluate([x for x, _ in program.inputs])
    compiled = jax.jit(scope["program"])
    # Programs of this rank's device alone communicate before and behind each run. Nothing waits for one in between.
    sum_alone = functools.partial(mpixla.allreduce, op=MPI.SUM, comm=scope["members"])
    sums = [sum_alone, jax.jit(sum_alone)]
    found = []
    for number in range(times):
        before = sums[number % 2](np.float32(1))
        results = compiled(*inputs)
        after = sums[1 - number % 2](np.float32(2))
        for name, got, want in zip(program.outputs, results, wants, strict=True):
            if wrong := _wrong(got, want):
                found.append(f"{name}: {wrong}")
        if (float(before), float(after)) != (len(program.grid.ranks), 2 * len(program.grid.ranks)):
            found.append(f"sums alone: {before}, {after}")
    if program.linear:
        rng = np.random.default_rng(program.number)
        weights = [rng.integers(-3, 4, want.shape).astype(want.dtype) for want in wants]

        def loss(*arrays: jax.Array) -> jax.Array:
            return sum((w * y).sum() for w, y in zip(weights, scope["program"](*arrays), strict=True))

        if wrong := _wrong(jax.jit(jax.grad(loss))(*inputs), program.gradient(weights)):
            found.append(f"gradient: {wrong}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the number of the first program")
    parser.add_argument("--programs", type=int, help="how many, instead of minutes")
    parser.add_argument("--times", type=int, default=3, help="how often each program runs")
    parser.add_argument("--one-core", action="store_true", help="give each rank one core, on which XLA has one thread")
    parser.add_argument("--show", action="store_true", help="print the first program, and run nothing")
    options = parser.parse_args()
    rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    if options.show:
        print(draw(options.seed, options.first, size).script)
        return 0
    if options.one_core:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    jax.config.update("jax_enable_x64", True)
    mpixla.distributed.initialize()
    jax.devices()  # JAX starts on all ranks together, and not all are in the first mesh
    used: Counter[str] = Counter()
    end, number, failed = time.monotonic() + 60 * options.minutes, options.first, 0
    while True:
        going = number - options.first < options.programs if options.programs else time.monotonic() < end
        if not MPI.COMM_WORLD.bcast(going):
            break
        program = draw(options.seed, number, size)
        used.update(program.used)
        found = run(program, options.times) if rank in program.grid.ranks else []
        failed += bool(found)
        if found:
            print(
                f"rank {rank}: program {number} of seed {options.seed} for {size} ranks: {found}\n{program.script}",
                flush=True,
            )
        number += 1
    wrong = MPI.COMM_WORLD.allreduce(failed)
    if rank == 0:
        print(f"{number - options.first} programs on {size} ranks, {wrong} wrong: {dict(sorted(used.items()))}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
