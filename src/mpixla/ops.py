"""The operations: one block for each, with its shape rule, its primitive, and its documented function.

The rows that the blocks refer to are in native/tables/ops.def; what they must give is in tests/reference.py.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import _native
from ._comm import NO_STATUS, Comm, Reduction, Status, comm_of, reduction_of, status_of
from ._jax import Primitive, ShapedArray
from ._mpi import MPI
from ._primitive import as_array, compose, make
from ._repeat import remembers
from ._rules import Transpose, define_batching, define_jvp, define_linear, define_transpose
from ._tree import joins, moves

# Checks of arguments, all of which happen when tracing. Each returns the value that the program carries.


def _integer(value: Any, what: str, name: str) -> int:
    if isinstance(value, jax.core.Tracer):
        raise TypeError(
            f"{what} of {name} is a traced value ({value.aval}), but must be known when tracing, because it decides "
            "which program this rank runs. Pass a Python integer; under jit, mark the argument as static "
            "(static_argnums or static_argnames), or close over it."
        )
    try:
        return int(value.__index__())
    except (AttributeError, TypeError):
        raise TypeError(f"{what} of {name} must be an integer, but is {value!r}.") from None


def _rank(value: Any, what: str, name: str, comm: Comm) -> int:
    rank = _integer(value, what, name)
    if not 0 <= rank < comm.size:
        raise ValueError(
            f"{what} of {name} is {rank}, but the ranks of communicator '{comm.name}' are 0 to {comm.size - 1}."
        )
    return rank


def _dest(value: Any, what: str, name: str, comm: Comm) -> int:
    rank = _integer(value, what, name)
    return _native.PROC_NULL if rank == MPI.PROC_NULL else _rank(rank, what, name, comm)


def _source(value: Any, what: str, name: str, comm: Comm) -> int:
    rank = _integer(value, what, name)
    return _native.ANY_SOURCE if rank == MPI.ANY_SOURCE else _dest(rank, what, name, comm)


def _tag(value: Any, what: str, name: str, comm: Comm) -> int:
    tag = _integer(value, what, name)
    bound: int = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB)  # type: ignore[assignment]
    if not 0 <= tag <= bound:
        raise ValueError(f"{what} of {name} is {tag}, but this MPI's tags are 0 to {bound}.")
    return tag


def _recvtag(value: Any, what: str, name: str, comm: Comm) -> int:
    tag = _integer(value, what, name)
    return _native.ANY_TAG if tag == MPI.ANY_TAG else _tag(tag, what, name, comm)


def _reduction(op: Any, x: jax.Array, name: str) -> Reduction:
    reduction = reduction_of(op)
    kind = _native.dtypes[x.dtype.name].kind
    if reduction.kinds is not None and kind not in reduction.kinds:
        if reduction.kinds == ("pair",):
            raise TypeError(
                f"{name} cannot reduce with op {reduction.name}, which is for pairs of values and places; allreduce, "
                "reduce, scan, exscan and reduce_scatter take these."
            )
        allowed = [row.name.removeprefix("MPI_") for row in _native.reductions if kind in row.kinds]
        way_out = f"It can be reduced with {', '.join(allowed)}." if allowed else "Convert it to float32 before."
        raise TypeError(f"{name} cannot reduce dtype {x.dtype.name} with op {reduction.name}. {way_out}")
    return reduction


def _leading_size(x: jax.Array, name: str, comm: Comm) -> None:
    if x.ndim == 0 or x.shape[0] != comm.size:
        raise ValueError(
            f"{name} needs an array whose first axis has one entry for each of the {comm.size} ranks of communicator "
            f"'{comm.name}', but x has shape {x.shape}."
        )


# How the cotangent of a result that is the same on every rank is counted (docs/derivatives.md): it is taken to be the
# same on every rank too, and counted once; or it differs between ranks, and all are added up.
REPLICATED, VARYING = "replicated", "varying"


def _convention(cotangent: Any, name: str) -> str:
    if cotangent not in (REPLICATED, VARYING):
        raise ValueError(f"cotangent of {name} must be '{REPLICATED}' or '{VARYING}', but is {cotangent!r}.")
    return str(cotangent)


# What several operations share: shapes of results, and where operands and results have the batch of a vmap.


def _like(x: ShapedArray, **params: Any) -> list[ShapedArray]:
    return [x]


def _stacked(x: ShapedArray, *, comm: Comm, **params: Any) -> list[ShapedArray]:
    return [x.update(shape=(comm.size, *x.shape))]


def _unstacked(x: ShapedArray, **params: Any) -> list[ShapedArray]:
    return [x.update(shape=x.shape[1:])]


def _stacked_on_root(x: ShapedArray, *, comm: Comm, root: int) -> list[ShapedArray]:
    return _stacked(x, comm=comm) if comm.rank == root else [x]


def _unstacked_on_root(x: ShapedArray, *, comm: Comm, root: int) -> list[ShapedArray]:
    return _unstacked(x) if comm.rank == root else [x]


def _nothing(*operands: ShapedArray, **params: Any) -> list[ShapedArray]:
    return []


def _batch_in_front(**params: Any) -> tuple[int, int]:
    return 0, 0


def _batch_behind_stack(*, comm: Comm, root: int | None = None, **params: Any) -> tuple[int, int]:
    return 0, int(root is None or comm.rank == root)


def _batch_from_behind_stack(*, comm: Comm, root: int | None = None, **params: Any) -> tuple[int, int]:
    return int(root is None or comm.rank == root), 0


# Derivatives of reductions. The sum is linear. Of the others the derivative by each rank's operand is a weight, and the
# tangent is the sum of the ranks' weighted tangents.

_SUM = reduction_of(MPI.SUM)


def _define_reduction(primitive: Primitive, tangent: Callable[..., list[Any]], transpose: Transpose) -> None:
    def jvp(primals: Any, tangents: Any, *, op: Reduction, **params: Any) -> Any:
        if op == _SUM:
            return primitive.bind(*tangents, op=op, **params)
        if op.name not in ("PROD", "MAX", "MIN"):
            raise TypeError(
                f"{primitive.name} with op {op.name} has no derivative. SUM, PROD, MAX and MIN have one; "
                "jax.lax.stop_gradient keeps others out of a derivative."
            )
        return tangent(*primals, *tangents, op=op, **params)

    define_jvp(primitive, jvp)
    define_transpose(primitive, transpose)


def _shares(x: Any, comm: Comm, op: Reduction) -> Any:
    """The derivative of the reduction over all ranks by this rank's ``x``."""
    if op.name == "PROD":  # the product of all others, which is right where a factor is zero
        before, after = (_exscan.bind(x, comm=comm, op=op, reverse=reverse)[0] for reverse in (False, True))
        return before * after
    (extreme,) = _allreduce.bind(x, comm=comm, op=op, cotangent=VARYING)
    holds = (x == extreme).astype(x.dtype)
    return holds / _allreduce.bind(holds, comm=comm, op=_SUM, cotangent=VARYING)[0]


