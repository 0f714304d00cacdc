"""More than 2^31 - 1 elements for real: `make test-large`, on two ranks.

The arrays are int8 and are never on the Python side: a pattern fills them, and is compared, within XLA. Where MPI has
no large-count functions, operations with a "v" are refused on all ranks; but `alltoallv`, whose counts each rank has
for itself, only on the one that has so many, so it is not run there.
"""

import functools
import os

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from mpi4py import MPI
from test_large_counts import HAS_LARGE_COUNTS, refused

import mpixla

RANK, SIZE = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
N = 2**31 + 5
OTHER = (RANK + 1) % SIZE
MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@functools.partial(jax.jit, static_argnums=(0, 1))
def pattern(seed, n=N):
    return (lax.iota(jnp.uint8, n) * jnp.uint8(2 * seed + 1) + lax.iota(jnp.uint8, n) // 3).astype(jnp.int8)


@functools.partial(jax.jit, static_argnums=(1, 2))
def is_pattern(x, seed, n=N):
    return jnp.all(
        x == (lax.iota(jnp.uint8, n) * jnp.uint8(2 * seed + 1) + lax.iota(jnp.uint8, n) // 3).astype(jnp.int8)
    )


@jax.jit
def is_extreme(x):
    """Return whether the array is the greatest of all ranks' patterns, item by item."""
    return jnp.all(x == functools.reduce(jnp.maximum, [pattern(rank) for rank in range(SIZE)]))


def stacked(*seeds):
    return jax.jit(lambda: jnp.stack([pattern(seed) for seed in seeds]))()


def parts(x, *seeds):
    return all(bool(is_pattern(x[i], seed)) for i, seed in enumerate(seeds))


def ring(comm):
    return comm.Create_cart([SIZE], periods=[True])


def send_and_recv():
    if RANK == 0:
        mpixla.send(pattern(0), 1)
        return True
    return RANK > 1 or is_pattern(mpixla.recv(jnp.zeros(N, jnp.int8), 0), 0)


def on(here, x, check):
    """Return ``check(x)`` where ``here``. All ranks have come as far as ``x``: that is the operation."""
    jax.block_until_ready(x)
    return not here or check(x)


ROWS = [N, *[3] * (SIZE - 1)]  # of each rank, for the operations with different ones

# What is run, and how many arrays of N items there are on all ranks together while it runs.
CASES = {
    "allgather": (3 * SIZE, lambda: parts(mpixla.allgather(pattern(RANK)), *range(SIZE))),
    "allgatherv": (2 * SIZE, lambda: is_pattern(mpixla.allgatherv(pattern(RANK, ROWS[RANK]), ROWS)[:N], 0)),
    "allreduce": (4 * SIZE, lambda: is_extreme(mpixla.allreduce(pattern(RANK), MPI.MAX))),
    "alltoall": (
        5 * SIZE,
        lambda: parts(
            mpixla.alltoall(stacked(*(RANK * SIZE + i for i in range(SIZE)))), *(i * SIZE + RANK for i in range(SIZE))
        ),
    ),
    "alltoallv": (
        3 * SIZE,
        lambda: is_pattern(
            mpixla.alltoallv(
                pattern(RANK, N + 3 * (SIZE - 1)) if RANK == 0 else pattern(RANK, 3 * SIZE),
                [N, *[3] * (SIZE - 1)] if RANK == 0 else [3] * SIZE,
                [N if RANK == i == 0 else 3 for i in range(SIZE)],
            )[: N if RANK == 0 else 0],
            0,
            N if RANK == 0 else 0,
        ),
    ),
    "bcast": (2 * SIZE, lambda: is_pattern(mpixla.bcast(pattern(RANK), 1), 1)),
    "exscan": (3 * SIZE, lambda: on(RANK == 1, mpixla.exscan(pattern(RANK), MPI.MAX), lambda x: is_pattern(x, 0))),
    "gather": (2 * SIZE + 1, lambda: on(RANK == 0, mpixla.gather(pattern(RANK), 0), lambda x: parts(x, *range(SIZE)))),
    "gatherv": (
        4,
        lambda: on(RANK == 1, mpixla.gatherv(pattern(RANK, ROWS[RANK]), ROWS, 1), lambda x: is_pattern(x[:N], 0)),
    ),
    "iallgather": (6 * SIZE, lambda: parts(mpixla.wait(mpixla.iallgather(pattern(RANK))), *range(SIZE))),
    "iallgather on one rank": (
        4,
        lambda: RANK != 0 or parts(mpixla.wait(mpixla.iallgather(pattern(RANK), comm=MPI.COMM_SELF)), 0),
    ),
    "ibcast": (3 * SIZE, lambda: is_pattern(mpixla.wait(mpixla.ibcast(pattern(RANK), 1)), 1)),
    "isendrecv": (
        4 * SIZE,
        lambda: is_pattern(mpixla.wait(mpixla.isendrecv(pattern(RANK), pattern(9), OTHER, OTHER)), OTHER),
    ),
    "neighbor_allgather": (
        4 * SIZE,
        lambda: parts(mpixla.neighbor_allgather(pattern(RANK), comm=ring(MPI.COMM_WORLD)), (RANK - 1) % SIZE, OTHER),
    ),
    "reduce": (3 * SIZE, lambda: on(RANK == 1, mpixla.reduce(pattern(RANK), MPI.MAX, 1), is_extreme)),
    "reduce, by a reduction of mpixla's own": (
        4 * SIZE,
        lambda: on(
            RANK == 1,
            mpixla.reduce(jnp.full(N, RANK + 1, jnp.float8_e4m3fn), MPI.MAX, 1),
            lambda x: jnp.all(x == SIZE),
        ),
    ),
    "reduce_scatter": (4 * SIZE, lambda: is_extreme(mpixla.reduce_scatter(stacked(*[RANK] * SIZE), MPI.MAX))),
    "scan": (3 * SIZE, lambda: on(RANK == SIZE - 1, mpixla.scan(pattern(RANK), MPI.MAX), is_extreme)),
    "scatter": (
        2 * SIZE + 1,
        lambda: is_pattern(mpixla.scatter(stacked(*range(SIZE)) if RANK == 0 else pattern(9), 0), RANK),
    ),
    "scatterv": (
        4,
        lambda: (
            is_pattern(
                mpixla.scatterv(pattern(RANK, sum(ROWS)) if RANK == 0 else pattern(9, ROWS[RANK]), ROWS, 0),
                0,
                ROWS[RANK],
            )
            if RANK == 0
            else mpixla.scatterv(pattern(9, ROWS[RANK]), ROWS, 0).block_until_ready().shape == (ROWS[RANK],)
        ),
    ),
    "send and recv": (4, send_and_recv),
    "sendrecv": (3 * SIZE, lambda: is_pattern(mpixla.sendrecv(pattern(RANK), pattern(9), OTHER, OTHER), OTHER)),
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CASES)
def test_more_items_than_an_int_counts(name):
    arrays, run = CASES[name]
    if arrays * N > 0.85 * MEMORY:
        pytest.skip(f"needs {arrays * N / 1e9:.0f} GB of memory on {SIZE} ranks, and there are {MEMORY / 1e9:.0f}")
    if name == "alltoallv" and not HAS_LARGE_COUNTS:
        pytest.skip("only one rank is refused")
    with refused(name):
        assert bool(run())
