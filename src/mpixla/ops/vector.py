"""The operations whose parts differ in size between ranks: MPI's functions with a "v".

Their counts are rows, entries of the first axis. They are known when tracing, and shapes follow from them; or the user
says how many rows there is room for, the capacity, and counts are known only at run time (core/values.py). The batch of
a vmap makes each row larger: it travels as the second axis.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray

from ..core.primitive import REPLICATED, VARYING, Cotangent, as_array, compose, make
from ..core.rank import own_rank
from ..core.rules import define_batching, define_linear
from ..core.spmd import Primitive
from ..core.tree import moves
from ..core.values import split
from ..mpi.comm import Comm, comm_of
from ..mpi.mpi import MPI
from .arguments import (
    as_capacity,
    as_convention,
    as_counts,
    as_integer,
    as_integers,
    as_rank,
    refuse_traced_counts,
    refuse_where_sharded,
)
from .collective import SUM, allgather_p, allreduce_p, alltoall_p, bcast_p

# Checks of arguments.

_LIMIT = 2**63


def _counts(value: Any, what: str, name: str, comm: Comm) -> tuple[int, ...]:
    refuse_traced_counts(value, what, name)
    is_sequence = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
    if not is_sequence and not (isinstance(value, (np.ndarray, jax.Array)) and value.ndim == 1):
        raise TypeError(
            f"{what} of {name} must be a sequence of integers, one for each of the {comm.size} ranks of communicator "
            f"'{comm.name}', but is {value!r}."
        )
    counts = tuple(as_integer(count, f"{what}[{i}]", name) for i, count in enumerate(value))
    if len(counts) != comm.size:
        raise ValueError(
            f"{what} of {name} must have one entry for each of the {comm.size} ranks of communicator '{comm.name}', "
            f"but has {len(counts)}: {counts}."
        )
    for i, count in enumerate(counts):
        if count < 0:
            raise ValueError(f"{what}[{i}] of {name} is {count}, but a number of rows is not negative.")
    if sum(counts) >= _LIMIT:
        raise ValueError(f"{what} of {name} are {sum(counts)} rows, but an array has fewer than 2**63.")
    return counts


def _check_rows(x: jax.Array, rows: int, meaning: str, name: str) -> None:
    if x.ndim == 0:
        raise ValueError(f"{name} communicates rows, entries of the first axis, but x is a scalar and has no axis.")
    if x.shape[0] != rows:
        raise ValueError(f"{name} needs an x with {rows} rows on this rank, {meaning}, but x has shape {x.shape}.")


# At run time.


def zeros_behind(rows: Any, count: Any, template: Any, name: str) -> Any:
    """The rows that came, and behind them those of the template, if there is one, instead of zeros."""
    if template is None:
        return rows

    def of_leaf(y: Any, t: Any) -> Any:
        if jnp.shape(t) != y.shape or jnp.result_type(t) != y.dtype:
            raise ValueError(
                f"template of {name} must be like the result, {y.dtype}{list(y.shape)}, but is "
                f"{jnp.result_type(t)}{list(jnp.shape(t))}."
            )
        came = jnp.arange(y.shape[0]) < count
        return jnp.where(came.reshape(-1, *(1,) * (y.ndim - 1)), y, t)

    return jax.tree.map(of_leaf, rows, template)


def check_no_template(template: Any, name: str) -> None:
    """Refuses a template where the result has no rows behind those that come."""
    if template is not None:
        raise TypeError(
            f"{name} takes a template only with a capacity: without it the result has no rows but those that come."
        )


def with_rows(x: Any, name: str) -> jax.Array:
    """The data argument as an array that has a first axis."""
    x = as_array(x, "x", name)
    if x.ndim == 0:
        _check_rows(x, 0, "", name)
    return x


# What the operations share.


def _resized(x: ShapedArray, rows: int) -> list[ShapedArray]:
    return [x.update(shape=(rows, *x.shape[1:]))]


def _all_rows(
    x: ShapedArray, *values: ShapedArray, counts: Any, capacity: int | None = None, **params: Any
) -> list[ShapedArray]:
    return _resized(x, sum(counts) if capacity is None else capacity)


def _own_rows(
    x: ShapedArray, *values: ShapedArray, comm: Comm, counts: Any, capacity: int | None = None, **params: Any
) -> list[ShapedArray]:
    return _resized(x, counts[comm.rank] if capacity is None else capacity)


def _all_rows_on_root(x: ShapedArray, *values: ShapedArray, comm: Comm, root: int, **params: Any) -> list[ShapedArray]:
    return _all_rows(x, **params) if comm.rank == root else [x]


def _slice(x: Any, values: Sequence[Any], comm: Comm, counts: Any, capacity: int | None) -> Any:
    """This rank's rows; at run time with zeros behind them."""
    if capacity is None:
        starts = np.cumsum((0, *counts[:-1]))
        return jax.lax.dynamic_slice_in_dim(x, jnp.asarray(starts)[own_rank(comm)], counts[comm.rank])
    count, rank = values[0], own_rank(comm)
    places = jnp.cumsum(count)[rank] - count[rank] + jnp.arange(capacity, dtype=count.dtype)
    places = jnp.where(jnp.arange(capacity) < count[rank], places, x.shape[0])
    return x.at[places].get(mode="fill", fill_value=0)


