"""The operations without communication: results of the same types, of what a rank has itself.

Programs that run with these in the place of mpixla show what JAX and MPI keep on their own account (--control).
"""

from typing import Any

import jax
import jax.numpy as jnp
from mpi4py import MPI

WORLD = MPI.COMM_WORLD

jit = jax.jit


def _each(function: Any, x: Any) -> Any:
    return jax.tree.map(function, x)


def _rows(x: Any, n: int) -> Any:
    return jnp.resize(x, (n, *x.shape[1:]))


def allgather(x: Any, comm: MPI.Comm = WORLD, **_: Any) -> Any:
    return _each(lambda a: jnp.stack([a] * comm.size), x)


def allgatherv(x: Any, counts: list[int], **_: Any) -> Any:
    return _each(lambda a: _rows(a, sum(counts)), x)


def fsum(x: Any, axis: int, **_: Any) -> Any:
    return _each(lambda a: a.sum(axis), x)


def alltoall(x: Any, **_: Any) -> Any:
    return x


def alltoallv(x: Any, sendcounts: list[int], recvcounts: list[int], **_: Any) -> Any:
    return _each(lambda a: _rows(a, sum(recvcounts)), x)


def allreduce(x: Any, *_: Any, **__: Any) -> Any:
    return x


bcast = scan = exscan = pvary = reduce = halo_exchange = allreduce


def barrier(**_: Any) -> None:
    pass


def gather(x: Any, root: int, comm: MPI.Comm = WORLD) -> Any:
    return allgather(x, comm=comm) if comm.rank == root else x


def gatherv(x: Any, counts: list[int], root: int, comm: MPI.Comm = WORLD) -> Any:
    return allgatherv(x, counts) if comm.rank == root else x


def reduce_scatter(x: Any, *_: Any, **__: Any) -> Any:
    return _each(lambda a: a[0], x)


def scatter(x: Any, root: int, comm: MPI.Comm = WORLD) -> Any:
    return _each(lambda a: a[0], x) if comm.rank == root else x


def scatterv(x: Any, counts: list[int], root: int, comm: MPI.Comm = WORLD) -> Any:
    return _each(lambda a: _rows(a, counts[comm.rank]), x)


def neighbor_allgather(x: Any, comm: MPI.Topocomm) -> Any:
    return _each(lambda a: jnp.resize(a, (comm.indegree, *a.shape)), x)


def neighbor_alltoall(x: Any, comm: MPI.Topocomm) -> Any:
    return _each(lambda a: _rows(a, comm.indegree), x)


def neighbor_alltoallv(x: Any, sendcounts: list[int], recvcounts: list[int], **_: Any) -> Any:
    return _each(lambda a: _rows(a, sum(recvcounts)), x)


def recv(x: Any, *_: Any, **__: Any) -> Any:
    return x


def send(*_: Any, **__: Any) -> None:
    pass


def sendrecv(sendbuf: Any, recvbuf: Any, *_: Any, **__: Any) -> Any:
    return recvbuf


def shift(x: Any, *_: Any, **__: Any) -> Any:
    return x


iallgather, iallreduce, ialltoall, ibcast, ireduce_scatter = allgather, allreduce, alltoall, bcast, reduce_scatter
iexscan, igather, ireduce, iscan, iscatter, ialltoallv = exscan, gather, reduce, scan, scatter, alltoallv
irecv = isend = recv
isendrecv = sendrecv


def wait(request: Any) -> Any:
    return request


def waitall(requests: list[Any]) -> list[Any]:
    return list(requests)


def overlap(request: Any, fun: Any, *args: Any) -> tuple[Any, Any]:
    return request, fun(*args)


def halo_start(x: Any, *_: Any, **__: Any) -> Any:
    return x
