"""The operations whose parts differ in size between ranks: MPI's functions with a "v".

Their counts are rows, entries of the first axis. They are known when tracing, and shapes follow from them; or the user
gives a capacity, a number of rows, and counts are known only at run time (core/values.py). The batch of a vmap makes
each row larger: it travels as the second axis.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypedDict, Unpack, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.typing import ArrayLike

from ..core.eager import eager
from ..core.primitive import REPLICATED, Cotangent, make_primitive
from ..core.rank import own_rank
from ..core.rules import Transpose
from ..core.tree import Tree, as_leaf, as_leaves, call_per_leaf, flatten_tree, unwrap_keys
from ..core.values import split_numbers
from ..jaxprs.spmd import Primitive, with_shape
from ..mpi.comm import Comm, comm_of
from ..mpi.mpi import MPI
from .arguments import as_capacity, as_convention, as_counts, as_integers, as_rank, refuse_where_sharded
from .collective import (
    allgather_p,
    alltoall_p,
    bcast_p,
    replicated_cotangent,
    transpose_to_gather,
    transpose_to_scatter,
)
from .shapes import BATCH_SECOND


def bind(primitive: Primitive, x: Any, counts: dict[str, Any], **params: Any) -> Any:
    """Bind a primitive with counts, each a static tuple or an array known at run time, and return its one result."""
    known, values = split_numbers(counts)
    return primitive.bind(x, *values, **known, **params)[0]


def as_rows(x: Any, name: str, fits: tuple[int, str] | None) -> jax.Array:
    """Return ``x`` as an array of rows; raise ValueError for a scalar, or a number of rows other than ``fits`` says.

    ``fits``: the number and the reason for it; None for any number.
    """
    x = as_leaf(x, "x", name)
    if x.ndim == 0:
        raise ValueError(f"{name} communicates rows, entries of the first axis, but x is a scalar and has no axis.")
    if fits and x.shape[0] != fits[0]:
        raise ValueError(f"{name} needs an x with {fits[0]} rows on this rank, {fits[1]}, but x has shape {x.shape}.")
    return x


@call_per_leaf(keys=True)
def communicate_rows(x: Any, name: str, fits: tuple[int, str] | None, communicate: Callable[[Any], Any]) -> Any:
    """Return ``communicate(x)`` for each array of a pytree; ValueError unless it has as many rows as ``fits`` says."""
    return communicate(unwrap_keys(as_rows(x, name, fits)))


def with_template_and_counts(rows: Any, counts: Any, capacity: int | None, template: Any, name: str) -> Any:
    """Return ``rows``; with a capacity (rows, counts), rows behind from ``template``, if any: ValueError if unfit."""
    if capacity is None:
        return rows

    def fill_from_template(y: Any, t: Any) -> Any:
        """Return a leaf's received rows and behind them the template's; ValueError if shapes or dtypes differ."""
        if t.shape != y.shape or t.dtype != y.dtype:
            types = [f"{z.dtype}{list(z.shape)}" for z in (y, t)]
            raise ValueError(f"template of {name} must be like the result, {types[0]}, but is {types[1]}.")
        came = jnp.arange(y.shape[0]) < jnp.sum(counts)
        return jnp.where(came.reshape(-1, *(1,) * (y.ndim - 1)), y, t)

    if template is None:
        return rows, counts
    (parts, structure), (templates, other) = flatten_tree(rows), flatten_tree(template)
    if other != structure:
        raise ValueError(f"template of {name} must have the structure of x, {structure}, but has {other}.")
    templates = as_leaves(template, templates, "template", name)
    return jax.tree.unflatten(structure, map(fill_from_template, parts, templates)), counts


# Helpers that the operations share.


def resize_type(x: ShapedArray, counts: Any, capacity: int | None) -> list[ShapedArray]:
    """Return the type with ``sum(counts)`` rows, or with ``capacity`` rows if there is one."""
    return [with_shape(x, (sum(counts) if capacity is None else capacity, *x.shape[1:]))]


def _take_own_rows(x: Any, values: Sequence[Any], comm: Comm, counts: Any, capacity: int | None) -> Any:
    """Return this rank's ``counts[rank]`` rows of ``x``; with a capacity so many rows, zeros behind its own."""
    if capacity is None:
        return _static_slice(x, own_rank(comm), counts, counts[comm.rank])
    if x.shape[0] == 0:
        return jnp.zeros((capacity, *x.shape[1:]), x.dtype)
    count, rank = values[0], own_rank(comm)
    places = jnp.cumsum(count)[rank] - count[rank] + jnp.arange(capacity, dtype=count.dtype)
    places = jnp.where(jnp.arange(capacity) < count[rank], places, x.shape[0])
    return x.at[places].get(mode="fill", fill_value=0)


