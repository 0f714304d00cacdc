"""Parallel tempering: chains at many temperatures, which swap places, so that the cold one does not get stuck.

    python -m mpixla run -n 2 examples/tempering.py --save tempering.png
    python -m mpixla run -n 4 examples/tempering.py --replicas 16 --steps 50000

Drawn are samples of a density with narrow peaks that are far apart. A Markov chain (Metropolis') hardly ever finds its
way from one peak to the next, but a chain does that sees the density to the power of 1 / temperature. There is a
replica for each of many temperatures, 1 and more. After each step those of neighbouring temperatures swap places, with
the probability that leaves both densities as they are: even ones with the next in one step, odd ones in the other.

Each process has some replicas, of temperatures one behind the other. Neighbours that are on two processes tell each
other where they are, and both decide by the same random number. Each number is drawn by a key of the step and of the
replica, so that the samples do not depend on how many processes there are. The steps are one compiled loop.

Of mpixla this shows sendrecv() of a pytree inside a scan, with Shift, and allgather() of what a scan has collected.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import showing
from mpi4py import MPI

import mpixla
from mpixla import Shift

Array = Any
LINE = MPI.COMM_WORLD.Create_cart([MPI.COMM_WORLD.size], periods=[False], reorder=False)

PLACES, WIDTHS, WEIGHTS = np.array([(-10, 0.5, 0.2), (-3, 0.8, 0.4), (4, 0.4, 0.1), (11, 1.0, 0.3)], np.float32).T
HOTTEST = 60.0


def log_density(x: Array) -> Array:
    peaks = jnp.log(WEIGHTS / (WIDTHS * math.sqrt(2 * math.pi))) - 0.5 * ((x[:, None] - PLACES) / WIDTHS) ** 2
    return jax.nn.logsumexp(peaks, axis=1)


class Ladder:
    """The temperatures, and those that are this process's."""

    def __init__(self, replicas: int, seed: int) -> None:
        self.replicas = replicas
        self.numbers = np.split(np.arange(replicas), LINE.size)[LINE.rank]
        self.coldness = self.coldness_of(self.numbers)
        self.key = jax.random.key(seed)

    def coldness_of(self, number: Array) -> Array:
        """Return the inverse of a replica's temperature."""
        return HOTTEST ** (-number / max(1, self.replicas - 1))

    def partner(self, step: Array) -> Array:
        """Return the replica with which each may swap in a step, which may not exist."""
        return self.numbers + jnp.where((self.numbers + step) % 2 == 0, 1, -1)

    def draw(self, step: Array) -> tuple[Array, Array, Array]:
        """Return a step's random numbers: for each replica its jump, whether it jumps, and whether its pair swaps."""

        def of(kind: int, number: Array, how: Any) -> Array:
            key = jax.random.fold_in(jax.random.fold_in(self.key, step), kind)
            return jax.vmap(lambda number: how(jax.random.fold_in(key, number)))(number)

        pair = jnp.minimum(self.numbers, self.partner(step))
        uniform = jax.random.uniform
        return of(0, self.numbers, jax.random.normal), of(1, self.numbers, uniform), of(2, pair, uniform)

    def move(self, x: Array, jump: Array, chance: Array) -> Array:
        """Make Metropolis' step of each replica, the longer the hotter it is."""
        new = x + jump / jnp.sqrt(self.coldness)
        better = self.coldness * (log_density(new) - log_density(x))
        return jnp.where(jnp.log(chance) < better, new, x)

    def swap(self, state: Any, partner: Array, chance: Array, may_swap: Array) -> tuple[Any, Array]:
        """Return each replica in its partner's place, if they swap; and which replicas did."""
        first, last = jax.tree.map(lambda a: a[0], state), jax.tree.map(lambda a: a[-1], state)
        below = mpixla.sendrecv(last, first, source=Shift(0, -1), dest=Shift(0, 1), comm=LINE)
        above = mpixla.sendrecv(first, last, source=Shift(0, 1), dest=Shift(0, -1), comm=LINE)
        around = jax.tree.map(lambda b, a, c: jnp.concatenate([b[None], a, c[None]]), below, state, above)

        theirs = jax.tree.map(lambda a: a[partner - self.numbers[0] + 1], around)
        there_is_one = (partner >= 0) & (partner < self.replicas)
        better = (self.coldness - self.coldness_of(partner)) * (log_density(theirs[0]) - log_density(state[0]))
        swaps = (jnp.log(chance) < better) & there_is_one & may_swap
        return jax.tree.map(lambda mine, their: jnp.where(swaps, their, mine), state, theirs), swaps

    def run(self, state: Any, first_step: Array, steps: int, may_swap: Array) -> tuple[Any, Any]:
        """Run so many steps; return also for each step the replicas' places, their walkers, and the swaps."""

        def step(state: Any, drawn: Any) -> tuple[Any, Any]:
            x, walkers = state
            number, (jump, chance, chance_of_pair) = drawn
            moved = self.move(x, jump, chance), walkers
            state, swaps = self.swap(moved, self.partner(number), chance_of_pair, may_swap)
            return state, (*state, swaps)

        numbers = first_step + jnp.arange(steps)
        state, history = jax.lax.scan(step, state, (numbers, jax.vmap(self.draw)(numbers)))
        everywhere = mpixla.allgather(history, comm=LINE)  # by process, step, replica
        return state, jax.tree.map(lambda a: a.transpose(1, 0, 2).reshape(steps, self.replicas), everywhere)


