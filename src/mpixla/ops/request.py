"""Non-blocking operations: each starts a communication and returns a request, which ``wait`` turns into the result.

Their rows are in native/tables/ops.def. ARCHITECTURE.md has the reasons for their design, under "Requests".
"""

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, NamedTuple, TypeVar, Unpack, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.interpreters import ad, batching
from jax.typing import ArrayLike

from ..base.tracebacks import PACKAGE, public
from ..base.words import kind_of
from ..checks import sites
from ..core.eager import eager
from ..core.primitive import REPLICATED, VARYING, Cotangent, as_array, compose_primitive, make_primitive
from ..core.rank import select_by_root
from ..core.rules import refuse_one_way, tangents_beside_values, with_batch_at
from ..core.sequence import sequence_after
from ..core.tree import (
    Plan,
    RequestBase,
    Tree,
    as_leaf,
    call_per_dtype,
    call_per_leaf,
    check_leading_size,
    last_status,
    plan_of_each,
    refuse_started,
    started_in,
    unwrap_keys,
)
from ..core.values import CACHED_CALLS, divide_length, is_operand, join_numbers, split_numbers, status_types
from ..jaxprs.spmd import Primitive, as_varying, is_in_shard_map, varying_axes, with_shape
from ..mpi import native
from ..mpi.comm import NO_STATUS, STATUS_NUMBERS, Comm, Reduction, Shift, Status, comm_of
from ..mpi.mpi import MPI
from ..partial_eval.constant_tangents import tie_cotangents
from .arguments import (
    ANY_SOURCE,
    ANY_TAG,
    Rank,
    Tag,
    TagArguments,
    Template,
    as_convention,
    as_counts,
    as_message,
    as_rank,
    as_reduction,
    as_static_flag,
    refuse_where_sharded,
)
from .collective import SUM, exscan_p, own_entry, reduction_weights, scan_p, weighted_for_ranks
from .point_to_point import (
    MessageStatus,
    array_and_status,
    if_any,
    refuse_any_source,
    reverse_message,
    template_cotangent,
)
from .shapes import BATCH_FIRST, BATCH_LAST, BATCH_SECOND
from .vector import as_rows, name_ranks

Work = TypeVar("Work")


class _ArrayType(NamedTuple):
    """The shape and data type of an array, without a batch."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class _StartedCall:
    """A started call: its kind in the table below, its arguments, and its operand and result types without a batch."""

    name: str
    comm: Comm
    takes: _ArrayType  # the operand to send, or for irecv the template
    gives: _ArrayType
    op: Reduction | None = None
    root: int | None = None
    cotangent: str = VARYING  # REPLICATED: the cotangents of all ranks are equal, and count once
    dest: int | Shift | str | None = None
    sendtag: int | str = 0
    source: int | Shift | str | None = None
    recvtag: int | str = 0
    reverse: bool = False  # of a scan: from the last rank
    sendcounts: tuple[int, ...] = ()
    recvcounts: tuple[int, ...] = ()

    @functools.cached_property
    def _hash_of_fields(self) -> int:
        return hash(tuple(vars(self).values()))

    def __hash__(self) -> int:  # an eager wait looks its program up by the call
        return self._hash_of_fields

    def __repr__(self) -> str:
        takes, gives = (ShapedArray(x.shape, x.dtype).str_short() for x in (self.takes, self.gives))
        parts = [self.name, f"of {takes}", *([f"to {gives}"] if gives != takes else [])]
        if self.dest is not None:
            parts.append(f"-> {self.dest!r} with tag {self.sendtag!r}")
        if self.source is not None:
            parts.append(f"<- {self.source!r} with tag {self.recvtag!r}")
        more = [f"{name} {value}" for name, value in (("op", self.op), ("root", self.root)) if value is not None]
        return ", ".join([" ".join(parts), *more, f"on {self.comm}"])

    @property
    def kind(self) -> "_CallKind":
        return _KINDS[self.name]

    @property
    def batch_axes(self) -> tuple[int, int]:
        """Return the axes of a batch in the row's operands and result; off the root no axis of the ranks is there."""
        return self.kind.batch if self.root in (None, self.comm.rank) else BATCH_FIRST

    def wait(self, request_id: Any, kept: Any, values: Any, return_status: bool = False) -> Any:
        """Wait for a request of this call, given as its parts, and return the result; with the status if asked for."""
        if return_status and self.source is None:
            raise TypeError(f"{self.name} receives no message, so that wait has no status to return.")
        if self.name == "ibarrier":
            wait_p.bind(request_id, call=self)
            return None
        operands = [x for x in (kept, values) if x is not None]
        status = STATUS_NUMBERS if return_status else NO_STATUS
        return array_and_status(wait_p.bind(request_id, *operands, call=self, status=status))


# An id is two float32 numbers (native/ops/request.h). A batch of requests is one request of MPI's; each of its ids is
# the same.
_ID = 2


# The rows. Their operands have the batch where MPI takes it: in front; behind the first axis, which has a part for each
# rank; or in messages behind all axes, the outermost last, as blocking messages have it: so one that is shorter than
# the template is the beginning of each part.


def _batch_axes(axis: int, batch: int) -> range:
    return range(axis, axis + batch) if axis >= 0 else range(-1, -batch - 1, -1)


def _to_row(x: Any, axis: int, batch: int) -> Any:
    return jnp.moveaxis(x, range(batch), _batch_axes(axis, batch))


def _start_abstract_eval(*operands: ShapedArray, batch: tuple[int, ...], **params: Any) -> list[ShapedArray]:
    like = operands[0] if operands else ShapedArray((), np.dtype(np.float32))
    return [with_shape(like, (*batch, _ID), dtype=np.dtype(np.float32))]


def _row_shapes(*operands: ShapedArray, gives: _ArrayType | None = None, **params: Any) -> list[ShapedArray]:
    """Return a row's result types: an id if it starts a request, an array if it waits for one, [] for wait_send."""
    if "batch" in params:
        return _start_abstract_eval(*operands, **params)
    if gives is None:
        return []
    array = with_shape(operands[0], gives.shape, dtype=gives.dtype)
    return [array, *status_types(array, params.get("status", NO_STATUS))]


_rows: dict[str, Primitive] = {name: make_primitive(name, _row_shapes) for name in native.request_ops}


# How a call is started and waited for: from its operands to the id; from the id and the request's kept array to the
# result. All have the batch in front.


def _start_row(call: _StartedCall, batch: tuple[int, ...], *operands: Any) -> list[Any]:
    """Start the call's request by its row's primitive, with the batch where MPI takes it; return the request's id."""
    kind = call.kind
    data = [_to_row(x, call.batch_axes[0], len(batch)) for x in operands[: kind.takes]]
    attributes = {name: getattr(call, name) for name in native.request_ops[kind.row].parameters}
    return _rows[kind.row].bind(*data, *operands[kind.takes :], batch=batch, **attributes)


def _start_barrier(call: _StartedCall, batch: tuple[int, ...], *_: Any) -> list[Any]:
    return _rows["ibarrier"].bind(comm=call.comm, batch=batch)


def _wait_sent(call: _StartedCall, request_id: Any, kept: Any, *_: Any, **__: Any) -> list[Any]:
    _rows["wait_send"].bind(request_id, comm=call.comm, gives=None)
    return [kept]


def _wait_row(call: _StartedCall, request_id: Any, kept: Any = None, *_: Any, status: Status = NO_STATUS) -> list[Any]:
    """Bind the wait for a request, and return its result with the batch axes in front; and its status if wanted."""
    batch, axis, shape = request_id.shape[:-1], call.batch_axes[1], call.gives.shape
    at = len(shape) if axis < 0 else axis
    gives = _ArrayType((*shape[:at], *(batch[::-1] if axis < 0 else batch), *shape[at:]), call.gives.dtype)
    numbers: list[Any] = []
    if call.source is not None:
        template = _to_row(kept, axis, len(batch))
        wanted = {} if status == NO_STATUS else {"status": status}
        y, *numbers = _rows["wait_recv"].bind(request_id, template, comm=call.comm, gives=gives, **wanted)
    else:
        (y,) = _rows["wait"].bind(request_id, comm=call.comm, gives=gives)
    y = jnp.moveaxis(y, _batch_axes(axis, len(batch)), range(len(batch)))
    return [y, *(divide_length(x, math.prod(batch)) for x in numbers)]


