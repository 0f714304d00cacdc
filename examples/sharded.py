"""Droplets that grow at the cost of others: a sharded program, in which XLA and mpixla communicate.

    python -m mpixla run -n 4 --distributed examples/sharded.py --save sharded.png
    python -m mpixla run -n 2 --distributed examples/sharded.py --size 384 --steps 8000

A mixture separates into two phases, u = -1 and u = 1, of which there remains as much as there was: the Allen-Cahn
equation, from whose right-hand side the mean is taken.

    du/dt = laplace(u) + f - mean(f)        f = u - u^3

First there are many droplets. Then the large ones grow and the small ones vanish, as the whole length of the borders,
and with it the energy, becomes ever smaller.

u is one array for all processes, sharded by rows over a mesh of their devices. Its means are written as on one process:
jax.jit inserts the communication between the processes, which goes over MPI under this launcher. The Laplacian is
inside jax.shard_map, where each process has its own rows, and gets those beside them with mpixla's halo_exchange().

Printed is how far the result is from that of one process that has the whole array.

Of mpixla this shows mpixla.distributed, and halo_exchange() inside jax.shard_map beside XLA's own collectives.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import showing
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from mpi4py import MPI

import mpixla.distributed

jax.config.update("jax_enable_x64", True)

Array = Any
COMM = MPI.COMM_WORLD
RING = COMM.Create_cart([COMM.size], periods=[True], reorder=False)
DT = 0.1  # a cell has the width 1
PARTS = 20


def laplacian_of_all(u: Array) -> Array:
    """Return the Laplacian of the whole array, periodic in both directions."""
    return sum(jnp.roll(u, shift, axis) for shift in (1, -1) for axis in (0, 1)) - 4 * u


def laplacian_of_mine(u: Array) -> Array:
    """Return the Laplacian of this process's rows."""
    padded = mpixla.halo_exchange(jnp.pad(u, ((1, 1), (0, 0))), RING, axes=(0,))
    return padded[:-2] + padded[2:] + jnp.roll(u, 1, 1) + jnp.roll(u, -1, 1) - 4 * u


@partial(jax.jit, static_argnums=(0, 2))
def advance(laplacian: Callable[[Array], Array], u: Array, steps: int) -> tuple[Array, Array]:
    """Return u after so many time steps, and its energy."""

    def step(u: Array, _: None) -> tuple[Array, None]:
        f = u - u**3
        return u + DT * (laplacian(u) + f - f.mean()), None

    u, _ = jax.lax.scan(step, u, length=steps)
    return u, ((1 - u**2) ** 2 / 4 - u * laplacian(u) / 2).mean()


def draw(pyplot: Any, times: list[float], pictures: list[np.ndarray], energies: list[float]) -> None:
    axes = pyplot.gcf().subplots(1, 4)
    for axis, part in zip(axes, (1, 4, PARTS), strict=False):
        u = pictures[part]
        axis.imshow(u, "coolwarm", origin="lower", vmin=-1.2, vmax=1.2)
        axis.set(title=f"time {times[part]:.3g}", xticks=[], yticks=[])
        for rank in range(1, COMM.size):
            axis.axhline(rank * len(u) / COMM.size - 0.5, color="black", linewidth=0.8, linestyle=":")
    axes[0].set_yticks((np.arange(COMM.size) + 0.5) * len(u) / COMM.size, [f"rank {i}" for i in range(COMM.size)])
    axes[3].plot(times[1:], energies[1:], "o-", markersize=3)
    axes[3].set(title="energy of a cell", xlabel="time", ylim=(0, None))
    axes[3].set_box_aspect(1)


def main() -> None:
    parser = showing.Parser(__doc__)
    parser.add_argument("--size", type=int, default=240, help="rows and columns")
    parser.add_argument("--steps", type=int, default=4000, help=f"time steps, rounded to a multiple of {PARTS}")
    parser.takes_picture()
    parser.takes_data()
    options = parser.parse()
    if options.size < 1 or options.size % COMM.size:
        parser.error(
            f"--size {options.size}: {COMM.size} processes cannot have equally many rows. "
            f"Take a multiple of {COMM.size}."
        )
    try:
        mpixla.distributed.initialize()
    except RuntimeError as problem:  # this was not started by python -m mpixla.distributed
        parser.error(str(problem))
    mesh = Mesh(jax.devices(), "rows")
    by_rows, everywhere = NamedSharding(mesh, P("rows")), NamedSharding(mesh, P())
    laplacian = jax.shard_map(laplacian_of_mine, mesh=mesh, in_specs=P("rows"), out_specs=P("rows"))
    steps = max(1, round(options.steps / PARTS))

    def noise() -> Array:
        return -0.4 + 0.1 * jax.random.normal(jax.random.key(0), (options.size, options.size))

    replicate = jax.jit(lambda u: u, out_shardings=everywhere)

    def whole(u: Array) -> np.ndarray:
        """Return all rows, on every process."""
        return np.asarray(replicate(u).addressable_data(0))

    u = jax.jit(noise, out_shardings=by_rows)()
    pictures, energies = [whole(u)], [np.nan]
    for _ in showing.progress(range(PARTS), "twentieths"):
        u, energy = advance(laplacian, u, steps)
        energies.append(float(energy))
        pictures.append(whole(u))

    if COMM.rank == 0:
        alone, energy = jnp.asarray(pictures[0]), None
        for _ in range(PARTS):
            alone, energy = advance(laplacian_of_all, alone, steps)
        print(f"{COMM.size} processes differ by {abs(pictures[-1] - alone).max():.1e} from one, which has it all")
        print(f"the mean was {pictures[0].mean():.12f} and is {pictures[-1].mean():.12f}")
        print(f"the energy of a cell was {energies[1]:.4f} at time {DT * steps:.3g} and is {energies[-1]:.4f}")
    times = [DT * steps * part for part in range(PARTS + 1)]
    showing.keep(options.data, first=pictures[0], last=pictures[-1], energies=energies)
    showing.draw(options.save, lambda pyplot: draw(pyplot, times, pictures, energies), figsize=(12, 3.4))


if __name__ == "__main__":
    main()