def _batch_behind_rows(**params: Any) -> tuple[int, int]:
    return 1, 1


def _rows_of(types: Any, capacity: int | None) -> int | None:
    """The capacity of what goes back to the operand."""
    return None if capacity is None else types[0].shape[0]


def _transposed_by(back: Primitive, **more: Any) -> Any:
    """The transpose is another primitive of the same parameters, and of these."""

    def transpose(ct: Any, *, types: Any, capacity: int | None, values: Sequence[Any] = (), **params: Any) -> list[Any]:
        return back.bind(ct, *values, capacity=_rows_of(types, capacity), **params, **more)

    return transpose


# allgatherv

_allgatherv = make("allgatherv", _all_rows)


def _allgatherv_transpose_fun(ct: Any, *values: Any, comm: Comm, counts: Any, capacity: int | None) -> list[Any]:
    return [_slice(ct, values, comm, counts, capacity)]


def _sum_of_rows_fun(ct: Any, *values: Any, comm: Comm, counts: Any, capacity: int | None) -> list[Any]:
    (total,) = allreduce_p.bind(ct, comm=comm, op=SUM, cotangent=VARYING)
    return [_slice(total, values, comm, counts, capacity)]


# Its transpose: this rank's rows of a cotangent that is the same on every rank, or of the sum of those that differ.
_allgatherv_transpose = compose("allgatherv_transpose", _own_rows, _allgatherv_transpose_fun, takes_replicated=True)
_sum_of_rows = compose("sum_of_rows", _own_rows, _sum_of_rows_fun)


def _transpose_of_allgatherv(ct: Any, *, cotangent: str, **params: Any) -> list[Any]:
    return _transposed_by(_sum_of_rows if cotangent == VARYING else _allgatherv_transpose)(ct, **params)


define_linear(_allgatherv, _transpose_of_allgatherv)
define_linear(_allgatherv_transpose, _transposed_by(_allgatherv, cotangent=REPLICATED))
define_linear(_sum_of_rows, _transposed_by(_allgatherv, cotangent=VARYING))
for _primitive in (_allgatherv, _allgatherv_transpose, _sum_of_rows):
    define_batching(_primitive, _batch_behind_rows)


def _counts_of_all(counts: Any, name: str, comm: Comm) -> Any:
    """The rows of each rank, at run time: those that the user has, or each rank's own, gathered."""
    if jnp.ndim(counts) == 0 and not isinstance(counts, str):
        convention = as_convention(REPLICATED, name, comm)
        return allgather_p.bind(as_integers(counts, "counts", name), comm=comm, cotangent=convention)[0]
    return as_counts(counts, "counts", name, comm.size, "rank")


