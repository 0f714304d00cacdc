"""Communication between neighbours on communicators with a topology: Cartesian ones and graphs.

All three operations are one exchange of messages (native/neighbours/exchange.h). MPI's own neighbourhood collectives
are not used: MPIs differ on two periodic ranks, and one of them hangs where a rank has no sources.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple, overload

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.typing import ArrayLike

from ..core.eager import eager
from ..core.primitive import as_array, compose_primitive, make_primitive
from ..core.tree import Tree, as_leaf, call_per_leaf, unwrap_keys
from ..jaxprs.spmd import Primitive, with_shape
from ..mpi.comm import Comm, comm_of
from ..mpi.mpi import MPI
from .arguments import as_capacity, as_counts
from .shapes import BATCH_SECOND, stack_batch_axes
from .vector import bind, communicate_rows, exchanged_abstract_eval, with_capacity, with_template_and_counts

# Topologies. Programs contain only the numbers of neighbours; the C library looks up their ranks
# (native/mpi/topology.h).


class Degrees(NamedTuple):
    """The numbers of a rank's slots for sending and for receiving."""

    out: int
    in_: int


def _degrees_of(comm: Any, name: str) -> tuple[Comm, Degrees]:
    """Return the Comm, and this rank's numbers of destinations and sources; ValueError without a fit topology."""
    number = comm_of(comm)
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
            f"{name} needs a communicator with a topology, which defines the neighbours, but '{number.name}' has "
            "none. Make one with comm.Create_cart(dims, periods) or comm.Create_dist_graph_adjacent(sources, "
            "destinations), and pass that."
        )
    return number, Degrees(out, in_)


def _refuse_one_way_edges(comm: MPI.Graphcomm, number: Comm, name: str) -> None:
    """Raise ValueError if an edge of an ``MPI.Graphcomm`` occurs more often in one direction than in the other."""
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


# The exchange, its row in native/tables/ops.def. Counts and offsets are of rows, entries of the first axis; received
# rows lie in the order of the slots. With `back` rows go along the same edges in the other direction.


def _exchange_rows(
    x: Any, sendcounts: Any, recvcounts: Any, comm: Comm, degrees: Degrees, back: bool, capacity: int | None = None
) -> Any:
    """Send rows to the neighbours, in the order of their slots, and return the received rows in that order."""
    if capacity is None:
        offsets: Any = tuple(end - count for end, count in zip(accumulate(sendcounts), sendcounts, strict=True))
    else:
        offsets = jnp.cumsum(sendcounts) - sendcounts
    counts = {"recvcounts": recvcounts, "sendcounts": sendcounts, "sendoffsets": offsets}
    return bind(exchange_p, x, counts, comm=comm, degrees=degrees, back=back, capacity=capacity)


@with_capacity
def _exchange_transpose_rule(
    ct: Any,
    *,
    types: Any,
    comm: Comm,
    degrees: Degrees,
    back: bool,
    sendcounts: Any,
    recvcounts: Any,
    sendoffsets: Any,
    capacity: int | None,
    values: Sequence[Any] = (),
) -> list[Any]:
    """Send the cotangent's rows back to the neighbours from which the rows came."""
    if capacity is not None:
        sources = degrees.out if back else degrees.in_
        recvcounts, sendcounts, _ = jnp.split(values[0], [sources, sum(degrees)])
    return [_exchange_rows(ct, recvcounts, sendcounts, comm, degrees, not back, capacity)]


exchange_p: Primitive = make_primitive(
    "exchange", exchanged_abstract_eval, batch=BATCH_SECOND, transpose=_exchange_transpose_rule
)


# One array goes to all destinations, without a copy for each. The transpose adds up the cotangents that come back.


def _neighbor_allgather_abstract_eval(x: ShapedArray, *, comm: Comm, degrees: Degrees) -> list[ShapedArray]:
    return [with_shape(x, (degrees.in_, *x.shape))]


def _neighbor_allgather_impl(x: Any, *, comm: Comm, degrees: Degrees) -> list[Any]:
    counts = {"sendcounts": (1,) * degrees.out, "sendoffsets": (0,) * degrees.out, "recvcounts": (1,) * degrees.in_}
    return exchange_p.bind(x[None], **counts, comm=comm, degrees=degrees, back=False, capacity=None)


def _neighbor_allgather_transpose_rule(ct: Any, *, types: Any, comm: Comm, degrees: Degrees) -> list[Any]:
    parts = _exchange_rows(ct, (1,) * degrees.in_, (1,) * degrees.out, comm, degrees, back=True)
    return [jnp.sum(parts, axis=0, dtype=ct.dtype)]


neighbor_allgather_p: Primitive = compose_primitive(
    "neighbor_allgather",
    _neighbor_allgather_abstract_eval,
    _neighbor_allgather_impl,
    batch=stack_batch_axes,
    transpose=_neighbor_allgather_transpose_rule,
)


# The operations