def _define_scan(primitive: Primitive, *, inclusive: bool) -> None:
    """Rules for scan and exscan, whose parameter ``reverse`` says that they start at the last rank."""

    def tangent(x: Any, t: Any, *, comm: Comm, op: Reduction, reverse: bool) -> list[Any]:
        ranks = np.arange(comm.size)
        behind = ranks <= comm.rank if reverse else ranks >= comm.rank
        if not inclusive:
            behind &= ranks != comm.rank
        behind = behind.reshape(-1, *[1] * x.ndim)  # the ranks whose result depends on this one's operand
        if op.name == "PROD":
            (factors,) = _allgather.bind(x, comm=comm, cotangent=VARYING)
            others = jnp.where((ranks == comm.rank).reshape(behind.shape), 1, factors)
            products = jax.lax.cumprod(others, axis=0, reverse=reverse)
            if not inclusive:
                products = jnp.roll(products, -1 if reverse else 1, axis=0)
            weights = jnp.where(behind, products, 0)
        else:
            result = primitive.bind(x, comm=comm, op=op, reverse=reverse)
            (extremes,) = _allgather.bind(*result, comm=comm, cotangent=VARYING)
            holds = jnp.where(behind & (x == extremes), 1, 0).astype(x.dtype)
            holders = _allreduce.bind(holds, comm=comm, op=_SUM, cotangent=VARYING)[0]
            weights = holds / jnp.where(holders == 0, 1, holders)
        return _reduce_scatter.bind(weights * t, comm=comm, op=_SUM)

    def transpose(ct: Any, *, types: Any, comm: Comm, op: Reduction, reverse: bool) -> list[Any]:
        return primitive.bind(ct, comm=comm, op=op, reverse=not reverse)

    _define_reduction(primitive, tangent, transpose)
    define_batching(primitive, _batch_in_front)


# allgather

_allgather = make("allgather", _stacked)
# Its transpose: this rank's slice of a cotangent that is the same on every rank.
_allgather_transpose = compose("allgather_transpose", _unstacked, lambda ct, *, comm: [ct[comm.rank]])

define_linear(
    _allgather,
    lambda ct, *, types, comm, cotangent: (
        _reduce_scatter.bind(ct, comm=comm, op=_SUM)
        if cotangent == VARYING
        else _allgather_transpose.bind(ct, comm=comm)
    ),
)
define_linear(_allgather_transpose, lambda ct, *, types, comm: _allgather.bind(ct, comm=comm, cotangent=REPLICATED))
define_batching(_allgather, _batch_behind_stack)
define_batching(_allgather_transpose, _batch_from_behind_stack)


