"""Communication between neighbours on communicators with a topology: Cartesian ones and graphs.

All three operations are one exchange of messages (native/ops/exchange.h). MPI's own neighbourhood collectives are not
used: MPIs differ on two periodic ranks, and one of them hangs where a rank has no sources.
"""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import ShapedArray

from ..core.primitive import as_array, compose, make
from ..core.rules import define_batching, define_linear
from ..core.spmd import Primitive
from ..core.tree import moves
from ..core.values import split
from ..mpi.comm import Comm, comm_of, forget_when_freed
from ..mpi.mpi import MPI
from .arguments import as_capacity, as_counts, as_integer, refuse_traced_counts
from .vector import check_no_template, with_rows, zeros_behind

# Topologies. Programs only say how many neighbours there are: who they are, the C library knows
# (native/mpi/topology.h).


class Degrees(NamedTuple):
    """How many slots a rank has for what it sends, and for what it receives."""

    out: int
    in_: int


_known: dict[Comm, Degrees] = {}  # a communicator's topology never changes, nor is its number used again
forget_when_freed(_known)


def _degrees_of(comm: Any, name: str) -> tuple[Comm, Degrees]:
    number = comm_of(comm)
    if number not in _known:
        topology = MPI.UNDEFINED if comm is None else comm.Get_topology()
        if topology == MPI.CART:
            out = in_ = 2 * MPI.Cartcomm(comm).Get_dim()
        elif topology == MPI.GRAPH:
            _refuse_one_way_edges(MPI.Graphcomm(comm), number, name)
            out = in_ = MPI.Graphcomm(comm).Get_neighbors_count(number.rank)
        elif topology == MPI.DIST_GRAPH:
            in_, out = (len(ranks) for ranks in MPI.Distgraphcomm(comm).Get_dist_neighbors()[:2])
        else:
            raise ValueError(
                f"{name} needs a communicator with a topology, which says who is whose neighbour, but '{number.name}' "
                "has none. Make one with comm.Create_cart(dims, periods) or comm.Create_dist_graph_adjacent(sources, "
                "destinations), and pass that."
            )
        _known[number] = Degrees(out, in_)
    return number, _known[number]


def _refuse_one_way_edges(comm: MPI.Graphcomm, number: Comm, name: str) -> None:
    index, edges = comm.Get_topo()
    starts = [0, *index]
    counts = Counter((rank, edge) for rank in range(number.size) for edge in edges[starts[rank] : starts[rank + 1]])
    for (rank, edge), count in sorted(counts.items()):
        if counts[edge, rank] != count:
            raise ValueError(
                f"{name} needs a graph in which each edge goes both ways, but that of '{number.name}' has {count} "
                f"from rank {rank} to rank {edge} and {counts[edge, rank]} back. For edges of one direction make the "
                "communicator with Create_dist_graph_adjacent(sources, destinations)."
            )


# The exchange. Its row in native/tables/ops.def takes flat arrays, and counts items. With `back` all goes along the
# same edges in the other direction.


def _flat(
    x: ShapedArray, *values: ShapedArray, recvcounts: Any, capacity: int | None = None, **params: Any
) -> list[ShapedArray]:
    return [x.update(shape=(sum(recvcounts),) if capacity is None else (capacity, x.shape[1]))]


_row = make("exchange", _flat)


def _call(
    x: Any, comm: Comm, back: bool, sendcounts: Sequence[int], sendoffsets: Sequence[int], recvcounts: Sequence[int]
) -> Any:
    return _row.bind(
        x.reshape(-1),
        back=back,
        comm=comm,
        recvcounts=tuple(recvcounts),
        sendcounts=tuple(sendcounts),
        sendoffsets=tuple(sendoffsets),
    )[0]


# Of slots behind each other, each with a number of rows of the first axis. The transpose goes the other way. Counts
# that are known only at run time are one operand, first those of what is received: `arriving` says how many these are.


def _rows(
    x: ShapedArray,
    *values: ShapedArray,
    comm: Comm,
    back: bool,
    sendcounts: Any,
    recvcounts: Any,
    capacity: int | None = None,
    arriving: int | None = None,
) -> list[ShapedArray]:
    return [x.update(shape=(sum(recvcounts) if capacity is None else capacity, *x.shape[1:]))]


