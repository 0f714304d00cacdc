"""The collective operations: one block for each, with its shape rule, its primitive, and its documented function.

The rows that the blocks refer to are in native/tables/ops.def; their expected results are in tests/reference.py.
"""

from typing import Any, TypedDict, Unpack, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ..core.eager import eager
from ..core.primitive import REPLICATED, VARYING, Cotangent, as_array, compose_primitive, counts_once, make_primitive
from ..core.rank import own_rank, select_by_root
from ..core.sequence import sequence_after
from ..core.tree import (
    Tree,
    as_leaf,
    as_leaves,
    call_per_dtype,
    call_per_leaf,
    check_leading_size,
    flatten_tree,
    unwrap_keys,
)
from ..jaxprs.spmd import Primitive
from ..mpi.comm import Comm, Reduction, comm_of, reduction_of
from ..mpi.mpi import MPI
from .arguments import as_convention, as_integer, as_rank, as_reduction, as_static_flag, refuse_where_sharded
from .shapes import (
    BATCH_FIRST,
    BATCH_SECOND,
    empty_abstract_eval,
    same_abstract_eval,
    stack_abstract_eval,
    stack_batch_axes,
    unstack_abstract_eval,
    unstack_batch_axes,
)

# Derivatives of reductions. The sum is linear. For the others the derivative by each rank's operand is a weight, and
# the tangent is the sum of the ranks' weighted tangents.

SUM = reduction_of(MPI.SUM)


def reduction_weights(x: Any, comm: Comm, op: Reduction) -> Any:
    """Return the derivative of PROD, MAX or MIN by this rank's ``x``, entry by entry; collective."""
    if op.name == "PROD":  # the product of all others, which is right where a factor is zero
        before, after = (exscan_p.bind(x, comm=comm, op=op, reverse=reverse)[0] for reverse in (False, True))
        return before * after
    (extreme,) = allreduce_p.bind(x, comm=comm, op=op, cotangent=VARYING)
    holds = _equals_as_sent(x, extreme).astype(x.dtype)
    return holds / allreduce_p.bind(holds, comm=comm, op=SUM, cotangent=VARYING)[0]


def _equals_as_sent(x: Any, extremes: Any) -> Any:
    """Return a mask of the entries of ``x`` that are equal to ``extremes``, for the ``x`` sent, not recomputed.

    For the comparison alone XLA might recompute ``x``.
    """
    _, (sent,) = sequence_after([extremes], [x])
    return sent == extremes


def weighted_for_ranks(scan: Primitive, x: Any, t: Any, comm: Comm, op: Reduction, reverse: bool) -> Any:
    """Return, for each rank, the part of this rank's tangent in that rank's tangent of a scan with PROD, MAX or MIN.

    ``scan`` is ``scan_p`` or ``exscan_p``; with ``reverse`` both start at the last rank. The rank's tangent is the sum
    of all ranks' parts. It communicates.
    """
    ranks, rank = np.arange(comm.size, dtype=np.int32), own_rank(comm)
    behind = ranks <= rank if reverse else ranks >= rank
    if scan is exscan_p:
        behind &= ranks != rank
    behind = behind.reshape(-1, *[1] * x.ndim)  # the ranks whose result depends on this one's operand
    if op.name == "PROD":
        (factors,) = allgather_p.bind(x, comm=comm, cotangent=VARYING)
        others = jnp.where((ranks == rank).reshape(behind.shape), 1, factors)
        products = jax.lax.cumprod(others, axis=0, reverse=reverse)
        if scan is exscan_p:
            products = jnp.roll(products, -1 if reverse else 1, axis=0)
        weights = jnp.where(behind, products, 0)
    else:
        result = scan.bind(x, comm=comm, op=op, reverse=reverse)
        (extremes,) = allgather_p.bind(*result, comm=comm, cotangent=VARYING)
        holds = jnp.where(behind & _equals_as_sent(x[None], extremes), 1, 0).astype(x.dtype)
        holders = allreduce_p.bind(holds, comm=comm, op=SUM, cotangent=VARYING)[0]
        weights = holds / jnp.where(holders == 0, 1, holders)
    # Not a product: the tangent of a rank on which no result depends may be NaN.
    return jnp.where(behind, weights * t[None], 0)


def _weighted_prefix(scan: Primitive, x: Any, t: Any, comm: Comm, op: Reduction, reverse: bool) -> list[Any]:
    """Return [the tangent of scan or exscan with PROD, MAX or MIN], by a reduce_scatter; collective."""
    return reduce_scatter_p.bind(weighted_for_ranks(scan, x, t, comm, op, reverse), comm=comm, op=SUM)


def replicated_cotangent(ct: Any, comm: Comm, cotangent: str) -> Any:
    """Return the operand's cotangent for a result equal on all ranks: ``ct``, or if VARYING its sum over all ranks."""
    if cotangent == VARYING:
        return allreduce_p.bind(ct, comm=comm, op=SUM, cotangent=VARYING)[0]
    return pvary_p.bind(ct, comm=comm)[0]