@moves()
def allgather(x: Any, *, comm: MPI.Comm | None = None, cotangent: str = REPLICATED) -> Any:
    """Gathers the arrays of all ranks on every rank.

    Args:
        x: this rank's array, of the same shape and dtype on every rank, or a pytree of such arrays.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.
        cotangent: how reverse mode counts the cotangents of the result, which is the same on every rank: "replicated",
            they are the same on every rank too and count once; or "varying", they differ and are added up.

    Returns:
        An array of shape ``(size, *x.shape)`` with rank ``i``'s array at index ``i``, the same on every rank.

    Derivative:
        Linear. Reverse mode: this rank's slice of the cotangent, or with ``cotangent="varying"`` the
        ``reduce_scatter``.

    Raises:
        TypeError: for a ``comm`` that is no intra-communicator or a dtype that MPI cannot move.
        ValueError: for a communicator that was freed.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> size = mpixla.get_default_comm().Get_size()
        >>> mpixla.allgather(jnp.ones(3)).shape == (size, 3)
        True
    """
    x = as_array(x, "x", "allgather")
    return _allgather.bind(x, comm=comm_of(comm), cotangent=_convention(cotangent, "allgather"))[0]


# allreduce

_allreduce = make("allreduce", _like)
# The transpose of the sum: the cotangent is the same on every rank, and is every rank's. Users have it as pvary.
_pvary = compose("pvary", _like, lambda x, *, comm: [x])


def _allreduce_tangent(x: Any, t: Any, *, comm: Comm, op: Reduction, cotangent: str) -> list[Any]:
    return _allreduce.bind(_shares(x, comm, op) * t, comm=comm, op=_SUM, cotangent=cotangent)


_define_reduction(
    _allreduce,
    _allreduce_tangent,
    lambda ct, *, types, comm, op, cotangent: (
        _allreduce.bind(ct, comm=comm, op=op, cotangent=VARYING) if cotangent == VARYING else _pvary.bind(ct, comm=comm)
    ),
)
define_linear(_pvary, lambda ct, *, types, comm: _allreduce.bind(ct, comm=comm, op=_SUM, cotangent=REPLICATED))
define_batching(_allreduce, _batch_in_front)
define_batching(_pvary, _batch_in_front)


@joins(reduces=True)
def allreduce(x: Any, op: MPI.Op, *, comm: MPI.Comm | None = None, cotangent: str = REPLICATED) -> Any:
    """Reduces the arrays of all ranks, element by element, with the result on every rank.

    Args:
        x: this rank's array, of the same shape and dtype on every rank, or a pytree of such arrays.
        op: the reduction, such as ``MPI.SUM``. For ``MPI.MAXLOC`` and ``MPI.MINLOC`` ``x`` is a pair of arrays of one
            shape, values and their places. So is the result: the extreme, and the least place of those that hold it.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.
        cotangent: how reverse mode counts the cotangents of the result, which is the same on every rank: "replicated",
            they are the same on every rank too and count once; or "varying", they differ and are added up.

    Returns:
        An array like ``x``, the same on every rank.

    Derivative:
        ``SUM`` is linear; in reverse mode it is the identity, or with ``cotangent="varying"`` the ``allreduce``
        again. ``MAX`` and ``MIN`` give the derivative to the ranks that hold the extreme, in equal shares. ``PROD``
        is right where a factor is zero. The other reductions have no derivative.

    Raises:
        TypeError: for an ``op`` that is no ``MPI.Op`` or does not apply to the dtype, or a ``comm`` that is no
            intra-communicator.
        ValueError: for a communicator or reduction that was freed.

    Example:
        >>> from mpi4py import MPI
        >>> import jax.numpy as jnp, mpixla
        >>> size = mpixla.get_default_comm().Get_size()
        >>> bool((mpixla.allreduce(jnp.ones(3), op=MPI.SUM) == size).all())
        True
    """
    x = as_array(x, "x", "allreduce")
    reduction, convention = _reduction(op, x, "allreduce"), _convention(cotangent, "allreduce")
    return _allreduce.bind(x, comm=comm_of(comm), op=reduction, cotangent=convention)[0]