@functools.partial(jax.jit, static_argnums=(2, 3), inline=True)  # one program, also eagerly
def _static_slice(x: Any, rank: Any, counts: tuple[int, ...], own: int) -> Any:
    starts = np.cumsum((0, *counts[:-1]))
    return jax.lax.dynamic_slice_in_dim(x, jnp.asarray(starts)[rank], own)


def with_capacity(transpose: Transpose) -> Transpose:
    """Wrap a transpose rule: its ``capacity`` is the rows of the operand's cotangent; None for a call without one."""

    @functools.wraps(transpose)
    def transpose_with_capacity(ct: Any, *, types: Any, capacity: int | None, **params: Any) -> Sequence[Any]:
        return transpose(ct, types=types, capacity=None if capacity is None else types[0].shape[0], **params)

    return transpose_with_capacity


def name_ranks(comm: Comm) -> str:
    """Return "each of the N ranks of communicator 'name'", for messages on lists with an entry for each rank."""
    return f"each of the {comm.size} ranks of communicator '{comm.name}'"


def _counts_of_all(counts: Any, name: str, comm: Comm, capacity: int | None) -> Any:
    """Return the counts of all ranks: ``counts``, or an allgather of it if with a capacity it is this rank's alone."""
    if capacity is not None and not isinstance(counts, Sequence) and np.ndim(counts) == 0:
        convention = as_convention(REPLICATED, name, comm)
        return allgather_p.bind(as_integers(counts, "counts", name), comm=comm, cotangent=convention)[0]
    return as_counts(counts, "counts", name, comm.size, name_ranks(comm), capacity)


def _expected_rows(counts: Any, comm: Comm, capacity: int | None) -> tuple[int, str] | None:
    """Return (rows that this rank's array must have, why) for ``as_rows``; with a capacity None, for any number."""
    return (counts[comm.rank], f"which is counts[{comm.rank}]") if capacity is None else None


# allgatherv


class _GatherOptions(TypedDict, total=False):
    comm: MPI.Comm | None
    cotangent: Cotangent


def _allgatherv_abstract_eval(
    x: ShapedArray, *values: ShapedArray, counts: Any, capacity: int | None, **params: Any
) -> list[ShapedArray]:
    return resize_type(x, counts, capacity)


@with_capacity
def _allgatherv_transpose_rule(
    ct: Any, *, types: Any, comm: Comm, counts: Any, capacity: int | None, cotangent: str, values: Sequence[Any] = ()
) -> list[Any]:
    return [_take_own_rows(replicated_cotangent(ct, comm, cotangent), values, comm, counts, capacity)]


allgatherv_p: Primitive = make_primitive(
    "allgatherv", _allgatherv_abstract_eval, batch=BATCH_SECOND, transpose=_allgatherv_transpose_rule
)


