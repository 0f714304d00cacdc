"""Messages from one rank to another: one block for each operation, as in collective.py."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypedDict, Unpack, overload

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.typing import ArrayLike

from ..base.tracebacks import PACKAGE
from ..core.primitive import as_array, compose_primitive, make_primitive
from ..core.rank import rank_at
from ..core.tree import Tree, call_per_leaf
from ..core.values import has_values, join_numbers, split_numbers, status_types
from ..core.windows import use_windows
from ..jaxprs.spmd import Primitive
from ..mpi import native
from ..mpi.comm import NO_STATUS, STATUS_NUMBERS, Comm, Shift, Status, comm_of, status_of
from ..mpi.mpi import MPI
from .arguments import ANY_SOURCE, ANY_TAG, Rank, Tag, TagArguments, Template, as_integer, as_message, as_static_flag
from .shapes import BATCH_LAST, empty_abstract_eval, same_abstract_eval

# The status of a received message


class MessageStatus(NamedTuple):
    """The status of a received message, as integers of the program.

    ``recv``, ``sendrecv`` and ``wait`` return it behind the array if they are called with ``return_status=True``. The
    integers may be traced: a later call in the same program may answer ``source``, or branch on ``tag``.

    Args:
        source: the rank that sent the message; ``MPI.PROC_NULL`` if there is none.
        tag: the message's tag; ``MPI.ANY_TAG`` if there is no message.
        length: how many items of the template's dtype came. Under ``jax.vmap``, how many came for each example, since
            one message carries the whole batch.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> comm = mpixla.get_default_comm()
        >>> rank, size = comm.Get_rank(), comm.Get_size()
        >>> x = jnp.ones(3)
        >>> y, status = mpixla.sendrecv(x, x, (rank - 1) % size, (rank + 1) % size, sendtag=7, return_status=True)
        >>> int(status.source) == (rank - 1) % size, int(status.tag), int(status.length)
        (True, 7, 3)
    """

    source: jax.Array
    tag: jax.Array
    length: jax.Array


MessageStatus.__module__ = PACKAGE


def _as_status(status: Any, return_status: Any, name: str) -> Status:
    """Return a receive's Status: an object to fill, numbers as a result, or none; TypeError for both."""
    if not as_static_flag(return_status, "return_status", name):
        return status_of(status)
    if status is not None:
        raise TypeError(f"{name} takes a status to fill, or returns one (return_status=True), but not both.")
    return STATUS_NUMBERS


def array_and_status(results: Sequence[Any]) -> Any:
    """Return a receive's array, or the pair of array and MessageStatus if the status is the second result."""
    array, *status = results
    return (array, MessageStatus(*jnp.unstack(status[0]))) if status else array


# recv


def _recv_abstract_eval(*operands: ShapedArray, status: Status, **params: Any) -> list[ShapedArray]:
    """Return the results' types: the template's, the last array's; and the status's if it is a result."""
    template = operands[-1 - has_values(params)]
    return [template, *status_types(template, status)]


def template_cotangent(ct: Any, source: Any, comm: Comm) -> Any:
    """Return a template's cotangent: ``ct`` if the source, perhaps traced or a Shift, is ``PROC_NULL``, else zeros.

    The zeros have the same batch, since they may go on into a call that all ranks make.
    """
    if isinstance(source, Shift):
        nobody = rank_at(comm, source) == native.PROC_NULL
    else:
        nobody = source == (MPI.PROC_NULL if isinstance(source, jax.Array) else native.PROC_NULL)
    return jnp.where(nobody, ct, jnp.zeros_like(ct))


def if_any(recvtag: Any, then: Any, otherwise: Any) -> Any:
    """Return the tag ``then`` if ``recvtag`` is ``ANY_TAG``, else the tag ``otherwise``."""
    if isinstance(recvtag, jax.Array):
        return jnp.where(recvtag == MPI.ANY_TAG, then, otherwise)
    return then if recvtag == native.ANY_TAG else otherwise