@moves()
def pvary(x: Any, *, comm: MPI.Comm | None = None) -> Any:
    """Returns ``x``, marked as the same on every rank and about to be used differently on each.

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
    return _pvary.bind(as_array(x, "x", "pvary"), comm=comm_of(comm))[0]


# alltoall

_alltoall = make("alltoall", _like)

define_linear(_alltoall, lambda ct, *, types, comm: _alltoall.bind(ct, comm=comm))
define_batching(_alltoall, lambda **params: (1, 1))


@moves()
def alltoall(x: Any, *, comm: MPI.Comm | None = None) -> Any:
    """Sends a slice of this rank's array to each rank, and receives one from each.

    Args:
        x: this rank's array of shape ``(size, ...)``; ``x[i]`` goes to rank ``i``.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        An array like ``x`` with what rank ``i`` sent at index ``i``.

    Derivative:
        Linear. Reverse mode: ``alltoall``.

    Raises:
        TypeError: for a ``comm`` that is no intra-communicator or a dtype that MPI cannot move.
        ValueError: for a first axis that has not ``size`` entries, or a communicator that was freed.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> size = mpixla.get_default_comm().Get_size()
        >>> mpixla.alltoall(jnp.ones((size, 2))).shape == (size, 2)
        True
    """
    x, c = as_array(x, "x", "alltoall"), comm_of(comm)
    _leading_size(x, "alltoall", c)
    return _alltoall.bind(x, comm=c)[0]


# barrier

_barrier = make("barrier", _nothing)


@remembers(0)
def barrier(*, comm: MPI.Comm | None = None) -> None:
    """Waits until every rank has come here.

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
    _barrier.bind(comm=comm_of(comm))


# bcast

_bcast = make("bcast", _like)
# Its transpose: the root keeps a cotangent that is the same on every rank. The others' operand did not matter.
_bcast_transpose = compose(
    "bcast_transpose",
    _like,
    lambda ct, *, comm, root: [ct if comm.rank == root else jnp.zeros_like(ct)],
)

define_linear(
    _bcast,
    lambda ct, *, types, comm, root, cotangent: (_sum_on_root if cotangent == VARYING else _bcast_transpose).bind(
        ct, comm=comm, root=root
    ),
)
define_linear(
    _bcast_transpose, lambda ct, *, types, comm, root: _bcast.bind(ct, comm=comm, root=root, cotangent=REPLICATED)
)
define_batching(_bcast, _batch_in_front)
define_batching(_bcast_transpose, _batch_in_front)


@joins(reduces=False)
def bcast(x: Any, root: int, *, comm: MPI.Comm | None = None, cotangent: str = REPLICATED) -> Any:
    """Sends the root's array to every rank.

    Args:
        x: on the root the array to send; elsewhere an array of the same shape and dtype, whose values do not
            matter.
        root: the rank that sends.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.
        cotangent: how reverse mode counts the cotangents of the result, which is the same on every rank: "replicated",
            they are the same on every rank too and count once; or "varying", they differ and are added up.

    Returns:
        The root's array, the same on every rank.

    Derivative:
        Linear in the root's ``x``. Reverse mode: the root's cotangent on the root and zeros elsewhere, or with
        ``cotangent="varying"`` the sum of all cotangents on the root.

    Raises:
        TypeError: for a root that is not a static integer, a ``comm`` that is no intra-communicator, or a dtype
            that MPI cannot move.
        ValueError: for a root that is not a rank of the communicator, or a communicator that was freed.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> rank = mpixla.get_default_comm().Get_rank()
        >>> float(mpixla.bcast(jnp.float32(rank + 1), root=0))
        1.0
    """
    x, c = as_array(x, "x", "bcast"), comm_of(comm)
    convention = _convention(cotangent, "bcast")
    return _bcast.bind(x, comm=c, root=_rank(root, "root", "bcast", c), cotangent=convention)[0]


# exscan

_exscan_row = make("exscan", _like)


def _exscan_fill(x: Any, *, comm: Comm, op: Reduction, reverse: bool) -> list[Any]:
    """MPI leaves the first rank's buffer as it was, whatever that is."""
    y = _exscan_row.bind(x, comm=comm, op=op, reverse=reverse)
    is_first = comm.rank == (comm.size - 1 if reverse else 0)
    return [jnp.full_like(x, op.neutral(x.dtype))] if is_first else y


_exscan = compose("exscan", _like, _exscan_fill)

_define_scan(_exscan, inclusive=False)


