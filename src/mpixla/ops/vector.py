"""The operations whose parts differ in size between ranks: MPI's functions with a "v".

Their counts are rows, entries of the first axis, and are known when tracing. The batch of a vmap makes each row
larger: it travels as the second axis.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..core.primitive import REPLICATED, VARYING, Cotangent, as_array, compose, make
from ..core.rank import own_rank
from ..core.rules import define_batching, define_linear
from ..core.tree import moves
from ..runtime.comm import Comm, comm_of
from ..runtime.mpi import MPI
from ..runtime.private_jax import ShapedArray
from .arguments import as_convention, as_integer, as_rank
from .collective import SUM, allreduce_p

# Checks of arguments.

_LIMIT = 2**63


def _counts(value: Any, what: str, name: str, comm: Comm) -> tuple[int, ...]:
    if isinstance(value, jax.core.Tracer):
        raise TypeError(
            f"{what} of {name} is a traced value ({value.aval}), but must be known when tracing, because it decides "
            "the shapes. Pass a list of Python integers; under jit, mark the argument as static (static_argnums or "
            "static_argnames, as a tuple), or close over it."
        )
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
        raise ValueError(f"{what} of {name} are {sum(counts)} rows, but an array has less than 2**63.")
    return counts


def _check_rows(x: jax.Array, rows: int, meaning: str, name: str) -> None:
    if x.ndim == 0:
        raise ValueError(f"{name} communicates rows, entries of the first axis, but x is a scalar and has no axis.")
    if x.shape[0] != rows:
        raise ValueError(f"{name} needs an x with {rows} rows on this rank, {meaning}, but x has shape {x.shape}.")


# What the operations share.


def _resized(x: ShapedArray, rows: int) -> list[ShapedArray]:
    return [x.update(shape=(rows, *x.shape[1:]))]


def _all_rows(x: ShapedArray, *, counts: tuple[int, ...], **params: Any) -> list[ShapedArray]:
    return _resized(x, sum(counts))


def _own_rows(x: ShapedArray, *, comm: Comm, counts: tuple[int, ...], **params: Any) -> list[ShapedArray]:
    return _resized(x, counts[comm.rank])


def _all_rows_on_root(x: ShapedArray, *, comm: Comm, counts: tuple[int, ...], root: int) -> list[ShapedArray]:
    return _all_rows(x, counts=counts) if comm.rank == root else [x]


def _slice(x: Any, comm: Comm, counts: tuple[int, ...]) -> Any:
    starts = np.cumsum((0, *counts[:-1]))
    return jax.lax.dynamic_slice_in_dim(x, jnp.asarray(starts)[own_rank(comm)], counts[comm.rank])


def _batch_behind_rows(**params: Any) -> tuple[int, int]:
    return 1, 1


# allgatherv

_allgatherv = make("allgatherv", _all_rows)
# Its transpose: this rank's rows of a cotangent that is the same on every rank, or of the sum of those that differ.
_allgatherv_transpose = compose(
    "allgatherv_transpose", _own_rows, lambda ct, *, comm, counts: [_slice(ct, comm, counts)], takes_replicated=True
)


def _sum_of_rows_fun(ct: Any, *, comm: Comm, counts: tuple[int, ...]) -> list[Any]:
    (total,) = allreduce_p.bind(ct, comm=comm, op=SUM, cotangent=VARYING)
    return [_slice(total, comm, counts)]


_sum_of_rows = compose("sum_of_rows", _own_rows, _sum_of_rows_fun)

define_linear(
    _allgatherv,
    lambda ct, *, types, comm, counts, cotangent: (
        _sum_of_rows if cotangent == VARYING else _allgatherv_transpose
    ).bind(ct, comm=comm, counts=counts),
)
define_linear(
    _allgatherv_transpose,
    lambda ct, *, types, comm, counts: _allgatherv.bind(ct, comm=comm, counts=counts, cotangent=REPLICATED),
)
define_linear(
    _sum_of_rows,
    lambda ct, *, types, comm, counts: _allgatherv.bind(ct, comm=comm, counts=counts, cotangent=VARYING),
)
for _primitive in (_allgatherv, _allgatherv_transpose, _sum_of_rows):
    define_batching(_primitive, _batch_behind_rows)


@moves()
def allgatherv(
    x: Any, counts: Sequence[int], *, comm: MPI.Comm | None = None, cotangent: Cotangent = REPLICATED
) -> jax.Array:
    """Gathers the arrays of all ranks, of different lengths, on every rank.

    Args:
        x: this rank's array, of shape ``(counts[rank], ...)``, with the same other axes and dtype on every rank.
        counts: how many rows, entries of the first axis, each rank's ``x`` has: static integers, the same on every
            rank. They may be 0.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.
        cotangent: how reverse mode counts the cotangents of the result, which is the same on every rank: "replicated",
            they are the same on every rank too and count once; or "varying", they differ and are added up.

    Returns:
        An array of shape ``(sum(counts), ...)`` with the ranks' arrays one behind the other, the same on every rank.

    Derivative:
        Linear. Reverse mode: this rank's rows of the cotangent, or with ``cotangent="varying"`` of the sum of all
        ranks' cotangents.

    Raises:
        TypeError: for counts that are not a sequence of static integers, a ``comm`` that is no intra-communicator, or
            a dtype that MPI cannot move.
        ValueError: for counts that are negative or not one for each rank, an ``x`` that has not ``counts[rank]`` rows,
            or a communicator that was freed.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> comm = mpixla.get_default_comm()
        >>> counts = list(range(comm.Get_size()))  # rank i has i rows
        >>> x = jnp.ones((comm.Get_rank(), 3))
        >>> mpixla.allgatherv(x, counts).shape == (sum(counts), 3)
        True
    """
    x, c = as_array(x, "x", "allgatherv"), comm_of(comm)
    rows, convention = _counts(counts, "counts", "allgatherv", c), as_convention(cotangent, "allgatherv", c)
    _check_rows(x, rows[c.rank], f"which is counts[{c.rank}]", "allgatherv")
    return _allgatherv.bind(x, comm=c, counts=rows, cotangent=convention)[0]


# alltoallv


def _received_rows(x: ShapedArray, *, recvcounts: tuple[int, ...], **params: Any) -> list[ShapedArray]:
    return _resized(x, sum(recvcounts))


_alltoallv = make("alltoallv", _received_rows)

define_linear(
    _alltoallv,
    lambda ct, *, types, comm, recvcounts, sendcounts: _alltoallv.bind(
        ct, comm=comm, recvcounts=sendcounts, sendcounts=recvcounts
    ),
)
define_batching(_alltoallv, _batch_behind_rows)


@moves()
def alltoallv(
    x: Any, sendcounts: Sequence[int], recvcounts: Sequence[int], *, comm: MPI.Comm | None = None
) -> jax.Array:
    """Sends some rows of this rank's array to each rank, and receives some from each.

    Args:
        x: this rank's array of shape ``(sum(sendcounts), ...)``; the first ``sendcounts[0]`` rows go to rank 0, and so
            on. The other axes and the dtype are the same on every rank.
        sendcounts: how many rows, entries of the first axis, go to each rank: static integers, which may be 0.
        recvcounts: how many rows come from each rank: ``recvcounts[i]`` is what rank ``i`` has as
            ``sendcounts[rank]``.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        An array of shape ``(sum(recvcounts), ...)`` with what the ranks sent, one behind the other.

    Derivative:
        Linear. Reverse mode: ``alltoallv`` with the counts exchanged.

    Raises:
        TypeError: for counts that are not sequences of static integers, a ``comm`` that is no intra-communicator, or
            a dtype that MPI cannot move.
        ValueError: for counts that are negative or not one for each rank, an ``x`` that has not ``sum(sendcounts)``
            rows, or a communicator that was freed.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> comm = mpixla.get_default_comm()
        >>> rank, size = comm.Get_rank(), comm.Get_size()
        >>> sendcounts = list(range(size))  # i rows to rank i
        >>> recvcounts = [rank] * size
        >>> mpixla.alltoallv(jnp.ones((sum(sendcounts), 3)), sendcounts, recvcounts).shape == (rank * size, 3)
        True
    """
    x, c = as_array(x, "x", "alltoallv"), comm_of(comm)
    sent, received = (
        _counts(counts, what, "alltoallv", c)
        for counts, what in ((sendcounts, "sendcounts"), (recvcounts, "recvcounts"))
    )
    _check_rows(x, sum(sent), "the sum of sendcounts", "alltoallv")
    return _alltoallv.bind(x, comm=c, recvcounts=received, sendcounts=sent)[0]


# gatherv and scatterv

_gatherv = make("gatherv", _all_rows_on_root)
_scatterv = make("scatterv", _own_rows)


def _gatherv_transpose_fun(ct: Any, *, comm: Comm, counts: tuple[int, ...], root: int) -> list[Any]:
    (part,) = _scatterv.bind(ct, comm=comm, counts=counts, root=root)
    return [part if comm.rank == root else part + ct]  # off the root the result was the operand as well


def _scatterv_transpose_fun(ct: Any, *, comm: Comm, counts: tuple[int, ...], root: int) -> list[Any]:
    whole = _gatherv.bind(ct, comm=comm, counts=counts, root=root)
    return whole if comm.rank == root else [jnp.zeros_like(ct)]  # off the root the operand was a template


_gatherv_transpose = compose("gatherv_transpose", _own_rows, _gatherv_transpose_fun)
_scatterv_transpose = compose("scatterv_transpose", _all_rows_on_root, _scatterv_transpose_fun)

define_linear(_gatherv, lambda ct, *, types, **params: _gatherv_transpose.bind(ct, **params))
define_linear(_gatherv_transpose, lambda ct, *, types, **params: _gatherv.bind(ct, **params))
define_linear(_scatterv, lambda ct, *, types, **params: _scatterv_transpose.bind(ct, **params))
define_linear(_scatterv_transpose, lambda ct, *, types, **params: _scatterv.bind(ct, **params))
for _primitive in (_gatherv, _gatherv_transpose, _scatterv, _scatterv_transpose):
    define_batching(_primitive, _batch_behind_rows)


@moves()
def gatherv(x: Any, counts: Sequence[int], root: int, *, comm: MPI.Comm | None = None) -> jax.Array:
    """Gathers the arrays of all ranks, of different lengths, on the root.

    Args:
        x: this rank's array, of shape ``(counts[rank], ...)``, with the same other axes and dtype on every rank.
        counts: how many rows, entries of the first axis, each rank's ``x`` has: static integers, the same on every
            rank. They may be 0.
        root: the rank that receives.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        On the root an array of shape ``(sum(counts), ...)`` with the ranks' arrays one behind the other; elsewhere
        ``x`` itself.

    Derivative:
        Linear. Reverse mode: ``scatterv`` of the root's cotangent; elsewhere the rank's own is added, since there the
        result is ``x``.

    Raises:
        TypeError: for counts that are not a sequence of static integers, a root that is not a static integer, a
            ``comm`` that is no intra-communicator, or a dtype that MPI cannot move.
        ValueError: for counts that are negative or not one for each rank, an ``x`` that has not ``counts[rank]`` rows,
            a root that is not a rank of the communicator, or a communicator that was freed.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> comm = mpixla.get_default_comm()
        >>> rank, size = comm.Get_rank(), comm.Get_size()
        >>> counts = list(range(size))  # rank i has i rows
        >>> y = mpixla.gatherv(jnp.ones((rank, 3)), counts, root=0)
        >>> y.shape == ((sum(counts) if rank == 0 else rank), 3)
        True
    """
    x, c = as_array(x, "x", "gatherv"), comm_of(comm)
    rows, root = _counts(counts, "counts", "gatherv", c), as_rank(root, "root", "gatherv", c)
    _check_rows(x, rows[c.rank], f"which is counts[{c.rank}]", "gatherv")
    return _gatherv.bind(x, comm=c, counts=rows, root=root)[0]


@moves()
def scatterv(x: Any, counts: Sequence[int], root: int, *, comm: MPI.Comm | None = None) -> jax.Array:
    """Sends some rows of the root's array to each rank.

    Args:
        x: on the root an array of shape ``(sum(counts), ...)``, of which the first ``counts[0]`` rows go to rank 0, and
            so on; elsewhere a template with the shape ``(counts[rank], ...)`` and dtype of the result.
        counts: how many rows, entries of the first axis, each rank gets: static integers, the same on every rank. They
            may be 0.
        root: the rank that sends.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        This rank's rows, of shape ``(counts[rank], ...)``.

    Derivative:
        Linear in the root's ``x``. Reverse mode: ``gatherv``, and zeros off the root.

    Raises:
        TypeError: for counts that are not a sequence of static integers, a root that is not a static integer, a
            ``comm`` that is no intra-communicator, or a dtype that MPI cannot move.
        ValueError: for counts that are negative or not one for each rank, an ``x`` that has not ``sum(counts)`` rows on
            the root and ``counts[rank]`` elsewhere, a root that is not a rank of the communicator, or a communicator
            that was freed.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> comm = mpixla.get_default_comm()
        >>> rank, size = comm.Get_rank(), comm.Get_size()
        >>> counts = list(range(size))  # i rows for rank i
        >>> x = jnp.ones((sum(counts), 3)) if rank == 0 else jnp.zeros((rank, 3))
        >>> y = mpixla.scatterv(x, counts, root=0)
        >>> y.shape == (rank, 3) and bool((y == 1).all())
        True
    """
    x, c = as_array(x, "x", "scatterv"), comm_of(comm)
    rows, root = _counts(counts, "counts", "scatterv", c), as_rank(root, "root", "scatterv", c)
    if c.rank == root:
        _check_rows(x, sum(rows), "the sum of counts, since it is the root", "scatterv")
    else:
        _check_rows(x, rows[c.rank], f"which is counts[{c.rank}]", "scatterv")
    return _scatterv.bind(x, comm=c, counts=rows, root=root)[0]