def _recv_transpose_impl(ct: Any, *values: Any, comm: Comm, status: Status, **message: Any) -> list[Any]:
    """Send ``ct`` to recv's source; return the template's cotangent: zeros, or ``ct`` from ``PROC_NULL``, unsent.

    Raises:
        TypeError: for ``ANY_SOURCE``.
    """
    known = join_numbers(message, values)
    source, tag = known["source"], known["recvtag"]
    if isinstance(source, jax.Array) or source != native.PROC_NULL:
        refuse_any_source(source, "recv")
        params, route = split_numbers({"dest": source, "sendtag": if_any(tag, 0, tag)})
        send_p.bind(ct, *route, comm=comm, **params)
    return [template_cotangent(ct, source, comm)]


def refuse_any_source(source: Any, name: str) -> None:
    """Raise TypeError in reverse mode from ``ANY_SOURCE``, where the cotangent's destination is unknown."""
    if not isinstance(source, jax.Array) and source == native.ANY_SOURCE:
        raise TypeError(
            f"{name} from MPI.ANY_SOURCE has no reverse mode, because its cotangent must go back to the rank that sent "
            "the message. Name the source."
        )


def _recv_transpose_rule(ct: Any, *_: Any, types: Any, values: Sequence[Any] = (), **params: Any) -> list[Any]:
    return recv_transpose_p.bind(ct, *values, **params)


def _recv_transpose_transpose_rule(ct: Any, *, types: Any, values: Sequence[Any] = (), **params: Any) -> list[Any]:
    return recv_p.bind(ct, *values, **params)[:1]


recv_p: Primitive = make_primitive("recv", _recv_abstract_eval, batch=BATCH_LAST, transpose=_recv_transpose_rule)
recv_transpose_p: Primitive = compose_primitive(
    "recv_transpose",
    same_abstract_eval,
    _recv_transpose_impl,
    batch=BATCH_LAST,
    transpose=_recv_transpose_transpose_rule,
)


class _RecvOptions(TypedDict, total=False):
    tag: Tag
    comm: MPI.Comm | None


