"""A job in which one process has more to do than the others: something for a timeline to show.

    python -m mpixla run -n 4 --trace build/traces examples/uneven.py
    python -m mpixla.trace build/traces --picture build/uneven.png

Each process has particles, which it moves under each other's attraction. The processes after the first have
`--particles`, the first one `--more` times as many. In each step they pass the edge of their region to the next
process, and sum up the energy; every few steps the first process gathers what is to be saved.

Of mpixla this shows isendrecv(), allreduce() and gather(), and what MPIXLA_TRACE makes of them.
"""

import argparse
from typing import Any

import jax
import jax.numpy as jnp
from mpi4py import MPI

import mpixla

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
after, before = (rank + 1) % size, (rank - 1) % size
STEP = 1e-4


def forces(places: Any, others: Any) -> Any:
    """Return the pull of others at places, each by its distance."""
    apart = others[None, :, :] - places[:, None, :]
    return (apart / (1e-2 + (apart**2).sum(-1, keepdims=True)) ** 1.5).mean(1)


@jax.jit
def step(places: Any, speeds: Any, edge: Any) -> tuple[Any, Any, Any, Any]:
    request = mpixla.isendrecv(edge, edge, source=before, dest=after)
    neighbours, pull = mpixla.overlap(request, forces, places, places)
    speeds = speeds + STEP * (pull + forces(places, neighbours))
    places = places + STEP * speeds
    energy = mpixla.allreduce((speeds**2).sum(), op=MPI.SUM)
    return places, speeds, places[: len(edge)], energy


@jax.jit
def save(edge: Any) -> Any:
    return mpixla.gather(edge, root=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--particles", type=int, default=800, help="of a process")
    parser.add_argument("--more", type=float, default=1.6, help="times as many has the first")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    number = round(options.particles * (options.more if rank == 0 else 1))
    places = jax.random.normal(jax.random.key(rank), (number, 3))
    state = places, jnp.zeros_like(places), places[: options.particles // 10], jnp.zeros(())
    mpixla.barrier()
    for i in range(options.steps):
        state = step(*state[:3])
        if i % 5 == 4:
            jax.block_until_ready(save(state[2]))
    if rank == 0:
        print(f"{options.steps} steps, energy {float(state[3]):.3e}")


if __name__ == "__main__":
    main()