@moves()
def _allgatherv_fixed(x: Any, counts: Any, *, comm: Any, cotangent: str) -> jax.Array:
    x, c = as_array(x, "x", "allgatherv"), comm_of(comm)
    rows, convention = _counts(counts, "counts", "allgatherv", c), as_convention(cotangent, "allgatherv", c)
    _check_rows(x, rows[c.rank], f"which is counts[{c.rank}]", "allgatherv")
    return _allgatherv.bind(x, comm=c, counts=rows, cotangent=convention, capacity=None)[0]


@moves()
def _allgatherv_at_run_time(x: Any, counts: Any, **params: Any) -> jax.Array:
    known, values = split({"counts": counts})
    return _allgatherv.bind(with_rows(x, "allgatherv"), *values, **known, **params)[0]


def allgatherv(
    x: Any,
    counts: Any,
    *,
    capacity: int | None = None,
    template: Any = None,
    comm: MPI.Comm | None = None,
    cotangent: Cotangent = REPLICATED,
) -> Any:
    """Gathers the arrays of all ranks, of different lengths, on every rank.

    Args:
        x: this rank's array, of shape ``(counts[rank], ...)``, with the same other axes and dtype on every rank. With
            a capacity it may have more rows: the first ones count. Or a pytree of such arrays.
        counts: how many rows, entries of the first axis, each rank's ``x`` has: static integers, the same on every
            rank. They may be 0. With a capacity they may be traced; or one integer, the rows of this rank, which is
            gathered from all.
        capacity: how many rows the result has room for, a static integer, the same on every rank. Then counts are
            known only at run time, and one program takes any of them.
        template: with a capacity, an array like the result, whose rows remain behind those that came.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.
        cotangent: how reverse mode counts the cotangents of the result, which is the same on every rank: "replicated",
            they are the same on every rank too and count once; or "varying", they differ and are added up.

    Returns:
        An array of shape ``(sum(counts), ...)`` with the ranks' arrays one behind the other, the same on every rank.
        With a capacity an array of shape ``(capacity, ...)`` that begins with these, zeros behind them; and the counts
        of all ranks.

    Derivative:
        Linear. Reverse mode: this rank's rows of the cotangent, or with ``cotangent="varying"`` of the sum of all
        ranks' cotangents; zeros for rows that do not count.

    Raises:
        TypeError: for counts that are not a sequence of static integers (with a capacity, of integers), a
            ``template`` without a capacity, a ``comm`` that is no intra-communicator, or a dtype that MPI cannot move.
        ValueError: for counts that are negative or not one for each rank, an ``x`` that does not have ``counts[rank]``
            rows, a ``template`` that is not like the result, a ``cotangent`` that is neither, or a communicator that
            was freed.
        jax.errors.JaxRuntimeError: when running, for counts that are more rows than there is room for.

    Example:
        >>> import jax, jax.numpy as jnp, mpixla
        >>> comm = mpixla.get_default_comm()
        >>> rank, size = comm.Get_rank(), comm.Get_size()
        >>> counts = list(range(size))  # rank i has i rows
        >>> mpixla.allgatherv(jnp.ones((rank, 3)), counts).shape == (sum(counts), 3)
        True
        >>> gather = jax.jit(lambda x, n: mpixla.allgatherv(x, n, capacity=4 * size))
        >>> rows, counts = gather(jnp.ones((4, 3)), rank % 4)  # of which as many count
        >>> rows.shape == (4 * size, 3), bool(rows[:, 0].sum() == counts.sum())
        (True, True)
    """
    name = "allgatherv"
    if capacity is None:
        check_no_template(template, name)
        return _allgatherv_fixed(x, counts, comm=comm, cotangent=cotangent)
    c, room = comm_of(comm), as_capacity(capacity, name)
    convention, of_all = as_convention(cotangent, name, c), _counts_of_all(counts, name, c)
    rows = _allgatherv_at_run_time(x, of_all, comm=c, capacity=room, cotangent=convention)
    return zeros_behind(rows, of_all.sum(), template, name), of_all