# With return_status=True a pair of the result and the status, else the result alone. The result is an array where
# ``x`` is an array or a ShapeDtypeStruct (Template), else a pytree like ``x`` (Tree).
@overload
def recv(
    x: Template, source: Rank = ..., *, return_status: Literal[True], **more: Unpack[_RecvOptions]
) -> tuple[jax.Array, MessageStatus]: ...
@overload
def recv(
    x: Tree, source: Rank = ..., *, return_status: Literal[True], **more: Unpack[_RecvOptions]
) -> tuple[Tree, MessageStatus]: ...
@overload
def recv(
    x: Template,
    source: Rank = ...,
    *,
    status: MPI.Status | None = ...,
    return_status: Literal[False] = ...,
    **more: Unpack[_RecvOptions],
) -> jax.Array: ...
@overload
def recv(
    x: Tree,
    source: Rank = ...,
    *,
    status: MPI.Status | None = ...,
    return_status: Literal[False] = ...,
    **more: Unpack[_RecvOptions],
) -> Tree: ...
@call_per_leaf(template=True)
def recv(
    x: Any,
    source: Rank = ANY_SOURCE,
    *,
    tag: Tag = ANY_TAG,
    comm: MPI.Comm | None = None,
    status: MPI.Status | None = None,
    return_status: bool = False,
) -> Any:
    """Receive an array from another rank, of the shape and dtype of the template ``x``.

    Args:
        x: a template: the result has its shape and dtype. ``x`` is not modified. It may be a ``jax.ShapeDtypeStruct``,
            which stands for zeros, a constant. Or a pytree of templates, which is received leaf by leaf.
        source: the rank that sends, ``MPI.ANY_SOURCE`` or ``MPI.PROC_NULL``; or a ``Shift``. Traced, it is an integer
            that is known when the program runs.
        tag: the message's tag, or ``MPI.ANY_TAG``. It may be traced.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.
        status: filled, each time the call runs, with the message's source, tag and length. Of a pytree each array is a
            message, and the status is the last one's.
        return_status: whether the message's source, tag and length are returned, too, as integers of the program
            (``MessageStatus``).

    Returns:
        The array that was received. Where the message is shorter than the template, and from ``MPI.PROC_NULL``,
        the template's values remain. With ``return_status=True`` a pair of the array and the status.

    Derivative:
        Linear in the message and the template. Reverse mode: the cotangent is sent back to ``source``, which must not
        be ``MPI.ANY_SOURCE``, under the same tag (0 for ``MPI.ANY_TAG``). A sender that used ``send`` does not wait
        for it: where gradients are to flow use ``sendrecv``, or ``wait(isend(x, dest))`` in the place of ``send``. The
        message must be as long as the template there.

    Raises:
        TypeError: for a source or tag that is not an integer, a ``comm`` that is no intra-communicator, a
            ``status`` that is no ``MPI.Status`` or given with ``return_status=True``, or a dtype that MPI cannot move.
        ValueError: for a source that is not a rank or direction of the communicator, a tag out of range, or a
            communicator that was freed.
        jax.errors.JaxRuntimeError: when running, for a message that is longer than the template, or a traced source or
            tag whose value is invalid.

    Example:
        >>> from mpi4py import MPI
        >>> import jax.numpy as jnp, mpixla
        >>> mpixla.recv(jnp.arange(3), source=MPI.PROC_NULL)
        Array([0, 1, 2], dtype=int32)
    """
    x, c, wanted = as_array(x, "x", "recv"), comm_of(comm), _as_status(status, return_status, "recv")
    message, values = split_numbers(as_message("recv", c, source=source, recvtag=tag))
    return array_and_status(recv_p.bind(x, *values, comm=c, status=wanted, **message))


# send


def _send_transpose_rule(*args: Any, **params: Any) -> list[Any]:
    """Raise TypeError, as send has no reverse mode."""
    raise TypeError(
        "send has no reverse mode, because it has no result whose cotangent could come back. Use sendrecv, or "
        "x = wait(isend(x, dest))."
    )


send_p: Primitive = make_primitive("send", empty_abstract_eval, batch=BATCH_LAST, transpose=_send_transpose_rule)


@call_per_leaf()
def send(x: Any, dest: Rank, *, tag: Tag = 0, comm: MPI.Comm | None = None) -> None:
    """Send an array to another rank.

    Called eagerly it returns when ``x`` has been handed to MPI, which may be only when the other rank receives it.

    Args:
        x: the array, or a pytree of arrays, which is sent leaf by leaf.
        dest: the rank that receives, or ``MPI.PROC_NULL``; or a ``Shift``. Traced, it is an integer that is known when
            the program runs.
        tag: the message's tag. It may be traced.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Derivative:
        Forward mode sends the tangent. There is no reverse mode, since there is no result: use ``sendrecv``, or
        ``wait(isend(x, dest))``, which is ``x`` and takes its cotangent back.

    Raises:
        TypeError: for a destination or tag that is not an integer, a ``comm`` that is no intra-communicator, or a dtype
            that MPI cannot move.
        ValueError: for a destination that is not a rank or direction of the communicator, a tag out of range, or a
            communicator that was freed.
        jax.errors.JaxRuntimeError: when running, for a traced destination or tag whose value is invalid.

    Example:
        >>> from mpi4py import MPI
        >>> import jax.numpy as jnp, mpixla
        >>> mpixla.send(jnp.ones(3), dest=MPI.PROC_NULL)
    """
    x, c = as_array(x, "x", "send"), comm_of(comm)
    message, values = split_numbers(as_message("send", c, dest=dest, sendtag=tag))
    send_p.bind(x, *values, comm=c, **message)