def _exchange_fun(
    x: Any,
    *values: Any,
    comm: Comm,
    back: bool,
    sendcounts: Any,
    recvcounts: Any,
    capacity: int | None = None,
    arriving: int | None = None,
) -> list[Any]:
    row = math.prod(x.shape[1:])
    if capacity is not None:
        flat, received, sent = x.reshape(x.shape[0], row), values[0][:arriving], values[0][arriving:]
        return _exchange_at_run_time(flat, received, sent, comm, back, capacity, x.shape[1:])
    send = [row * count for count in sendcounts]
    offsets = [end - count for end, count in zip(accumulate(send), send, strict=True)]
    y = _call(x, comm, back, send, offsets, [row * count for count in recvcounts])
    return [y.reshape(sum(recvcounts), *x.shape[1:])]


def _exchange_at_run_time(
    x: Any, received: Any, sent: Any, comm: Comm, back: bool, capacity: int, row: tuple[int, ...]
) -> list[Any]:
    """Counts of rows, which the C library makes counts of items."""
    offsets = jnp.cumsum(sent) - sent
    known, numbers = split({"recvcounts": received, "sendcounts": sent, "sendoffsets": offsets})
    (y,) = _row.bind(x, *numbers, back=back, comm=comm, capacity=capacity, **known)
    return [y.reshape(capacity, *row)]


_exchange: Primitive = compose("neighbor_exchange", _rows, _exchange_fun)


def _exchange_transpose(
    ct: Any,
    *,
    types: Any,
    comm: Comm,
    back: bool,
    sendcounts: Any,
    recvcounts: Any,
    capacity: int | None = None,
    arriving: int | None = None,
    values: Sequence[Any] = (),
) -> list[Any]:
    turned = {"comm": comm, "back": not back, "sendcounts": recvcounts, "recvcounts": sendcounts}
    if capacity is None:
        return _exchange.bind(ct, **turned)
    received, sent = values[0][:arriving], values[0][arriving:]
    numbers = jnp.concatenate([sent, received])
    return _exchange.bind(ct, numbers, capacity=types[0].shape[0], arriving=sent.shape[0], **turned)


define_linear(_exchange, _exchange_transpose)
define_batching(_exchange, lambda **params: (1, 1))


# Of one array that goes to all destinations, straight from where it lies. Its transpose adds up what comes back.


def _stacked(x: ShapedArray, *, comm: Comm, degrees: Degrees) -> list[ShapedArray]:
    return [x.update(shape=(degrees.in_, *x.shape))]


def _unstacked(x: ShapedArray, **params: Any) -> list[ShapedArray]:
    return [x.update(shape=x.shape[1:])]


def _gather_fun(x: Any, *, comm: Comm, degrees: Degrees) -> list[Any]:
    out, in_ = degrees
    y = _call(x, comm, False, (x.size,) * out, (0,) * out, (x.size,) * in_)
    return [y.reshape(in_, *x.shape)]


def _gather_transpose_fun(ct: Any, *, comm: Comm, degrees: Degrees) -> list[Any]:
    ones = {"sendcounts": (1,) * degrees.in_, "recvcounts": (1,) * degrees.out}
    (parts,) = _exchange.bind(ct, comm=comm, back=True, **ones)
    return [jnp.sum(parts, axis=0, dtype=ct.dtype)]


_gather = compose("neighbor_allgather", _stacked, _gather_fun)
_gather_transpose = compose("neighbor_allgather_transpose", _unstacked, _gather_transpose_fun)

define_linear(_gather, lambda ct, *, types, **params: _gather_transpose.bind(ct, **params))
define_linear(_gather_transpose, lambda ct, *, types, **params: _gather.bind(ct, **params))
define_batching(_gather, lambda **params: (0, 1))
define_batching(_gather_transpose, lambda **params: (1, 0))


# The operations


def _counts(counts: Any, what: str, name: str, degree: int) -> tuple[int, ...]:
    refuse_traced_counts(counts, what, name)
    try:
        values = tuple(as_integer(count, f"each of {what}", name) for count in counts)
    except TypeError as e:
        if "must be an integer" in str(e):
            raise
        raise TypeError(f"{what} of {name} must be a sequence of integers, but is {counts!r}.") from None
    if len(values) != degree or min(values, default=0) < 0:
        raise ValueError(
            f"{what} of {name} must be one number of rows, 0 or more, for each of this rank's {degree} slots, but is "
            f"{values}."
        )
    return values