# An array for an array, and for a pytree one of the same structure.
@overload
def neighbor_allgather(x: ArrayLike, *, comm: MPI.Topocomm) -> jax.Array: ...
@overload
def neighbor_allgather(x: Tree, *, comm: MPI.Topocomm) -> Tree: ...
@call_per_leaf()
def neighbor_allgather(x: Any, *, comm: MPI.Topocomm) -> Any:
    """Send this rank's array to all its neighbours, and receive theirs.

    Args:
        x: this rank's array, of the same shape and dtype on all ranks, or a pytree of such arrays.
        comm: a communicator with a topology. On one from ``Create_cart`` the slots are, for each dimension, the
            neighbour below and the one above; on a graph they are the edges: incoming edges for receiving, outgoing
            edges for sending.

    Returns:
        An array of shape ``(slots, *x.shape)`` with the neighbours' arrays, in the order of the slots. Zeros where a
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
    return neighbor_allgather_p.bind(x, comm=c, degrees=degrees)[0]


# An array for an array, and for a pytree one of the same structure.
@overload
def neighbor_alltoall(x: ArrayLike, *, comm: MPI.Topocomm) -> jax.Array: ...
@overload
def neighbor_alltoall(x: Tree, *, comm: MPI.Topocomm) -> Tree: ...
@call_per_leaf(keys=True)
def neighbor_alltoall(x: Any, *, comm: MPI.Topocomm) -> Any:
    """Send a slice of this rank's array to each of its neighbours, and receive one from each.

    Args:
        x: this rank's array of shape ``(slots, ...)`` with a slice for each neighbour. Slices have the same shape and
            dtype on all ranks. Or a pytree of such arrays.
        comm: a communicator with a topology, whose slots are those of ``neighbor_allgather``.

    Returns:
        An array of shape ``(slots, ...)`` with each neighbour's slice. A slice sent down in a dimension of a Cartesian
        communicator arrives from above, also where one rank is both. Zeros where there is no neighbour.

    Derivative:
        Linear. Reverse mode: the ``neighbor_alltoall`` along the same edges in the other direction.

    Raises:
        TypeError, ValueError: as ``neighbor_allgather``, and for a first axis that does not have one entry for each
            slot.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> from mpi4py import MPI
        >>> ring = MPI.COMM_WORLD.Create_cart([MPI.COMM_WORLD.Get_size()], periods=[True])
        >>> mpixla.neighbor_alltoall(jnp.array([-1, 1]), comm=ring)  # what comes from below was sent up
        Array([ 1, -1], dtype=int32)
        >>> ring.Free()
    """
    x = as_leaf(x, "x", "neighbor_alltoall")
    c, degrees = _degrees_of(comm, "neighbor_alltoall")
    if x.ndim == 0 or x.shape[0] != degrees.out:
        raise ValueError(
            f"neighbor_alltoall needs an array whose first axis has one entry for each of this rank's {degrees.out} "
            f"destinations on communicator '{c.name}', but x has shape {x.shape}."
        )
    return _exchange_rows(unwrap_keys(x), (1,) * degrees.out, (1,) * degrees.in_, c, degrees, back=False)


# An array for an array, a pytree for a pytree; with ``capacity`` a pair of it and the counts.
@overload
def neighbor_alltoallv(
    x: ArrayLike, sendcounts: Any, recvcounts: Any = ..., *, capacity: None = ..., comm: MPI.Topocomm
) -> jax.Array: ...
@overload
def neighbor_alltoallv(
    x: ArrayLike, sendcounts: Any, recvcounts: Any = ..., *, capacity: int, template: Any = ..., comm: MPI.Topocomm
) -> tuple[jax.Array, jax.Array]: ...
@overload
def neighbor_alltoallv(
    x: Tree, sendcounts: Any, recvcounts: Any = ..., *, capacity: None = ..., comm: MPI.Topocomm
) -> Tree: ...
@overload
def neighbor_alltoallv(
    x: Tree, sendcounts: Any, recvcounts: Any = ..., *, capacity: int, template: Any = ..., comm: MPI.Topocomm
) -> tuple[Tree, jax.Array]: ...
@eager(1)
def neighbor_alltoallv(
    x: Any,
    sendcounts: Any,
    recvcounts: Any = None,
    *,
    capacity: int | None = None,
    template: Any = None,
    comm: MPI.Topocomm,
) -> Any:
    """Send some rows of this rank's array to each of its neighbours, and receive some from each.

    Args:
        x: this rank's array; its rows, the entries of the first axis, are for one slot after the other. With a capacity
            it may have more rows, which do not count. Or a pytree of such arrays.
        sendcounts: for each slot, how many rows go there: static integers. With a capacity they may be traced.
        recvcounts: for each slot, how many rows come from there, as its other end sends: static integers. With a
            capacity they may be traced, or all ranks leave them out and tell each other.
        capacity: how many rows the result has room for, as of ``alltoallv``.
        template: an array like the result, as of ``alltoallv``.
        comm: a communicator with a topology, whose slots are those of ``neighbor_allgather``.

    Returns:
        An array of ``sum(recvcounts)`` rows, from one slot after the other. Zeros where there is no neighbour. With a
        capacity an array of ``capacity`` rows that begins with these, zeros behind them; and the counts received.

    Derivative:
        Linear. Reverse mode: the ``neighbor_alltoallv`` along the same edges in the other direction; zeros for rows
        that do not count.

    Raises:
        TypeError, ValueError, jax.errors.JaxRuntimeError: as ``alltoallv``, for counts that are not one for each slot,
            and for a communicator as ``neighbor_allgather``.

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
    capacity, (c, degrees) = as_capacity(capacity, template, name), _degrees_of(comm, name)
    each = "each of this rank's {} {}s".format
    sent = as_counts(sendcounts, "sendcounts", name, degrees.out, each(degrees.out, "destination"), capacity)
    if capacity is not None and recvcounts is None:
        received = _exchange_rows(sent, (1,) * degrees.out, (1,) * degrees.in_, c, degrees, back=False)
    else:
        received = as_counts(recvcounts, "recvcounts", name, degrees.in_, each(degrees.in_, "source"), capacity)
    fits = (sum(sent), "the sum of sendcounts") if capacity is None else None
    rows = communicate_rows(
        x, name, fits, lambda x: _exchange_rows(x, sent, received, c, degrees, back=False, capacity=capacity)
    )
    return with_template_and_counts(rows, received, capacity, template, name)