@joins(reduces=True)
def exscan(x: Any, op: MPI.Op, *, comm: MPI.Comm | None = None) -> Any:
    """Reduces, on each rank, the arrays of the ranks before it.

    Args:
        x: this rank's array, of the same shape and dtype on every rank, or a pytree of such arrays.
        op: the reduction, such as ``MPI.SUM``. For ``MPI.MAXLOC`` and ``MPI.MINLOC`` ``x`` is a pair of arrays of one
            shape, values and their places. So is the result: the extreme, and the least place of those that hold it.
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
    x, c = as_array(x, "x", "exscan"), comm_of(comm)
    reduction = _reduction(op, x, "exscan")
    return _exscan.bind(x, comm=c, op=reduction, reverse=False)[0]


# gather

_gather = make("gather", _stacked_on_root)


def _gather_transpose_fun(ct: Any, *, comm: Comm, root: int) -> list[Any]:
    (part,) = _scatter.bind(ct, comm=comm, root=root)
    return [part if comm.rank == root else part + ct]  # off the root the result was the operand as well


_gather_transpose = compose("gather_transpose", _unstacked_on_root, _gather_transpose_fun)

define_linear(_gather, lambda ct, *, types, **params: _gather_transpose.bind(ct, **params))
define_linear(_gather_transpose, lambda ct, *, types, **params: _gather.bind(ct, **params))
define_batching(_gather, _batch_behind_stack)
define_batching(_gather_transpose, _batch_from_behind_stack)


@moves()
def gather(x: Any, root: int, *, comm: MPI.Comm | None = None) -> Any:
    """Gathers the arrays of all ranks on the root.

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
        TypeError: for a root that is not a static integer, a ``comm`` that is no intra-communicator, or a dtype
            that MPI cannot move.
        ValueError: for a root that is not a rank of the communicator, or a communicator that was freed.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> comm = mpixla.get_default_comm()
        >>> y = mpixla.gather(jnp.ones(3), root=0)
        >>> y.shape == ((comm.Get_size(), 3) if comm.Get_rank() == 0 else (3,))
        True
    """
    x, c = as_array(x, "x", "gather"), comm_of(comm)
    return _gather.bind(x, comm=c, root=_rank(root, "root", "gather", c))[0]


# recv

_recv = make("recv", _like)


def _recv_transpose_fun(ct: Any, *, comm: Comm, recvtag: int, source: int, status: Status) -> list[Any]:
    if source == _native.PROC_NULL:
        return [ct]  # the result was the template
    _refuse_any_source(source, "recv")
    _send.bind(ct, comm=comm, dest=source, sendtag=max(recvtag, 0))
    return [jnp.zeros_like(ct)]


def _refuse_any_source(source: int, name: str) -> None:
    if source == _native.ANY_SOURCE:
        raise TypeError(
            f"{name} from MPI.ANY_SOURCE has no reverse mode, because its cotangent must go back to the rank that sent "
            "the message. Name the source."
        )


_recv_transpose = compose("recv_transpose", _like, _recv_transpose_fun)

define_linear(_recv, lambda ct, *, types, **params: _recv_transpose.bind(ct, **params))
define_linear(_recv_transpose, lambda ct, *, types, **params: _recv.bind(ct, **params))
define_batching(_recv, _batch_in_front)
define_batching(_recv_transpose, _batch_in_front)


@moves()
def recv(
    x: Any,
    source: int = MPI.ANY_SOURCE,
    *,
    tag: int = MPI.ANY_TAG,
    comm: MPI.Comm | None = None,
    status: MPI.Status | None = None,
) -> Any:
    """Receives an array from another rank.

    Args:
        x: a template: the result has its shape and dtype. ``x`` is not modified.
        source: the rank that sends, ``MPI.ANY_SOURCE`` or ``MPI.PROC_NULL``.
        tag: the message's tag, or ``MPI.ANY_TAG``.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.
        status: filled, each time the call runs, with the message's source, tag and length.

    Returns:
        The array that was received. Where the message is shorter than the template, and from ``MPI.PROC_NULL``,
        the template's values remain.

    Derivative:
        Linear in the message and the template. Reverse mode: the cotangent is sent back to ``source``, which must not
        be ``MPI.ANY_SOURCE``, under the same tag (0 for ``MPI.ANY_TAG``). A sender that used ``send`` does not wait
        for it: where gradients are to flow use ``sendrecv``, or ``wait(isend(x, dest))`` in the place of ``send``.

    Raises:
        TypeError: for a source or tag that is not a static integer, a ``comm`` that is no intra-communicator, a
            ``status`` that is no ``MPI.Status``, or a dtype that MPI cannot move.
        ValueError: for a source that is not a rank of the communicator, a tag out of range, or a communicator
            that was freed.

    Example:
        >>> from mpi4py import MPI
        >>> import jax.numpy as jnp, mpixla
        >>> mpixla.recv(jnp.arange(3), source=MPI.PROC_NULL)
        Array([0, 1, 2], dtype=int32)
    """
    x, c = as_array(x, "x", "recv"), comm_of(comm)
    return _recv.bind(
        x,
        comm=c,
        recvtag=_recvtag(tag, "tag", "recv", c),
        source=_source(source, "source", "recv", c),
        status=status_of(status),
    )[0]


# reduce

_reduce = make("reduce", _like)


def _reduce_transpose_fun(ct: Any, *, comm: Comm, root: int) -> list[Any]:
    (total,) = _bcast.bind(ct, comm=comm, root=root, cotangent=VARYING)
    return [total if comm.rank == root else total + ct]  # off the root the result was the operand as well


def _sum_on_root_fun(x: Any, *, comm: Comm, root: int) -> list[Any]:
    total = _reduce.bind(x, comm=comm, op=_SUM, root=root)
    return total if comm.rank == root else [jnp.zeros_like(x)]


def _reduce_tangent(x: Any, t: Any, *, comm: Comm, op: Reduction, root: int) -> list[Any]:
    (total,) = _sum_on_root.bind(_shares(x, comm, op) * t, comm=comm, root=root)
    return [total if comm.rank == root else total + t]


_reduce_transpose = compose("reduce_transpose", _like, _reduce_transpose_fun)
_sum_on_root: Primitive = compose("sum_on_root", _like, _sum_on_root_fun)

_define_reduction(
    _reduce,
    _reduce_tangent,
    lambda ct, *, types, comm, op, root: _reduce_transpose.bind(ct, comm=comm, root=root),
)
define_linear(_reduce_transpose, lambda ct, *, types, comm, root: _reduce.bind(ct, comm=comm, op=_SUM, root=root))
define_linear(_sum_on_root, lambda ct, *, types, comm, root: _bcast.bind(ct, comm=comm, root=root, cotangent=VARYING))
define_batching(_reduce, _batch_in_front)
define_batching(_reduce_transpose, _batch_in_front)
define_batching(_sum_on_root, _batch_in_front)


@joins(reduces=True)
def reduce(x: Any, op: MPI.Op, root: int, *, comm: MPI.Comm | None = None) -> Any:
    """Reduces the arrays of all ranks, element by element, with the result on the root.

    Args:
        x: this rank's array, of the same shape and dtype on every rank, or a pytree of such arrays.
        op: the reduction, such as ``MPI.SUM``. For ``MPI.MAXLOC`` and ``MPI.MINLOC`` ``x`` is a pair of arrays of one
            shape, values and their places. So is the result: the extreme, and the least place of those that hold it.
        root: the rank that has the result.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        On the root the reduced array; elsewhere ``x`` itself.

    Derivative:
        As for ``allreduce`` with ``cotangent="varying"``, of the root's result; elsewhere the result is ``x``, so its
        cotangent is added.

    Raises:
        TypeError: for an ``op`` that is no ``MPI.Op`` or does not apply to the dtype, a root that is not a static
            integer, or a ``comm`` that is no intra-communicator.
        ValueError: for a root that is not a rank of the communicator, or a communicator or reduction that was
            freed.

    Example:
        >>> from mpi4py import MPI
        >>> import jax.numpy as jnp, mpixla
        >>> comm = mpixla.get_default_comm()
        >>> y = mpixla.reduce(jnp.float32(1), op=MPI.SUM, root=0)
        >>> float(y) == (comm.Get_size() if comm.Get_rank() == 0 else 1)
        True
    """
    x, c = as_array(x, "x", "reduce"), comm_of(comm)
    return _reduce.bind(x, comm=c, op=_reduction(op, x, "reduce"), root=_rank(root, "root", "reduce", c))[0]


# reduce_scatter

_reduce_scatter: Primitive = make("reduce_scatter", _unstacked)


def _reduce_scatter_tangent(x: Any, t: Any, *, comm: Comm, op: Reduction) -> list[Any]:
    return _reduce_scatter.bind(_shares(x, comm, op) * t, comm=comm, op=_SUM)


_define_reduction(
    _reduce_scatter,
    _reduce_scatter_tangent,
    lambda ct, *, types, comm, op: _allgather.bind(ct, comm=comm, cotangent=VARYING),
)
define_batching(_reduce_scatter, _batch_from_behind_stack)


@joins(reduces=True, kept_axes=1)
def reduce_scatter(x: Any, op: MPI.Op, *, comm: MPI.Comm | None = None) -> Any:
    """Reduces the arrays of all ranks, element by element, with a slice of the result on each rank.

    Args:
        x: this rank's array of shape ``(size, ...)``, of the same shape and dtype on every rank.
        op: the reduction, such as ``MPI.SUM``. For ``MPI.MAXLOC`` and ``MPI.MINLOC`` ``x`` is a pair of arrays of one
            shape, values and their places. So is the result: the extreme, and the least place of those that hold it.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        The reduction over the ranks' ``x[rank]``, of shape ``(...)``.

    Derivative:
        As for ``allreduce``. ``SUM`` in reverse mode: ``allgather``.

    Raises:
        TypeError: for an ``op`` that is no ``MPI.Op`` or does not apply to the dtype, or a ``comm`` that is no
            intra-communicator.
        ValueError: for a first axis that has not ``size`` entries, or a communicator or reduction that was freed.

    Example:
        >>> from mpi4py import MPI
        >>> import jax.numpy as jnp, mpixla
        >>> size = mpixla.get_default_comm().Get_size()
        >>> float(mpixla.reduce_scatter(jnp.ones(size), op=MPI.SUM)) == size
        True
    """
    x, c = as_array(x, "x", "reduce_scatter"), comm_of(comm)
    _leading_size(x, "reduce_scatter", c)
    return _reduce_scatter.bind(x, comm=c, op=_reduction(op, x, "reduce_scatter"))[0]


# scan

_scan = make("scan", _like)

_define_scan(_scan, inclusive=True)


@joins(reduces=True)
def scan(x: Any, op: MPI.Op, *, comm: MPI.Comm | None = None) -> Any:
    """Reduces, on each rank, the arrays of the ranks up to and including itself.

    Args:
        x: this rank's array, of the same shape and dtype on every rank, or a pytree of such arrays.
        op: the reduction, such as ``MPI.SUM``. For ``MPI.MAXLOC`` and ``MPI.MINLOC`` ``x`` is a pair of arrays of one
            shape, values and their places. So is the result: the extreme, and the least place of those that hold it.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        An array like ``x``: the reduction over ranks ``0`` to this one.

    Derivative:
        ``SUM`` is linear; in reverse mode it is the scan that starts at the last rank. ``MAX`` and ``MIN`` give the
        derivative to the ranks that hold the extreme so far, in equal shares. ``PROD`` is right where a factor is
        zero. The other reductions have no derivative.

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
    return _scan.bind(x, comm=comm_of(comm), op=_reduction(op, x, "scan"), reverse=False)[0]