def transpose_to_scatter(scatter: Primitive, ct: Any, *values: Any, comm: Comm, root: int, **params: Any) -> list[Any]:
    """Return [gather's cotangent], by ``scatter`` of the root's ``ct``; others add their own, as they got ``x``."""
    (part,) = scatter.bind(ct, *values, comm=comm, root=root, **params)
    return [part if comm.rank == root else part + ct]


def transpose_to_gather(gather: Primitive, ct: Any, *values: Any, comm: Comm, root: int, **params: Any) -> list[Any]:
    """Return [scatter's cotangent], by ``gather`` of all ``ct`` on the root; zeros elsewhere, for templates."""
    (whole,) = gather.bind(ct, *values, comm=comm, root=root, **params)
    # Off the root zeros that depend on the call, so that their derivative contains it.
    return [whole if comm.rank == root else select_by_root(comm, root, whole)]


# Axes, as JAX's collectives name them. MPI has the ranks along the first one.


def _as_axis(axis: Any, ndim: int, what: str, name: str, x: Any) -> int:
    """Return an axis of ``ndim`` axes, counted from the front; TypeError if traced, ValueError if there is none."""
    axis = as_integer(axis, what, name)
    if not -ndim <= axis < ndim:
        raise ValueError(f"{what} of {name} is {axis}, but must be one of {ndim} axes: x has shape {x.shape}.")
    return axis % ndim


def _with_ranks_at(y: Any, axis: int, tiled: bool) -> Any:
    """Move an array's first axis, with an entry for each rank, to ``axis``, or if ``tiled`` join it to that axis."""
    moved = jnp.moveaxis(y, 0, axis) if axis else y
    if not tiled:
        return moved
    return moved.reshape(*moved.shape[:axis], moved.shape[axis] * moved.shape[axis + 1], *moved.shape[axis + 2 :])