def _wait_on_root(call: _StartedCall, request_id: Any, *_: Any, **__: Any) -> list[Any]:
    (y,) = _wait_row(call, request_id)
    return [select_by_root(call.comm, call.root, y)]


def _wait_or_keep(call: _StartedCall, request_id: Any, kept: Any, *_: Any, **__: Any) -> list[Any]:
    """Return the result on the root; elsewhere the kept operand, whose tangent is not the one that goes to the root."""
    (y,) = _wait_row(call, request_id)
    return [y if call.takes != call.gives else select_by_root(call.comm, call.root, y, kept)]


def _wait_barrier(call: _StartedCall, request_id: Any, *_: Any, **__: Any) -> list[Any]:
    _rows["wait_send"].bind(request_id, comm=call.comm, gives=None)
    return [_zeros_of(call.gives, request_id.shape[:-1])]


def _wait_exscan(call: _StartedCall, request_id: Any, *_: Any, **__: Any) -> list[Any]:
    """Bind the wait, and return its result with the neutral element on the first rank, where MPI leaves it open."""
    (y,) = _wait_row(call, request_id)
    assert call.op is not None
    neutral = jnp.full_like(y, np.asarray(call.op.neutral_element(y.dtype)).astype(y.dtype))
    return [select_by_root(call.comm, call.comm.size - 1 if call.reverse else 0, neutral, y)]


def _wait_itself(call: _StartedCall, request_id: Any, *_: Any, **__: Any) -> list[Any]:
    return _wait_row(replace(call, comm=comm_of(MPI.COMM_SELF)), request_id)


# How the cotangents come back: from a call's fields to the kind of the reverse call, and its ranks and tags.

_Back = Callable[[dict[str, Any]], tuple[str, dict[str, Any]]]


def _reverse_by(name: str) -> _Back:
    return lambda message: (name, {})


def _reverse_by_convention(name: str, each: str) -> _Back:
    """Return a function to the kind of reverse mode: ``name`` for REPLICATED cotangents, ``each`` for VARYING."""
    return lambda message: (each if message["cotangent"] == VARYING else name, {})


def _as_convention(cotangent: Any, name: str, comm: Comm) -> str:
    """Check ``cotangent`` and return it; VARYING in jax.shard_map, where a wait's result varies by its type."""
    given = as_convention(cotangent, name, comm)
    return VARYING if is_in_shard_map() else given