@moves()
def neighbor_allgather(x: Any, *, comm: MPI.Topocomm) -> Any:
    """Sends this rank's array to all its neighbours, and receives theirs.

    Args:
        x: this rank's array, of the same shape and dtype on all ranks, or a pytree of such arrays.
        comm: a communicator with a topology. On one from ``Create_cart`` the slots are, for each dimension, the
            neighbour below and the one above; on a graph they are the edges: those that come in for what is received,
            those that go out for what is sent.

    Returns:
        An array of shape ``(slots, *x.shape)`` with what each neighbour sent, in the order of the slots. Zeros where a
        Cartesian communicator that is not periodic has no neighbour.

    Derivative:
        Linear. Reverse mode: each neighbour's cotangent goes back to it, and this rank's are added up.

    Raises:
        TypeError: for a ``comm`` that is no intra-communicator or a dtype that MPI cannot move.
        ValueError: for a communicator without a topology or with a graph whose edges go one way only
            (``Create_graph``), or one that was freed.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> from mpi4py import MPI
        >>> size = MPI.COMM_WORLD.Get_size()
        >>> ring = MPI.COMM_WORLD.Create_cart([size], periods=[True])
        >>> below, above = mpixla.neighbor_allgather(jnp.float32(ring.Get_rank()), comm=ring)
        >>> (float(below), float(above)) == ((ring.Get_rank() - 1) % size, (ring.Get_rank() + 1) % size)
        True
        >>> ring.Free()
    """
    x = as_array(x, "x", "neighbor_allgather")
    c, degrees = _degrees_of(comm, "neighbor_allgather")
    return _gather.bind(x, comm=c, degrees=degrees)[0]


@moves()
def neighbor_alltoall(x: Any, *, comm: MPI.Topocomm) -> Any:
    """Sends a slice of this rank's array to each of its neighbours, and receives one from each.

    Args:
        x: this rank's array of shape ``(slots, ...)`` with what goes to each neighbour. Slices have the same shape
            and dtype on all ranks. Or a pytree of such arrays.
        comm: a communicator with a topology, whose slots are those of ``neighbor_allgather``.

    Returns:
        An array of shape ``(slots, ...)`` with what each neighbour sent. What was sent down in a dimension of a
        Cartesian communicator arrives from above, also where one rank is both. Zeros where there is no neighbour.

    Derivative:
        Linear. Reverse mode: the ``neighbor_alltoall`` along the same edges in the other direction.

    Raises:
        TypeError: for a ``comm`` that is no intra-communicator or a dtype that MPI cannot move.
        ValueError: for a first axis that does not have one entry for each slot, for a communicator without a topology
            or with a graph whose edges go one way only (``Create_graph``), or one that was freed.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> from mpi4py import MPI
        >>> ring = MPI.COMM_WORLD.Create_cart([MPI.COMM_WORLD.Get_size()], periods=[True])
        >>> mpixla.neighbor_alltoall(jnp.array([-1, 1]), comm=ring)  # what comes from below was sent up
        Array([ 1, -1], dtype=int32)
        >>> ring.Free()
    """
    x = as_array(x, "x", "neighbor_alltoall")
    c, degrees = _degrees_of(comm, "neighbor_alltoall")
    if x.ndim == 0 or x.shape[0] != degrees.out:
        raise ValueError(
            f"neighbor_alltoall needs an array whose first axis has one entry for each of this rank's {degrees.out} "
            f"destinations on communicator '{c.name}', but x has shape {x.shape}."
        )
    ones = {"sendcounts": (1,) * degrees.out, "recvcounts": (1,) * degrees.in_}
    return _exchange.bind(x, comm=c, back=False, **ones)[0]