def _with_ranks_first(x: Any, axis: int, tiled: bool, comm: Comm, what: str, name: str) -> Any:
    """Move ``axis``, with an entry for each rank, to the front; if ``tiled`` split it into equal parts, one for each.

    Raises:
        ValueError: for an axis that does not have one entry for each rank, or tiled an equal number of them.
    """
    size, entries = comm.size, x.shape[axis]
    if tiled and entries % size == 0:
        x = x.reshape(*x.shape[:axis], size, entries // size, *x.shape[axis + 1 :])
    elif tiled or entries != size:
        number = f"a multiple of {size} entries, as many" if tiled else "one entry"
        raise ValueError(
            f"{name} needs an array whose axis {axis} ({what}) has {number} for each of the {size} ranks of "
            f"communicator '{comm.name}', but x has shape {x.shape}."
        )
    return jnp.moveaxis(x, axis, 0) if axis else x


# allgather


def own_entry(x: Any, comm: Comm, axis: int = 0) -> Any:
    """Return this rank's entry along an axis that has one for each rank."""
    return _entry(x, own_rank(comm), axis, keepdims=False)


# One program, also eagerly.
_entry = jax.jit(jax.lax.dynamic_index_in_dim, static_argnums=2, static_argnames="keepdims", inline=True)


def _allgather_transpose_rule(ct: Any, *, types: Any, comm: Comm, cotangent: str) -> list[Any]:
    if cotangent == VARYING:
        return reduce_scatter_p.bind(ct, comm=comm, op=SUM)
    return [own_entry(replicated_cotangent(ct, comm, cotangent), comm)]


allgather_p: Primitive = make_primitive(
    "allgather", stack_abstract_eval, batch=stack_batch_axes, transpose=_allgather_transpose_rule
)


class _GatherOptions(TypedDict, total=False):
    axis: int
    tiled: bool
    comm: MPI.Comm | None
    cotangent: Cotangent


# An array for an array, and for a pytree one of the same structure.
@overload
def allgather(x: ArrayLike, **options: Unpack[_GatherOptions]) -> jax.Array: ...
@overload
def allgather(x: Tree, **options: Unpack[_GatherOptions]) -> Tree: ...
@call_per_leaf(keys=True)
def allgather(
    x: Any, *, axis: int = 0, tiled: bool = False, comm: MPI.Comm | None = None, cotangent: Cotangent = REPLICATED
) -> Any:
    """Gather the arrays of all ranks on every rank, stacked along a new axis, or joined along one if ``tiled``.

    Args:
        x: this rank's array, of the same shape and dtype on every rank, or a pytree of such arrays.
        axis: the axis of the result along which the ranks' arrays lie, as of ``jax.lax.all_gather``.
        tiled: whether the arrays are concatenated along that axis of ``x``, not stacked along a new axis.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.
        cotangent: how reverse mode counts the cotangents of the result, as of ``allreduce``.

    Returns:
        An array of shape ``(size, *x.shape)`` with rank ``i``'s array at index ``i``, the same on every rank; or with
        the ranks along another ``axis``, or with ``tiled=True`` an array with ``size`` times as many entries there.

    Derivative:
        Linear. Reverse mode: this rank's slice of the cotangent, or with ``cotangent="varying"`` the
        ``reduce_scatter``.

    Raises:
        TypeError: for a ``comm`` that is no intra-communicator or a dtype that MPI cannot move.
        ValueError: for a communicator that was freed, an axis that the array lacks, or an invalid ``cotangent``.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> size = mpixla.get_default_comm().Get_size()
        >>> mpixla.allgather(jnp.ones(3)).shape == (size, 3)
        True
        >>> mpixla.allgather(jnp.ones((2, 3)), axis=1, tiled=True).shape == (2, 3 * size)
        True
    """
    name = "allgather"
    x, c = as_leaf(x, "x", name), comm_of(comm)
    tiled = as_static_flag(tiled, "tiled", name)
    axis = _as_axis(axis, x.ndim + (not tiled), "axis", name, x)
    (y,) = allgather_p.bind(unwrap_keys(x), comm=c, cotangent=as_convention(cotangent, name, c))
    return _with_ranks_at(y, axis, tiled)


# allreduce


def _allreduce_weighted_rule(x: Any, t: Any, *, comm: Comm, op: Reduction, cotangent: str) -> list[Any]:
    return allreduce_p.bind(reduction_weights(x, comm, op) * t, comm=comm, op=SUM, cotangent=cotangent)


def _allreduce_transpose_rule(ct: Any, *, types: Any, comm: Comm, op: Reduction, cotangent: str) -> list[Any]:
    return [replicated_cotangent(ct, comm, cotangent)]


allreduce_p: Primitive = make_primitive(
    "allreduce",
    same_abstract_eval,
    batch=BATCH_FIRST,
    weighted=_allreduce_weighted_rule,
    transpose=_allreduce_transpose_rule,
)


# The transpose of the sum: the identity of a cotangent that is the same on every rank. Public as pvary.


def _pvary_impl(x: Any, *, comm: Comm) -> list[Any]:
    return [x]


def _pvary_transpose_rule(ct: Any, *, types: Any, comm: Comm) -> list[Any]:
    return allreduce_p.bind(ct, comm=comm, op=SUM, cotangent=REPLICATED)


pvary_p: Primitive = compose_primitive(
    "pvary", same_abstract_eval, _pvary_impl, batch=BATCH_FIRST, transpose=_pvary_transpose_rule
)
pvary_p.takes_replicated = True


# An array for an array, and for a pytree one of the same structure.
@overload
def allreduce(x: ArrayLike, op: MPI.Op, *, comm: MPI.Comm | None = ..., cotangent: Cotangent = ...) -> jax.Array: ...
@overload
def allreduce(x: Tree, op: MPI.Op, *, comm: MPI.Comm | None = ..., cotangent: Cotangent = ...) -> Tree: ...
@call_per_dtype(reduces=True)
def allreduce(x: Any, op: MPI.Op, *, comm: MPI.Comm | None = None, cotangent: Cotangent = REPLICATED) -> Any:
    """Reduce the arrays of all ranks, element by element, with the result on every rank.

    Args:
        x: this rank's array, of the same shape and dtype on every rank, or a pytree of such arrays.
        op: the reduction, such as ``MPI.SUM``. For ``MPI.MAXLOC`` and ``MPI.MINLOC`` ``x`` is a pair of arrays of one
            shape, values and their places. The result is such a pair: the extreme, and the least place that holds it.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.
        cotangent: how reverse mode counts the cotangents of the result, which is the same on every rank: "replicated",
            they are the same on every rank too and count once; or "varying", they differ and are added up.

    Returns:
        An array like ``x``, the same on every rank. ``MAX`` and ``MIN`` give NaN where any rank has NaN, as ``jnp.max``
        and ``jnp.min`` do; so they do in ``reduce``, ``scan`` and all other reductions.

    Derivative:
        ``SUM`` is linear; in reverse mode it is the identity, or with ``cotangent="varying"`` the ``allreduce``
        again. ``MAX`` and ``MIN`` give the derivative to the ranks that hold the extreme, in equal shares. ``PROD``
        is right where a factor is zero. The other reductions have no derivative.

    Raises:
        TypeError: for an ``op`` that is no ``MPI.Op`` or does not apply to the dtype, or a ``comm`` that is no
            intra-communicator.
        ValueError: for a communicator or reduction that was freed, or an invalid ``cotangent``.

    Example:
        >>> from mpi4py import MPI
        >>> import jax.numpy as jnp, mpixla
        >>> size = mpixla.get_default_comm().Get_size()
        >>> bool((mpixla.allreduce(jnp.ones(3), op=MPI.SUM) == size).all())
        True
    """
    x = as_array(x, "x", "allreduce")
    c, reduction = comm_of(comm), as_reduction(op, x, "allreduce")
    return allreduce_p.bind(x, comm=c, op=reduction, cotangent=as_convention(cotangent, "allreduce", c))[0]


# An array for an array, and for a pytree one of the same structure.
@overload
def pvary(x: ArrayLike, *, comm: MPI.Comm | None = ...) -> jax.Array: ...
@overload
def pvary(x: Tree, *, comm: MPI.Comm | None = ...) -> Tree: ...
@call_per_leaf()
def pvary(x: Any, *, comm: MPI.Comm | None = None) -> Any:
    """Return ``x``, marked as the same on every rank and about to be used differently on each.

    Where a value that is the same on every rank (parameters of a model, the result of an ``allreduce``) enters work
    that differs by rank, each rank's gradient is only its own part. ``pvary`` adds the parts up: in reverse mode, the
    cotangents of all ranks are summed with an ``allreduce``.

    Args:
        x: an array that is the same on every rank, or a pytree of such arrays.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        ``x``.

    Derivative:
        Forward mode: the identity. Reverse mode: ``allreduce(SUM)`` of the cotangents. ``x`` counts once.

    Raises:
        TypeError: for a ``comm`` that is no intra-communicator or a dtype that MPI cannot move.
        ValueError: for a communicator that was freed.

    Example:
        >>> import jax, jax.numpy as jnp, mpixla
        >>> from mpi4py import MPI
        >>> comm = mpixla.get_default_comm()
        >>> loss = lambda w: mpixla.allreduce(mpixla.pvary(w) * (comm.Get_rank() + 1), op=MPI.SUM)
        >>> n = comm.Get_size()
        >>> float(jax.grad(loss)(1.0)) == n * (n + 1) / 2
        True
    """
    x, c = as_array(x, "x", "pvary"), comm_of(comm)
    return pvary_p.bind(x, comm=c)[0] if counts_once(c) else x


# alltoall


def _alltoall_transpose_rule(ct: Any, *, types: Any, comm: Comm) -> list[Any]:
    return alltoall_p.bind(ct, comm=comm)


alltoall_p: Primitive = make_primitive(
    "alltoall", same_abstract_eval, batch=BATCH_SECOND, transpose=_alltoall_transpose_rule
)


class _ExchangeOptions(TypedDict, total=False):
    split_axis: int
    concat_axis: int
    tiled: bool
    comm: MPI.Comm | None


# An array for an array, and for a pytree one of the same structure.
@overload
def alltoall(x: ArrayLike, **options: Unpack[_ExchangeOptions]) -> jax.Array: ...
@overload
def alltoall(x: Tree, **options: Unpack[_ExchangeOptions]) -> Tree: ...
@call_per_leaf(keys=True)
def alltoall(
    x: Any, *, split_axis: int = 0, concat_axis: int = 0, tiled: bool = False, comm: MPI.Comm | None = None
) -> Any:
    """Send entry ``i`` of this rank's array to rank ``i``, and return the entries from all ranks in their order.

    Args:
        x: this rank's array of shape ``(size, ...)``, or a pytree of such arrays; ``x[i]`` goes to rank ``i``.
        split_axis: the axis of ``x`` that has an entry for each rank, as of ``jax.lax.all_to_all``.
        concat_axis: the axis of the result along which the received slices lie.
        tiled: whether ``split_axis`` is cut into equal parts, and the received parts are concatenated along
            ``concat_axis``, so that both remain axes of the result.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        An array like ``x`` with rank ``i``'s slice at index ``i``; or along other axes. With ``tiled=True`` an array
        with ``size`` times as many entries along ``concat_axis``, and so many times fewer along ``split_axis``.

    Derivative:
        Linear. Reverse mode: ``alltoall``.

    Raises:
        TypeError: for a ``comm`` that is no intra-communicator or a dtype that MPI cannot move.
        ValueError: for a communicator that was freed; for an axis that ``x`` lacks, or a ``split_axis`` that does not
            have ``size`` entries, or with ``tiled=True`` a multiple of them.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> size = mpixla.get_default_comm().Get_size()
        >>> mpixla.alltoall(jnp.ones((size, 2))).shape == (size, 2)
        True
        >>> columns = mpixla.alltoall(jnp.ones((2, 3 * size)), split_axis=1, concat_axis=0, tiled=True)
        >>> columns.shape == (2 * size, 3)
        True
    """
    name = "alltoall"
    x, c = as_leaf(x, "x", name), comm_of(comm)
    tiled = as_static_flag(tiled, "tiled", name)
    given = {"split_axis": split_axis, "concat_axis": concat_axis}
    if not tiled and not any(as_integer(axis, what, name) for what, axis in given.items()):
        check_leading_size(x, name, c)  # also of a scalar
    split, concat = (_as_axis(axis, x.ndim, what, name, x) for what, axis in given.items())
    parts = _with_ranks_first(unwrap_keys(x), split, tiled, c, "split_axis", name)
    return _with_ranks_at(alltoall_p.bind(parts, comm=c)[0], concat, tiled)


# barrier

barrier_p: Primitive = make_primitive("barrier", empty_abstract_eval)


@eager(0)
def barrier(*, comm: MPI.Comm | None = None) -> None:
    """Wait until every rank has reached the barrier.

    Inside a compiled program it orders communication, not the arithmetic around it. Called eagerly it returns
    when all ranks have called it.

    Args:
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Raises:
        TypeError: for a ``comm`` that is no intra-communicator.
        ValueError: for a communicator that was freed.

    Example:
        >>> import mpixla
        >>> mpixla.barrier()
    """
    barrier_p.bind(comm=comm_of(comm))


# bcast


def _bcast_transpose_rule(ct: Any, *, types: Any, comm: Comm, root: int, cotangent: str) -> list[Any]:
    """Return the operand's cotangent: on the root the result's, or its sum over ranks if VARYING; zeros elsewhere."""
    if cotangent == VARYING:
        (total,) = reduce_p.bind(ct, comm=comm, op=SUM, root=root)
    else:
        total = replicated_cotangent(ct, comm, cotangent)
    return [select_by_root(comm, root, total)]


bcast_p: Primitive = make_primitive("bcast", same_abstract_eval, batch=BATCH_FIRST, transpose=_bcast_transpose_rule)


# An array for an array, and for a pytree one of the same structure.
@overload
def bcast(x: ArrayLike, root: int, *, comm: MPI.Comm | None = ..., cotangent: Cotangent = ...) -> jax.Array: ...
@overload
def bcast(x: Tree, root: int, *, comm: MPI.Comm | None = ..., cotangent: Cotangent = ...) -> Tree: ...
@call_per_dtype(reduces=False)
def bcast(x: Any, root: int, *, comm: MPI.Comm | None = None, cotangent: Cotangent = REPLICATED) -> Any:
    """Send the root's array to every rank, and return it; elsewhere ``x`` gives only the shape and dtype.

    Args:
        x: on the root the array to send; elsewhere an array of the same shape and dtype, whose values do not matter. Or
            a pytree of such arrays, of the same structure on every rank.
        root: the rank that sends.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.
        cotangent: how reverse mode counts the cotangents of the result, as of ``allreduce``.

    Returns:
        The root's array, the same on every rank.

    Derivative:
        Linear in the root's ``x``. Reverse mode: the root's cotangent on the root and zeros elsewhere, or with
        ``cotangent="varying"`` the sum of all cotangents on the root.

    Raises:
        TypeError: for a ``comm`` that is no intra-communicator or a dtype that MPI cannot move.
        ValueError: for a communicator that was freed, or an invalid ``cotangent``.
        TypeError, ValueError: for a root that is no static integer, or no rank of ``comm``.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> rank = mpixla.get_default_comm().Get_rank()
        >>> float(mpixla.bcast(jnp.float32(rank + 1), root=0))
        1.0
    """
    x, c = as_array(x, "x", "bcast"), comm_of(comm)
    convention = as_convention(cotangent, "bcast", c)
    return bcast_p.bind(x, comm=c, root=as_rank(root, "root", "bcast", c), cotangent=convention)[0]


# exscan

_exscan_row_p: Primitive = make_primitive("exscan", same_abstract_eval)


def _exscan_impl(x: Any, *, comm: Comm, op: Reduction, reverse: bool) -> list[Any]:
    """Bind exscan with the neutral element: MPI leaves the first rank's buffer undefined, so the handler fills it."""
    neutral = np.asarray(op.neutral_element(x.dtype)).astype(x.dtype)
    fill = np.frombuffer(neutral.tobytes().ljust(16, b"\0"), np.int64)
    return _exscan_row_p.bind(x, comm=comm, fill=tuple(fill.tolist()), op=op, reverse=reverse)


def _exscan_weighted_rule(x: Any, t: Any, *, comm: Comm, op: Reduction, reverse: bool) -> list[Any]:
    return _weighted_prefix(exscan_p, x, t, comm, op, reverse)


def _exscan_transpose_rule(ct: Any, *, types: Any, comm: Comm, op: Reduction, reverse: bool) -> list[Any]:
    return exscan_p.bind(ct, comm=comm, op=op, reverse=not reverse)


exscan_p: Primitive = compose_primitive(
    "exscan",
    same_abstract_eval,
    _exscan_impl,
    batch=BATCH_FIRST,
    weighted=_exscan_weighted_rule,
    transpose=_exscan_transpose_rule,
)


# An array for an array, and for a pytree one of the same structure.
@overload
def exscan(x: ArrayLike, op: MPI.Op, *, comm: MPI.Comm | None = ...) -> jax.Array: ...
@overload
def exscan(x: Tree, op: MPI.Op, *, comm: MPI.Comm | None = ...) -> Tree: ...
@call_per_dtype(reduces=True)
def exscan(x: Any, op: MPI.Op, *, comm: MPI.Comm | None = None) -> Any:
    """Reduce, on each rank, the arrays of the ranks before it; the first rank gets the neutral element of ``op``.

    Args:
        x: this rank's array, of the same shape and dtype on every rank, or a pytree of such arrays.
        op: the reduction, such as ``MPI.SUM``. For ``MPI.MAXLOC`` and ``MPI.MINLOC`` ``x`` is a pair of arrays of one
            shape, values and their places. The result is such a pair: the extreme, and the least place that holds it.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        An array like ``x``: the reduction over ranks ``0`` to the one before this. On rank 0 the reduction's neutral
        element (0 for ``SUM``, 1 for ``PROD``, and so on; 0 for a user-made reduction).

    Derivative:
        As for ``scan``.

    Raises:
        TypeError: for an ``op`` that is no ``MPI.Op`` or does not apply to the dtype, or a ``comm`` that is no
            intra-communicator.
        ValueError: for a communicator or reduction that was freed.

    Example:
        >>> from mpi4py import MPI
        >>> import jax.numpy as jnp, mpixla
        >>> rank = mpixla.get_default_comm().Get_rank()
        >>> float(mpixla.exscan(jnp.float32(1), op=MPI.SUM)) == rank
        True
    """
    x = as_array(x, "x", "exscan")
    return exscan_p.bind(x, comm=comm_of(comm), op=as_reduction(op, x, "exscan"), reverse=False)[0]


# gather


def _gather_transpose_rule(ct: Any, *, types: Any, comm: Comm, root: int) -> list[Any]:
    return transpose_to_scatter(scatter_p, ct, comm=comm, root=root)


gather_p: Primitive = make_primitive(
    "gather", stack_abstract_eval, batch=stack_batch_axes, transpose=_gather_transpose_rule
)


# An array for an array, and for a pytree one of the same structure.
@overload
def gather(x: ArrayLike, root: int, *, comm: MPI.Comm | None = ...) -> jax.Array: ...
@overload
def gather(x: Tree, root: int, *, comm: MPI.Comm | None = ...) -> Tree: ...
@call_per_leaf()
def gather(x: Any, root: int, *, comm: MPI.Comm | None = None) -> Any:
    """Stack the arrays of all ranks along a new first axis on the root; return ``x`` itself on the other ranks.

    Args:
        x: this rank's array, of the same shape and dtype on every rank, or a pytree of such arrays.
        root: the rank that receives.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        On the root an array of shape ``(size, *x.shape)`` with rank ``i``'s array at index ``i``; elsewhere ``x``
        itself.

    Derivative:
        Linear. Reverse mode: ``scatter`` of the root's cotangent; elsewhere the rank's own is added, since there the
        result is ``x``.

    Raises:
        TypeError: for a ``comm`` that is no intra-communicator or a dtype that MPI cannot move.
        ValueError: for a communicator that was freed.
        TypeError, ValueError: for a root that is no static integer, or no rank of ``comm``.
        NotImplementedError: inside ``jax.shard_map`` over several processes, where an array has one shape.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> comm = mpixla.get_default_comm()
        >>> y = mpixla.gather(jnp.ones(3), root=0)
        >>> y.shape == ((comm.Get_size(), 3) if comm.Get_rank() == 0 else (3,))
        True
    """
    x, c = as_array(x, "x", "gather"), comm_of(comm)
    refuse_where_sharded("gather", c, "allgather")
    return gather_p.bind(x, comm=c, root=as_rank(root, "root", "gather", c))[0]


# reduce


def _reduce_weighted_rule(x: Any, t: Any, *, comm: Comm, op: Reduction, root: int) -> list[Any]:
    (total,) = reduce_p.bind(reduction_weights(x, comm, op) * t, comm=comm, op=SUM, root=root)
    return [select_by_root(comm, root, total, t)]


def _reduce_transpose_rule(ct: Any, *, types: Any, comm: Comm, op: Reduction, root: int) -> list[Any]:
    (total,) = bcast_p.bind(ct, comm=comm, root=root, cotangent=VARYING)
    return [select_by_root(comm, root, total, total + ct)]  # off the root the result was the operand as well


reduce_p: Primitive = make_primitive(
    "reduce", same_abstract_eval, batch=BATCH_FIRST, weighted=_reduce_weighted_rule, transpose=_reduce_transpose_rule
)


# An array for an array, and for a pytree one of the same structure.
@overload
def reduce(x: ArrayLike, op: MPI.Op, root: int, *, comm: MPI.Comm | None = ...) -> jax.Array: ...
@overload
def reduce(x: Tree, op: MPI.Op, root: int, *, comm: MPI.Comm | None = ...) -> Tree: ...
@call_per_dtype(reduces=True)
def reduce(x: Any, op: MPI.Op, root: int, *, comm: MPI.Comm | None = None) -> Any:
    """Reduce the arrays of all ranks, element by element, on the root; return ``x`` itself on the other ranks.

    Args:
        x: this rank's array, of the same shape and dtype on every rank, or a pytree of such arrays.
        op: the reduction, such as ``MPI.SUM``. For ``MPI.MAXLOC`` and ``MPI.MINLOC`` ``x`` is a pair of arrays of one
            shape, values and their places. The result is such a pair: the extreme, and the least place that holds it.
        root: the rank that has the result.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        On the root the reduced array; elsewhere ``x`` itself.

    Derivative:
        ``SUM`` is linear; in reverse mode every rank gets the root's cotangent, by a ``bcast``. For other reductions as
        for ``allreduce``. Off the root the result is ``x``, so there the rank's own cotangent is added.

    Raises:
        TypeError: for an ``op`` that is no ``MPI.Op`` or does not apply to the dtype, or a ``comm`` that is no
            intra-communicator.
        ValueError: for a communicator or reduction that was freed.
        TypeError, ValueError: for a root that is no static integer, or no rank of ``comm``.

    Example:
        >>> from mpi4py import MPI
        >>> import jax.numpy as jnp, mpixla
        >>> comm = mpixla.get_default_comm()
        >>> y = mpixla.reduce(jnp.float32(1), op=MPI.SUM, root=0)
        >>> float(y) == (comm.Get_size() if comm.Get_rank() == 0 else 1)
        True
    """
    x, c = as_array(x, "x", "reduce"), comm_of(comm)
    return reduce_p.bind(x, comm=c, op=as_reduction(op, x, "reduce"), root=as_rank(root, "root", "reduce", c))[0]


# reduce_scatter


def _reduce_scatter_weighted_rule(x: Any, t: Any, *, comm: Comm, op: Reduction) -> list[Any]:
    return reduce_scatter_p.bind(reduction_weights(x, comm, op) * t, comm=comm, op=SUM)


def _reduce_scatter_transpose_rule(ct: Any, *, types: Any, comm: Comm, op: Reduction) -> list[Any]:
    return allgather_p.bind(ct, comm=comm, cotangent=VARYING)


reduce_scatter_p: Primitive = make_primitive(
    "reduce_scatter",
    unstack_abstract_eval,
    batch=unstack_batch_axes,
    weighted=_reduce_scatter_weighted_rule,
    transpose=_reduce_scatter_transpose_rule,
)


def _scatter_parts(x: Any, op: MPI.Op, *, comm: MPI.Comm | None = None) -> Any:
    x, c = as_array(x, "x", "reduce_scatter"), comm_of(comm)
    return reduce_scatter_p.bind(x, comm=c, op=as_reduction(op, x, "reduce_scatter"))[0]


_scatter_parts.__name__ = "reduce_scatter"  # in messages
_reduce_scatter_parts = call_per_dtype(reduces=True, kept_axes=1)(_scatter_parts)


class _ScatterOptions(TypedDict, total=False):
    axis: int
    tiled: bool
    comm: MPI.Comm | None


# An array for an array, and for a pytree one of the same structure.
@overload
def reduce_scatter(x: ArrayLike, op: MPI.Op, **options: Unpack[_ScatterOptions]) -> jax.Array: ...
@overload
def reduce_scatter(x: Tree, op: MPI.Op, **options: Unpack[_ScatterOptions]) -> Tree: ...
@eager(1)
def reduce_scatter(x: Any, op: MPI.Op, *, axis: int = 0, tiled: bool = False, comm: MPI.Comm | None = None) -> Any:
    """Reduce the arrays of all ranks, element by element; each rank gets its entry of the result along ``axis``.

    Args:
        x: this rank's array of shape ``(size, ...)``, of the same shape and dtype on every rank, or a pytree of such
            arrays.
        op: the reduction, such as ``MPI.SUM``. For ``MPI.MAXLOC`` and ``MPI.MINLOC`` ``x`` is a pair of arrays of one
            shape, values and their places. The result is such a pair: the extreme, and the least place that holds it.
        axis: the axis of ``x`` that has an entry for each rank, as ``scatter_dimension`` of ``jax.lax.psum_scatter``.
        tiled: whether that axis is cut into equal parts, one for each rank, and remains an axis of the result.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        The reduction over the ranks' ``x[rank]``, of shape ``(...)``; or over their entries along another ``axis``.
        With ``tiled=True`` this rank's part of the reduction, whose ``axis`` has ``size`` times fewer entries.

    Derivative:
        As for ``allreduce``. ``SUM`` in reverse mode: ``allgather``.

    Raises:
        TypeError: for an ``op`` that is no ``MPI.Op`` or does not apply to the dtype, or a ``comm`` that is no
            intra-communicator.
        ValueError: for a communicator or reduction that was freed; for an ``axis`` that ``x`` lacks, or that does not
            have ``size`` entries, or with ``tiled=True`` a multiple of them.

    Example:
        >>> from mpi4py import MPI
        >>> import jax.numpy as jnp, mpixla
        >>> size = mpixla.get_default_comm().Get_size()
        >>> float(mpixla.reduce_scatter(jnp.ones(size), op=MPI.SUM)) == size
        True
        >>> mpixla.reduce_scatter(jnp.ones((3, 2 * size)), op=MPI.SUM, axis=1, tiled=True).shape
        (3, 2)
    """
    name = "reduce_scatter"
    if as_static_flag(tiled, "tiled", name) or as_integer(axis, "axis", name):
        c, (leaves, structure) = comm_of(comm), flatten_tree(x)
        parts = [
            _with_ranks_first(leaf, _as_axis(axis, leaf.ndim, "axis", name, leaf), tiled, c, "axis", name)
            for leaf in as_leaves(x, leaves, "x", name)
        ]
        x = jax.tree.unflatten(structure, parts)
    return _reduce_scatter_parts(x, op, comm=comm)


# scan


def _scan_weighted_rule(x: Any, t: Any, *, comm: Comm, op: Reduction, reverse: bool) -> list[Any]:
    return _weighted_prefix(scan_p, x, t, comm, op, reverse)


def _scan_transpose_rule(ct: Any, *, types: Any, comm: Comm, op: Reduction, reverse: bool) -> list[Any]:
    return scan_p.bind(ct, comm=comm, op=op, reverse=not reverse)


scan_p: Primitive = make_primitive(
    "scan", same_abstract_eval, batch=BATCH_FIRST, weighted=_scan_weighted_rule, transpose=_scan_transpose_rule
)


# An array for an array, and for a pytree one of the same structure.
@overload
def scan(x: ArrayLike, op: MPI.Op, *, comm: MPI.Comm | None = ...) -> jax.Array: ...
@overload
def scan(x: Tree, op: MPI.Op, *, comm: MPI.Comm | None = ...) -> Tree: ...
@call_per_dtype(reduces=True)
def scan(x: Any, op: MPI.Op, *, comm: MPI.Comm | None = None) -> Any:
    """Reduce, on each rank, the arrays of the ranks up to and including itself.

    Args:
        x: this rank's array, of the same shape and dtype on every rank, or a pytree of such arrays.
        op: the reduction, such as ``MPI.SUM``. For ``MPI.MAXLOC`` and ``MPI.MINLOC`` ``x`` is a pair of arrays of one
            shape, values and their places. The result is such a pair: the extreme, and the least place that holds it.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        An array like ``x``: the reduction over ranks ``0`` to this one.

    Derivative:
        ``SUM`` is linear; in reverse mode it is the scan that starts at the last rank. ``MAX`` and ``MIN`` give the
        derivative to the ranks that hold the extreme so far, in equal shares. ``PROD`` is right where a factor is zero.
        The other reductions have no derivative.

    Raises:
        TypeError: for an ``op`` that is no ``MPI.Op`` or does not apply to the dtype, or a ``comm`` that is no
            intra-communicator.
        ValueError: for a communicator or reduction that was freed.

    Example:
        >>> from mpi4py import MPI
        >>> import jax.numpy as jnp, mpixla
        >>> rank = mpixla.get_default_comm().Get_rank()
        >>> float(mpixla.scan(jnp.float32(1), op=MPI.SUM)) == rank + 1
        True
    """
    x = as_array(x, "x", "scan")
    return scan_p.bind(x, comm=comm_of(comm), op=as_reduction(op, x, "scan"), reverse=False)[0]


# scatter


def _scatter_transpose_rule(ct: Any, *, types: Any, comm: Comm, root: int) -> list[Any]:
    return transpose_to_gather(gather_p, ct, comm=comm, root=root)


scatter_p: Primitive = make_primitive(
    "scatter", unstack_abstract_eval, batch=unstack_batch_axes, transpose=_scatter_transpose_rule
)


# An array for an array, and for a pytree one of the same structure.
@overload
def scatter(x: ArrayLike, root: int, *, comm: MPI.Comm | None = ...) -> jax.Array: ...
@overload
def scatter(x: Tree, root: int, *, comm: MPI.Comm | None = ...) -> Tree: ...
@call_per_leaf(keys=True)
def scatter(x: Any, root: int, *, comm: MPI.Comm | None = None) -> Any:
    """Send entry ``i`` of the root's array to rank ``i``; elsewhere ``x`` is a template of the result.

    Args:
        x: on the root an array of shape ``(size, ...)``, of which ``x[i]`` goes to rank ``i``; elsewhere a template
            with the shape and dtype of the result. Or a pytree of these, of the same structure on every rank.
        root: the rank that sends.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        This rank's slice, without the first axis of the root's array.

    Derivative:
        Linear in the root's ``x``. Reverse mode: ``gather``, and zeros off the root.

    Raises:
        TypeError, ValueError, NotImplementedError: as ``gather``, and for a first axis on the root that does not have
            ``size`` entries.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> comm = mpixla.get_default_comm()
        >>> x = jnp.ones((comm.Get_size(), 3)) if comm.Get_rank() == 0 else jnp.zeros(3)
        >>> mpixla.scatter(x, root=0)
        Array([1., 1., 1.], dtype=float32)
    """
    x, c = as_leaf(x, "x", "scatter"), comm_of(comm)
    refuse_where_sharded("scatter", c, "alltoall, in whose result the root's entry is that slice")
    root = as_rank(root, "root", "scatter", c)
    if c.rank == root:
        check_leading_size(x, "scatter", c)
    return scatter_p.bind(unwrap_keys(x), comm=c, root=root)[0]
