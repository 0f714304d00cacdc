"""The costs of a job of many ranks for each: mpirun -n N python bench/scaling_worker.py VERB. Rank 0 prints JSON.

    cost            bytes of memory and of programs: none of it depends on how busy the machine is
    absent          the last rank does not come to an allreduce (for a report, with MPIXLA_TIMEOUT)
    circle          each rank waits for the next (the same)
    mismatch        every second rank calls allreduce with another data type (for an exception, with MPIXLA_CHECK)

Each number is that of the rank that has most of it.
"""

import ctypes
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

COMMUNICATORS = 64
WORLD = MPI.COMM_WORLD


def memory() -> dict[str, int]:
    """Return bytes of this process: its own, and those that it shares with others and has written to."""
    lines = [line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]]
    kib = {words[0].rstrip(":"): int(words[1]) for words in lines}
    return {"own": 1024 * (kib["Private_Clean"] + kib["Private_Dirty"]), "shared": 1024 * kib["Shared_Dirty"]}


def growth(run: Callable[[], Any]) -> dict[str, int]:
    before = memory()
    run()
    return {kind: max(0, now - before[kind]) for kind, now in memory().items()}


def programs(mpixla: Any) -> dict[str, Callable[[Any], Any]]:
    """Return operations on an array whose first axis has an item for each rank, as programs have them."""
    rank, size = WORLD.rank, WORLD.size
    ones = (1,) * size
    line, grid = WORLD.Create_cart([size], [True]), WORLD.Create_cart(MPI.Compute_dims(size, 2), [True, True])
    back, on = mpixla.Shift(0, -1), mpixla.Shift(0, 1)
    return {
        "allreduce": lambda x: mpixla.allreduce(x, op=MPI.SUM, comm=WORLD),
        "bcast": lambda x: mpixla.bcast(x, 0, comm=WORLD),
        "gather": lambda x: mpixla.gather(x, 0, comm=WORLD),
        "alltoall": lambda x: mpixla.alltoall(x, comm=WORLD),
        "scan": lambda x: mpixla.scan(x, op=MPI.SUM, comm=WORLD),
        "allgatherv": lambda x: mpixla.allgatherv(x[:1], ones, comm=WORLD),
        "alltoallv": lambda x: mpixla.alltoallv(x, ones, ones, comm=WORLD),
        "sendrecv": lambda x: mpixla.sendrecv(x, x, (rank - 1) % size, (rank + 1) % size, comm=WORLD),
        "sendrecv of a Shift": lambda x: mpixla.sendrecv(x, x, back, on, comm=line),
        "halo_exchange": lambda x: mpixla.halo_exchange(jnp.zeros((8, 8)) + x.sum(), grid),
    }


class Heap(ctypes.Structure):
    """glibc's mallinfo2."""

    _fields_: ClassVar = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "used", "free", "keepcost")
    ]


def communicators(use: Callable[[MPI.Comm], Any]) -> int:
    """Return bytes that one has in the heap."""
    heap = ctypes.CDLL(None).mallinfo2
    heap.restype = Heap
    made = [WORLD.Dup() for _ in range(COMMUNICATORS)]
    before = heap()
    for comm in made:
        use(comm)
    grown = heap().used + heap().hblkhd - before.used - before.hblkhd
    for comm in made:
        comm.Free()
    return grown // COMMUNICATORS


def cost() -> dict[str, Any]:
    jax.block_until_ready(jnp.zeros(3) + 1)
    value = np.zeros(1, np.float32)
    WORLD.Allreduce(MPI.IN_PLACE, value)
    found: dict[str, Any] = {"JAX and MPI": memory()}
    begin = time.process_time()
    found["import"] = growth(lambda: __import__("mpixla"))
    found["seconds of a processor for it"] = time.process_time() - begin
    import mpixla
    from mpixla.mpi import comm as registry

    x = np.zeros((WORLD.size, 4), np.float32)
    found["programs"] = {}
    for name, program in programs(mpixla).items():
        jitted = jax.jit(program)
        text = jitted.lower(x).as_text()
        jax.block_until_ready(jitted(x))
        found["programs"][name] = {"bytes": len(text), "distinct": len(set(WORLD.allgather(text)))}
    found["communicator"] = communicators(registry.comm_of)
    return found


def largest(values: list[Any]) -> Any:
    if isinstance(values[0], dict):
        return {key: largest([value[key] for value in values]) for key in values[0]}
    return max(values)


def fail(how: str) -> None:
    import mpixla

    rank, size = WORLD.rank, WORLD.size
    x = jnp.zeros(4)
    mpixla.allreduce(x, op=MPI.SUM, comm=WORLD).block_until_ready()
    WORLD.Barrier()
    if how == "circle":
        mpixla.recv(x, (rank + 1) % size, comm=WORLD).block_until_ready()
    if how == "absent" and rank == size - 1:
        time.sleep(1000)
    if how == "mismatch" and rank % 2:
        x = x.astype(jnp.int32)
    mpixla.allreduce(x, op=MPI.SUM, comm=WORLD).block_until_ready()


if sys.argv[1] == "cost":
    everybody = WORLD.gather(cost())
    if everybody:
        print(json.dumps(largest(everybody)))
else:
    fail(sys.argv[1])