def sample(ladder: Ladder, run: Any, steps: int, may_swap: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return for each step and replica its place, its walker, and whether it has just swapped.

    All begin at the same peak.
    """
    state = jnp.full(len(ladder.numbers), PLACES[0]), jnp.asarray(ladder.numbers)
    parts = []
    for part in showing.progress(range(10), "tenths " + ("with swaps" if may_swap else "without swaps")):
        state, history = run(state, part * steps, steps, may_swap)
        parts.append(jax.tree.map(np.asarray, history))
    return tuple(map(np.concatenate, zip(*parts, strict=True)))


def shares(x: np.ndarray) -> np.ndarray:
    """Return the share of the time that is spent at each peak."""
    return np.bincount(np.abs(x[:, None] - PLACES).argmin(1), minlength=len(PLACES)) / len(x)


def draw(pyplot: Any, ladder: Ladder, samples: dict[str, np.ndarray], walkers: np.ndarray) -> None:
    axes = pyplot.gcf().subplots(1, 3)
    grid = np.linspace(-15, 16, 500)
    density = np.exp(log_density(grid))
    for axis, (name, x) in zip(axes, samples.items(), strict=False):
        axis.hist(x, np.linspace(-15, 16, 125), density=True, color="C0", alpha=0.5, label="samples")
        axis.plot(grid, density, "k", linewidth=1, label="exact")
        axis.set(title=f"the cold chain {name}", xlabel="x", xlim=(-15, 21))
        axis.legend(loc="upper right")
    axes[0].set_ylabel("density")
    shown = walkers[: min(len(walkers), 300)]
    for walker in (0, ladder.replicas // 2):
        temperature = 1 / ladder.coldness_of((shown == walker).argmax(1))
        axes[2].semilogy(temperature, linewidth=0.8, label=f"walker {walker}")
    axes[2].set(title="the way of two walkers", xlabel="step", ylabel="temperature", ylim=(0.8, 4 * HOTTEST))
    axes[2].legend(loc="upper right", ncols=2)


def main() -> None:
    parser = showing.Parser(__doc__)
    parser.add_argument("--replicas", type=int, default=12, help="how many temperatures there are")
    parser.add_argument("--steps", type=int, default=20_000, help="of each chain, rounded to a multiple of ten")
    parser.add_argument("--seed", type=int, default=0)
    parser.takes_picture()
    parser.takes_data()
    options = parser.parse()
    if options.replicas < 2 or options.replicas % LINE.size:
        parser.error(
            f"--replicas {options.replicas}: {LINE.size} processes cannot have equally many. "
            f"Take a multiple of {LINE.size}, and two at least."
        )
    ladder, steps = Ladder(options.replicas, options.seed), max(1, round(options.steps / 10))
    run = jax.jit(ladder.run, static_argnums=2)
    stuck, _, _ = sample(ladder, run, steps, may_swap=False)
    x, walkers, swapped = sample(ladder, run, steps, may_swap=True)

    def percent(numbers: np.ndarray) -> str:
        return " ".join(f"{100 * number:5.1f}%" for number in numbers)

    showing.say(f"weights of the peaks   {percent(WEIGHTS)}")
    showing.say(f"found without swaps    {percent(shares(stuck[:, 0]))}")
    showing.say(f"found with swaps       {percent(shares(x[:, 0]))}")
    tried = 10 * steps * (options.replicas - 1)  # every pair in every second step; both of a pair count as swapped
    rate = percent([swapped.sum() / tried])
    showing.say(f"{options.replicas} temperatures on {LINE.size} processes: {rate} of the swaps took place")
    showing.keep(options.data, x=x, walkers=walkers, swapped=swapped, stuck=stuck)
    samples = {"without swaps": stuck[:, 0], "with swaps": x[:, 0]}
    showing.draw(options.save, lambda pyplot: draw(pyplot, ladder, samples, walkers), figsize=(12, 3.8))


if __name__ == "__main__":
    main()