# scatter

_scatter = make("scatter", _unstacked_on_root)


def _scatter_transpose_fun(ct: Any, *, comm: Comm, root: int) -> list[Any]:
    whole = _gather.bind(ct, comm=comm, root=root)
    return whole if comm.rank == root else [jnp.zeros_like(ct)]  # off the root the operand was a template


_scatter_transpose = compose("scatter_transpose", _stacked_on_root, _scatter_transpose_fun)

define_linear(_scatter, lambda ct, *, types, **params: _scatter_transpose.bind(ct, **params))
define_linear(_scatter_transpose, lambda ct, *, types, **params: _scatter.bind(ct, **params))
define_batching(_scatter, _batch_from_behind_stack)
define_batching(_scatter_transpose, _batch_behind_stack)


@moves()
def scatter(x: Any, root: int, *, comm: MPI.Comm | None = None) -> Any:
    """Sends a slice of the root's array to each rank.

    Args:
        x: on the root an array of shape ``(size, ...)``, of which ``x[i]`` goes to rank ``i``; elsewhere a template
            with the shape and dtype of the result.
        root: the rank that sends.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        This rank's slice, without the first axis of the root's array.

    Derivative:
        Linear in the root's ``x``. Reverse mode: ``gather``, and zeros off the root.

    Raises:
        TypeError: for a root that is not a static integer, a ``comm`` that is no intra-communicator, or a dtype
            that MPI cannot move.
        ValueError: for a first axis on the root that has not ``size`` entries, a root that is not a rank of the
            communicator, or a communicator that was freed.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> comm = mpixla.get_default_comm()
        >>> x = jnp.ones((comm.Get_size(), 3)) if comm.Get_rank() == 0 else jnp.zeros(3)
        >>> mpixla.scatter(x, root=0)
        Array([1., 1., 1.], dtype=float32)
    """
    x, c = as_array(x, "x", "scatter"), comm_of(comm)
    root = _rank(root, "root", "scatter", c)
    if c.rank == root:
        _leading_size(x, "scatter", c)
    return _scatter.bind(x, comm=c, root=root)[0]