# alltoallv


def _received_rows(
    x: ShapedArray, *values: ShapedArray, recvcounts: Any, capacity: int | None, **params: Any
) -> list[ShapedArray]:
    return _resized(x, sum(recvcounts) if capacity is None else capacity)


_alltoallv = make("alltoallv", _received_rows)


def _alltoallv_transpose(
    ct: Any, *, types: Any, comm: Comm, recvcounts: Any, sendcounts: Any, capacity: int | None, values: Any = ()
) -> list[Any]:
    back = [jnp.concatenate(jnp.split(x, 2)[::-1]) for x in values]  # received and sent
    room = _rows_of(types, capacity)
    return _alltoallv.bind(ct, *back, comm=comm, recvcounts=sendcounts, sendcounts=recvcounts, capacity=room)


define_linear(_alltoallv, _alltoallv_transpose)
define_batching(_alltoallv, _batch_behind_rows)


@moves()
def _alltoallv_fixed(x: Any, sendcounts: Any, recvcounts: Any, *, comm: Any) -> jax.Array:
    x, c = as_array(x, "x", "alltoallv"), comm_of(comm)
    sent, received = (
        _counts(counts, what, "alltoallv", c)
        for counts, what in ((sendcounts, "sendcounts"), (recvcounts, "recvcounts"))
    )
    _check_rows(x, sum(sent), "the sum of sendcounts", "alltoallv")
    return _alltoallv.bind(x, comm=c, recvcounts=received, sendcounts=sent, capacity=None)[0]


@moves()
def _alltoallv_at_run_time(x: Any, sendcounts: Any, recvcounts: Any, **params: Any) -> jax.Array:
    known, values = split({"recvcounts": recvcounts, "sendcounts": sendcounts})
    return _alltoallv.bind(with_rows(x, "alltoallv"), *values, **known, **params)[0]