# An array for an array, a pytree for a pytree; with ``capacity`` a pair of it and the counts.
@overload
def allgatherv(x: ArrayLike, counts: Any, *, capacity: None = ..., **options: Unpack[_GatherOptions]) -> jax.Array: ...
@overload
def allgatherv(
    x: ArrayLike, counts: Any, *, capacity: int, template: Any = ..., **options: Unpack[_GatherOptions]
) -> tuple[jax.Array, jax.Array]: ...
@overload
def allgatherv(x: Tree, counts: Any, *, capacity: None = ..., **options: Unpack[_GatherOptions]) -> Tree: ...
@overload
def allgatherv(
    x: Tree, counts: Any, *, capacity: int, template: Any = ..., **options: Unpack[_GatherOptions]
) -> tuple[Tree, jax.Array]: ...
@eager(1)
def allgatherv(
    x: Any,
    counts: Any,
    *,
    capacity: int | None = None,
    template: Any = None,
    comm: MPI.Comm | None = None,
    cotangent: Cotangent = REPLICATED,
) -> Any:
    """Gather the arrays of all ranks, of different lengths, on every rank.

    Args:
        x: this rank's array, of shape ``(counts[rank], ...)``, with the same other axes and dtype on every rank. With
            a capacity it may have more rows: the first ones count. Or a pytree of such arrays.
        counts: how many rows, entries of the first axis, each rank's ``x`` has: static integers, the same on every
            rank. They may be 0. With a capacity they may be traced; or one integer, the rows of this rank, which is
            gathered from all.
        capacity: how many rows the result has room for, a static integer, the same on every rank. Then counts are
            known only at run time, and one program takes any of them.
        template: with a capacity, an array like the result, whose rows remain behind the received rows.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.
        cotangent: how reverse mode counts the cotangents of the result, as of ``allreduce``.

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
            rows, a ``template`` that is not like the result, an invalid ``cotangent``, or a communicator that was
            freed.
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
    name, c = "allgatherv", comm_of(comm)
    capacity, convention = as_capacity(capacity, template, name), as_convention(cotangent, name, c)
    of_all = _counts_of_all(counts, name, c, capacity)
    params = {"comm": c, "capacity": capacity, "cotangent": convention}
    rows = communicate_rows(
        x, name, _expected_rows(of_all, c, capacity), lambda x: bind(allgatherv_p, x, {"counts": of_all}, **params)
    )
    return with_template_and_counts(rows, of_all, capacity, template, name)


# alltoallv


def exchanged_abstract_eval(
    x: ShapedArray, *values: ShapedArray, recvcounts: Any, capacity: int | None, **params: Any
) -> list[ShapedArray]:
    """Return the type with ``sum(recvcounts)`` rows, or with ``capacity`` rows if there is one."""
    return resize_type(x, recvcounts, capacity)


@with_capacity
def _alltoallv_transpose_rule(
    ct: Any, *, types: Any, recvcounts: Any, sendcounts: Any, values: Any = (), **params: Any
) -> list[Any]:
    """Send the cotangent's rows back: send counts and receive counts change places."""
    back = [jnp.concatenate(jnp.split(x, 2)[::-1]) for x in values]  # received and sent
    return alltoallv_p.bind(ct, *back, recvcounts=sendcounts, sendcounts=recvcounts, **params)


alltoallv_p: Primitive = make_primitive(
    "alltoallv", exchanged_abstract_eval, batch=BATCH_SECOND, transpose=_alltoallv_transpose_rule
)


