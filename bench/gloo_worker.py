"""The contender jax.distributed: JAX's own collectives between processes, which are gloo's on CPUs.

python bench/gloo_worker.py SOCKET PORT RANK SIZE, once for each rank, without mpirun.
"""

import functools
import re
import sys
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from worker import repeat, serve

PORT, RANK, SIZE = map(int, sys.argv[2:])
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"127.0.0.1:{PORT}", num_processes=SIZE, process_id=RANK)
mesh = Mesh(jax.devices(), "ranks")
SPLIT = PartitionSpec("ranks")


@functools.cache
def program(size_in_bytes: int, length: int) -> tuple[Any, Any]:
    """A compiled program of ``length`` allreduces, and its operand: one row for each rank."""

    def chain(x: Any) -> Any:
        for _ in range(length):
            x = jax.lax.pcast(jax.lax.psum(x, "ranks"), "ranks", to="varying")
        return x

    row = jnp.full((1, max(1, size_in_bytes // 4)), 1, jnp.float32)
    x = jax.make_array_from_process_local_data(NamedSharding(mesh, SPLIT), row)
    compiled = jax.jit(jax.shard_map(chain, mesh=mesh, in_specs=SPLIT, out_specs=SPLIT))
    calls = len(re.findall(r" all-reduce(?:-start)?\(", compiled.lower(x).compile().as_text()))
    if calls != length:
        raise RuntimeError(f"XLA made {calls} calls of {length} operations psum")
    return compiled, x


def run(size_in_bytes: int, length: int) -> None:
    compiled, x = program(size_in_bytes, length)
    jax.block_until_ready(compiled(x))


def barrier() -> None:
    run(4, 1)


def chain(op: str, dtype: str, size_in_bytes: int, long: int, short: int, times: int) -> list[list[float]]:
    if (op, dtype) != ("allreduce", "f32"):
        raise NotImplementedError("of jax.distributed only the allreduce is measured")
    for length in (long, short):
        program(size_in_bytes, length)
    return repeat([lambda: run(size_in_bytes, long), lambda: run(size_in_bytes, short)], times, barrier)


if __name__ == "__main__":
    serve(sys.argv[1], RANK, {"chain": chain})