# sendrecv


def reverse_message(message: dict[str, Any]) -> dict[str, Any]:
    """Return the ranks and tags of the cotangents' messages: each goes back to the message's sender, under its tag.

    If ``recvtag`` is ``ANY_TAG``, it is sent under ``sendtag`` and received under ``ANY_TAG``.
    """
    recvtag, sendtag = message["recvtag"], message["sendtag"]
    return {
        "dest": message["source"],
        "source": message["dest"],
        "sendtag": if_any(recvtag, sendtag, recvtag),
        "recvtag": if_any(recvtag, recvtag, sendtag),
    }


def _sendrecv_transpose_rule(
    ct: Any, *_: Any, types: Any, comm: Comm, status: Status, values: Sequence[Any] = (), **message: Any
) -> list[Any]:
    """Exchange cotangents the other way; return the operand's, and the template's: zeros unless ``PROC_NULL``."""
    known = join_numbers(message, values)
    refuse_any_source(known["source"], "sendrecv")
    params, route = split_numbers(reverse_message(known))
    nothing = jnp.zeros(types[0].shape, types[0].dtype)
    (arrived,) = sendrecv_p.bind(ct, nothing, *route, comm=comm, status=NO_STATUS, **params)
    return [arrived, template_cotangent(ct, known["source"], comm)]


sendrecv_p: Primitive = make_primitive(
    "sendrecv", _recv_abstract_eval, batch=BATCH_LAST, transpose=_sendrecv_transpose_rule
)