# An array for an array, a pytree for a pytree; with ``capacity`` a pair of it and the counts.
@overload
def alltoallv(
    x: ArrayLike, sendcounts: Any, recvcounts: Any = ..., *, capacity: None = ..., comm: MPI.Comm | None = ...
) -> jax.Array: ...
@overload
def alltoallv(
    x: ArrayLike,
    sendcounts: Any,
    recvcounts: Any = ...,
    *,
    capacity: int,
    template: Any = ...,
    comm: MPI.Comm | None = ...,
) -> tuple[jax.Array, jax.Array]: ...
@overload
def alltoallv(
    x: Tree, sendcounts: Any, recvcounts: Any = ..., *, capacity: None = ..., comm: MPI.Comm | None = ...
) -> Tree: ...
@overload
def alltoallv(
    x: Tree, sendcounts: Any, recvcounts: Any = ..., *, capacity: int, template: Any = ..., comm: MPI.Comm | None = ...
) -> tuple[Tree, jax.Array]: ...
@eager(1)
def alltoallv(
    x: Any,
    sendcounts: Any,
    recvcounts: Any = None,
    *,
    capacity: int | None = None,
    template: Any = None,
    comm: MPI.Comm | None = None,
) -> Any:
    """Send some rows of this rank's array to each rank, and receive some from each.

    Args:
        x: this rank's array of shape ``(sum(sendcounts), ...)``; the first ``sendcounts[0]`` rows go to rank 0, and so
            on. The other axes and the dtype are the same on every rank. With a capacity it may have more rows, which
            do not count. Or a pytree of such arrays.
        sendcounts: how many rows, entries of the first axis, go to each rank: static integers, which may be 0. With a
            capacity they may be traced.
        recvcounts: how many rows come from each rank: ``recvcounts[i]`` equals ``sendcounts[rank]`` of rank ``i``. With
            a capacity they may be traced, or all ranks leave them out and tell each other.
        capacity: how many rows the result has room for, a static integer, which may differ between ranks. Then counts
            are known only at run time, and one program takes any of them.
        template: with a capacity, an array like the result, whose rows remain behind the received rows.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        An array of shape ``(sum(recvcounts), ...)`` with the ranks' rows, one behind the other. With a capacity an
        array of shape ``(capacity, ...)`` that begins with these, zeros behind them; and the counts received.

    Derivative:
        Linear. Reverse mode: ``alltoallv`` with the counts exchanged; zeros for rows that do not count.

    Raises:
        TypeError, ValueError, jax.errors.JaxRuntimeError: as ``allgatherv``; for an ``x`` that does not have
            ``sum(sendcounts)`` rows.

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
    name, c = "alltoallv", comm_of(comm)
    capacity = as_capacity(capacity, template, name)
    sent = as_counts(sendcounts, "sendcounts", name, c.size, name_ranks(c), capacity)
    if capacity is not None and recvcounts is None:
        (received,) = alltoall_p.bind(sent, comm=c)
    else:
        received = as_counts(recvcounts, "recvcounts", name, c.size, name_ranks(c), capacity)
    fits = (sum(sent), "the sum of sendcounts") if capacity is None else None
    both = {"recvcounts": received, "sendcounts": sent}
    rows = communicate_rows(x, name, fits, lambda x: bind(alltoallv_p, x, both, comm=c, capacity=capacity))
    return with_template_and_counts(rows, received, capacity, template, name)


# gatherv and scatterv


def _gatherv_abstract_eval(
    x: ShapedArray, *values: ShapedArray, comm: Comm, root: int, counts: Any, capacity: int | None
) -> list[ShapedArray]:
    return resize_type(x, counts, capacity) if comm.rank == root else [x]


@with_capacity
def _gatherv_transpose_rule(ct: Any, *, types: Any, values: Sequence[Any] = (), **params: Any) -> list[Any]:
    return transpose_to_scatter(scatterv_p, ct, *values, **params)


gatherv_p: Primitive = make_primitive(
    "gatherv", _gatherv_abstract_eval, batch=BATCH_SECOND, transpose=_gatherv_transpose_rule
)


def _scatterv_abstract_eval(
    x: ShapedArray, *values: ShapedArray, comm: Comm, root: int, counts: Any, capacity: int | None
) -> list[ShapedArray]:
    return resize_type(x, counts[comm.rank : comm.rank + 1], capacity)


@with_capacity
def _scatterv_transpose_rule(ct: Any, *, types: Any, values: Sequence[Any] = (), **params: Any) -> list[Any]:
    return transpose_to_gather(gatherv_p, ct, *values, **params)


scatterv_p: Primitive = make_primitive(
    "scatterv", _scatterv_abstract_eval, batch=BATCH_SECOND, transpose=_scatterv_transpose_rule
)


# An array for an array, a pytree for a pytree; with ``capacity`` a pair of it and the counts.
@overload
def gatherv(
    x: ArrayLike, counts: Any, root: int, *, capacity: None = ..., comm: MPI.Comm | None = ...
) -> jax.Array: ...
@overload
def gatherv(
    x: ArrayLike, counts: Any, root: int, *, capacity: int, template: Any = ..., comm: MPI.Comm | None = ...
) -> tuple[jax.Array, jax.Array]: ...
@overload
def gatherv(x: Tree, counts: Any, root: int, *, capacity: None = ..., comm: MPI.Comm | None = ...) -> Tree: ...
@overload
def gatherv(
    x: Tree, counts: Any, root: int, *, capacity: int, template: Any = ..., comm: MPI.Comm | None = ...
) -> tuple[Tree, jax.Array]: ...
@eager(1)
def gatherv(
    x: Any,
    counts: Any,
    root: int,
    *,
    capacity: int | None = None,
    template: Any = None,
    comm: MPI.Comm | None = None,
) -> Any:
    """Gather the arrays of all ranks, of different lengths, on the root.

    Args:
        x: this rank's array, of shape ``(counts[rank], ...)``, with the same other axes and dtype on every rank. With a
            capacity it may have more rows: the first ones count. Or a pytree of such arrays.
        counts: how many rows, entries of the first axis, each rank's ``x`` has: static integers, the same on every
            rank. They may be 0. With a capacity they may be traced; or one integer, the rows of this rank, which is
            gathered from all.
        root: the rank that receives.
        capacity: how many rows the root's result has room for, a static integer. Then counts are known only at run
            time, and one program takes any of them. All ranks must give it or none.
        template: with a capacity, on the root an array like the result, whose rows remain behind the received rows.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        On the root an array of shape ``(sum(counts), ...)`` with the ranks' arrays one behind the other; elsewhere
        ``x`` itself. With a capacity on the root an array of shape ``(capacity, ...)`` that begins with these, zeros
        behind them, elsewhere ``x``; and the counts of all ranks.

    Derivative:
        Linear. Reverse mode: ``scatterv`` of the root's cotangent; elsewhere the rank's own is added, since there the
        result is ``x``.

    Raises:
        TypeError: for counts that are not a sequence of static integers (with a capacity, of integers), a ``template``
            without a capacity, a ``comm`` that is no intra-communicator, or a dtype that MPI cannot move.
        ValueError: for counts that are negative or not one for each rank, an ``x`` that does not have ``counts[rank]``
            rows, a ``template`` that is not like the result, or a communicator that was freed.
        jax.errors.JaxRuntimeError: when running, for counts that are more rows than there is room for.
        TypeError, ValueError: for a root that is no static integer, or no rank of ``comm``.
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
    name, c = "gatherv", comm_of(comm)
    refuse_where_sharded(name, c, "allgatherv")
    capacity, root = as_capacity(capacity, template, name), as_rank(root, "root", name, c)
    of_all = _counts_of_all(counts, name, c, capacity)
    params = {"comm": c, "capacity": capacity, "root": root}
    rows = communicate_rows(
        x, name, _expected_rows(of_all, c, capacity), lambda x: bind(gatherv_p, x, {"counts": of_all}, **params)
    )
    return with_template_and_counts(rows, of_all, capacity, template if c.rank == root else None, name)


