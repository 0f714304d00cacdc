"""The contenders gloo and distributed: JAX's own collectives between processes, over gloo's and over MPI.

python bench/sharded_worker.py SOCKET PORT RANK SIZE, once for each rank, without mpirun, is gloo's;
mpirun -n SIZE python -m mpixla.distributed bench/sharded_worker.py SOCKET is mpixla's. This one also measures mpixla's
operations inside jax.shard_map, whose names begin with mpixla.
"""

import functools
import re
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.sparse.linalg import cg
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from worker import repeat, serve

IS_GLOO = len(sys.argv) > 2
if IS_GLOO:
    PORT, RANK, SIZE = map(int, sys.argv[2:])
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{PORT}", num_processes=SIZE, process_id=RANK)
else:
    from mpi4py import MPI

    import mpixla

    jax.distributed.initialize()
    RANK, SIZE = jax.process_index(), jax.process_count()

mesh = Mesh(jax.devices(), "ranks")
SPLIT = PartitionSpec("ranks")
CELLS, STEPS = 256, 20  # of the conjugate-gradient solve: a square of so many cells, and iterations


def vary(x: Any) -> Any:
    return jax.lax.pcast(x, "ranks", to="varying")


# From a rank's rows (as many as there are ranks) to as many, and XLA's name for what communicates.
OPERATIONS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "allreduce": (lambda x: vary(jax.lax.psum(x, "ranks")), "all-reduce"),
    "allgather": (lambda x: jax.lax.all_gather(x[0], "ranks"), "all-gather"),
    "alltoall": (lambda x: jax.lax.all_to_all(x, "ranks", 0, 0), "all-to-all"),
    "mpixla.allreduce": (lambda x: vary(mpixla.allreduce(x, op=MPI.SUM)), "custom-call"),
    "mpixla.allgather": (lambda x: vary(mpixla.allgather(x[0])), "custom-call"),
    "mpixla.alltoall": (lambda x: mpixla.alltoall(x), "custom-call"),
}


@functools.cache
def program(op: str, size_in_bytes: int, length: int) -> tuple[Any, Any]:
    """Return a compiled program of a chain of operations, and its operand: so many bytes on each rank."""
    operation, instruction = OPERATIONS[op]

    def chain(x: Any) -> Any:
        for _ in range(length):
            x = operation(x)
        return x

    rows = jnp.full((SIZE, max(1, size_in_bytes // 4 // SIZE)), 1, jnp.float32)
    x = jax.make_array_from_process_local_data(NamedSharding(mesh, SPLIT), rows)
    compiled = jax.jit(jax.shard_map(chain, mesh=mesh, in_specs=SPLIT, out_specs=SPLIT))
    calls = len(re.findall(rf" {instruction}(?:-start)?\(", compiled.lower(x).compile().as_text()))
    if calls != length:
        raise RuntimeError(f"XLA made {calls} calls of {length} operations {op}")
    return compiled, x


def run(op: str, size_in_bytes: int, length: int) -> None:
    compiled, x = program(op, size_in_bytes, length)
    jax.block_until_ready(compiled(x))


def barrier() -> None:
    run("allreduce", 4, 1)


def chain(op: str, dtype: str, size_in_bytes: int, long: int, short: int, times: int) -> list[list[float]]:
    if op not in OPERATIONS or dtype != "f32" or (IS_GLOO and op.startswith("mpixla")):
        raise NotImplementedError(f"of jax.distributed {op} of {dtype} is not measured")
    for length in (long, short):
        program(op, size_in_bytes, length)
    return repeat([lambda: run(op, size_in_bytes, long), lambda: run(op, size_in_bytes, short)], times, barrier)


# The solve: -div grad x + x = b in a periodic square, each rank has a part of the rows.


def by_rolling(x: Any) -> Any:
    """Return the operator on the whole square: XLA finds out what is to be communicated."""
    return 5 * x - jnp.roll(x, 1, 0) - jnp.roll(x, -1, 0) - jnp.roll(x, 1, 1) - jnp.roll(x, -1, 1)


@functools.cache
def by_halos() -> Callable[[Any], Any]:
    """Return the same on each rank's part, with the rows of its neighbours around it."""
    ring = MPI.COMM_WORLD.Create_cart([SIZE], periods=[True], reorder=False)

    def apply(x: Any) -> Any:
        y = mpixla.halo_exchange(jnp.pad(x, ((1, 1), (0, 0))), ring, axes=(0,))
        return 5 * x - y[:-2] - y[2:] - jnp.roll(x, 1, 1) - jnp.roll(x, -1, 1)

    return jax.shard_map(apply, mesh=mesh, in_specs=SPLIT, out_specs=SPLIT)


@functools.cache
def solver(name: str) -> tuple[Any, Any]:
    operator = by_rolling if name == "cg" else by_halos()
    solve = jax.jit(lambda b: cg(operator, b, tol=0.0, atol=0.0, maxiter=STEPS)[0])
    whole = np.random.default_rng(0).standard_normal((CELLS, CELLS)).astype(np.float32)
    b = jax.make_array_from_callback(whole.shape, NamedSharding(mesh, SPLIT), lambda index: whole[index])
    error = jax.jit(lambda b: jnp.abs(by_rolling(solve(b)) - b).max())(b)
    if not error.addressable_data(0) < 1e-3:
        raise RuntimeError(f"{name} does not solve the equations: the residual is {error.addressable_data(0)}")
    return solve, b


def call(name: str, calls: int, times: int) -> list[list[float]]:
    if name not in ("cg", "cg-halo") or (IS_GLOO and name != "cg"):
        raise NotImplementedError(f"of jax.distributed {name} is not measured")
    solve, b = solver(name)

    def all_calls() -> None:
        for _ in range(calls):
            jax.block_until_ready(solve(b))

    return [[seconds / calls] for (seconds,) in repeat([all_calls], times, barrier)]


if __name__ == "__main__":
    serve(sys.argv[1], RANK, {"chain": chain, "call": call})
