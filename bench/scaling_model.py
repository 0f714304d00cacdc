"""Times of a model and a training step on up to 10,000 ranks: python bench/scaling_model.py, under MPICH.

Measures one and two ranks (scaling_times.py), each on a core of its own, and writes tables into docs/scaling.md. With
--keep it takes what was measured before.
"""

import argparse
import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from report import table
from scaling import FIGURES, PAGE, page

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "examples"))
RANKS = (1, 10, 100, 10_000)
FIELDS, BYTES = 3, 4  # of the shallow-water model: arrays in a message, bytes of a number
LAYERS = (784, 1024, 1024, 10)  # of the network that scaling_times.py trains
PARAMETERS = sum(n * m for n, m in pairwise(LAYERS))
NAME = "mpich"
FILE = FIGURES / f"scaling-times-{NAME}.json"


@dataclass(frozen=True)
class Network:
    """A message of n bytes takes latency + n / bandwidth seconds, in both directions at once."""

    name: str
    latency: float  # s, with mpixla's and XLA's part of a call
    bandwidth: float  # bytes/s of one rank

    def message(self, size: float) -> float:
        return self.latency + size / self.bandwidth

    def allreduce(self, size: float, ranks: int) -> float:
        """Return a reduce-scatter and an allgather by halves, as MPIs have for long arrays."""
        steps = 2 * math.ceil(math.log2(ranks))
        return steps * self.latency + 2 * (ranks - 1) / ranks * size / self.bandwidth


class Compute:
    """Seconds that one core takes for so much of something, between what was measured and beyond it.

    Args:
        measured: amounts, in their order, and seconds.
    """

    def __init__(self, measured: list[tuple[float, float]]) -> None:
        self.amounts, self.seconds = np.array(measured).T
        slope = (self.seconds[1] - self.seconds[0]) / (self.amounts[1] - self.amounts[0])
        self.least = max(0.0, self.seconds[0] - slope * self.amounts[0])  # for nothing

    def __call__(self, amount: float) -> float:
        if amount <= self.amounts[0]:
            return float(self.least + (self.seconds[0] - self.least) * amount / self.amounts[0])
        if amount >= self.amounts[-1]:
            return float(self.seconds[-1] * amount / self.amounts[-1])
        return float(np.exp(np.interp(np.log(amount), np.log(self.amounts), np.log(self.seconds))))


def water(compute: Compute, network: Network, ranks: int, ny: int, nx: int) -> float:
    """Return the seconds of a time step: the largest block, and a message to each neighbour, one after the other."""
    from shallow_water import process_grid

    py, px = process_grid(ranks, ny, nx)
    rows, columns = -(-ny // py), -(-nx // px)
    halo = sum(network.message(FIELDS * BYTES * edge) for p, edge in ((py, columns), (px, rows)) if p > 1)
    return compute(rows * columns) + halo


def training(compute: Compute, network: Network, ranks: int, batch: float) -> float:
    """Return the seconds of a training step with so many samples on each rank."""
    return compute(batch) + (network.allreduce(BYTES * PARAMETERS, ranks) if ranks > 1 else 0)


def fitted(exchange: list[list[float]]) -> Network:
    """Return the network that was measured: its latency of the smallest message, its bandwidth of the largest."""
    (_, latency), (size, longest) = exchange[0], exchange[-1]
    return Network("measured here", latency, size / (longest - latency))


def measure(rounds: int) -> dict[str, Any]:
    found = {}
    for ranks in (1, 2):
        command = [ROOT / "tools/mpirun", "-n", ranks, ROOT / "bench/pinned", sys.executable]
        command += [ROOT / "bench/scaling_times.py", rounds]
        done = subprocess.run(list(map(str, command)), env=os.environ, stdout=subprocess.PIPE, text=True, check=True)
        found[str(ranks)] = json.loads(done.stdout)
    return found


def us(number: float) -> str:
    return f"{1e6 * number:,.1f}" if number < 1e-4 else f"{1e6 * number:,.0f}"


def tables(measured: dict[str, Any]) -> dict[str, str]:
    one, two = measured["1"], measured["2"]
    here = fitted(two["exchange"])
    overhead = one["exchange"][0][1]  # a message to oneself is mpixla's and XLA's part, and MPI's call
    fast = Network("InfiniBand", 2e-6 + overhead, 100e9 / 8)
    slow = Network("Ethernet", 30e-6 + overhead, 10e9 / 8)
    cells = Compute([(ny * nx, t) for ny, nx, t in one["water"]])
    samples = Compute([(batch, t) for batch, t in one["training"]])

    compared = [(f"time step, {ny} x {nx}", water(cells, here, 2, ny, nx), t) for ny, nx, t in two["water"]]
    compared += [
        (f"training step, {batch} samples a rank", training(samples, here, 2, batch), t) for batch, t in two["training"]
    ]
    check = [[what, us(t), f"{t / model:.2f}"] for what, model, t in compared]

    def strong(network: Network) -> list[str]:
        return [us(water(cells, network, p, 1800, 3600)) for p in RANKS]

    def weak(network: Network) -> list[str]:
        first = water(cells, network, 1, 90, 180)
        rows = {p: max(n for n in range(1, math.isqrt(p) + 1) if p % n == 0) for p in RANKS}
        return [f"{first / water(cells, network, p, 90 * n, 180 * (p // n)):.2f}" for p, n in rows.items()]

    def learn(network: Network, batch: int) -> list[str]:
        return [f"{samples(batch) / training(samples, network, p, batch):.2f}" for p in RANKS]

    head = [f"{p:,}" for p in RANKS]
    ahead = [[f"1800 x 3600 cells in all, us a step, {n.name}", *strong(n)] for n in (fast, slow)]
    ahead += [[f"90 x 180 cells on each, efficiency, {n.name}", *weak(n)] for n in (fast, slow)]
    ahead += [
        [f"training, {batch} samples on each, efficiency, {n.name}", *learn(n, batch)]
        for batch in (64, 1024)
        for n in (fast, slow)
    ]
    return {
        "check": table(["two cores", "us, measured", "over the model's"], check),
        "ahead": table(["ranks", *head], ahead),
    }


def figures() -> dict[str, Any]:
    """Return the measured figures by the number of ranks."""
    return json.loads(FILE.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--keep", action="store_true", help="measure nothing")
    args = parser.parse_args()
    if not args.keep:
        FILE.write_text(json.dumps(measure(args.rounds), indent=1) + "\n")
    PAGE.write_text(page(PAGE.read_text(), NAME, tables(figures())))


if __name__ == "__main__":
    main()