def alltoallv(
    x: Any,
    sendcounts: Any,
    recvcounts: Any = None,
    *,
    capacity: int | None = None,
    template: Any = None,
    comm: MPI.Comm | None = None,
) -> Any:
    """Sends some rows of this rank's array to each rank, and receives some from each.

    Args:
        x: this rank's array of shape ``(sum(sendcounts), ...)``; the first ``sendcounts[0]`` rows go to rank 0, and so
            on. The other axes and the dtype are the same on every rank. With a capacity it may have more rows, which
            do not count. Or a pytree of such arrays.
        sendcounts: how many rows, entries of the first axis, go to each rank: static integers, which may be 0. With a
            capacity they may be traced.
        recvcounts: how many rows come from each rank: ``recvcounts[i]`` is what rank ``i`` has as
            ``sendcounts[rank]``. With a capacity they may be traced, or all ranks leave them out and tell each other.
        capacity: how many rows the result has room for, a static integer, which may differ between ranks. Then counts
            are known only at run time, and one program takes any of them.
        template: with a capacity, an array like the result, whose rows remain behind those that came.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        An array of shape ``(sum(recvcounts), ...)`` with what the ranks sent, one behind the other. With a capacity an
        array of shape ``(capacity, ...)`` that begins with these, zeros behind them; and the counts received.

    Derivative:
        Linear. Reverse mode: ``alltoallv`` with the counts exchanged; zeros for rows that do not count.

    Raises:
        TypeError: for counts that are not sequences of static integers (with a capacity, of integers), a
            ``template`` without a capacity, a ``comm`` that is no intra-communicator, or a dtype that MPI cannot move.
        ValueError: for counts that are negative or not one for each rank, an ``x`` that does not have
            ``sum(sendcounts)`` rows, a ``template`` that is not like the result, or a communicator that was freed.
        jax.errors.JaxRuntimeError: when running, for counts that are more rows than there is room for.

    Example:
        >>> import jax, jax.numpy as jnp, mpixla
        >>> comm = mpixla.get_default_comm()
        >>> rank, size = comm.Get_rank(), comm.Get_size()
        >>> sendcounts = list(range(size))  # i rows to rank i
        >>> recvcounts = [rank] * size
        >>> mpixla.alltoallv(jnp.ones((sum(sendcounts), 3)), sendcounts, recvcounts).shape == (rank * size, 3)
        True
        >>> exchange = jax.jit(lambda x, sendcounts: mpixla.alltoallv(x, sendcounts, capacity=size * size))
        >>> rows, received = exchange(jnp.ones((size * size, 3)), jnp.arange(size))
        >>> received.tolist() == recvcounts, bool(rows[:, 0].sum() == rank * size)
        (True, True)
    """
    name = "alltoallv"
    if capacity is None:
        check_no_template(template, name)
        return _alltoallv_fixed(x, sendcounts, recvcounts, comm=comm)
    c, room = comm_of(comm), as_capacity(capacity, name)
    sent = as_counts(sendcounts, "sendcounts", name, c.size, "rank")
    if recvcounts is None:
        received = alltoall_p.bind(sent, comm=c)[0]
    else:
        received = as_counts(recvcounts, "recvcounts", name, c.size, "rank")
    rows = _alltoallv_at_run_time(x, sent, received, comm=c, capacity=room)
    return zeros_behind(rows, received.sum(), template, name), received


# gatherv and scatterv

_gatherv = make("gatherv", _all_rows_on_root)
_scatterv = make("scatterv", _own_rows)


def _gatherv_transpose_fun(ct: Any, *values: Any, comm: Comm, root: int, **params: Any) -> list[Any]:
    (part,) = _scatterv.bind(ct, *values, comm=comm, root=root, **params)
    return [part if comm.rank == root else part + ct]  # off the root the result was the operand as well


def _scatterv_transpose_fun(ct: Any, *values: Any, comm: Comm, root: int, **params: Any) -> list[Any]:
    whole = _gatherv.bind(ct, *values, comm=comm, root=root, **params)
    return whole if comm.rank == root else [jnp.zeros_like(ct)]  # off the root the operand was a template


_gatherv_transpose = compose("gatherv_transpose", _own_rows, _gatherv_transpose_fun)
_scatterv_transpose = compose("scatterv_transpose", _all_rows_on_root, _scatterv_transpose_fun)

define_linear(_gatherv, _transposed_by(_gatherv_transpose))
define_linear(_gatherv_transpose, _transposed_by(_gatherv))
define_linear(_scatterv, _transposed_by(_scatterv_transpose))
define_linear(_scatterv_transpose, _transposed_by(_scatterv))
for _primitive in (_gatherv, _gatherv_transpose, _scatterv, _scatterv_transpose):
    define_batching(_primitive, _batch_behind_rows)


@moves()
def _gatherv_fixed(x: Any, counts: Any, root: Any, *, comm: Any) -> jax.Array:
    x, c = as_array(x, "x", "gatherv"), comm_of(comm)
    rows, root = _counts(counts, "counts", "gatherv", c), as_rank(root, "root", "gatherv", c)
    _check_rows(x, rows[c.rank], f"which is counts[{c.rank}]", "gatherv")
    return _gatherv.bind(x, comm=c, counts=rows, root=root, capacity=None)[0]


@moves()
def _gatherv_at_run_time(x: Any, counts: Any, **params: Any) -> jax.Array:
    known, values = split({"counts": counts})
    return _gatherv.bind(with_rows(x, "gatherv"), *values, **known, **params)[0]