# send

_send = make("send", _nothing)


def _refuse_reverse_mode(*args: Any, **params: Any) -> list[Any]:
    raise TypeError(
        "send has no reverse mode, because it has no result whose cotangent could come back. Use sendrecv, or "
        "x = wait(isend(x, dest))."
    )


define_linear(_send, _refuse_reverse_mode)
define_batching(_send, _batch_in_front)


@moves()
def send(x: Any, dest: int, *, tag: int = 0, comm: MPI.Comm | None = None) -> None:
    """Sends an array to another rank.

    Called eagerly it returns when ``x`` was handed to MPI, which may be only when the other rank receives it.

    Args:
        x: the array, or a pytree of arrays, which is sent leaf by leaf.
        dest: the rank that receives, or ``MPI.PROC_NULL``.
        tag: the message's tag.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Derivative:
        Forward mode sends the tangent. There is no reverse mode, since there is no result: use ``sendrecv``, or
        ``wait(isend(x, dest))``, which is ``x`` and takes its cotangent back.

    Raises:
        TypeError: for a destination or tag that is not a static integer, a ``comm`` that is no intra-communicator,
            or a dtype that MPI cannot move.
        ValueError: for a destination that is not a rank of the communicator, a tag out of range, or a communicator
            that was freed.

    Example:
        >>> from mpi4py import MPI
        >>> import jax.numpy as jnp, mpixla
        >>> mpixla.send(jnp.ones(3), dest=MPI.PROC_NULL)
    """
    x, c = as_array(x, "x", "send"), comm_of(comm)
    _send.bind(x, comm=c, dest=_dest(dest, "dest", "send", c), sendtag=_tag(tag, "tag", "send", c))


