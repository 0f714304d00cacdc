"""The operations: one block for each, with its shape rule, its primitive, and its documented function.

The rows that the blocks refer to are in native/ops.def; what they must give is in tests/reference.py.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import _native
from ._comm import Comm, Reduction, comm_of, reduction_of, status_of
from ._jax import ShapedArray
from ._mpi import MPI
from ._primitive import as_array, make

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


# allgather


def _allgather_shapes(x: ShapedArray, *, comm: Comm) -> list[ShapedArray]:
    return [x.update(shape=(comm.size, *x.shape))]


_allgather = make("allgather", _allgather_shapes)


def allgather(x: Any, *, comm: MPI.Comm | None = None) -> jax.Array:
    """Gathers the arrays of all ranks on every rank.

    Args:
        x: this rank's array, of the same shape and dtype on every rank.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        An array of shape ``(size, *x.shape)`` with rank ``i``'s array at index ``i``, the same on every rank.

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
    return _allgather.bind(x, comm=comm_of(comm))[0]


# allreduce


def _like(x: ShapedArray, **params: Any) -> list[ShapedArray]:
    return [x]


_allreduce = make("allreduce", _like)


def allreduce(x: Any, op: MPI.Op, *, comm: MPI.Comm | None = None) -> jax.Array:
    """Reduces the arrays of all ranks, element by element, with the result on every rank.

    Args:
        x: this rank's array, of the same shape and dtype on every rank.
        op: the reduction, such as ``MPI.SUM``.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        An array like ``x``, the same on every rank.

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
    return _allreduce.bind(x, comm=comm_of(comm), op=_reduction(op, x, "allreduce"))[0]


# alltoall

_alltoall = make("alltoall", _like)


def alltoall(x: Any, *, comm: MPI.Comm | None = None) -> jax.Array:
    """Sends a slice of this rank's array to each rank, and receives one from each.

    Args:
        x: this rank's array of shape ``(size, ...)``; ``x[i]`` goes to rank ``i``.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        An array like ``x`` with what rank ``i`` sent at index ``i``.

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


def _nothing(*operands: ShapedArray, **params: Any) -> list[ShapedArray]:
    return []


_barrier = make("barrier", _nothing)


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


def bcast(x: Any, root: int, *, comm: MPI.Comm | None = None) -> jax.Array:
    """Sends the root's array to every rank.

    Args:
        x: on the root the array to send; elsewhere an array of the same shape and dtype, whose values do not
            matter.
        root: the rank that sends.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        The root's array, the same on every rank.

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
    return _bcast.bind(x, comm=c, root=_rank(root, "root", "bcast", c))[0]


# exscan

_exscan = make("exscan", _like)


def _neutral(reduction: Reduction, dtype: Any) -> Any:
    """What changes nothing when it is reduced with anything else; 0 for a user-made reduction."""
    if reduction.name in ("MAX", "MIN"):
        if dtype.kind == "f":
            return -np.inf if reduction.name == "MAX" else np.inf
        bounds = np.iinfo(dtype)
        return bounds.min if reduction.name == "MAX" else bounds.max
    if reduction.name == "BAND":
        return np.array(-1).astype(dtype)
    return 1 if reduction.name in ("PROD", "LAND") else 0


def exscan(x: Any, op: MPI.Op, *, comm: MPI.Comm | None = None) -> jax.Array:
    """Reduces, on each rank, the arrays of the ranks before it.

    Args:
        x: this rank's array, of the same shape and dtype on every rank.
        op: the reduction, such as ``MPI.SUM``.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        An array like ``x``: the reduction over ranks ``0`` to the one before this. On rank 0 the reduction's neutral
        element (0 for ``SUM``, 1 for ``PROD``, and so on; 0 for a user-made reduction).

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
    y = _exscan.bind(x, comm=c, op=reduction)[0]
    # MPI leaves rank 0's buffer as it was, whatever that is.
    return y if c.rank > 0 else jnp.full_like(x, _neutral(reduction, x.dtype))


# gather


def _gather_shapes(x: ShapedArray, *, comm: Comm, root: int) -> list[ShapedArray]:
    return [x.update(shape=(comm.size, *x.shape))] if comm.rank == root else [x]


_gather = make("gather", _gather_shapes)


def gather(x: Any, root: int, *, comm: MPI.Comm | None = None) -> jax.Array:
    """Gathers the arrays of all ranks on the root.

    Args:
        x: this rank's array, of the same shape and dtype on every rank.
        root: the rank that receives.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        On the root an array of shape ``(size, *x.shape)`` with rank ``i``'s array at index ``i``; elsewhere ``x``
        itself.

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


def recv(
    x: Any,
    source: int = MPI.ANY_SOURCE,
    *,
    tag: int = MPI.ANY_TAG,
    comm: MPI.Comm | None = None,
    status: MPI.Status | None = None,
) -> jax.Array:
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


def reduce(x: Any, op: MPI.Op, root: int, *, comm: MPI.Comm | None = None) -> jax.Array:
    """Reduces the arrays of all ranks, element by element, with the result on the root.

    Args:
        x: this rank's array, of the same shape and dtype on every rank.
        op: the reduction, such as ``MPI.SUM``.
        root: the rank that has the result.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        On the root the reduced array; elsewhere ``x`` itself.

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


# scan

_scan = make("scan", _like)


def scan(x: Any, op: MPI.Op, *, comm: MPI.Comm | None = None) -> jax.Array:
    """Reduces, on each rank, the arrays of the ranks up to and including itself.

    Args:
        x: this rank's array, of the same shape and dtype on every rank.
        op: the reduction, such as ``MPI.SUM``.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        An array like ``x``: the reduction over ranks ``0`` to this one.

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
    return _scan.bind(x, comm=comm_of(comm), op=_reduction(op, x, "scan"))[0]


# scatter


def _scatter_shapes(x: ShapedArray, *, comm: Comm, root: int) -> list[ShapedArray]:
    return [x.update(shape=x.shape[1:])] if comm.rank == root else [x]


_scatter = make("scatter", _scatter_shapes)


def scatter(x: Any, root: int, *, comm: MPI.Comm | None = None) -> jax.Array:
    """Sends a slice of the root's array to each rank.

    Args:
        x: on the root an array of shape ``(size, ...)``, of which ``x[i]`` goes to rank ``i``; elsewhere a template
            with the shape and dtype of the result.
        root: the rank that sends.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        This rank's slice, without the first axis of the root's array.

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


def send(x: Any, dest: int, *, tag: int = 0, comm: MPI.Comm | None = None) -> None:
    """Sends an array to another rank.

    Called eagerly it returns when ``x`` was handed to MPI, which may be only when the other rank receives it.

    Args:
        x: the array.
        dest: the rank that receives, or ``MPI.PROC_NULL``.
        tag: the message's tag.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

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
) -> jax.Array:
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