def gatherv(
    x: Any,
    counts: Any,
    root: int,
    *,
    capacity: int | None = None,
    template: Any = None,
    comm: MPI.Comm | None = None,
) -> Any:
    """Gathers the arrays of all ranks, of different lengths, on the root.

    Args:
        x: this rank's array, of shape ``(counts[rank], ...)``, with the same other axes and dtype on every rank. With
            a capacity it may have more rows: the first ones count. Or a pytree of such arrays.
        counts: how many rows, entries of the first axis, each rank's ``x`` has: static integers, the same on every
            rank. They may be 0. With a capacity they may be traced; or one integer, the rows of this rank, which is
            gathered from all.
        root: the rank that receives.
        capacity: how many rows the root's result has room for, a static integer. Then counts are known only at run
            time, and one program takes any of them. All ranks must give it or none.
        template: with a capacity, on the root an array like the result, whose rows remain behind those that came.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        On the root an array of shape ``(sum(counts), ...)`` with the ranks' arrays one behind the other; elsewhere
        ``x`` itself. With a capacity on the root an array of shape ``(capacity, ...)`` that begins with these, zeros
        behind them, elsewhere ``x``; and the counts of all ranks.

    Derivative:
        Linear. Reverse mode: ``scatterv`` of the root's cotangent; elsewhere the rank's own is added, since there the
        result is ``x``.

    Raises:
        TypeError: for counts that are not a sequence of static integers (with a capacity, of integers), a
            ``template`` without a capacity, a root that is not a static integer, a ``comm`` that is no
            intra-communicator, or a dtype that MPI cannot move.
        ValueError: for counts that are negative or not one for each rank, an ``x`` that does not have ``counts[rank]``
            rows, a root that is not a rank of the communicator, a ``template`` that is not like the result, or a
            communicator that was freed.
        jax.errors.JaxRuntimeError: when running, for counts that are more rows than there is room for.
        NotImplementedError: inside ``jax.shard_map`` over several processes, where an array has one shape.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> comm = mpixla.get_default_comm()
        >>> rank, size = comm.Get_rank(), comm.Get_size()
        >>> counts = list(range(size))  # rank i has i rows
        >>> y = mpixla.gatherv(jnp.ones((rank, 3)), counts, root=0)
        >>> y.shape == ((sum(counts) if rank == 0 else rank), 3)
        True
        >>> y, counts = mpixla.gatherv(jnp.ones((4, 3)), rank % 4, root=0, capacity=4 * size)
        >>> y.shape == ((4 * size if rank == 0 else 4), 3)
        True
    """
    name = "gatherv"
    refuse_where_sharded(name, comm_of(comm), "allgatherv")
    if capacity is None:
        check_no_template(template, name)
        return _gatherv_fixed(x, counts, root, comm=comm)
    c, room = comm_of(comm), as_capacity(capacity, name)
    root, of_all = as_rank(root, "root", name, c), _counts_of_all(counts, name, c)
    rows = _gatherv_at_run_time(x, of_all, comm=c, root=root, capacity=room)
    behind = template if c.rank == root else None
    return zeros_behind(rows, of_all.sum(), behind, name), of_all


@moves()
def _scatterv_fixed(x: Any, counts: Any, root: Any, *, comm: Any) -> jax.Array:
    x, c = as_array(x, "x", "scatterv"), comm_of(comm)
    rows, root = _counts(counts, "counts", "scatterv", c), as_rank(root, "root", "scatterv", c)
    if c.rank == root:
        _check_rows(x, sum(rows), "the sum of counts, since it is the root", "scatterv")
    else:
        _check_rows(x, rows[c.rank], f"which is counts[{c.rank}]", "scatterv")
    return _scatterv.bind(x, comm=c, counts=rows, root=root, capacity=None)[0]


