"""Times to which scaling_model.py is fitted: mpirun -n P bench/pinned python bench/scaling_times.py ROUNDS.

Rank 0 prints JSON: seconds, each the smallest of some repetitions, of the rank that took longest.

    water       [ny, nx, seconds]   a time step of examples/shallow_water.py on ny times nx cells of all ranks together
    training    [batch, seconds]    a training step of a small network, of so many samples on each rank
    exchange    [bytes, seconds]    sendrecv with the next and the previous rank, in a compiled loop
    allreduce   [bytes, seconds]    of one array, in a compiled loop
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from mpi4py import MPI

import mpixla
from scaling_model import LAYERS

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import shallow_water

WORLD = MPI.COMM_WORLD
GRIDS = ((45, 90), (90, 180), (180, 360), (360, 720), (720, 1440), (1440, 2880))
BATCHES = (16, 64, 256, 1024)
BYTES = (4, 1 << 10, 16 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20)
RATE = 1e-3


def seconds(run: Callable[[], Any], steps: int, rounds: int) -> float:
    """Return the seconds of one of the steps that ``run`` takes."""
    jax.block_until_ready(run())
    best = float("inf")
    for _ in range(rounds):
        WORLD.Barrier()
        begin = time.perf_counter()
        jax.block_until_ready(run())
        best = min(best, WORLD.allreduce(time.perf_counter() - begin, MPI.MAX))
    return best / steps


def water(ny: int, nx: int, rounds: int) -> float:
    block = shallow_water.decompose(WORLD, ny, nx)
    advance, steps = shallow_water.make_advance(block), max(5, 4_000_000 // (ny * nx))
    kept = [shallow_water.start(block)]

    def run() -> Any:
        kept[0] = advance(kept[0], steps)
        return kept[0]

    return seconds(run, steps, rounds)


def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
    for w in weights:
        x = jnp.tanh(x @ w)
    return jnp.mean(x * x)


def training(batch: int, rounds: int) -> float:
    keys = jax.random.split(jax.random.key(0), len(LAYERS))
    shapes = zip(keys[1:], LAYERS[:-1], LAYERS[1:], strict=True)
    weights = [jax.random.normal(key, (n, m)) / n**0.5 for key, n, m in shapes]
    x, steps = jax.random.normal(keys[0], (batch, LAYERS[0])), max(1, 512 // batch)

    def step(_: int, weights: list[jax.Array]) -> list[jax.Array]:
        change = mpixla.allreduce(jax.grad(loss)(weights, x), op=MPI.SUM)
        return [w - RATE / WORLD.size * g for w, g in zip(weights, change, strict=True)]

    run = jax.jit(lambda weights: lax.fori_loop(0, steps, step, weights))
    return seconds(lambda: run(weights), steps, rounds)


def looped(call: Callable[[jax.Array], jax.Array], size: int, rounds: int) -> float:
    steps = max(4, min(1000, (16 << 20) // size))
    run = jax.jit(lambda x: lax.fori_loop(0, steps, lambda _, x: call(x), x))
    x = jnp.zeros(size // 4)
    return seconds(lambda: run(x), steps, rounds)


def exchange(x: jax.Array) -> jax.Array:
    rank, size = WORLD.rank, WORLD.size
    return mpixla.sendrecv(x, x, (rank - 1) % size, (rank + 1) % size)


def main(rounds: int) -> None:
    found = {
        "water": [[ny, nx, water(ny, nx, rounds)] for ny, nx in GRIDS],
        "training": [[batch, training(batch, rounds)] for batch in BATCHES],
        "exchange": [[size, looped(exchange, size, rounds)] for size in BYTES],
        "allreduce": [[size, looped(lambda x: mpixla.allreduce(x, op=MPI.MAX), size, rounds)] for size in BYTES],
    }
    if WORLD.rank == 0:
        print(json.dumps(found))


main(int(sys.argv[1]))