# sendrecv


def _sendrecv_shapes(sendbuf: ShapedArray, recvbuf: ShapedArray, **params: Any) -> list[ShapedArray]:
    return [recvbuf]


_sendrecv = make("sendrecv", _sendrecv_shapes)


def _sendrecv_transpose(
    ct: Any, *, types: Any, comm: Comm, dest: int, recvtag: int, sendtag: int, source: int, status: Status
) -> list[Any]:
    """The cotangent goes back where the message came from, under its tag; the template's is there if none came."""
    _refuse_any_source(source, "sendrecv")
    back = {
        "dest": source,
        "source": dest,
        "sendtag": sendtag if recvtag == _native.ANY_TAG else recvtag,
        "recvtag": _native.ANY_TAG if recvtag == _native.ANY_TAG else sendtag,
    }
    nothing = jnp.zeros(types[0].shape, types[0].dtype)
    (arrived,) = _sendrecv.bind(ct, nothing, comm=comm, status=NO_STATUS, **back)
    return [arrived, ct if source == _native.PROC_NULL else jnp.zeros_like(ct)]


define_linear(_sendrecv, _sendrecv_transpose)
define_batching(_sendrecv, _batch_in_front)


@moves(2)
def sendrecv(
    sendbuf: Any,
    recvbuf: Any,
    source: int,
    dest: int,
    *,
    sendtag: int = 0,
    recvtag: int = MPI.ANY_TAG,
    comm: MPI.Comm | None = None,
    status: MPI.Status | None = None,
) -> Any:
    """Sends an array to one rank and receives one from another, at the same time.

    Args:
        sendbuf: the array to send.
        recvbuf: a template: the result has its shape and dtype, which may differ from ``sendbuf``'s. ``recvbuf``
            is not modified.
        source: the rank to receive from, ``MPI.ANY_SOURCE`` or ``MPI.PROC_NULL``.
        dest: the rank to send to, or ``MPI.PROC_NULL``.
        sendtag: the tag of the message that is sent.
        recvtag: the tag of the message to receive, or ``MPI.ANY_TAG``.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.
        status: filled, each time the call runs, with the source, tag and length of the message received.

    Returns:
        The array that was received. Where the message is shorter than the template, and from ``MPI.PROC_NULL``,
        the template's values remain.

    Derivative:
        Linear in the message and the template. Reverse mode: the cotangent goes to ``source``, and that of
        ``sendbuf`` comes from ``dest``, under the same tags. ``source`` must not be ``MPI.ANY_SOURCE``.

    Raises:
        TypeError: for a rank or tag that is not a static integer, a ``comm`` that is no intra-communicator, a
            ``status`` that is no ``MPI.Status``, or a dtype that MPI cannot move.
        ValueError: for a source or destination that is not a rank of the communicator, a tag out of range, or a
            communicator that was freed.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> comm = mpixla.get_default_comm()
        >>> rank, size = comm.Get_rank(), comm.Get_size()
        >>> x = jnp.float32(rank)
        >>> y = mpixla.sendrecv(x, x, source=(rank - 1) % size, dest=(rank + 1) % size)
        >>> float(y) == (rank - 1) % size
        True
    """
    sendbuf = as_array(sendbuf, "sendbuf", "sendrecv")
    recvbuf = as_array(recvbuf, "recvbuf", "sendrecv")
    c = comm_of(comm)
    return _sendrecv.bind(
        sendbuf,
        recvbuf,
        comm=c,
        dest=_dest(dest, "dest", "sendrecv", c),
        recvtag=_recvtag(recvtag, "recvtag", "sendrecv", c),
        sendtag=_tag(sendtag, "sendtag", "sendrecv", c),
        source=_source(source, "source", "sendrecv", c),
        status=status_of(status),
    )[0]