@moves()
def _scatterv_at_run_time(x: Any, counts: Any, *, comm: Comm, root: int, capacity: int) -> jax.Array:
    x = with_rows(x, "scatterv")
    if comm.rank != root:
        _check_rows(x, capacity, "which is the capacity, since it is not the root", "scatterv")
    known, values = split({"counts": counts})
    return _scatterv.bind(x, *values, **known, comm=comm, root=root, capacity=capacity)[0]


def scatterv(
    x: Any,
    counts: Any,
    root: int,
    *,
    capacity: int | None = None,
    template: Any = None,
    comm: MPI.Comm | None = None,
) -> Any:
    """Sends some rows of the root's array to each rank.

    Args:
        x: on the root an array of shape ``(sum(counts), ...)``, of which the first ``counts[0]`` rows go to rank 0, and
            so on; with a capacity it may have more rows, which do not count. Elsewhere a template with the shape
            ``(counts[rank], ...)``, or ``(capacity, ...)``, and dtype of the result. Or a pytree of these.
        counts: how many rows, entries of the first axis, each rank gets: static integers, the same on every rank. They
            may be 0. With a capacity they may be traced, and the root's are taken.
        root: the rank that sends.
        capacity: how many rows the result has room for, a static integer, which may differ between ranks. Then counts
            are known only at run time, and one program takes any of them. All ranks must give it or none.
        template: with a capacity, an array like the result, whose rows remain behind those that came.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        This rank's rows, of shape ``(counts[rank], ...)``. With a capacity an array of shape ``(capacity, ...)`` that
        begins with these, zeros behind them; and how many came, an integer.

    Derivative:
        Linear in the root's ``x``. Reverse mode: ``gatherv``, and zeros off the root and for rows that do not count.

    Raises:
        TypeError: for counts that are not a sequence of static integers (with a capacity, of integers), a
            ``template`` without a capacity, a root that is not a static integer, a ``comm`` that is no
            intra-communicator, or a dtype that MPI cannot move.
        ValueError: for counts that are negative or not one for each rank, an ``x`` that does not have ``sum(counts)``
            rows on the root and ``counts[rank]`` elsewhere, a root that is not a rank of the communicator, a
            ``template`` that is not like the result, or a communicator that was freed.
        jax.errors.JaxRuntimeError: when running, for counts that are more rows than there is room for.
        NotImplementedError: inside ``jax.shard_map`` over several processes, where an array has one shape.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> comm = mpixla.get_default_comm()
        >>> rank, size = comm.Get_rank(), comm.Get_size()
        >>> counts = list(range(size))  # i rows for rank i
        >>> x = jnp.ones((sum(counts), 3)) if rank == 0 else jnp.zeros((rank, 3))
        >>> y = mpixla.scatterv(x, counts, root=0)
        >>> y.shape == (rank, 3) and bool((y == 1).all())
        True
        >>> x = jnp.ones((size * size, 3)) if rank == 0 else jnp.zeros((size, 3))
        >>> y, n = mpixla.scatterv(x, jnp.arange(size), root=0, capacity=size)
        >>> y.shape == (size, 3) and int(n) == rank and bool((y[:rank] == 1).all() and (y[rank:] == 0).all())
        True
    """
    name = "scatterv"
    refuse_where_sharded(name, comm_of(comm), "alltoallv, in whose result the root's rows are those")
    if capacity is None:
        check_no_template(template, name)
        return _scatterv_fixed(x, counts, root, comm=comm)
    c, room, root = comm_of(comm), as_capacity(capacity, name), as_rank(root, "root", name, comm_of(comm))
    given = as_counts(counts, "counts", name, c.size, "rank")
    (of_all,) = bcast_p.bind(given, comm=c, root=root, cotangent=as_convention(REPLICATED, name, c))
    rows, own = _scatterv_at_run_time(x, of_all, comm=c, root=root, capacity=room), of_all[own_rank(c)]
    return zeros_behind(rows, own, template, name), own