def _reverse_isend(message: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "irecv", {"source": message["dest"], "recvtag": message["sendtag"]}


def _reverse_irecv(message: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    source, tag = message["source"], message["recvtag"]
    refuse_any_source(source, "irecv")
    return "isend", {"dest": source, "sendtag": if_any(tag, 0, tag)}


def _reverse_by_direction(name: str) -> _Back:
    return lambda message: (name, {"reverse": not message["reverse"]})


def _reverse_ialltoallv(message: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "ialltoallv", {"sendcounts": message["recvcounts"], "recvcounts": message["sendcounts"]}


def _reverse_isendrecv(message: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    refuse_any_source(message["source"], "isendrecv")
    return "isendrecv", reverse_message(message)


@dataclass(frozen=True)
class _CallKind:
    """The properties that all calls of one kind share."""

    row: str  # of native/tables/ops.def, which starts it
    batch: tuple[int, int]  # its places in the row's operands and in its result (shapes.py)
    back: _Back
    start: Callable[..., list[Any]] = _start_row
    wait: Callable[..., list[Any]] = _wait_row
    takes: int = 1  # arrays: isendrecv takes a template, too
    keeps: bool = False  # whether a request keeps an array: the sent one, or the template
    tangent: str | None = None  # the kind by which tangents of PROD, MAX and MIN go; None: weighted, by its own


def _make_self_message_kind(part: Callable[[_StartedCall, int, Any], Any], back: str) -> _CallKind:
    """Return a kind whose start sends this rank its part of a cotangent equal on all ranks, which its wait receives.

    It needs no other rank, but the cotangent must get from start to wait all the same.
    """

    def start_self_message(call: _StartedCall, batch: tuple[int, ...], x: Any) -> list[Any]:
        own = part(call, len(batch), x)
        message = _StartedCall("isendrecv", comm_of(MPI.COMM_SELF), call.gives, call.gives, dest=0, source=0)
        return _start_row(message, batch, own, own)

    return _CallKind("isendrecv", BATCH_LAST, _reverse_by(back), start_self_message, _wait_itself)


# THE TABLE of kinds: calls that users can start, and calls of reverse mode.
_KINDS = {
    "isend": _CallKind("isend", BATCH_LAST, _reverse_isend, wait=_wait_sent, keeps=True),
    "irecv": _CallKind("irecv", BATCH_LAST, _reverse_irecv, keeps=True),
    "isendrecv": _CallKind("isendrecv", BATCH_LAST, _reverse_isendrecv, takes=2, keeps=True),
    "iallgather": _CallKind("iallgather", (0, 1), _reverse_by_convention("iallgather_transpose", "ireduce_scatter")),
    "iallreduce": _CallKind("iallreduce", BATCH_FIRST, _reverse_by_convention("iallreduce_transpose", "iallreduce")),
    "ialltoall": _CallKind("ialltoall", BATCH_SECOND, _reverse_by("ialltoall")),
    "ialltoallv": _CallKind("ialltoallv", BATCH_SECOND, _reverse_ialltoallv),
    "ibarrier": _CallKind("ibarrier", BATCH_FIRST, _reverse_by("ibarrier"), _start_barrier, _wait_barrier, takes=0),
    "ibcast": _CallKind("ibcast", BATCH_FIRST, _reverse_by_convention("ibcast_transpose", "isum_on_root")),
    "iexscan": _CallKind(
        "iexscan", BATCH_FIRST, _reverse_by_direction("iexscan"), wait=_wait_exscan, tangent="ireduce_scatter"
    ),
    "igather": _CallKind("igather", (0, 1), _reverse_by("iscatter"), wait=_wait_or_keep, keeps=True),
    "ireduce": _CallKind("ireduce", BATCH_FIRST, _reverse_by("ibcast"), wait=_wait_or_keep, keeps=True),
    "ireduce_scatter": _CallKind("ireduce_scatter", (1, 0), _reverse_by("iallgather")),
    "iscan": _CallKind("iscan", BATCH_FIRST, _reverse_by_direction("iscan"), tangent="ireduce_scatter"),
    "iscatter": _CallKind("iscatter", (1, 0), _reverse_by("igather_to_root")),
    "isum_on_root": _CallKind("ireduce", BATCH_FIRST, _reverse_by("ibcast"), wait=_wait_on_root),
    "igather_to_root": _CallKind("igather", (0, 1), _reverse_by("iscatter"), wait=_wait_on_root),
    "iallgather_transpose": _make_self_message_kind(
        lambda call, batch, x: own_entry(x, call.comm, batch), "iallgather"
    ),
    "iallreduce_transpose": _make_self_message_kind(lambda call, batch, x: x, "iallreduce"),
    "ibcast_transpose": _make_self_message_kind(
        lambda call, batch, x: select_by_root(call.comm, call.root, x), "ibcast"
    ),
}


# Derivatives. The tangent and the cotangent of an id are ids of further requests.


def _reverse_call(call: _StartedCall, values: Sequence[Any]) -> tuple[_StartedCall, list[Any]]:
    """Return the call that sends a started call's cotangents back, and [its traced ranks and tags], or [].

    ``values``: likewise [the traced ranks and tags of ``call``], or []. The reverse of isend is irecv, and so on.
    """
    name, message = call.kind.back(join_numbers(vars(call), values))
    params, route = split_numbers(message)
    # The tangent of any reduction is a sum.
    op = SUM if "op" in native.request_ops[_KINDS[name].row].parameters else None
    back = _StartedCall(
        name, call.comm, call.gives, call.takes, op=op, root=call.root, cotangent=call.cotangent, **params
    )
    return back, route


def _linear_call(call: _StartedCall) -> _StartedCall:
    """Return the call that communicates the tangents: a sum, of operands that are weighted for PROD, MAX and MIN."""
    if call.op is None or call.op == SUM:
        return call
    if call.kind.tangent is None:
        return replace(call, op=SUM)
    takes = _ArrayType((call.comm.size, *call.takes.shape), call.takes.dtype)
    return replace(call, name=call.kind.tangent, op=SUM, takes=takes, reverse=False)


def _weigh_tangent(call: _StartedCall, x: Any, t: Any, batch: int) -> Any:
    """Return ``_linear_call``'s operand for PROD, MAX, MIN: ``t`` weighted by the derivative at ``x``; collective."""
    assert call.op is not None
    if call.kind.tangent is None:
        return reduction_weights(x, call.comm, call.op) * t
    scan = exscan_p if call.name == "iexscan" else scan_p
    return jnp.moveaxis(weighted_for_ranks(scan, x, t, call.comm, call.op, call.reverse), 0, batch)


def _zeros_of(kind: _ArrayType, batch: tuple[int, ...]) -> Any:
    return jnp.zeros((*batch, *kind.shape), kind.dtype)


def _start_jvp_rule(primals: Any, tangents: Any, *, call: _StartedCall, batch: tuple[int, ...]) -> list[Any]:
    """Start the tangents' request; with PROD, MAX or MIN a SUM of tangents weighted by the derivative."""
    if call.kind.takes == 2:
        refuse_one_way(call.name, call.takes.dtype, call.gives.dtype)
    if call.op is None or call.op == SUM:
        return start_p.bind(*tangents_beside_values(primals, tangents, {"call": call}), call=call, batch=batch)
    weighted = _weigh_tangent(call, primals[0], tangents[0], len(batch))
    return start_p.bind(weighted, call=_linear_call(call), batch=batch)


def _start_transpose_rule(
    request_id: Any, *, types: Any, call: _StartedCall, batch: tuple[int, ...], values: Sequence[Any] = ()
) -> list[Any]:
    """Wait for the cotangents' request, whose id is the started id's cotangent; return the operands' cotangents."""
    back, route = _reverse_call(call, values)
    keeps = [_zeros_of(back.gives, batch)] if back.kind.keeps else []
    (x_bar,) = wait_p.bind(request_id, *keeps, *route, call=back)
    return [x_bar, *(_zeros_of(call.gives, batch) for _ in range(call.kind.takes - 1))]


def _cotangent_of_kept(call: _StartedCall, ct: Any, batch: tuple[int, ...], values: Sequence[Any]) -> Any:
    """Return a kept array's cotangent: isend's ``ct``, a template's, or with a root ``ct`` off it and zeros on it."""
    if call.source is not None:
        return template_cotangent(ct, join_numbers(vars(call), values)["source"], call.comm)
    if call.root is None:
        return ct
    if call.takes != call.gives:  # on the root, whose result is no operand
        return _zeros_of(call.takes, batch)
    return select_by_root(call.comm, call.root, jnp.zeros_like(ct), ct)


def _wait_transpose_rule(cotangents: Any, request_id: Any, *operands: Any, call: _StartedCall, **_: Any) -> list[Any]:
    """Start the cotangents' request; return its id, as the id's cotangent, and the kept array's; None for numbers."""
    ct = ad.instantiate_zeros(cotangents[0])
    kept, values = operands[: call.kind.keeps], operands[call.kind.keeps :]
    results: list[Any] = [None]
    if ad.is_undefined_primal(request_id):
        batch = request_id.aval.shape[:-1]
        back, route = _reverse_call(call, values)
        template = [_zeros_of(back.gives, batch) for _ in range(back.kind.takes - 1)]
        with sites.annotate_calls(sites.REVERSE):
            results = list(start_p.bind(ct, *template, *route, call=back, batch=batch))
    if kept:
        results.append(_cotangent_of_kept(call, ct, request_id.aval.shape[:-1], values))
    return [
        as_varying(ct, varying_axes(x.aval)) if ad.is_undefined_primal(x) else None
        for ct, x in zip([*results, *values], (request_id, *operands), strict=True)
    ]


# Batching: one MPI request for the whole batch.


def _start_batcher(operands: Any, dims: Any, *, call: _StartedCall, batch: tuple[int, ...]) -> tuple[Any, Any]:
    """Start one request for the whole batch; raise TypeError if ranks or tags differ within it."""
    n = call.kind.takes
    if any(dim is not None for dim in dims[n:]):
        raise TypeError(
            f"{call.name} got ranks or tags that differ within the batch of a vmap, but starts one request for all of "
            "it. Use send, recv or sendrecv, which make a call for each part, or call it in a jax.lax.scan."
        )
    data = with_batch_at(0, operands[:n], dims[:n])
    return start_p.bind(*data, *operands[n:], call=call, batch=(data[0].shape[0], *batch)), [0]


def _wait_batcher(operands: Any, dims: Any, *, call: _StartedCall, **params: Any) -> tuple[Any, Any]:
    """Wait for the batch's one request, or an unbatched one; TypeError for one started outside of the vmap."""
    own = 1 + call.kind.keeps
    if all(d is None for d in dims[:own]):
        results = wait_p.bind(*operands, call=call, **params)
        return results, [None] * len(results)
    if dims[0] is None or operands[0].ndim < 2:  # of one request the id has one axis
        raise TypeError(
            f"the request of {call.name} was started outside of a vmap, but is waited for inside as one of a batch. "
            "Start and wait under the same vmap."
        )
    values = operands[own:]
    if values and dims[own] is not None:  # equal in the whole batch, as _start_batcher checked
        values = [jnp.moveaxis(values[0], dims[own], 0)[0]]
    results = wait_p.bind(*with_batch_at(0, operands[:own], dims[:own]), *values, call=call, **params)
    return results, [0, None][: len(results)]  # the status is of the one message


def _start_impl(*operands: Any, call: Any, batch: Any) -> Any:
    return call.kind.start(call, batch, *operands)


def _wait_abstract_eval(
    i: ShapedArray, *operands: ShapedArray, call: Any, status: Status = NO_STATUS
) -> list[ShapedArray]:
    array = with_shape(i, (*i.shape[:-1], *call.gives.shape), dtype=call.gives.dtype)
    return [array, *status_types(array, status)]


def _wait_impl(*operands: Any, call: Any, **params: Any) -> Any:
    return call.kind.wait(call, *operands, **params)


def _wait_jvp_rule(primals: Any, tangents: Any, *, call: _StartedCall, **params: Any) -> Any:
    operands = tangents_beside_values(primals, tangents, {"call": call})
    return wait_p.bind(*operands, call=_linear_call(call), **params)


# The two primitives: start, from arrays to an id, and wait, from an id to an array. Both have the batch in front. Where
# ranks or tags are known only at run time, both take them behind these: wait for the derivative's sake.

start_p: Primitive = compose_primitive(
    "start",
    _start_abstract_eval,
    _start_impl,
    jvp=_start_jvp_rule,
    transpose=_start_transpose_rule,
)
wait_p: Primitive = compose_primitive(
    "wait",
    _wait_abstract_eval,
    _wait_impl,
    jvp=_wait_jvp_rule,
)
ad.primitive_transposes[wait_p] = _wait_transpose_rule
batching.primitive_batchers[start_p] = _start_batcher
batching.primitive_batchers[wait_p] = _wait_batcher


# The public functions.


@jax.tree_util.register_pytree_node_class
class Request(RequestBase, Generic[Tree]):
    """A started communication, which operations such as ``isend`` and ``iallreduce`` return and ``wait`` takes.

    A request is a pytree, so it can be returned from a jitted function, carried through ``jax.lax.scan``, or be part of
    a larger pytree. Wait for each one exactly once. Under ``jax.vmap`` its batch is at axis 0.

    Example:
        >>> import jax, jax.numpy as jnp, mpixla
        >>> from mpi4py import MPI
        >>> start = jax.jit(lambda x: mpixla.iallreduce(x, op=MPI.SUM))
        >>> request = start(jnp.ones(3))
        >>> isinstance(request, mpixla.Request)
        True
        >>> y = jax.jit(mpixla.wait)(request)
        >>> bool((y == mpixla.get_default_comm().Get_size()).all())
        True
    """

    __module__ = PACKAGE  # before annotations name the class: they keep the module that they see

    __slots__ = ("_parts", "_started")
    # For one communication: its call; and its id, the kept array, and ranks and tags at run time. For a pytree: its
    # plan; and the requests of its parts. For several: an object whose `wait(*parts)` returns the result; and these.
    _started: Any
    _parts: tuple[Any, ...]

    def tree_flatten(self) -> tuple[tuple[Any, ...], Any]:
        """Return the arrays that a program carries of the request, and the started call or plan."""
        return self._parts, self._started

    @classmethod
    def tree_unflatten(cls, started: Any, parts: Any) -> "Request[Any]":
        """Rebuild a request from the results of ``tree_flatten``."""
        request = object.__new__(cls)
        request._started, request._parts = started, tuple(parts)
        return request

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a request has no {name}. request.wait() gives the result.")

    # With return_status=True a pair of the result and the message's status, else the result alone.
    @overload
    def wait(self, *, return_status: Literal[True]) -> tuple[Tree, MessageStatus]: ...
    @overload
    def wait(self, *, return_status: Literal[False] = ...) -> Tree: ...
    def wait(self, *, return_status: bool = False) -> Any:
        """Wait for the request, and return the result of its operation, as ``mpixla.wait`` does."""
        return wait(self, return_status=return_status)  # type: ignore[call-overload]

    def __repr__(self) -> str:
        """Return a text with the started calls, for messages."""
        return f"Request({self._started if isinstance(self._started, _StartedCall) else started_in(self._parts)})"


# Functions, since further methods would be public.


def _with_numbers(request: Request[Any], *numbers: int) -> Request[Any]:
    """Return an eager call's request with ``numbers``, its ranks and tags, as parameters in place of operands.

    So it has the structure of a traced one, and can be what a loop begins with.
    """
    parts, started = request.tree_flatten()
    if not isinstance(started, _StartedCall):
        return request.tree_unflatten(started, [_with_numbers(part, *numbers) for part in parts])
    return request.tree_unflatten(_fill_numbers(started, numbers), (*parts[:2], None))


@functools.lru_cache(CACHED_CALLS)
def _fill_numbers(call: _StartedCall, numbers: tuple[int, ...]) -> _StartedCall:
    """Return the call with ``numbers`` for its ranks and tags that are operands; for equal arguments the same call."""
    names = sorted(name for name, x in vars(call).items() if is_operand(x))
    given: dict[str, Any] = dict(zip(names, numbers, strict=True))
    return replace(call, **given)


def _ids_in(request: Request[Any]) -> list[Any]:
    """Return the ids of the communications in a request, by which programs wait for them; several for a pytree."""
    parts, started = request.tree_flatten()
    if isinstance(started, _StartedCall):
        return [parts[0]]
    return [request_id for part in started_in(parts) for request_id in _ids_in(part)]


def _wait_for(request: Request[Any], return_status: bool = False) -> Any:
    """Wait for a request; return its result, or with ``return_status`` a pair of it and the (last) message's status."""
    parts, started = request.tree_flatten()
    if isinstance(started, Plan) and return_status:
        results = [_wait_for(part, return_status) for part in parts]
        return started.tree_of(tie_cotangents([y for y, _ in results])), last_status(results, "wait")
    if isinstance(started, Plan):
        return started.tree_of(waitall(parts))
    if return_status and not isinstance(started, _StartedCall):
        raise TypeError("halo_start receives several messages, so that wait has no status to return.")
    return started.wait(*parts, **({"return_status": True} if return_status else {}))


def wait_into(request: Request[Any], template: Any) -> Any:
    """Wait for one message; return it in a copy of ``template``, in place of irecv's, whose other values remain."""
    (request_id, _, values), call = request.tree_flatten()
    return call.wait(request_id, template, values)


for _name in ("jax_array", "array", "getitem", "neg", "abs", "float", "int"):
    setattr(Request, f"__{_name}__", refuse_started)
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"):
    setattr(Request, f"__{_name}__", refuse_started)
    setattr(Request, f"__r{_name}__", refuse_started)


def _start_call(
    name: str, comm: Comm, *operands: Any, shape: tuple[int, ...] | None = None, **more: Any
) -> Request[Any]:
    """Start a call of the kind ``name``, and return its request; the result is like the last operand, or has ``shape``.

    The call's further fields, ``more``, may be known only at run time.
    """
    params, values = split_numbers(more)
    first, last = operands[0], operands[-1]
    gives = _ArrayType(last.shape if shape is None else shape, last.dtype)
    call = _StartedCall(name, comm, _ArrayType(first.shape, first.dtype), gives, **params)
    (request_id,) = start_p.bind(*operands, *values, call=call, batch=())
    return Request.tree_unflatten(call, (request_id, last if call.kind.keeps else None, values[0] if values else None))


# With return_status=True a pair of the result and the message's status, else the result alone.
@overload
def wait(request: Request[Tree], *, return_status: Literal[True]) -> tuple[Tree, MessageStatus]: ...
@overload
def wait(request: Request[Tree], *, return_status: Literal[False] = ...) -> Tree: ...
@public
def wait(request: Request[Any], *, return_status: bool = False) -> Any:
    """Wait for a request, once, and return the result of its operation; with ``return_status`` a pair with the status.

    XLA orders computations by data dependences alone. ``overlap`` waits as well, and computes a function between start
    and wait.

    Args:
        request: the request that an operation such as ``isend`` or ``iallreduce`` returned. ``request.wait()`` is the
            same.
        return_status: whether the source, tag and length of the message are returned, too, as by ``recv``: for
            ``irecv`` and ``isendrecv``. Of a pytree each array is a message, and the status is the last one's.

    Returns:
        The result of the blocking operation; for ``isend`` the array that was sent. With ``return_status=True`` a pair
        of it and the status.

    Derivative:
        Linear. Reverse mode starts the communication of the cotangents here, and waits for it where the request was
        started. The ranks must wait for the requests between them in the same order.

    Raises:
        TypeError: for an argument that is no request; for ``return_status=True``, if no message is received.
        jax.errors.JaxRuntimeError: when running, for a request that was waited for before.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> from mpi4py import MPI
        >>> request = mpixla.iallreduce(jnp.ones(3), op=MPI.SUM)
        >>> bool((mpixla.wait(request) == mpixla.get_default_comm().Get_size()).all())
        True
    """
    _refuse_other_than_requests(request, "wait")
    return _wait_for(request, as_static_flag(return_status, "return_status", "wait"))


@public
def waitall(requests: Sequence[Request[Tree]]) -> list[Tree]:
    """Wait for all requests, each once, and return the list of their results in the order of the requests.

    Args:
        requests: the requests.

    Returns:
        The results in the order of the requests.

    Derivative:
        As for ``wait``.

    Raises:
        TypeError, jax.errors.JaxRuntimeError: as ``wait``.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> comm = mpixla.get_default_comm()
        >>> rank, size = comm.Get_rank(), comm.Get_size()
        >>> x = jnp.float32(rank)
        >>> requests = [mpixla.irecv(x, (rank - 1) % size), mpixla.isend(x, (rank + 1) % size)]
        >>> received, sent = mpixla.waitall(requests)
        >>> float(received) == (rank - 1) % size, float(sent) == rank
        (True, True)
    """
    if not isinstance(requests, Iterable) or isinstance(requests, jax.Array | Mapping | str):
        raise TypeError(f"waitall needs a list of requests, but got {kind_of(requests)}.")
    started = list(requests)
    for request in started:
        _refuse_other_than_requests(request, "waitall")
    results, structure = jax.tree.flatten(list(map(_wait_for, started)))
    tied_results: list[Tree] = jax.tree.unflatten(structure, tie_cotangents(results))
    return tied_results


# For one request its result, for a list of requests the list of their results; each in a pair with fun's result.
@overload
def overlap(request: Request[Tree], fun: Callable[..., Work], *args: Any) -> tuple[Tree, Work]: ...
@overload
def overlap(request: Sequence[Request[Tree]], fun: Callable[..., Work], *args: Any) -> tuple[list[Tree], Work]: ...
@public
def overlap(request: Any, fun: Callable[..., Any], *args: Any) -> tuple[Any, Any]:
    """Compute while a communication is under way, then wait for it, and return both results.

    Without it XLA may compute before the start or after the wait, and nothing overlaps: it only knows which data a
    computation needs. Computations of ``fun`` that need ``args`` come between the two; computations that need only
    arrays that it closes over may come before.

    Args:
        request: the request that an operation such as ``isendrecv``, ``iallreduce`` or ``halo_start`` returned, or a
            list of such requests.
        fun: a function of arrays, which may communicate too. It is called once.
        args: its arguments, arrays or pytrees of arrays. Other leaves are passed as they are.

    Returns:
        The result of the request, as ``wait`` returns it, or the list of results of a list of requests, waited for in
        its order; and ``fun(*args)``, any pytree. ``fun`` works in the memory of ``args``. XLA copies an array that the
        program uses elsewhere or that is an argument of the jitted function; so let ``fun`` return the arrays of
        ``args`` that are used afterwards.

    Derivative:
        As for ``wait`` and for ``fun``. In reverse mode, where the communication of the cotangents starts at the wait
        and is waited for where the request was started, ``fun`` is computed backward between the two.

    Raises:
        TypeError, jax.errors.JaxRuntimeError: as ``wait``.

    Example:
        >>> import jax, jax.numpy as jnp, mpixla
        >>> from mpi4py import MPI
        >>> @jax.jit
        ... def step(x):
        ...     request = mpixla.iallreduce(x, op=MPI.SUM)
        ...     total, work = mpixla.overlap(request, lambda x: jnp.sin(x) * 2, x)
        ...     return total + work
        >>> step(jnp.zeros(3)).tolist()
        [0.0, 0.0, 0.0]
        >>> jax.grad(lambda x: step(x).sum())(jnp.zeros(3)).tolist()
        [3.0, 3.0, 3.0]
    """
    several = isinstance(request, (list, tuple))
    requests = list(request) if several else [request]
    for one in requests:
        _refuse_other_than_requests(one, "overlap")
    if not callable(fun):
        raise TypeError(f"overlap needs a function to compute between start and wait, but got {kind_of(fun)}.")
    # Both times an array that a request keeps is held together with its other uses, so that the block of a halo
    # exchange, for one, is not in memory twice.
    requests, args = _sequence_tree((requests, args), _ids_of(requests), _arrays_in(args))
    work = fun(*args)
    requests, work = _sequence_tree((requests, work), _arrays_in(work), _ids_of(requests))
    results = waitall(requests)
    return results if several else results[0], work


def _ids_of(requests: Sequence[Request[Any]]) -> list[Any]:
    return [request_id for request in requests for request_id in _ids_in(request)]


def _arrays_in(tree: Any) -> list[Any]:
    """Return the distinct arrays in a pytree, JAX's, and NumPy's if MPI can move their dtype; a repeated one once."""
    leaves = jax.tree.leaves(tree)
    arrays = [
        x for x in leaves if isinstance(x, jax.Array) or (isinstance(x, np.ndarray) and x.dtype.name in native.dtypes)
    ]
    return list({id(x): x for x in arrays}.values())


def _sequence_tree(tree: Any, first: Sequence[Any], then: Sequence[Any]) -> Any:
    """Return the pytree with its arrays ``then`` computed after its arrays ``first``; NumPy arrays become JAX's."""
    arrays = [*first, *then]
    before, behind = (
        [jnp.asarray(x) if isinstance(x, np.ndarray) else unwrap_keys(x) for x in part] for part in (first, then)
    )
    before, behind = sequence_after(before, behind)
    held = plan_of_each(jax.tree.structure(arrays), arrays).tree_of([*before, *behind])
    found = {id(x): y for x, y in zip(arrays, held, strict=True)}
    return jax.tree.map(lambda x: found.get(id(x), x), tree)


def _refuse_other_than_requests(request: Any, name: str) -> None:
    """Raise TypeError for an argument that is not a ``Request``."""
    if not isinstance(request, Request):
        raise TypeError(
            f"{name} needs a Request, which isend, irecv and the other non-blocking operations return, but got "
            f"{kind_of(request)}."
        )


# A request of an array for an array, and for a pytree one of a pytree of the same structure.
@overload
def isend(x: ArrayLike, dest: Rank, *, tag: Tag = 0, comm: MPI.Comm | None = None) -> Request[jax.Array]: ...
@overload
def isend(x: Tree, dest: Rank, *, tag: Tag = 0, comm: MPI.Comm | None = None) -> Request[Tree]: ...
@call_per_leaf(collect=Request.tree_unflatten, finish=_with_numbers)
def isend(x: Any, dest: Rank, *, tag: Tag = 0, comm: MPI.Comm | None = None) -> Request[Any]:
    """Start to send an array to another rank; ``wait`` returns the array itself.

    Args:
        x: the array, or a pytree of arrays, which is sent leaf by leaf.
        dest: the rank that receives, or ``MPI.PROC_NULL``; or a ``Shift``. Traced, it is an integer that is known when
            the program runs.
        tag: the message's tag. It may be traced.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        A request; ``wait`` gives ``x``.

    Derivative:
        Linear. Forward mode sends the tangent. Reverse mode receives from ``dest``, under the same tag, the cotangent
        of the array received there, and adds it to the cotangent of the wait's result. The receiver may have used
        ``irecv`` or ``recv``, with this rank and tag named.

    Raises:
        TypeError: for a destination or tag that is not an integer, a ``comm`` that is no intra-communicator, or a dtype
            that MPI cannot move.
        ValueError: for a destination that is not a rank or direction of the communicator, a tag out of range, or a
            communicator that was freed.
        jax.errors.JaxRuntimeError: when running, for a traced destination or tag whose value is invalid.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> comm = mpixla.get_default_comm()
        >>> rank, size = comm.Get_rank(), comm.Get_size()
        >>> request = mpixla.isend(jnp.float32(rank), dest=(rank + 1) % size)
        >>> y = mpixla.recv(jnp.float32(0), source=(rank - 1) % size)
        >>> float(mpixla.wait(request)) == rank
        True
    """
    x, c = as_array(x, "x", "isend"), comm_of(comm)
    message = as_message("isend", c, dest=dest, sendtag=tag)
    return _start_call("isend", c, x, **message)


# For an array or a ShapeDtypeStruct (Template) a request of an array; else one of a pytree like ``x``.
@overload
def irecv(x: Template, source: Rank = ..., *, tag: Tag = ..., comm: MPI.Comm | None = ...) -> Request[jax.Array]: ...
@overload
def irecv(x: Tree, source: Rank = ..., *, tag: Tag = ..., comm: MPI.Comm | None = ...) -> Request[Tree]: ...
@call_per_leaf(template=True, collect=Request.tree_unflatten, finish=_with_numbers)
def irecv(x: Any, source: Rank = ANY_SOURCE, *, tag: Tag = ANY_TAG, comm: MPI.Comm | None = None) -> Request[Any]:
    """Start to receive an array from another rank, of the shape and dtype of the template ``x``.

    Args:
        x: a template: the result has its shape and dtype. ``x`` is not modified. It may be a ``jax.ShapeDtypeStruct``,
            which stands for zeros, a constant. Or a pytree of templates, which is received leaf by leaf.
        source: the rank that sends, ``MPI.ANY_SOURCE`` or ``MPI.PROC_NULL``; or a ``Shift``. Traced, it is an integer
            that is known when the program runs.
        tag: the message's tag, or ``MPI.ANY_TAG``. It may be traced.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        A request; ``wait`` gives the array that was received. Where the message is shorter than the template, and from
        ``MPI.PROC_NULL``, the template's values remain.

    Derivative:
        Linear in the message and the template. JAX sees this rank's operands only, so where the message has a
        derivative give a template that has one too: an array that depends on the parameters, such as the array to send,
        and neither ``jnp.zeros_like`` of it nor its type. Reverse mode sends the cotangent back to ``source``, which
        must not be ``MPI.ANY_SOURCE``, under the same tag (0 for ``MPI.ANY_TAG``).

    Raises:
        TypeError: for a source or tag that is not an integer, a ``comm`` that is no intra-communicator, or a dtype that
            MPI cannot move.
        ValueError: for a source that is not a rank or direction of the communicator, a tag out of range, or a
            communicator that was freed.
        jax.errors.JaxRuntimeError: when running, for a message that is longer than the template, or a traced source or
            tag whose value is invalid.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> comm = mpixla.get_default_comm()
        >>> rank, size = comm.Get_rank(), comm.Get_size()
        >>> request = mpixla.irecv(jnp.float32(0), source=(rank - 1) % size)
        >>> mpixla.send(jnp.float32(rank), dest=(rank + 1) % size)
        >>> float(mpixla.wait(request)) == (rank - 1) % size
        True
    """
    x, c = as_array(x, "x", "irecv"), comm_of(comm)
    message = as_message("irecv", c, source=source, recvtag=tag)
    return _start_call("irecv", c, x, **message)


# For an array or a ShapeDtypeStruct (Template) a request of an array; else one of a pytree like ``recvbuf``.
@overload
def isendrecv(
    sendbuf: Any, recvbuf: Template, source: Rank, dest: Rank, **more: Unpack[TagArguments]
) -> Request[jax.Array]: ...
@overload
def isendrecv(sendbuf: Any, recvbuf: Tree, source: Rank, dest: Rank, **more: Unpack[TagArguments]) -> Request[Tree]: ...
@call_per_leaf(2, template=True, collect=Request.tree_unflatten, finish=_with_numbers)
def isendrecv(
    sendbuf: Any,
    recvbuf: Any,
    source: Rank,
    dest: Rank,
    *,
    sendtag: Tag = 0,
    recvtag: Tag = ANY_TAG,
    comm: MPI.Comm | None = None,
) -> Request[Any]:
    """Start to send an array to one rank and to receive one from another.

    Args:
        sendbuf: the array to send, or a pytree of arrays, which is sent leaf by leaf.
        recvbuf: a template: the result has its shape and dtype, which may differ from ``sendbuf``'s. ``recvbuf`` is not
            modified. It may be a ``jax.ShapeDtypeStruct``, which stands for zeros. For a pytree it is a pytree of the
            same structure.
        source: the rank to receive from, ``MPI.ANY_SOURCE`` or ``MPI.PROC_NULL``; or a ``Shift``.
        dest: the rank to send to, or ``MPI.PROC_NULL``; or a ``Shift``. Where both are a ``Shift``, the program is the
            same on every rank. Ranks and tags may be traced: integers that are known when the program runs, one program
            for all of them. Within the batch of a ``jax.vmap`` they must not differ.
        sendtag: the tag of the message that is sent. It may be traced.
        recvtag: the tag of the message to receive, or ``MPI.ANY_TAG``. It may be traced.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        A request; ``wait`` gives the array that was received. Where the message is shorter than the template, and from
        ``MPI.PROC_NULL``, the template's values remain.

    Derivative:
        Linear in the message and the template. Reverse mode: the cotangent goes to ``source``, and that of ``sendbuf``
        comes from ``dest``, under the same tags, and with ``MPI.ANY_TAG`` under ``sendtag``: so where the two
        directions have different tags, both ends must name ``recvtag``. ``source`` must not be ``MPI.ANY_SOURCE``, and
        messages must be as long as their templates.

    Raises:
        TypeError, ValueError, jax.errors.JaxRuntimeError: as ``recv``, for both ranks and both tags.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> comm = mpixla.get_default_comm()
        >>> rank, size = comm.Get_rank(), comm.Get_size()
        >>> x = jnp.float32(rank)
        >>> request = mpixla.isendrecv(x, x, source=(rank - 1) % size, dest=(rank + 1) % size)
        >>> float(mpixla.wait(request)) == (rank - 1) % size
        True
    """
    sendbuf = as_array(sendbuf, "sendbuf", "isendrecv")
    recvbuf = as_array(recvbuf, "recvbuf", "isendrecv")
    c = comm_of(comm)
    message = as_message("isendrecv", c, dest=dest, sendtag=sendtag, source=source, recvtag=recvtag)
    return _start_call("isendrecv", c, sendbuf, recvbuf, **message)


# A request of an array for an array, and for a pytree one of a pytree of the same structure.
@overload
def iallreduce(
    x: ArrayLike, op: MPI.Op, *, comm: MPI.Comm | None = ..., cotangent: Cotangent = ...
) -> Request[jax.Array]: ...
@overload
def iallreduce(x: Tree, op: MPI.Op, *, comm: MPI.Comm | None = ..., cotangent: Cotangent = ...) -> Request[Tree]: ...
@call_per_dtype(reduces=True, collect=Request.tree_unflatten)
def iallreduce(x: Any, op: MPI.Op, *, comm: MPI.Comm | None = None, cotangent: Cotangent = REPLICATED) -> Request[Any]:
    """Start to reduce the arrays of all ranks, element by element, with the result on every rank.

    Args:
        x: this rank's array, of the same shape and dtype on every rank, or a pytree of such arrays.
        op: the reduction, such as ``MPI.SUM``.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.
        cotangent: how reverse mode counts the cotangents of the result, as of ``allreduce``.

    Returns:
        A request; ``wait`` gives an array like ``x``, the same on every rank. ``MAX`` and ``MIN`` give NaN where any
        rank has NaN, as ``jnp.max`` and ``jnp.min`` do; so they do in ``reduce``, ``scan`` and all other reductions.

    Derivative:
        As for ``allreduce``.

    Raises:
        TypeError: for an ``op`` that is no ``MPI.Op`` or does not apply to the dtype, or a ``comm`` that is no
            intra-communicator.
        ValueError: for a communicator or reduction that was freed, or an invalid ``cotangent``.

    Example:
        >>> from mpi4py import MPI
        >>> import jax.numpy as jnp, mpixla
        >>> request = mpixla.iallreduce(jnp.ones(3), op=MPI.SUM)
        >>> bool((mpixla.wait(request) == mpixla.get_default_comm().Get_size()).all())
        True
    """
    x, c = as_array(x, "x", "iallreduce"), comm_of(comm)
    reduction, convention = as_reduction(op, x, "iallreduce"), _as_convention(cotangent, "iallreduce", c)
    return _start_call("iallreduce", c, x, op=reduction, cotangent=convention)


# A request of an array for an array, and for a pytree one of a pytree of the same structure.
@overload
def ibcast(
    x: ArrayLike, root: int, *, comm: MPI.Comm | None = ..., cotangent: Cotangent = ...
) -> Request[jax.Array]: ...
@overload
def ibcast(x: Tree, root: int, *, comm: MPI.Comm | None = ..., cotangent: Cotangent = ...) -> Request[Tree]: ...
@call_per_dtype(reduces=False, collect=Request.tree_unflatten)
def ibcast(x: Any, root: int, *, comm: MPI.Comm | None = None, cotangent: Cotangent = REPLICATED) -> Request[Any]:
    """Start to send the root's array to every rank; elsewhere ``x`` gives only the shape and dtype.

    Args:
        x: on the root the array to send; elsewhere an array of the same shape and dtype, whose values do not matter. Or
            a pytree of such arrays, of the same structure on every rank.
        root: the rank that sends.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.
        cotangent: how reverse mode counts the cotangents of the result, as of ``allreduce``.

    Returns:
        A request; ``wait`` gives the root's array, the same on every rank.

    Derivative:
        As for ``bcast``.

    Raises:
        TypeError: for a ``comm`` that is no intra-communicator or a dtype that MPI cannot move.
        ValueError: for a communicator that was freed, or an invalid ``cotangent``.
        TypeError, ValueError: for a root that is no static integer, or no rank of ``comm``.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> rank = mpixla.get_default_comm().Get_rank()
        >>> float(mpixla.wait(mpixla.ibcast(jnp.float32(rank + 1), root=0)))
        1.0
    """
    x, c = as_array(x, "x", "ibcast"), comm_of(comm)
    convention = _as_convention(cotangent, "ibcast", c)
    return _start_call("ibcast", c, x, root=as_rank(root, "root", "ibcast", c), cotangent=convention)


# A request of an array for an array, and for a pytree one of a pytree of the same structure.
@overload
def iallgather(x: ArrayLike, *, comm: MPI.Comm | None = ..., cotangent: Cotangent = ...) -> Request[jax.Array]: ...
@overload
def iallgather(x: Tree, *, comm: MPI.Comm | None = ..., cotangent: Cotangent = ...) -> Request[Tree]: ...
@call_per_leaf(collect=Request.tree_unflatten)
def iallgather(x: Any, *, comm: MPI.Comm | None = None, cotangent: Cotangent = REPLICATED) -> Request[Any]:
    """Start to stack the arrays of all ranks along a new first axis, on every rank.

    Args:
        x: this rank's array, of the same shape and dtype on every rank, or a pytree of such arrays.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.
        cotangent: how reverse mode counts the cotangents of the result, as of ``allreduce``.

    Returns:
        A request; ``wait`` gives an array of shape ``(size, *x.shape)`` with rank ``i``'s array at index ``i``, the
        same on every rank.

    Derivative:
        As for ``allgather``.

    Raises:
        TypeError: for a ``comm`` that is no intra-communicator or a dtype that MPI cannot move.
        ValueError: for a communicator that was freed, or an invalid ``cotangent``.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> size = mpixla.get_default_comm().Get_size()
        >>> mpixla.wait(mpixla.iallgather(jnp.ones(3))).shape == (size, 3)
        True
    """
    x, c = as_array(x, "x", "iallgather"), comm_of(comm)
    convention = _as_convention(cotangent, "iallgather", c)
    return _start_call("iallgather", c, x, shape=(c.size, *x.shape), cotangent=convention)


# A request of an array for an array, and for a pytree one of a pytree of the same structure.
@overload
def ialltoall(x: ArrayLike, *, comm: MPI.Comm | None = ...) -> Request[jax.Array]: ...
@overload
def ialltoall(x: Tree, *, comm: MPI.Comm | None = ...) -> Request[Tree]: ...
@call_per_leaf(keys=True, collect=Request.tree_unflatten)
def ialltoall(x: Any, *, comm: MPI.Comm | None = None) -> Request[Any]:
    """Start to send a slice of this rank's array to each rank, and to receive one from each.

    Args:
        x: this rank's array of shape ``(size, ...)``, or a pytree of such arrays; ``x[i]`` goes to rank ``i``.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        A request; ``wait`` gives an array like ``x`` with rank ``i``'s slice at index ``i``.

    Derivative:
        Linear. Reverse mode: ``alltoall``.

    Raises:
        TypeError: for a ``comm`` that is no intra-communicator or a dtype that MPI cannot move.
        ValueError: for a communicator that was freed; for a first axis that does not have ``size`` entries.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> size = mpixla.get_default_comm().Get_size()
        >>> mpixla.wait(mpixla.ialltoall(jnp.ones((size, 2)))).shape == (size, 2)
        True
    """
    x, c = as_leaf(x, "x", "ialltoall"), comm_of(comm)
    check_leading_size(x, "ialltoall", c)
    return _start_call("ialltoall", c, unwrap_keys(x))


# A request of an array for an array, and for a pytree one of a pytree of the same structure.
@overload
def ialltoallv(
    x: ArrayLike, sendcounts: Sequence[int], recvcounts: Sequence[int], *, comm: MPI.Comm | None = ...
) -> Request[jax.Array]: ...
@overload
def ialltoallv(
    x: Tree, sendcounts: Sequence[int], recvcounts: Sequence[int], *, comm: MPI.Comm | None = ...
) -> Request[Tree]: ...
@call_per_leaf(keys=True, collect=Request.tree_unflatten)
def ialltoallv(
    x: Any, sendcounts: Sequence[int], recvcounts: Sequence[int], *, comm: MPI.Comm | None = None
) -> Request[Any]:
    """Start to send some rows of this rank's array to each rank, and to receive some from each.

    Args:
        x: this rank's array of shape ``(sum(sendcounts), ...)``; the first ``sendcounts[0]`` rows go to rank 0, and so
            on. The other axes and the dtype are the same on every rank. Or a pytree of such arrays.
        sendcounts: how many rows, entries of the first axis, go to each rank: static integers, which may be 0.
        recvcounts: how many rows come from each rank: ``recvcounts[i]`` equals ``sendcounts[rank]`` of rank ``i``.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        A request; ``wait`` gives an array of shape ``(sum(recvcounts), ...)`` with the ranks' rows, one behind the
        other.

    Derivative:
        As for ``alltoallv``.

    Raises:
        TypeError: for counts that are not a sequence of static integers, a ``comm`` that is no intra-communicator, or a
            dtype that MPI cannot move.
        ValueError: for counts that are negative or not one for each rank, an ``x`` that does not have
            ``sum(sendcounts)`` rows, or a communicator that was freed.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> comm = mpixla.get_default_comm()
        >>> rank, size = comm.Get_rank(), comm.Get_size()
        >>> sendcounts = list(range(size))  # i rows to rank i
        >>> request = mpixla.ialltoallv(jnp.ones((sum(sendcounts), 3)), sendcounts, [rank] * size)
        >>> request.wait().shape == (rank * size, 3)
        True
    """
    name, c = "ialltoallv", comm_of(comm)
    sent = as_counts(sendcounts, "sendcounts", name, c.size, name_ranks(c), None)
    received = as_counts(recvcounts, "recvcounts", name, c.size, name_ranks(c), None)
    x = unwrap_keys(as_rows(x, name, (sum(sent), "the sum of sendcounts")))
    shape = (sum(received), *x.shape[1:])
    return _start_call(name, c, x, shape=shape, sendcounts=sent, recvcounts=received)


# A request of an array for an array, and for a pytree one of a pytree of the same structure.
@overload
def ireduce(x: ArrayLike, op: MPI.Op, root: int, *, comm: MPI.Comm | None = ...) -> Request[jax.Array]: ...
@overload
def ireduce(x: Tree, op: MPI.Op, root: int, *, comm: MPI.Comm | None = ...) -> Request[Tree]: ...
@call_per_dtype(reduces=True, collect=Request.tree_unflatten)
def ireduce(x: Any, op: MPI.Op, root: int, *, comm: MPI.Comm | None = None) -> Request[Any]:
    """Start to reduce the arrays of all ranks on the root; ``wait`` returns ``x`` itself on the other ranks.

    Args:
        x: this rank's array, of the same shape and dtype on every rank, or a pytree of such arrays.
        op: the reduction, such as ``MPI.SUM``.
        root: the rank that has the result.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        A request; ``wait`` gives on the root the reduced array; elsewhere ``x`` itself.

    Derivative:
        As for ``reduce``.

    Raises:
        TypeError: for an ``op`` that is no ``MPI.Op`` or does not apply to the dtype, or a ``comm`` that is no
            intra-communicator.
        ValueError: for a communicator or reduction that was freed.
        TypeError, ValueError: for a root that is no static integer, or no rank of ``comm``.

    Example:
        >>> from mpi4py import MPI
        >>> import jax.numpy as jnp, mpixla
        >>> comm = mpixla.get_default_comm()
        >>> y = mpixla.wait(mpixla.ireduce(jnp.float32(1), op=MPI.SUM, root=0))
        >>> float(y) == (comm.Get_size() if comm.Get_rank() == 0 else 1)
        True
    """
    x, c = as_array(x, "x", "ireduce"), comm_of(comm)
    return _start_call("ireduce", c, x, op=as_reduction(op, x, "ireduce"), root=as_rank(root, "root", "ireduce", c))


# A request of an array for an array, and for a pytree one of a pytree of the same structure.
@overload
def igather(x: ArrayLike, root: int, *, comm: MPI.Comm | None = ...) -> Request[jax.Array]: ...
@overload
def igather(x: Tree, root: int, *, comm: MPI.Comm | None = ...) -> Request[Tree]: ...
@call_per_leaf(collect=Request.tree_unflatten)
def igather(x: Any, root: int, *, comm: MPI.Comm | None = None) -> Request[Any]:
    """Start to stack the arrays of all ranks on the root; ``wait`` returns ``x`` itself on the other ranks.

    Args:
        x: this rank's array, of the same shape and dtype on every rank, or a pytree of such arrays.
        root: the rank that receives.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        A request; ``wait`` gives on the root an array of shape ``(size, *x.shape)`` with rank ``i``'s array at index
        ``i``; elsewhere ``x`` itself.

    Derivative:
        As for ``gather``.

    Raises:
        TypeError: for a ``comm`` that is no intra-communicator or a dtype that MPI cannot move.
        ValueError: for a communicator that was freed.
        TypeError, ValueError: for a root that is no static integer, or no rank of ``comm``.
        NotImplementedError: inside ``jax.shard_map`` over several processes, where an array has one shape.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> comm = mpixla.get_default_comm()
        >>> y = mpixla.wait(mpixla.igather(jnp.ones(3), root=0))
        >>> y.shape == ((comm.Get_size(), 3) if comm.Get_rank() == 0 else (3,))
        True
    """
    x, c = as_array(x, "x", "igather"), comm_of(comm)
    refuse_where_sharded("igather", c, "iallgather")
    root = as_rank(root, "root", "igather", c)
    shape = (c.size, *x.shape) if c.rank == root else x.shape
    return _start_call("igather", c, x, shape=shape, root=root)


# A request of an array for an array, and for a pytree one of a pytree of the same structure.
@overload
def iscatter(x: ArrayLike, root: int, *, comm: MPI.Comm | None = ...) -> Request[jax.Array]: ...
@overload
def iscatter(x: Tree, root: int, *, comm: MPI.Comm | None = ...) -> Request[Tree]: ...
@call_per_leaf(keys=True, collect=Request.tree_unflatten)
def iscatter(x: Any, root: int, *, comm: MPI.Comm | None = None) -> Request[Any]:
    """Start to send entry ``i`` of the root's array to rank ``i``; elsewhere ``x`` is a template of the result.

    Args:
        x: on the root an array of shape ``(size, ...)``, of which ``x[i]`` goes to rank ``i``; elsewhere a template
            with the shape and dtype of the result. Or a pytree of these, of the same structure on every rank.
        root: the rank that sends.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        A request; ``wait`` gives this rank's slice, without the first axis of the root's array.

    Derivative:
        As for ``scatter``.

    Raises:
        TypeError, ValueError, NotImplementedError: as ``igather``, and for a first axis on the root that does not have
            ``size`` entries.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> comm = mpixla.get_default_comm()
        >>> x = jnp.ones((comm.Get_size(), 3)) if comm.Get_rank() == 0 else jnp.zeros(3)
        >>> mpixla.wait(mpixla.iscatter(x, root=0))
        Array([1., 1., 1.], dtype=float32)
    """
    x, c = as_leaf(x, "x", "iscatter"), comm_of(comm)
    refuse_where_sharded("iscatter", c, "ialltoall, in whose result the root's entry is that slice")
    root = as_rank(root, "root", "iscatter", c)
    if c.rank == root:
        check_leading_size(x, "iscatter", c)
    x = unwrap_keys(x)
    return _start_call("iscatter", c, x, shape=x.shape[1:] if c.rank == root else x.shape, root=root)


# A request of an array for an array, and for a pytree one of a pytree of the same structure.
@overload
def iscan(x: ArrayLike, op: MPI.Op, *, comm: MPI.Comm | None = ...) -> Request[jax.Array]: ...
@overload
def iscan(x: Tree, op: MPI.Op, *, comm: MPI.Comm | None = ...) -> Request[Tree]: ...
@call_per_dtype(reduces=True, collect=Request.tree_unflatten)
def iscan(x: Any, op: MPI.Op, *, comm: MPI.Comm | None = None) -> Request[Any]:
    """Start to reduce, on each rank, the arrays of the ranks up to and including itself.

    Args:
        x: this rank's array, of the same shape and dtype on every rank, or a pytree of such arrays.
        op: the reduction, such as ``MPI.SUM``.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        A request; ``wait`` gives an array like ``x``: the reduction over ranks ``0`` to this one.

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
        >>> float(mpixla.wait(mpixla.iscan(jnp.float32(1), op=MPI.SUM))) == rank + 1
        True
    """
    x = as_array(x, "x", "iscan")
    return _start_call("iscan", comm_of(comm), x, op=as_reduction(op, x, "iscan"))


# A request of an array for an array, and for a pytree one of a pytree of the same structure.
@overload
def iexscan(x: ArrayLike, op: MPI.Op, *, comm: MPI.Comm | None = ...) -> Request[jax.Array]: ...
@overload
def iexscan(x: Tree, op: MPI.Op, *, comm: MPI.Comm | None = ...) -> Request[Tree]: ...
@call_per_dtype(reduces=True, collect=Request.tree_unflatten)
def iexscan(x: Any, op: MPI.Op, *, comm: MPI.Comm | None = None) -> Request[Any]:
    """Start to reduce, on each rank, the arrays of the ranks before it; the first rank gets the neutral element.

    Args:
        x: this rank's array, of the same shape and dtype on every rank, or a pytree of such arrays.
        op: the reduction, such as ``MPI.SUM``.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        A request; ``wait`` gives an array like ``x``: the reduction over ranks ``0`` to the one before this. On rank 0
        the reduction's neutral element, as of ``exscan``.

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
        >>> float(mpixla.wait(mpixla.iexscan(jnp.float32(1), op=MPI.SUM))) == rank
        True
    """
    x = as_array(x, "x", "iexscan")
    return _start_call("iexscan", comm_of(comm), x, op=as_reduction(op, x, "iexscan"))


@eager(0)
def ibarrier(*, comm: MPI.Comm | None = None) -> Request[None]:
    """Start a barrier: ``wait`` waits until every rank has started it.

    Args:
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        A request; ``wait`` gives None.

    Raises:
        TypeError: for a ``comm`` that is no intra-communicator.
        ValueError: for a communicator that was freed.

    Example:
        >>> import mpixla
        >>> request = mpixla.ibarrier()
        >>> request.wait()
    """
    nothing = _ArrayType((0,), np.dtype(np.float32))
    call = _StartedCall("ibarrier", comm_of(comm), nothing, nothing)
    (request_id,) = start_p.bind(call=call, batch=())
    return Request.tree_unflatten(call, (request_id, None, None))


# A request of an array for an array, and for a pytree one of a pytree of the same structure.
@overload
def ireduce_scatter(x: ArrayLike, op: MPI.Op, *, comm: MPI.Comm | None = ...) -> Request[jax.Array]: ...
@overload
def ireduce_scatter(x: Tree, op: MPI.Op, *, comm: MPI.Comm | None = ...) -> Request[Tree]: ...
@call_per_dtype(reduces=True, kept_axes=1, collect=Request.tree_unflatten)
def ireduce_scatter(x: Any, op: MPI.Op, *, comm: MPI.Comm | None = None) -> Request[Any]:
    """Start to reduce the arrays of all ranks, element by element, with a slice of the result on each rank.

    Args:
        x: this rank's array of shape ``(size, ...)``, of the same shape and dtype on every rank, or a pytree of such
            arrays.
        op: the reduction, such as ``MPI.SUM``.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        A request; ``wait`` gives the reduction over the ranks' ``x[rank]``, of shape ``(...)``.

    Derivative:
        As for ``allreduce``. ``SUM`` in reverse mode: ``allgather``.

    Raises:
        TypeError: for an ``op`` that is no ``MPI.Op`` or does not apply to the dtype, or a ``comm`` that is no
            intra-communicator.
        ValueError: for a communicator or reduction that was freed; for a first axis that does not have ``size``
            entries.

    Example:
        >>> from mpi4py import MPI
        >>> import jax.numpy as jnp, mpixla
        >>> size = mpixla.get_default_comm().Get_size()
        >>> float(mpixla.wait(mpixla.ireduce_scatter(jnp.ones(size), op=MPI.SUM))) == size
        True
    """
    x, c = as_array(x, "x", "ireduce_scatter"), comm_of(comm)
    return _start_call("ireduce_scatter", c, x, shape=x.shape[1:], op=as_reduction(op, x, "ireduce_scatter"))