# With return_status=True a pair of the result and the status, else the result alone. The result is an array where
# ``recvbuf`` is an array or a ShapeDtypeStruct (Template), else a pytree like ``recvbuf`` (Tree).
@overload
def sendrecv(
    sendbuf: Any,
    recvbuf: Template,
    source: Rank,
    dest: Rank,
    *,
    return_status: Literal[True],
    **more: Unpack[TagArguments],
) -> tuple[jax.Array, MessageStatus]: ...
@overload
def sendrecv(
    sendbuf: Any, recvbuf: Tree, source: Rank, dest: Rank, *, return_status: Literal[True], **more: Unpack[TagArguments]
) -> tuple[Tree, MessageStatus]: ...
@overload
def sendrecv(
    sendbuf: Any,
    recvbuf: Template,
    source: Rank,
    dest: Rank,
    *,
    status: MPI.Status | None = ...,
    return_status: Literal[False] = ...,
    **more: Unpack[TagArguments],
) -> jax.Array: ...
@overload
def sendrecv(
    sendbuf: Any,
    recvbuf: Tree,
    source: Rank,
    dest: Rank,
    *,
    status: MPI.Status | None = ...,
    return_status: Literal[False] = ...,
    **more: Unpack[TagArguments],
) -> Tree: ...
@call_per_leaf(2, template=True)
def sendrecv(
    sendbuf: Any,
    recvbuf: Any,
    source: Rank,
    dest: Rank,
    *,
    sendtag: Tag = 0,
    recvtag: Tag = ANY_TAG,
    comm: MPI.Comm | None = None,
    status: MPI.Status | None = None,
    return_status: bool = False,
) -> Any:
    """Send an array to one rank and receive one from another, at the same time.

    Args:
        sendbuf: the array to send, or a pytree of arrays, which is sent leaf by leaf.
        recvbuf: a template: the result has its shape and dtype, which may differ from ``sendbuf``'s. ``recvbuf``
            is not modified. It may be a ``jax.ShapeDtypeStruct``, which stands for zeros. For a pytree it is a pytree
            of the same structure.
        source: the rank to receive from, ``MPI.ANY_SOURCE`` or ``MPI.PROC_NULL``; or a ``Shift``.
        dest: the rank to send to, or ``MPI.PROC_NULL``; or a ``Shift``. Where both are a ``Shift``, the program is the
            same on every rank. Ranks may be traced: integers that are known when the program runs, one program for all
            of them. Where ranks differ within the batch of a ``jax.vmap``, each part is a message of its own.
        sendtag: the tag of the message that is sent. It may be traced.
        recvtag: the tag of the message to receive, or ``MPI.ANY_TAG``. It may be traced.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.
        status: filled with the received message's source, tag and length, as by ``recv``.
        return_status: whether these are returned, too, as by ``recv``.

    Returns:
        The array that was received. Where the message is shorter than the template, and from ``MPI.PROC_NULL``,
        the template's values remain. With ``return_status=True`` a pair of the array and the status.

    Derivative:
        Linear in the message and the template. Reverse mode: the cotangent goes to ``source``, and that of
        ``sendbuf`` comes from ``dest``, under the same tags, and with ``MPI.ANY_TAG`` under ``sendtag``: so where the
        two directions have different tags, both ends must name ``recvtag``. ``source`` must not be
        ``MPI.ANY_SOURCE``, and messages must be as long as their templates.

    Raises:
        TypeError, ValueError, jax.errors.JaxRuntimeError: as ``recv``, for both ranks and both tags.

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
    c, wanted = comm_of(comm), _as_status(status, return_status, "sendrecv")
    message, values = split_numbers(
        as_message("sendrecv", c, dest=dest, sendtag=sendtag, source=source, recvtag=recvtag)
    )
    return array_and_status(sendrecv_p.bind(sendbuf, recvbuf, *values, comm=c, status=wanted, **message))


# shift


# An array for an array, and for a pytree one of the same structure.
@overload
def shift(x: ArrayLike, disp: int, *, comm: MPI.Comm | None = ..., dimension: int = ...) -> jax.Array: ...
@overload
def shift(x: Tree, disp: int, *, comm: MPI.Comm | None = ..., dimension: int = ...) -> Tree: ...
@call_per_leaf()
def shift(x: Any, disp: int, *, comm: MPI.Comm | None = None, dimension: int = 0) -> Any:
    """Send an array by so many ranks along the ring of all ranks or a dimension of a Cartesian communicator.

    It is ``sendrecv(x, x, source=Shift(dimension, -disp), dest=Shift(dimension, disp))``. The program is the same on
    every rank.

    Args:
        x: the array, or a pytree of arrays, which is sent leaf by leaf. Ranks that exchange have the same shapes and
            dtypes.
        disp: by how many ranks: upwards, or downwards if it is negative.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``. The ranks of one without a Cartesian topology
            are a ring.
        dimension: the dimension of a Cartesian communicator, from 0; of any other communicator 0.

    Returns:
        The array of the rank that is ``disp`` ranks below this one. Where there is none, at a wall of a dimension that
        is not periodic, ``x`` itself.

    Derivative:
        Linear. Reverse mode: the shift by ``-disp``. Where the result is ``x`` itself, its cotangent is added.

    Raises:
        TypeError: for a ``disp`` or ``dimension`` that is no static integer, a ``comm`` that is no intra-communicator,
            or a dtype that MPI cannot move.
        ValueError: for a dimension that the communicator lacks, or a communicator that was freed.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> rank, size = mpixla.get_default_comm().Get_rank(), mpixla.size()
        >>> float(mpixla.shift(jnp.float32(rank), 1)) == (rank - 1) % size
        True
    """
    x, c = as_array(x, "x", "shift"), comm_of(comm)
    along, by = as_integer(dimension, "dimension", "shift"), as_integer(disp, "disp", "shift")
    ends = {"dest": Shift(along, by), "source": Shift(along, -by)}
    message = as_message("shift", c, sendtag=0, recvtag=0, **ends)
    return sendrecv_p.bind(x, x, comm=c, status=NO_STATUS, **message)[0]


for _primitive in (recv_p, send_p, sendrecv_p):
    use_windows(_primitive)