# An array for an array, a pytree for a pytree; with ``capacity`` a pair of it and the counts.
@overload
def scatterv(
    x: ArrayLike, counts: Any, root: int, *, capacity: None = ..., comm: MPI.Comm | None = ...
) -> jax.Array: ...
@overload
def scatterv(
    x: ArrayLike, counts: Any, root: int, *, capacity: int, template: Any = ..., comm: MPI.Comm | None = ...
) -> tuple[jax.Array, jax.Array]: ...
@overload
def scatterv(x: Tree, counts: Any, root: int, *, capacity: None = ..., comm: MPI.Comm | None = ...) -> Tree: ...
@overload
def scatterv(
    x: Tree, counts: Any, root: int, *, capacity: int, template: Any = ..., comm: MPI.Comm | None = ...
) -> tuple[Tree, jax.Array]: ...
@eager(1)
def scatterv(
    x: Any,
    counts: Any,
    root: int,
    *,
    capacity: int | None = None,
    template: Any = None,
    comm: MPI.Comm | None = None,
) -> Any:
    """Send some rows of the root's array to each rank.

    Args:
        x: on the root an array of shape ``(sum(counts), ...)``, of which the first ``counts[0]`` rows go to rank 0, and
            so on; with a capacity it may have more rows, which do not count. Elsewhere a template with the shape
            ``(counts[rank], ...)``, or ``(capacity, ...)``, and dtype of the result. Or a pytree of these.
        counts: how many rows, entries of the first axis, each rank gets: static integers, the same on every rank. They
            may be 0. With a capacity they may be traced, and the root's are taken.
        root: the rank that sends.
        capacity: how many rows the result has room for, as of ``alltoallv``. All ranks must give it or none.
        template: with a capacity, an array like the result, whose rows remain behind the received rows.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        This rank's rows, of shape ``(counts[rank], ...)``. With a capacity an array of shape ``(capacity, ...)`` that
        begins with these, zeros behind them; and how many came, an integer.

    Derivative:
        Linear in the root's ``x``. Reverse mode: ``gatherv``, and zeros off the root and for rows that do not count.

    Raises:
        TypeError, ValueError, jax.errors.JaxRuntimeError: as ``gatherv``; for an ``x`` that does not have
            ``sum(counts)`` rows on the root, and ``counts[rank]`` elsewhere.
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
    name, c = "scatterv", comm_of(comm)
    refuse_where_sharded(name, c, "alltoallv, in whose result the root's rows are those")
    capacity, root = as_capacity(capacity, template, name), as_rank(root, "root", name, c)
    of_all = as_counts(counts, "counts", name, c.size, name_ranks(c), capacity)
    if capacity is not None:
        (of_all,) = bcast_p.bind(of_all, comm=c, root=root, cotangent=as_convention(REPLICATED, name, c))
    fits: tuple[int, str] | None = None
    if c.rank != root:
        fits = _expected_rows(of_all, c, capacity) or (capacity or 0, "which is the capacity, since it is not the root")
    elif capacity is None:
        fits = (sum(of_all), "the sum of counts, since it is the root")
    params = {"comm": c, "capacity": capacity, "root": root}
    rows = communicate_rows(x, name, fits, lambda x: bind(scatterv_p, x, {"counts": of_all}, **params))
    own = of_all[c.rank if capacity is None else own_rank(c)]
    return with_template_and_counts(rows, own, capacity, template, name)


# ragged_all_to_all: slices of arrays, at places that are known only at run time, as in JAX's function of that name.


def _as_slices(value: Any, what: str, comm: Comm) -> jax.Array:
    """Return offsets or sizes of slices as an integer array; ValueError unless it has equally many for each rank."""
    numbers = as_integers(value, what, "ragged_all_to_all")
    if numbers.ndim != 1 or not numbers.size or numbers.size % comm.size:
        raise ValueError(
            f"{what} of ragged_all_to_all must be one integer for each of the {comm.size} ranks of communicator "
            f"'{comm.name}', or the same number of them for each, but has shape {numbers.shape}."
        )
    return numbers


def _row_places(offsets: Any, sizes: Any, rows: int, beyond: int) -> Any:
    """Return the index in the array of each row of its packed slices, ``beyond`` for rows behind the last slice.

    Places before the array, which JAX would count from the end, are ``beyond``, too.
    """
    ends = jnp.cumsum(sizes)
    row = jnp.arange(rows, dtype=ends.dtype)
    slice_ = jnp.searchsorted(ends, row, side="right", method="compare_all")
    inside = jnp.minimum(slice_, sizes.size - 1)
    places = offsets[inside] + row - (ends - sizes)[inside]
    return jnp.where((slice_ < sizes.size) & (places >= 0), places, beyond)


def _sum_sizes(sizes: Any) -> Any:
    """Return each rank's sum of slice sizes; -1 if one is negative, the type's maximum on overflow: C refuses both."""
    most = np.iinfo(sizes.dtype).max
    is_beyond = sizes.astype(jnp.float32).sum(1) >= np.float32(most)
    return jnp.where((sizes < 0).any(1), -1, jnp.where(is_beyond, most, sizes.sum(1)))


# An array for an array ``output``; for a pytree ``output`` a pytree like it, for whose leaves the slices are the same.
@overload
def ragged_all_to_all(
    operand: Any,
    output: ArrayLike,
    input_offsets: Any,
    send_sizes: Any,
    output_offsets: Any,
    recv_sizes: Any,
    *,
    comm: MPI.Comm | None = ...,
) -> jax.Array: ...
@overload
def ragged_all_to_all(
    operand: Any,
    output: Tree,
    input_offsets: Any,
    send_sizes: Any,
    output_offsets: Any,
    recv_sizes: Any,
    *,
    comm: MPI.Comm | None = ...,
) -> Tree: ...
@call_per_leaf(2, keys=True, arrays=6)
def ragged_all_to_all(
    operand: Any,
    output: Any,
    input_offsets: Any,
    send_sizes: Any,
    output_offsets: Any,
    recv_sizes: Any,
    *,
    comm: MPI.Comm | None = None,
) -> Any:
    """Send slices of this rank's array to the ranks, and put received slices at places that their senders name.

    The arguments and the result are those of ``jax.lax.ragged_all_to_all``, with a communicator in the place of an
    axis. Slices are of rows, entries of the first axis. They are packed and unpacked in the program, so where they lie
    one behind the other anyway ``alltoallv`` with a ``capacity`` is faster.

    Args:
        operand: the array whose slices are sent, or a pytree of such arrays. In all, the slices have no more rows than
            it has.
        output: a template: the result has its shape and dtype, and its values except where slices come. For a pytree
            it is a pytree of the same structure.
        input_offsets: integers, which may be traced: the row of ``operand`` at which each slice begins. There is one
            slice for each rank, or the same number of them for each, slices for rank 0 first.
        send_sizes: how many rows each slice has, likewise.
        output_offsets: the row of the receiver's ``output`` at which each slice is to begin, likewise.
        recv_sizes: how many rows each received slice has, likewise, slices from rank 0 first.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        ``output`` with the slices that came. Of slices that reach beyond the arrays, rows that ``operand`` does not
        have are zeros, and rows that ``output`` does not have are left out.

    Derivative:
        Linear in ``operand`` and ``output``. Reverse mode: the cotangents of slices go back to where they came from,
        and add up where slices overlap; that of ``output`` is zero where slices came.

    Raises:
        TypeError: for offsets or sizes that are no integers, a ``comm`` that is no intra-communicator, or a dtype that
            MPI cannot move.
        ValueError: for offsets and sizes that are not the same number for each rank, for an ``operand`` and ``output``
            that differ in dtype or in other axes than the first, or a communicator that was freed.
        jax.errors.JaxRuntimeError: when running, for slices that have more rows than the array.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> comm = mpixla.get_default_comm()
        >>> rank, size = comm.Get_rank(), comm.Get_size()
        >>> ones = jnp.ones(size, int)
        >>> x = jnp.arange(size) + 10 * rank
        >>> y = mpixla.ragged_all_to_all(x, jnp.zeros(size, int), jnp.arange(size), ones, rank * ones, ones)
        >>> y.tolist() == [rank + 10 * i for i in range(size)]
        True
    """
    name, c = "ragged_all_to_all", comm_of(comm)
    operand, output = as_leaf(operand, "operand", name), as_leaf(output, "output", name)
    if operand.dtype != output.dtype or operand.ndim == 0 or operand.shape[1:] != output.shape[1:] or output.ndim == 0:
        raise ValueError(
            f"operand and output of {name} must have the same dtype and the same axes behind the first, but are "
            f"{operand.dtype}{list(operand.shape)} and {output.dtype}{list(output.shape)}."
        )
    operand, output = unwrap_keys(operand), unwrap_keys(output)
    starts, sizes = _as_slices(input_offsets, "input_offsets", c), _as_slices(send_sizes, "send_sizes", c)
    places, coming = _as_slices(output_offsets, "output_offsets", c), _as_slices(recv_sizes, "recv_sizes", c)
    if len({numbers.size for numbers in (starts, sizes, places, coming)}) > 1:
        raise ValueError(
            f"{name} needs as many offsets as sizes, for what it sends and for what comes, but input_offsets has "
            f"{starts.size}, send_sizes {sizes.size}, output_offsets {places.size} and recv_sizes {coming.size}."
        )
    each = starts.size // c.size
    (arriving,) = alltoall_p.bind(places.reshape(c.size, each), comm=c)
    packed = operand
    if operand.size:  # else JAX makes a constant of it, and this rank alone has no part in a derivative
        packed = operand.at[_row_places(starts, sizes, operand.shape[0], operand.shape[0])].get(
            mode="fill", fill_value=0
        )
    sent, received = (_sum_sizes(numbers.reshape(c.size, each)) for numbers in (sizes, coming))
    rows, _ = alltoallv(packed, sent, received, capacity=output.shape[0], comm=comm)
    if not output.shape[0]:
        return rows
    # The row for each place, or -1. JAX has no transpose of setting rows at places that are no constants.
    to = _row_places(arriving.reshape(-1), coming, output.shape[0], output.shape[0])
    row = jnp.full(output.shape[0], -1, to.dtype).at[to].set(jnp.arange(to.size, dtype=to.dtype), mode="drop")
    came = (row >= 0).reshape(-1, *[1] * (output.ndim - 1))
    return jnp.where(came, rows.at[row].get(mode="clip"), output)
