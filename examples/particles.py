"""Particles that change owners: droplets in a flow, each kept by the process in whose part of the box it is.

    python -m mpixla run -n 4 examples/particles.py --save particles.png
    python -m mpixla run -n 2 examples/particles.py --particles 20000 --inertia 0.1

The droplets are heavier than the fluid, so that they are flung out of its vortices and gather between them:

    dx/dt = v        dv/dt = (u(x, t) - v) / inertia

u is a pattern of vortices that sways from side to side, in a periodic box of width 1. The box is divided into a grid of
domains, one for each process. After each time step the droplets that have left their domain are sent to the owner of
the one where they are now. How many, and to whom, is known only at run time, and differs from step to step; all steps
between two pictures are still one compiled program. A process has room for some droplets, of which some are there. If
more come than there is room for, the program ends and says how many they were.

Of mpixla this shows alltoallv() with counts that are known at run time and a capacity, of a pytree, inside a scan.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import showing
from mpi4py import MPI

import mpixla

Array = Any
COMM = MPI.COMM_WORLD
GRID = MPI.Compute_dims(COMM.size, 2)


class Droplets(NamedTuple):
    """The droplets that a process has: as many rows as it has room for, of which the first are droplets."""

    number: Array  # each one's own, which stays with it
    place: Array
    speed: Array


def flow(place: Array, time: Array) -> Array:
    """Return the velocity of the fluid: vortices that sway."""
    x, y = 2 * jnp.pi * place[:, 0], 2 * jnp.pi * place[:, 1]
    x = x + 2 * jnp.sin(time)
    return jnp.stack([jnp.sin(x) * jnp.cos(y), -jnp.cos(x) * jnp.sin(y)], -1) / (2 * jnp.pi)


def move(droplets: Droplets, time: Array, dt: float, inertia: float) -> Droplets:
    """Advance by one time step; the drag is taken at its end, so that any inertia is stable."""
    speed = (droplets.speed + dt / inertia * flow(droplets.place, time)) / (1 + dt / inertia)
    place = droplets.place + dt * speed
    return Droplets(droplets.number, place - jnp.floor(place), speed)


def owner_of(place: Array) -> Array:
    """Return the rank in whose domain it is."""
    column, row = (jnp.clip(jnp.floor(place[:, i] * n).astype(int), 0, n - 1) for i, n in enumerate(GRID))
    return column * GRID[1] + row


def to_their_owners(droplets: Droplets, count: Array) -> tuple[Droplets, Array, Array]:
    """Send droplets to their owners. Also return the number of droplets here, and how many of them are new."""
    room = len(droplets.number)
    owner = jnp.where(jnp.arange(room) < count, owner_of(droplets.place), COMM.size)
    order = jnp.argsort(owner)  # those for rank 0 first; rows without a droplet last
    sorted_by_owner = jax.tree.map(lambda rows: rows[order], droplets)
    arrived, came = mpixla.alltoallv(sorted_by_owner, jnp.bincount(owner, length=COMM.size), capacity=room)
    return arrived, came.sum(), came.sum() - came[COMM.rank]


def start(particles: int) -> Droplets:
    """Return all droplets, at rest, in a round cloud: the same on any number of processes."""
    radius, angle = np.random.default_rng(1).random((2, particles))
    places = 0.4 + 0.3 * np.sqrt(radius) * np.array([np.cos(2 * np.pi * angle), np.sin(2 * np.pi * angle)])
    places = places.T.astype(np.float32)
    return Droplets(np.arange(particles), places, np.zeros_like(places))


def keep_mine(all_of_them: Droplets, room: int) -> tuple[Droplets, Array]:
    """Return the droplets of this process, in arrays with more room, and their number."""
    mine = np.flatnonzero(owner_of(all_of_them.place) == COMM.rank)
    rows = np.resize(mine, room) if len(mine) else np.zeros(room, int)  # behind them is anything
    return jax.tree.map(lambda a: jnp.asarray(a[rows]), all_of_them), jnp.asarray(len(mine))


def draw(pyplot: Any, times: list[float], scenes: list[tuple[Droplets, Array]], counts: Array, dt: float) -> None:
    figure = pyplot.gcf()
    axes = figure.subplots(1, len(scenes) + 1)
    colours = np.array([f"C{rank}" for rank in range(COMM.size)])
    for axis, time, (droplets, count) in zip(axes, times, scenes, strict=False):
        owner = np.repeat(np.arange(COMM.size), count)
        axis.scatter(*droplets.place.T, s=8000 / len(owner), c=colours[owner], linewidths=0)
        axis.set(title=f"time {time:.3g}", xlim=(0, 1), ylim=(0, 1), aspect="equal", xticks=[0, 1], yticks=[0, 1])
        for i in range(1, GRID[0]):
            axis.axvline(i / GRID[0], color="black", linewidth=0.8)
        for i in range(1, GRID[1]):
            axis.axhline(i / GRID[1], color="black", linewidth=0.8)
    for rank in range(COMM.size):
        axes[-1].plot(dt * np.arange(1, len(counts) + 1), counts[:, rank], color=colours[rank], label=f"rank {rank}")
    axes[-1].set(title="droplets of each rank", xlabel="time", ylim=(0, 1.4 * counts.max()))
    axes[-1].set_box_aspect(1)
    axes[-1].legend(ncols=2, loc="upper center")


def main() -> None:
    parser = showing.Parser(__doc__)
    parser.add_argument("--particles", type=int, default=8000, help="how many droplets there are")
    parser.add_argument(
        "--inertia", type=float, default=0.3, help="the time in which a droplet takes on the flow's speed"
    )
    parser.add_argument("--time", type=float, default=12, help="until when")
    parser.add_argument("--steps", type=int, default=600, help="time steps, rounded to a multiple of 12")
    parser.add_argument("--room", type=int, help="how many a process has room for; by default all of them")
    parser.takes_picture()
    parser.takes_data()
    options = parser.parse()
    room = options.particles if options.room is None else options.room
    everything = start(options.particles)
    most = int(np.bincount(owner_of(everything.place), minlength=COMM.size).max())
    if most > room:
        parser.error(f"--room {room}: there is a process that begins with {most} droplets. Take no less.")
    droplets, count = keep_mine(everything, room)
    steps = max(1, round(options.steps / 12))
    dt = options.time / (12 * steps)

    @jax.jit
    def advance(droplets: Droplets, count: Array, time: Array) -> Any:
        """Advance by some steps; return of each the number of droplets here, and how many have just come."""

        def step(state: Any, number: Array) -> Any:
            moved = move(state[0], time + number * dt, dt, options.inertia)
            moved, count, new = to_their_owners(moved, state[1])
            return (moved, count), jnp.stack([count, new])

        (droplets, count), numbers = jax.lax.scan(step, (droplets, count), jnp.arange(steps))
        return droplets, count, mpixla.allgather(numbers)

    @jax.jit
    def gather(droplets: Droplets, count: Array) -> Any:
        """Return all droplets on rank 0, those of rank 0 first; and the number of each process."""
        return mpixla.gatherv(droplets, count, 0, capacity=options.particles)

    scenes, numbers = [gather(droplets, count)], []
    for part in showing.progress(range(12), "twelfths"):
        droplets, count, of_part = advance(droplets, count, part * steps * dt)
        numbers.append(np.asarray(of_part))
        scenes.append(gather(droplets, count))
    counts, new = np.concatenate(numbers, axis=1).transpose(2, 1, 0)  # each by step and rank
    if COMM.rank == 0:
        kept = np.array_equal(np.sort(scenes[-1][0].number), np.arange(options.particles))
        everywhere = (counts.sum(1) == options.particles).all()
        print(f"{new.sum()} droplets went to another of {COMM.size} processes, in {12 * steps} steps")
        print(f"each process had {counts.min()} to {counts.max()} of the {options.particles} droplets")
        print("none was lost" if kept and everywhere else "some were lost or are there twice")
    showing.keep(options.data, **scenes[-1][0]._asdict(), counts=counts, new=new)
    chosen = [0, 4, 12]
    times = [i * steps * dt for i in chosen]
    pictures = [scenes[i] for i in chosen]
    showing.draw(options.save, lambda pyplot: draw(pyplot, times, pictures, counts, dt), figsize=(12, 3.4))


if __name__ == "__main__":
    main()
