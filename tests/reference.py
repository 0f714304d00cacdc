"""The oracle: what each operation must give, in NumPy, from the inputs of all ranks.

One row an operation. A row shares no code with mpixla: it says how to call the operation (`call`), which shapes its
operands have on a rank (`shapes`), the variants of its static arguments (`variants`), and the result on a rank from
the operands of all ranks (`model`; None where there is no result). Tests draw every suite from this table.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from mpi4py import MPI

import mpixla
from halo_model import Grid
from mpixla import Shift  # the tests of compat put others' functions in the place of mpixla


def _maximum(a: Any, b: Any) -> Any:
    """Return np.maximum, but of two zeros +0 if one is."""
    return np.where((a == 0) & (b == 0), np.where(np.signbit(a), b, a), np.maximum(a, b))


def _minimum(a: Any, b: Any) -> Any:
    """Return np.minimum, but of two zeros -0 if one is."""
    return np.where((a == 0) & (b == 0), np.where(np.signbit(a), a, b), np.minimum(a, b))


# Reductions as NumPy functions of two arrays, and NumPy's kinds (dtype.kind) of the data types that they take.
REDUCTIONS: dict[str, tuple[Callable[..., Any], str]] = {
    "SUM": (np.add, "iufc"),
    "PROD": (np.multiply, "iufc"),
    "MAX": (_maximum, "iuf"),
    "MIN": (_minimum, "iuf"),
    "LAND": (np.logical_and, "biu"),
    "LOR": (np.logical_or, "biu"),
    "LXOR": (np.logical_xor, "biu"),
    "BAND": (operator.and_, "iu"),
    "BOR": (operator.or_, "iu"),
    "BXOR": (operator.xor, "iu"),
}

# Those that have a derivative.
DIFFERENTIABLE = ("SUM", "PROD", "MAX", "MIN")

MPI_DTYPES = [np.dtype(t) for t in (bool, np.float32, np.float64, np.complex64, np.complex128)]
MPI_DTYPES += [np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)]
# Reduced by operations of our own.
SHORT_DTYPES = [
    np.dtype(t)
    for t in (
        np.float16,
        ml_dtypes.bfloat16,
        ml_dtypes.float8_e3m4,
        ml_dtypes.float8_e4m3,
        ml_dtypes.float8_e4m3b11fnuz,
        ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e4m3fnuz,
        ml_dtypes.float8_e5m2,
        ml_dtypes.float8_e5m2fnuz,
        ml_dtypes.float8_e8m0fnu,
    )
]
DTYPES = [*MPI_DTYPES, *SHORT_DTYPES]
FLOAT_DTYPES = [t for t in DTYPES if t.kind == "f" or t in SHORT_DTYPES]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Row:
    """One operation; functions take `rank`, `size` and the variant's static arguments as keywords."""

    name: str
    call: Callable[..., Any]
    model: Callable[..., Any]
    shapes: Callable[..., list[Shape]] = lambda shape, **_: [shape]
    variants: Callable[[int], list[dict[str, Any]]] = field(default=lambda size: [{}])
    takes: Callable[..., bool] = lambda dtype, **_: True  # whether the variant takes this data type
    replicated: bool = False  # whether the result is the same on every rank and its cotangent counts once
    reverse: bool = True  # whether there is a reverse mode

    def differentiable(self, op: str = "SUM", **_: Any) -> bool:
        return op in DIFFERENTIABLE and bool(self.shapes(shape=(), rank=0, size=1, **self.variants(1)[0]))

    def linear(self, op: str = "SUM", **_: Any) -> bool:
        return op == "SUM"

    def counts_once(self, cotangent: str = "replicated", **_: Any) -> bool:
        return self.replicated and cotangent == "replicated"


