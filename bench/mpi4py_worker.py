"""The contender mpi4py: the same calls from Python, on NumPy arrays.

python bench/mpi4py_worker.py SOCKET, under mpirun.
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from worker import repeat, serve

comm = MPI.COMM_WORLD.Dup()
rank, size = comm.rank, comm.size


def reduce(x: Any, y: Any) -> None:
    comm.Reduce(x, y if rank == 0 else None, MPI.SUM, 0)


OPS: dict[str, Callable[[Any, Any], Any]] = {
    "allgather": lambda x, y: comm.Allgather(x, y),
    "allreduce": lambda x, y: comm.Allreduce(x, y, MPI.SUM),
    "alltoall": lambda x, y: comm.Alltoall(x, y),
    "bcast": lambda x, y: comm.Bcast(x, 0),
    "reduce": reduce,
    "scan": lambda x, y: comm.Scan(x, y, MPI.SUM),
    "sendrecv": lambda x, y: comm.Sendrecv(x, (rank + 1) % size, 0, y, (rank - 1) % size),
}


def chain(op: str, dtype: str, size_in_bytes: int, long: int, short: int, times: int) -> list[list[float]]:
    if dtype != "f32":
        raise NotImplementedError("mpi4py knows the types of MPI, which has none of 16 bits")
    count = max(size if op == "alltoall" else 1, size_in_bytes // 4)
    x = np.full(count, 1, np.float32)
    y = np.full((size if op == "allgather" else 1) * count, 1, np.float32)

    def run(length: int) -> None:
        a, b = x, y
        for _ in range(length):
            OPS[op](a, b)
            if op not in ("allgather", "bcast", "reduce"):
                a, b = b, a

    return repeat([lambda: run(long), lambda: run(short)], times, comm.Barrier)


if __name__ == "__main__":
    serve(sys.argv[1], rank, {"chain": chain})