@moves()
def _alltoallv_fixed(x: Any, sendcounts: Any, recvcounts: Any, *, comm: Any) -> jax.Array:
    x = as_array(x, "x", "neighbor_alltoallv")
    c, degrees = _degrees_of(comm, "neighbor_alltoallv")
    send = _counts(sendcounts, "sendcounts", "neighbor_alltoallv", degrees.out)
    receive = _counts(recvcounts, "recvcounts", "neighbor_alltoallv", degrees.in_)
    if x.ndim == 0 or x.shape[0] != sum(send):
        raise ValueError(
            f"neighbor_alltoallv needs an array with as many rows as sendcounts has in all, {sum(send)}, but x has "
            f"shape {x.shape}."
        )
    return _exchange.bind(x, comm=c, back=False, sendcounts=send, recvcounts=receive)[0]


@moves()
def _alltoallv_at_run_time(x: Any, sendcounts: Any, recvcounts: Any, **params: Any) -> jax.Array:
    known, values = split({"recvcounts": recvcounts, "sendcounts": sendcounts})
    return _exchange.bind(with_rows(x, "neighbor_alltoallv"), *values, back=False, **known, **params)[0]


def neighbor_alltoallv(
    x: Any,
    sendcounts: Any,
    recvcounts: Any = None,
    *,
    capacity: int | None = None,
    template: Any = None,
    comm: MPI.Topocomm,
) -> Any:
    """Sends some rows of this rank's array to each of its neighbours, and receives some from each.

    Args:
        x: this rank's array; its rows, the entries of the first axis, are for one slot after the other. With a capacity
            it may have more rows, which do not count. Or a pytree of such arrays.
        sendcounts: for each slot, how many rows go there: static integers. With a capacity they may be traced.
        recvcounts: for each slot, how many rows come from there, as its other end sends: static integers. With a
            capacity they may be traced, or all ranks leave them out and tell each other.
        capacity: how many rows the result has room for, a static integer, which may differ between ranks. Then counts
            are known only at run time, and one program takes any of them.
        template: with a capacity, an array like the result, whose rows remain behind those that came.
        comm: a communicator with a topology, whose slots are those of ``neighbor_allgather``.

    Returns:
        An array of ``sum(recvcounts)`` rows, from one slot after the other. Zeros where there is no neighbour. With a
        capacity an array of ``capacity`` rows that begins with these, zeros behind them; and the counts received.

    Derivative:
        Linear. Reverse mode: the ``neighbor_alltoallv`` along the same edges in the other direction; zeros for rows
        that do not count.

    Raises:
        TypeError: for counts that are not static integers (with a capacity, integers), a ``template`` without a
            capacity, a ``comm`` that is no intra-communicator, or a dtype that MPI cannot move.
        ValueError: for counts that are negative or not one for each slot, or whose sum is not the number of ``x``'s
            rows, a ``template`` that is not like the result, a communicator without a topology or with a graph whose
            edges go one way only (``Create_graph``), or one that was freed.
        jax.errors.JaxRuntimeError: when running, for counts that are more rows than there is room for.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> from mpi4py import MPI
        >>> ring = MPI.COMM_WORLD.Create_cart([MPI.COMM_WORLD.Get_size()], periods=[True])
        >>> mpixla.neighbor_alltoallv(jnp.array([-1, 1, 2]), sendcounts=[1, 2], recvcounts=[2, 1], comm=ring)
        Array([ 1,  2, -1], dtype=int32)
        >>> rows, received = mpixla.neighbor_alltoallv(jnp.array([-1, 1, 2]), jnp.array([1, 2]), capacity=4, comm=ring)
        >>> rows.tolist(), received.tolist()
        ([1, 2, -1, 0], [2, 1])
        >>> ring.Free()
    """
    name = "neighbor_alltoallv"
    if capacity is None:
        check_no_template(template, name)
        return _alltoallv_fixed(x, sendcounts, recvcounts, comm=comm)
    c, degrees = _degrees_of(comm, name)
    room, sent = as_capacity(capacity, name), as_counts(sendcounts, "sendcounts", name, degrees.out, "destination")
    if recvcounts is None:
        ones = {"sendcounts": (1,) * degrees.out, "recvcounts": (1,) * degrees.in_}
        received = _exchange.bind(sent, comm=c, back=False, **ones)[0]
    else:
        received = as_counts(recvcounts, "recvcounts", name, degrees.in_, "source")
    rows = _alltoallv_at_run_time(x, sent, received, comm=c, capacity=room, arriving=degrees.in_)
    return zeros_behind(rows, received.sum(), template, name), received