def _roots(size: int) -> list[dict[str, Any]]:
    return [{"root": root} for root in sorted({0, size // 2, size - 1})]


def _reductions(size: int) -> list[dict[str, Any]]:
    return [{"op": op} for op in REDUCTIONS]


def _rooted_reductions(size: int) -> list[dict[str, Any]]:
    return [{"op": op, **root} for op in ("SUM", "MAX", "LAND") for root in _roots(size)] + [
        {"op": op, "root": 0} for op in REDUCTIONS if op not in ("SUM", "MAX", "LAND")
    ]


def _takes(dtype: np.dtype, op: str, **_: Any) -> bool:
    if dtype.name == "float8_e8m0fnu":  # powers of two only: their sums depend on the order
        return op in ("PROD", "MAX", "MIN")
    return (dtype.kind if dtype in MPI_DTYPES else "f") in REDUCTIONS[op][1]


def _fold(op: str, arrays: list[np.ndarray]) -> np.ndarray:
    return reduce(REDUCTIONS[op][0], arrays).astype(arrays[0].dtype)


def _neutral(op: str, like: np.ndarray) -> np.ndarray:
    """Return an array that the reduction leaves anything unchanged by: found by trying, for this type."""
    candidates = [0, 1] if like.dtype.kind in "biu" else [0, 1, -np.inf, np.inf]
    if like.dtype in SHORT_DTYPES:
        limits = ml_dtypes.finfo(like.dtype)
        candidates = [0, 1] + [x for x in (-np.inf, np.inf) if np.isinf(like.dtype.type(x))] + [limits.min, limits.max]
    if like.dtype.kind in "iu":
        candidates += [np.iinfo(like.dtype).min, np.iinfo(like.dtype).max, ~like.dtype.type(0)]
    probes = np.array([0, 1] if op[0] == "L" else [0, 1, 2, 3] if like.dtype.kind == "u" else [-3, -1, 0, 1, 2])
    if like.dtype.name == "float8_e8m0fnu":
        probes = np.array([0.5, 1, 2])
    probes = probes.astype(like.dtype)
    for candidate in candidates:
        if (REDUCTIONS[op][0](np.full_like(probes, candidate), probes).astype(like.dtype) == probes).all():
            return np.full_like(like, candidate)
    raise AssertionError(f"{op} of {like.dtype} has no neutral element")


def _first(inputs: list[list[np.ndarray]]) -> list[np.ndarray]:
    return [operands[0] for operands in inputs]


def _ring(rank: int, size: int, step: int) -> tuple[int, int]:
    return (rank - step) % size, (rank + step) % size


def _ends(comm: MPI.Comm, step: int, by: str) -> tuple[Any, Any, MPI.Comm]:
    """Return source, destination and communicator of messages that go up by so many ranks.

    "ranks" are numbers, around the ring of the communicator, and "traced" are such that are known only at run time. All
    others are shifts: on the same ring, on a Cartesian communicator that is one, or on one with walls.
    """
    if by in ("ranks", "traced"):
        return *_ring(comm.Get_rank(), comm.Get_size(), step), comm
    return Shift(0, -step), Shift(0, step), comm if by == "ring" else _line(comm, by == "torus")


def _traced_if(by: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the call, in which numbers among the operands are traced if that is asked for."""
    return jax.jit(call) if by == "traced" else call


def _arrives(inputs: list[list[np.ndarray]], rank: int, step: int, by: str) -> np.ndarray:
    """Return the message that arrives that way; without one, the last operand."""
    source = rank - step
    if by == "walls" and not 0 <= source < len(inputs):
        return inputs[rank][-1]
    return inputs[source % len(inputs)][0]


def _ways(size: int) -> list[dict[str, Any]]:
    by_ranks = [{"step": step, "by": "ranks"} for step in (0, 1, 2)]
    by_ranks.append({"step": 1, "by": "traced"})
    return [*by_ranks, {"step": 1, "by": "ring"}, {"step": -1, "by": "torus"}, {"step": 1, "by": "walls"}]


def _send_then_recv(x: Any, comm: MPI.Comm, step: int, by: str) -> Any:
    """Send first on even ranks, receive first on odd ones; each works with the next rank up, without wrapping."""
    if by == "walls":  # one after the other
        source, dest, line = _ends(comm, 1, by)
        y = mpixla.recv(x, source, tag=step, comm=line)
        mpixla.send(x, dest, tag=step, comm=line)
        return y
    rank, size = comm.Get_rank(), comm.Get_size()
    below = rank - 1 if rank > 0 else MPI.PROC_NULL
    above = rank + 1 if rank < size - 1 else MPI.PROC_NULL

    def call(x: Any, below: Any, above: Any, tag: Any) -> Any:
        if rank % 2 == 0:
            mpixla.send(x, above, tag=tag, comm=comm)
            return mpixla.recv(x, below, tag=tag, comm=comm)
        y = mpixla.recv(x, below, tag=tag, comm=comm)
        mpixla.send(x, above, tag=tag, comm=comm)
        return y

    return _traced_if(by, call)(x, below, above, step)


def _counts(size: int, shift: int) -> list[int]:
    """Return the rows for each rank: 2, 1, 0, 3 and so on, from another place for another shift; on rank 0 0 for 2."""
    return [(3 * (rank + shift) + 2) % 4 for rank in range(size)]


def _part(x: np.ndarray, counts: list[int], rank: int) -> np.ndarray:
    return np.split(x, np.cumsum(counts)[:-1])[rank]


def _shifts(size: int) -> list[dict[str, Any]]:
    return [*({"shift": shift} for shift in (0, 2)), {"shift": 0, "room": 1}, {"shift": 2, "room": 2}]


def _rooted_shifts(size: int) -> list[dict[str, Any]]:
    static = [{"shift": 0, **root} for root in _roots(size)] + [{"shift": 2, "root": 0}]
    return [*static, {"shift": 0, "room": 1, "root": size - 1}, {"shift": 2, "room": 2, "root": 0}]


# "room": counts are known only at run time, and what is sent and what comes has so many rows that do not count. With
# room for one a rank says only how many rows it has itself, where that is enough.


def _with_room(
    call: Callable[..., Any],
    x: Any,
    comm: MPI.Comm,
    counts: list[int],
    room: int | None,
    all_rows: bool = True,
    **kw: Any,
) -> Any:
    if room is None:
        return call(x, counts, comm=comm, **kw)
    own, rows = counts[comm.Get_rank()], sum(counts) if all_rows else counts[comm.Get_rank()]
    known = own if room == 1 and all_rows else np.array(counts)
    return jax.jit(lambda x, n: call(x, n, capacity=rows + room, comm=comm, **kw)[0])(x, known)


def _roomy(x: np.ndarray, room: int | None) -> np.ndarray:
    return np.concatenate([x, np.zeros((room or 0, *x.shape[1:]), x.dtype)])


def _counted(inputs: list[list[np.ndarray]], shift: int, room: int | None) -> np.ndarray:
    """Return the rows that count of all ranks, one behind the other."""
    counts = _counts(len(inputs), shift)
    return _roomy(np.concatenate([x[:n] for x, n in zip(_first(inputs), counts, strict=True)]), room)


def _exchanged(rank: int, size: int, shift: int) -> tuple[list[int], list[int]]:
    """Return the rows that a rank sends to each rank, and receives from each."""
    rows = [[(i + 2 * j + 2 + shift) % 4 for j in range(size)] for i in range(size)]
    return rows[rank], [sent[rank] for sent in rows]


_RING = MPI.Comm.Create_keyval()


def _alltoallv(x: Any, comm: MPI.Comm, shift: int, room: int | None) -> Any:
    sent, received = _exchanged(comm.Get_rank(), comm.Get_size(), shift)
    if room is None:
        return mpixla.alltoallv(x, sent, received, comm=comm)
    known = (sent, received)[:room]
    call = jax.jit(lambda x, *counts: mpixla.alltoallv(x, *counts, capacity=sum(received) + room, comm=comm)[0])
    return call(x, *map(np.array, known))


def _neighbor_alltoallv(x: Any, comm: MPI.Cartcomm, room: int | None) -> Any:
    if room is None:
        return mpixla.neighbor_alltoallv(x, (1, 2), (2, 1), comm=comm)
    call = jax.jit(lambda x, sent: mpixla.neighbor_alltoallv(x, sent, capacity=3 + room, comm=comm)[0])
    return call(x, np.array([1, 2]))


def _rows_from_neighbors(inputs: list[np.ndarray], rank: int, periodic: bool, room: int | None) -> np.ndarray:
    """Return the rows of all slots; with counts known at run time, zeros where there is no neighbour."""
    rows = [x[1:3] if i == 0 else x[:1] for i, x in enumerate(_from_neighbors(inputs, rank, periodic))]
    if room is None:
        return np.concatenate(rows)
    size = len(inputs)
    came = [rows[i] for i, there in enumerate((rank > 0, rank < size - 1)) if periodic or there]
    nothing = np.zeros((3 + room - sum(map(len, came)), *rows[0].shape[1:]), rows[0].dtype)
    return np.concatenate([*came, nothing])


def _line(comm: MPI.Comm, periodic: bool) -> MPI.Cartcomm:
    """Return the ranks of the communicator in a row, or in a ring: made once for each."""
    made = comm.Get_attr(_RING)
    if made is None:
        size = comm.Get_size()
        made = {p: MPI.Intracomm(comm).Create_cart([size], periods=[p], reorder=False) for p in (False, True)}
        comm.Set_attr(_RING, made)
    return made[periodic]


def _from_neighbors(inputs: list[np.ndarray], rank: int, periodic: bool) -> list[np.ndarray]:
    """Return the arrays of the ranks below and above; zeros where there is none."""
    size = len(inputs)
    below, above = inputs[(rank - 1) % size], inputs[(rank + 1) % size]
    return [
        below if periodic or rank > 0 else np.zeros_like(below),
        above if periodic or rank < size - 1 else np.zeros_like(above),
    ]


def _lines(size: int) -> list[dict[str, Any]]:
    return [{"periodic": False}, {"periodic": True}]


def _chain(size: int, periodic: bool) -> Grid:
    return Grid((size,), (periodic,), (1,), (0,), 1)


_CHAINS = {periodic: MPI.Comm.Create_keyval() for periodic in (False, True)}


def _chain_of(comm: MPI.Comm, periodic: bool) -> Any:
    """Return one for each communicator, which keeps it."""
    if comm.Get_attr(_CHAINS[periodic]) is None:
        comm.Set_attr(_CHAINS[periodic], comm.Create_cart([comm.Get_size()], [periodic]))
    return comm.Get_attr(_CHAINS[periodic])


def _both_ways(x: Any, comm: MPI.Comm, step: int, by: str) -> Any:
    """Return the sent and the received arrays: all ranks start to receive, and to send, before they wait."""
    below, above, comm = _ends(comm, step, by)

    def call(x: Any, below: Any, above: Any, tag: Any) -> Any:
        receiving = mpixla.irecv(x, below, tag=tag, comm=comm)
        sending = mpixla.isend(x, above, tag=tag, comm=comm)
        return jnp.stack(mpixla.waitall([sending, receiving]))

    return _traced_if(by, call)(x, below, above, abs(step))


def _isend_then_recv(x: Any, comm: MPI.Comm, step: int, by: str) -> Any:
    below, above, comm = _ends(comm, step, by)

    def call(x: Any, below: Any, above: Any, tag: Any) -> Any:
        sending = mpixla.isend(x, above, tag=tag, comm=comm)
        received = mpixla.recv(x, below, tag=tag, comm=comm)
        return jnp.stack([mpixla.wait(sending), received])

    return _traced_if(by, call)(x, below, above, abs(step))


def _sent_and_received(inputs: list[list[np.ndarray]], rank: int, step: int, by: str) -> np.ndarray:
    return np.stack([inputs[rank][0], _arrives(inputs, rank, step, by)])


def _exchanged_over(exchange: Callable[..., Any], x: Any, y: Any, comm: MPI.Comm, step: int, by: str) -> Any:
    source, dest, comm = _ends(comm, step, by)

    def call(x: Any, y: Any, source: Any, dest: Any, tag: Any) -> Any:
        return exchange(x, y, source, dest, sendtag=tag, recvtag=tag, comm=comm)

    return _traced_if(by, call)(x, y, source, dest, abs(step))


ROWS = [
    Row(
        "allgather",
        call=lambda x, comm, **kw: mpixla.allgather(x, comm=comm, **kw),
        model=lambda inputs, rank, **_: np.stack(_first(inputs)),
        variants=lambda size: [{}, {"cotangent": "varying"}],
        replicated=True,
    ),
    Row(
        "allgatherv",
        call=lambda x, comm, shift, room=None, **kw: _with_room(
            mpixla.allgatherv, x, comm, _counts(comm.Get_size(), shift), room, **kw
        ),
        model=lambda inputs, rank, shift, room=None, **_: _counted(inputs, shift, room),
        shapes=lambda shape, rank, size, shift, room=0, **_: [(_counts(size, shift)[rank] + room, *shape)],
        variants=lambda size: [
            *_shifts(size),
            {"shift": 0, "cotangent": "varying"},
            {"shift": 0, "room": 1, "cotangent": "varying"},
        ],
        replicated=True,
    ),
    Row(
        "allreduce",
        call=lambda x, comm, op, **kw: mpixla.allreduce(x, getattr(MPI, op), comm=comm, **kw),
        model=lambda inputs, rank, op, **_: _fold(op, _first(inputs)),
        variants=lambda size: [
            *_reductions(size),
            *({"op": op, "cotangent": "varying"} for op in DIFFERENTIABLE),
        ],
        takes=_takes,
        replicated=True,
    ),
    Row(
        "alltoall",
        call=lambda x, comm: mpixla.alltoall(x, comm=comm),
        model=lambda inputs, rank: np.stack([x[rank] for x in _first(inputs)]),
        shapes=lambda shape, size, **_: [(size, *shape)],
    ),
    Row(
        "alltoallv",
        call=lambda x, comm, shift, room=None: _alltoallv(x, comm, shift, room),
        model=lambda inputs, rank, shift, room=None: _roomy(
            np.concatenate(
                [
                    _part(x[: sum(c)], c, rank)
                    for x, c in ((x, _exchanged(i, len(inputs), shift)[0]) for i, x in enumerate(_first(inputs)))
                ]
            ),
            room,
        ),
        shapes=lambda shape, rank, size, shift, room=0: [(sum(_exchanged(rank, size, shift)[0]) + room, *shape)],
        variants=_shifts,
    ),
    Row(
        "barrier",
        call=lambda comm: mpixla.barrier(comm=comm),
        model=lambda inputs, rank: None,
        shapes=lambda shape, **_: [],
    ),
    Row(
        "bcast",
        call=lambda x, comm, root, **kw: mpixla.bcast(x, root, comm=comm, **kw),
        model=lambda inputs, rank, root, **_: inputs[root][0],
        variants=lambda size: [*_roots(size), {"root": size // 2, "cotangent": "varying"}],
        replicated=True,
    ),
    Row(
        "exscan",
        call=lambda x, comm, op: mpixla.exscan(x, getattr(MPI, op), comm=comm),
        model=lambda inputs, rank, op: _fold(op, _first(inputs)[:rank] or [_neutral(op, inputs[0][0])]),
        variants=_reductions,
        takes=_takes,
    ),
    Row(
        "gather",
        call=lambda x, comm, root: mpixla.gather(x, root, comm=comm),
        model=lambda inputs, rank, root: np.stack(_first(inputs)) if rank == root else inputs[rank][0],
        variants=_roots,
    ),
    Row(
        "gatherv",
        call=lambda x, comm, shift, root, room=None: _with_room(
            mpixla.gatherv, x, comm, _counts(comm.Get_size(), shift), room, root=root
        ),
        model=lambda inputs, rank, shift, root, room=None: (
            _counted(inputs, shift, room) if rank == root else inputs[rank][0]
        ),
        shapes=lambda shape, rank, size, shift, root, room=0: [(_counts(size, shift)[rank] + room, *shape)],
        variants=_rooted_shifts,
    ),
    Row(
        "neighbor_allgather",
        call=lambda x, comm, periodic: mpixla.neighbor_allgather(x, comm=_line(comm, periodic)),
        model=lambda inputs, rank, periodic: np.stack(_from_neighbors(_first(inputs), rank, periodic)),
        variants=_lines,
    ),
    Row(
        "neighbor_alltoall",
        call=lambda x, comm, periodic: mpixla.neighbor_alltoall(x, comm=_line(comm, periodic)),
        model=lambda inputs, rank, periodic: np.stack(
            [x[1 - i] for i, x in enumerate(_from_neighbors(_first(inputs), rank, periodic))]
        ),
        shapes=lambda shape, **_: [(2, *shape)],
        variants=_lines,
    ),
    Row(  # one row down, two up
        "neighbor_alltoallv",
        call=lambda x, comm, periodic, room=None: _neighbor_alltoallv(x, _line(comm, periodic), room),
        model=lambda inputs, rank, periodic, room=None: _rows_from_neighbors(_first(inputs), rank, periodic, room),
        shapes=lambda shape, room=0, **_: [(3 + room, *shape)],
        variants=lambda size: [*_lines(size), {"periodic": False, "room": 1}, {"periodic": True, "room": 2}],
    ),
    Row(
        "halo_exchange",
        call=lambda x, comm, periodic: mpixla.halo_exchange(x, _chain_of(comm, periodic)),
        model=lambda inputs, rank, periodic: _chain(len(inputs), periodic).exchanged(_first(inputs), rank),
        shapes=lambda shape, rank, size, periodic: [(*_chain(size, periodic).shape(rank), *shape)],
        variants=lambda size: [{"periodic": True}, {"periodic": False}],
    ),
    Row(
        "halo_start",
        call=lambda x, comm, periodic: mpixla.wait(mpixla.halo_start(x, _chain_of(comm, periodic))),
        model=lambda inputs, rank, periodic: _chain(len(inputs), periodic).exchanged(_first(inputs), rank),
        shapes=lambda shape, rank, size, periodic: [(*_chain(size, periodic).shape(rank), *shape)],
        variants=lambda size: [{"periodic": True}, {"periodic": False}],
    ),
    Row(
        "iallgather",
        call=lambda x, comm, **kw: mpixla.wait(mpixla.iallgather(x, comm=comm, **kw)),
        model=lambda inputs, rank, **_: np.stack(_first(inputs)),
        variants=lambda size: [{}, {"cotangent": "varying"}],
        replicated=True,
    ),
    Row(
        "iallreduce",
        call=lambda x, comm, op, **kw: mpixla.wait(mpixla.iallreduce(x, getattr(MPI, op), comm=comm, **kw)),
        model=lambda inputs, rank, op, **_: _fold(op, _first(inputs)),
        variants=lambda size: [
            *_reductions(size),
            *({"op": op, "cotangent": "varying"} for op in DIFFERENTIABLE),
        ],
        takes=_takes,
        replicated=True,
    ),
    Row(
        "ialltoall",
        call=lambda x, comm: mpixla.wait(mpixla.ialltoall(x, comm=comm)),
        model=lambda inputs, rank: np.stack([x[rank] for x in _first(inputs)]),
        shapes=lambda shape, size, **_: [(size, *shape)],
    ),
    Row(
        "ibcast",
        call=lambda x, comm, root, **kw: mpixla.wait(mpixla.ibcast(x, root, comm=comm, **kw)),
        model=lambda inputs, rank, root, **_: inputs[root][0],
        variants=lambda size: [*_roots(size), {"root": size // 2, "cotangent": "varying"}],
        replicated=True,
    ),
    Row(
        "ialltoallv",
        call=lambda x, comm, shift: mpixla.ialltoallv(
            x, *_exchanged(comm.Get_rank(), comm.Get_size(), shift), comm=comm
        ).wait(),
        model=lambda inputs, rank, shift: ROW["alltoallv"].model(inputs, rank, shift),
        shapes=lambda shape, rank, size, shift: [(sum(_exchanged(rank, size, shift)[0]), *shape)],
        variants=lambda size: [{"shift": 0}, {"shift": 2}],
    ),
    Row(
        "ibarrier",
        call=lambda comm: mpixla.ibarrier(comm=comm).wait(),
        model=lambda inputs, rank: None,
        shapes=lambda shape, **_: [],
    ),
    Row(
        "iexscan",
        call=lambda x, comm, op: mpixla.iexscan(x, getattr(MPI, op), comm=comm).wait(),
        model=lambda inputs, rank, op: _fold(op, _first(inputs)[:rank] or [_neutral(op, inputs[0][0])]),
        variants=_reductions,
        takes=_takes,
    ),
    Row(
        "igather",
        call=lambda x, comm, root: mpixla.igather(x, root, comm=comm).wait(),
        model=lambda inputs, rank, root: np.stack(_first(inputs)) if rank == root else inputs[rank][0],
        variants=_roots,
    ),
    Row(
        "irecv",
        call=lambda x, comm, **kw: _both_ways(x, comm, **kw),
        model=_sent_and_received,
        variants=_ways,
    ),
    Row(
        "ireduce",
        call=lambda x, comm, op, root: mpixla.ireduce(x, getattr(MPI, op), root, comm=comm).wait(),
        model=lambda inputs, rank, op, root: _fold(op, _first(inputs)) if rank == root else inputs[rank][0],
        variants=_rooted_reductions,
        takes=_takes,
    ),
    Row(
        "ireduce_scatter",
        call=lambda x, comm, op: mpixla.wait(mpixla.ireduce_scatter(x, getattr(MPI, op), comm=comm)),
        model=lambda inputs, rank, op: _fold(op, [x[rank] for x in _first(inputs)]),
        shapes=lambda shape, size, **_: [(size, *shape)],
        variants=_reductions,
        takes=_takes,
    ),
    Row(
        "iscan",
        call=lambda x, comm, op: mpixla.iscan(x, getattr(MPI, op), comm=comm).wait(),
        model=lambda inputs, rank, op: _fold(op, _first(inputs)[: rank + 1]),
        variants=_reductions,
        takes=_takes,
    ),
    Row(
        "iscatter",
        call=lambda x, comm, root: mpixla.iscatter(x, root, comm=comm).wait(),
        model=lambda inputs, rank, root: inputs[root][0][rank],
        shapes=lambda shape, rank, size, root: [(size, *shape) if rank == root else shape],
        variants=_roots,
    ),
    Row(
        "isend",
        call=lambda x, comm, **kw: _isend_then_recv(x, comm, **kw),
        model=_sent_and_received,
        variants=lambda size: [{"step": 1, "by": by} for by in ("ranks", "traced", "walls")],
    ),
    Row(
        "isendrecv",
        call=lambda x, y, comm, **kw: mpixla.wait(_exchanged_over(mpixla.isendrecv, x, y, comm, **kw)),
        model=_arrives,
        shapes=lambda shape, **_: [shape, shape],
        variants=_ways,
    ),
    Row(
        "pvary",
        call=lambda x, comm: mpixla.pvary(x, comm=comm),
        model=lambda inputs, rank: inputs[rank][0],
    ),
    Row(
        "recv",
        call=lambda x, comm, **kw: _send_then_recv(x, comm, **kw),
        model=lambda inputs, rank, **_: inputs[max(rank - 1, 0)][0],
        variants=lambda size: [{"step": 7, "by": by} for by in ("ranks", "traced", "walls")],
        reverse=False,
    ),
    Row(
        "reduce",
        call=lambda x, comm, op, root: mpixla.reduce(x, getattr(MPI, op), root, comm=comm),
        model=lambda inputs, rank, op, root: _fold(op, _first(inputs)) if rank == root else inputs[rank][0],
        variants=_rooted_reductions,
        takes=_takes,
    ),
    Row(
        "reduce_scatter",
        call=lambda x, comm, op: mpixla.reduce_scatter(x, getattr(MPI, op), comm=comm),
        model=lambda inputs, rank, op: _fold(op, [x[rank] for x in _first(inputs)]),
        shapes=lambda shape, size, **_: [(size, *shape)],
        variants=_reductions,
        takes=_takes,
    ),
    Row(
        "scan",
        call=lambda x, comm, op: mpixla.scan(x, getattr(MPI, op), comm=comm),
        model=lambda inputs, rank, op: _fold(op, _first(inputs)[: rank + 1]),
        variants=_reductions,
        takes=_takes,
    ),
    Row(
        "scatter",
        call=lambda x, comm, root: mpixla.scatter(x, root, comm=comm),
        model=lambda inputs, rank, root: inputs[root][0][rank],
        shapes=lambda shape, rank, size, root: [(size, *shape) if rank == root else shape],
        variants=_roots,
    ),
    Row(
        "scatterv",
        call=lambda x, comm, shift, root, room=None: _with_room(
            mpixla.scatterv, x, comm, _counts(comm.Get_size(), shift), room, all_rows=False, root=root
        ),
        model=lambda inputs, rank, shift, root, room=None: _roomy(
            _part(inputs[root][0][: sum(_counts(len(inputs), shift))], _counts(len(inputs), shift), rank), room
        ),
        shapes=lambda shape, rank, size, shift, root, room=0: [
            ((sum(_counts(size, shift)) if rank == root else _counts(size, shift)[rank]) + room, *shape)
        ],
        variants=_rooted_shifts,
    ),
    Row(
        "send",
        call=lambda x, comm, step: mpixla.send(x, MPI.PROC_NULL, tag=step, comm=comm),
        model=lambda inputs, rank, step: None,
        variants=lambda size: [{"step": 0}],
        reverse=False,
    ),
    Row(
        "sendrecv",
        call=lambda x, y, comm, **kw: _exchanged_over(mpixla.sendrecv, x, y, comm, **kw),
        model=_arrives,
        shapes=lambda shape, **_: [shape, shape],
        variants=_ways,
    ),
    Row(
        "shift",
        call=lambda x, comm, step, by: mpixla.shift(x, step, comm=_ends(comm, step, by)[2]),
        model=_arrives,
        variants=lambda size: [
            {"step": step, "by": by} for step, by in ((0, "ring"), (-2, "ring"), (1, "torus"), (1, "walls"))
        ],
    ),
]

ROW = {row.name: row for row in ROWS}


def operands(
    row: Row, dtype: np.dtype, shape: Shape, rank: int, size: int, draw: int = 0, **variant: Any
) -> list[np.ndarray]:
    """Return the operands of one rank: small random values, equal on all ranks that ask; new ones for each draw."""
    rng = np.random.default_rng([rank, sum(row.name.encode()), draw])
    return [_values(rng, dtype, s) for s in row.shapes(shape=shape, rank=rank, size=size, **variant)]


def _values(rng: np.random.Generator, dtype: np.dtype, shape: Shape) -> np.ndarray:
    whole = rng.integers(-3, 4, shape)
    if dtype.kind == "b":
        return np.asarray(whole > 0)
    if dtype.kind == "u":
        return np.asarray(abs(whole)).astype(dtype)
    if dtype.kind == "c":
        return (whole + 1j * rng.integers(-3, 4, shape)).astype(dtype)
    if dtype.name == "float8_e8m0fnu":  # powers of two only
        return np.asarray(2.0 ** abs(whole)).astype(dtype)
    if dtype.itemsize == 1 and dtype.kind in "fV":  # few enough bits that only such sums and products are exact
        return np.asarray(rng.choice([-1, 0, 0.5, 1], shape)).astype(dtype)
    return np.asarray(whole * 0.5 if dtype.kind in "fV" else whole).astype(dtype)


# Which ranks have NaN in an array that `special` draws.
NAN_ON = ("none", "first", "last", "every", "random")


def special(
    row: Row, dtype: np.dtype, shape: Shape, rank: int, size: int, nan_on: str, **variant: Any
) -> list[np.ndarray]:
    """Return the operands of one rank: infinities, signed zeros, subnormals and other numbers of a float, and NaNs."""
    rng = np.random.default_rng([rank, sum(row.name.encode()), NAN_ON.index(nan_on), 2])
    codes = _special_codes(dtype)
    is_nan = np.isnan(codes.astype(np.float64))
    drawn = []
    for s in row.shapes(shape=shape, rank=rank, size=size, **variant):
        chance = {"first": rank == 0, "last": rank == size - 1, "every": 1, "random": 0.3}.get(nan_on, 0)
        numbers, nans = (rng.choice(codes[mask].view(f"u{dtype.itemsize}"), s) for mask in (~is_nan, is_nan))
        drawn.append(np.where(rng.random(s) < chance, nans, numbers).view(dtype))
    return drawn


def _special_codes(dtype: np.dtype) -> np.ndarray:
    """Return all codes of an 8-bit type; of a larger type the codes at limits of its format, with both signs."""
    if dtype.itemsize == 1:
        return np.arange(256, dtype=np.uint8).view(dtype)
    info = ml_dtypes.finfo(dtype)
    least, one, infinity = (int(np.array(x, dtype).view(f"u{dtype.itemsize}")) for x in (info.tiny, 1, np.inf))
    codes = [0, 1, least - 1, least, one, infinity - 1, infinity]
    codes += [infinity + 1, infinity + least // 2, infinity + least // 2 + 1, infinity + least - 1]  # NaNs
    sign = 1 << (info.bits - 1)
    return np.array([*codes, *(code | sign for code in codes)], f"u{dtype.itemsize}").view(dtype)


def expected(row: Row, dtype: np.dtype, shape: Shape, rank: int, size: int, draw: int = 0, **variant: Any) -> Any:
    """Return the right result of the row's operation on one rank."""
    inputs = [operands(row, dtype, shape, r, size, draw, **variant) for r in range(size)]
    return row.model(inputs, rank, **variant)


def normal(row: Row, shape: Shape, rank: int, size: int, draw: int = 0, **variant: Any) -> list[np.ndarray]:
    """Return the operands of one rank as doubles that no two ranks share, for derivatives."""
    rng = np.random.default_rng([rank, sum(row.name.encode()), draw, 1])
    return [rng.normal(size=s) for s in row.shapes(shape=shape, rank=rank, size=size, **variant)]


def difference(row: Row, inputs: list[Any], tangents: list[Any], rank: int, **variant: Any) -> np.ndarray:
    """Return the derivative of one rank's result along all ranks' tangents, by central differences of the model."""
    step = 1e-6

    def at(h: float) -> Any:
        moved = [[x + h * t for x, t in zip(*pair, strict=True)] for pair in zip(inputs, tangents, strict=True)]
        return np.asarray(row.model(moved, rank, **variant))

    ahead, behind = at(step), at(-step)
    # Where nothing changes the value may be infinite (the neutral element of MAX).
    return np.subtract(ahead, behind, where=ahead != behind, out=np.zeros_like(ahead)) / (2 * step)


def in_turn(cases: list[Any], choices: list[Any]) -> list[Any]:
    """Return each case with one of the choices, in turn: all pairs would take too long."""
    import pytest  # the rest of this file is used without it, too

    return [
        pytest.param(*case.values, choices[i % len(choices)], id=f"{case.id}-{choices[i % len(choices)]}")
        for i, case in enumerate(cases)
    ]


def bits(x: Any) -> np.ndarray:
    """Return an array's bytes, so that types that NumPy does not know are compared exactly."""
    x = np.ascontiguousarray(x)
    return np.frombuffer(x.tobytes(), np.uint8)
