"""Non-blocking operations: each starts a communication and gives a request, which ``wait`` turns into the result.

The rows that they refer to are in native/tables/ops.def. ARCHITECTURE.md, "Requests", says why they are as they
are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, NoReturn, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.interpreters import ad, batching
from jax.typing import ArrayLike

from ..core import hold
from ..core.primitive import REPLICATED, VARYING, as_array, compose, lower_all, make
from ..core.rank import by_root
from ..core.rules import batch_like, define_jvp, tangents_beside_values, with_batch_at
from ..core.spmd import Primitive, manual_axes, vary, varying_axes
from ..core.tree import Plan, Tree, data_of, joins, moves, plan_of_each
from ..core.values import has_values, joined, split
from ..runtime import native
from ..runtime.comm import Comm, Reduction, Shift, comm_of
from ..runtime.mpi import MPI
from ..runtime.words import kind_of
from .arguments import (
    Rank,
    Tag,
    as_dest,
    as_rank,
    as_recvtag,
    as_reduction,
    as_source,
    as_tag,
    check_leading_size,
)
from .collective import SUM, allgather, allreduce, alltoall, bcast, own_part, reduce_scatter, shares
from .docstrings import documented_like
from .point_to_point import of_template, recv, refuse_any_source, send, sendrecv, sent_back, swapped


class _Type(NamedTuple):
    """Shape and dtype of an array, without the axes of a batch."""

    shape: tuple[int, ...]
    dtype: np.dtype


@dataclass(frozen=True)
class _Call:
    """What was started: a row of native/tables/ops.def, its arguments, and the types of what it takes and gives.

    ``transposed`` marks the transpose of a result that is the same on every rank. It only hands ``x`` on, but must
    take the way from start to wait as all others do; it is a message of the rank to itself.
    """

    name: str
    comm: Comm
    takes: _Type  # what is sent, or for irecv the template
    gives: _Type
    op: Reduction | None = None
    root: int | None = None
    dest: int | Shift | str | None = None
    sendtag: int | str = 0
    source: int | Shift | str | None = None
    recvtag: int | str = 0
    cotangent: str = REPLICATED
    transposed: bool = False

    def __repr__(self) -> str:
        parts = [self.name + ("_transpose" if self.transposed else "")]
        if self.dest is not None:
            parts.append(f"-> {self.dest!r} with tag {self.sendtag!r}")
        if self.source is not None:
            parts.append(f"<- {self.source!r} with tag {self.recvtag!r}")
        if self.op is not None:
            parts.append(f"op {self.op}")
        if self.root is not None:
            parts.append(f"root {self.root}")
        return " ".join([*parts, f"on {self.comm}"])

    @property
    def message(self) -> dict[str, Any]:
        """The ranks and tags of its messages, as parameters."""
        sends = {"dest": self.dest, "sendtag": self.sendtag} if self.dest is not None else {}
        receives = {"source": self.source, "recvtag": self.recvtag} if self.source is not None else {}
        return {**sends, **receives}

    @property
    def has_values(self) -> bool:
        """Whether some of these are known only at run time: then they are an operand of start and of wait."""
        return has_values(self.message)

    @property
    def keeps(self) -> bool:
        """Whether the request keeps an array: what was sent, or the template of what is received."""
        return self.name in ("isend", "irecv", "isendrecv")

    @property
    def own_operands(self) -> int:
        """Of wait: the id, and what the request keeps."""
        return 1 + self.keeps

    @property
    def is_for_root(self) -> bool:
        """Whether only the root is given the sum, and others zeros: the transpose of a broadcast."""
        return self.name == "iallreduce" and self.root is not None

    @property
    def stacked(self) -> bool:
        """Whether MPI takes one part for each rank, along the first axis."""
        return self.name in ("ialltoall", "ireduce_scatter") and not self.transposed

    @property
    def gives_stacked(self) -> bool:
        """Whether MPI gives one part for each rank, along the first axis."""
        return self.name in ("ialltoall", "iallgather") and not self.transposed


# An id is two float32 numbers (native/ops/request.h). A batch of requests is one request of MPI's; each of its ids is
# the same.
_ID = 2


# The rows. Their operands have the batch where MPI takes it: behind the axis of the ranks, or in messages behind all
# axes, the outermost last, as blocking messages have it: so one that is shorter than the template is the beginning of
# each part.


def _batch_behind(x: Any, batch: int) -> Any:
    return jnp.moveaxis(x, range(batch), range(-1, -batch - 1, -1))


def _batch_in_front(x: Any, batch: int) -> Any:
    return jnp.moveaxis(x, range(-1, -batch - 1, -1), range(batch))


def _row_id_shape(*operands: ShapedArray, batch: tuple[int, ...], **params: Any) -> list[ShapedArray]:
    return [ShapedArray((*batch, _ID), np.dtype(np.float32))]


def _row_result_shape(*operands: ShapedArray, gives: _Type | None, **params: Any) -> list[ShapedArray]:
    return [ShapedArray(*gives)] if gives else []


_WAITS = ("wait", "wait_recv", "wait_send")
_rows: dict[str, Primitive] = {
    name: make(name, _row_result_shape, row=row, lower=lower_all)
    if name in _WAITS
    else make(name, _row_id_shape, row=row)
    for name, row in native.request_ops.items()
}


# The two primitives: start, from arrays to an id, and wait, from an id to an array. Both have the batch in front. Where
# ranks or tags are known only at run time, both take them behind these: wait for the derivative's sake.


def _start_shapes(*operands: ShapedArray, call: _Call, batch: int) -> list[ShapedArray]:
    return [ShapedArray((*operands[0].shape[:batch], _ID), np.dtype(np.float32))]


def _start_fun(*operands: Any, call: _Call, batch: int) -> list[Any]:
    x = operands[0]
    sizes = x.shape[:batch]
    if call.transposed:
        if call.name == "iallgather":
            x = own_part(x, call.comm, batch)
        if call.name == "ibcast":
            x = by_root(call.comm, call.root, x, jnp.zeros_like(x))
        self_comm = comm_of(MPI.COMM_SELF)
        return _rows["isendrecv"].bind(x, x, comm=self_comm, dest=0, source=0, sendtag=0, recvtag=0, batch=sizes)
    if call.stacked:
        x = jnp.moveaxis(x, batch, 0)
    if call.keeps:
        n = len(operands) - call.has_values
        operands = (*(_batch_behind(operand, batch) for operand in operands[:n]), *operands[n:])
        x = operands[0]
    row = native.request_ops[call.name]
    attributes = {name: getattr(call, name) for name in row.parameters}
    return _rows[call.name].bind(x, *operands[1:], batch=sizes, **attributes)


def _wait_shapes(request_id: ShapedArray, *operands: ShapedArray, call: _Call) -> list[ShapedArray]:
    return [ShapedArray((*request_id.shape[:-1], *call.gives.shape), call.gives.dtype)]


def _wait_fun(request_id: Any, *operands: Any, call: _Call) -> list[Any]:
    batch = request_id.shape[:-1]
    comm = comm_of(MPI.COMM_SELF) if call.transposed else call.comm
    if call.name == "isend":
        _rows["wait_send"].bind(request_id, comm=comm, gives=None)
        return [operands[0]]
    shape = call.gives.shape
    if call.keeps:
        gives, kept = _Type((*shape, *batch[::-1]), call.gives.dtype), _batch_behind(operands[0], len(batch))
        (y,) = _rows["wait_recv"].bind(request_id, kept, comm=comm, gives=gives)
        return [_batch_in_front(y, len(batch))]
    if not call.gives_stacked:
        gives = _Type((*batch, *shape), call.gives.dtype)
        (y,) = _rows["wait"].bind(request_id, comm=comm, gives=gives)
        return [by_root(comm, call.root, y, jnp.zeros_like(y)) if call.is_for_root else y]
    gives = _Type((shape[0], *batch, *shape[1:]), call.gives.dtype)
    (y,) = _rows["wait"].bind(request_id, comm=comm, gives=gives)
    return [jnp.moveaxis(y, 0, len(batch))]


_start = compose("start", _start_shapes, _start_fun)
_wait = compose("wait", _wait_shapes, _wait_fun)


# Derivatives. An id is a float, so it has a tangent and a cotangent: ids of further requests, for the communication of
# the tangents and of the cotangents. So start and wait are linear, and start and wait of the reverse communication are
# the transposes of wait and start.


def _reversed(call: _Call, values: Sequence[Any]) -> tuple[_Call, list[Any]]:
    """The communication of the cotangents, and its ranks and tags at run time."""
    if call.dest is None and call.source is None:
        return _reversed_collective(call), []
    back = replace(call, takes=call.gives, gives=call.takes, dest=None, source=None)
    known = joined(call.message, values)
    if call.source is not None:
        refuse_any_source(known["source"], call.name)
    if call.name == "isend":
        name, message = "irecv", {"source": known["dest"], "recvtag": known["sendtag"]}
    elif call.name == "irecv":
        name, message = "isend", {"dest": known["source"], "sendtag": sent_back(known["recvtag"])}
    else:
        name, message = call.name, swapped(known)
    params, route = split(message)
    return replace(back, name=name, **params), route


def _reversed_collective(call: _Call) -> _Call:
    back = replace(call, takes=call.gives, gives=call.takes)
    if call.name == "ialltoall":
        return back
    if call.name == "ireduce_scatter":
        return replace(back, name="iallgather", op=None, cotangent=VARYING)
    if call.is_for_root:
        return replace(back, name="ibcast", op=None)
    # In jax.shard_map the types do not say of what is waited for that it is the same on every rank, so each counts.
    each_counts = call.cotangent == VARYING or manual_axes()
    if each_counts and call.name == "iallgather":
        return replace(back, name="ireduce_scatter", op=SUM, cotangent=REPLICATED)
    if each_counts:
        return replace(back, name="iallreduce", op=SUM)
    # The tangent of any reduction is a sum.
    return replace(back, transposed=not call.transposed, op=call.op and SUM)


def _zeros(kind: _Type, batch: tuple[int, ...]) -> Any:
    return jnp.zeros((*batch, *kind.shape), kind.dtype)


def _start_jvp(primals: Any, tangents: Any, *, call: _Call, batch: int) -> list[Any]:
    if call.op is None or call.op == SUM:
        return _start.bind(*tangents_beside_values(primals, tangents, call.message), call=call, batch=batch)
    weighted = shares(primals[0], call.comm, call.op) * tangents[0]
    return _start.bind(weighted, call=replace(call, op=SUM), batch=batch)


def _start_transpose(cotangents: Any, *operands: Any, call: _Call, batch: int) -> list[Any]:
    (request_id,) = map(ad.instantiate_zeros, cotangents)
    n, sizes = len(operands) - call.has_values, request_id.shape[:-1]
    back, route = _reversed(call, operands[n:])
    keeps = [_zeros(back.gives, sizes)] if back.keeps else []
    (x_bar,) = _wait.bind(request_id, *keeps, *route, call=back)
    template_bar = [_zeros(call.gives, sizes)] if call.name == "isendrecv" else []
    return _cotangents([x_bar, *template_bar, *operands[n:]], operands)


def _cotangents(results: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
    """Those of the operands that have one, which vary inside jax.shard_map where the operands do."""
    return [
        None if not ad.is_undefined_primal(x) else ct if type(ct) is ad.Zero else vary(ct, varying_axes(x.aval))
        for ct, x in zip(results, operands, strict=True)
    ]


def _wait_jvp(primals: Any, tangents: Any, *, call: _Call) -> list[Any]:
    # The id of the values is known in reverse mode, and has their batch; nothing else is done with it.
    places = range(call.own_operands, call.own_operands + call.has_values)
    linear = [primals[i] if i in places else t for i, t in enumerate(tangents)]
    return _wait.bind(*linear, primals[0], call=call)


def _wait_transpose(cotangents: Any, request_id: Any, *operands: Any, call: _Call) -> list[Any]:
    (ct,) = map(ad.instantiate_zeros, cotangents)
    kept = call.own_operands - 1
    values, ids = operands[kept : kept + call.has_values], operands[kept + call.has_values :]
    if ids and not ad.is_undefined_primal(ids[-1]):
        ct = batch_like(ct, ids[-1])
    results: list[Any] = []
    if ad.is_undefined_primal(request_id):
        batch = request_id.aval.ndim - 1
        back, route = _reversed(call, values)
        template = [_zeros(back.gives, ct.shape[:batch])] if call.name == "isendrecv" else []
        results += _start.bind(ct, *template, *route, call=back, batch=batch)
    else:
        results.append(None)
    if call.keeps:
        source = joined(call.message, values).get("source")
        results.append(ct if source is None else of_template(ct, source, call.comm))
    results += values
    for x in ids:
        results.append(ad.Zero(x.aval.to_ct_aval()) if ad.is_undefined_primal(x) else None)
    return _cotangents(results, (request_id, *operands))


define_jvp(_start, _start_jvp)
define_jvp(_wait, _wait_jvp)
_start_jvp_rule = ad.primitive_jvps[_start]


def _start_jvp_checked(primals: Any, tangents: Any, *, call: _Call, batch: int) -> tuple[Any, Any]:
    """Refuses before anything is started: nobody would wait for it."""
    if call.op is not None and call.op.name not in ("SUM", "PROD", "MAX", "MIN"):
        raise TypeError(
            f"{call.name} with op {call.op.name} has no derivative. SUM, PROD, MAX and MIN have one; "
            "jax.lax.stop_gradient keeps others out of a derivative."
        )
    return _start_jvp_rule(primals, tangents, call=call, batch=batch)


ad.primitive_jvps[_start] = _start_jvp_checked
ad.primitive_transposes[_start] = _start_transpose
ad.primitive_transposes[_wait] = _wait_transpose


# Batches: one request of MPI's for all of it.


def _start_batch(operands: Any, dims: Any, *, call: _Call, batch: int) -> tuple[Any, Any]:
    n = len(operands) - call.has_values
    if any(dim is not None for dim in dims[n:]):
        raise TypeError(
            f"{call.name} got ranks or tags that differ within the batch of a vmap, but starts one request for all of "
            "it. Use send, recv or sendrecv, which make a call for each part, or call it in a jax.lax.scan."
        )
    data = with_batch_at(0, operands[:n], dims[:n])
    return _start.bind(*data, *operands[n:], call=call, batch=batch + 1), [0]


def _wait_batch(operands: Any, dims: Any, *, call: _Call) -> tuple[Any, Any]:
    own, has = call.own_operands, call.has_values  # then comes the id of the values
    if all(d is None for d in dims[:own]):
        return _wait.bind(*operands, call=call), [None]
    if dims[0] is None:
        raise TypeError(
            f"the request of {call.name} was started outside of a vmap, but is waited for inside with an array of the "
            "batch. Start and wait under the same vmap."
        )
    # They were the same in all of the batch where it was started.
    behind = slice(own, own + has)
    values = [x if d is None else jnp.moveaxis(x, d, 0)[0] for x, d in zip(operands[behind], dims[behind], strict=True)]
    rest = operands[own + has :]
    return _wait.bind(*with_batch_at(0, operands[:own], dims[:own]), *values, *rest, call=call), [0]


batching.primitive_batchers[_start] = _start_batch
batching.primitive_batchers[_wait] = _wait_batch


# What users see.


@jax.tree_util.register_pytree_node_class
class Request(Generic[Tree]):
    """A communication that was started: what the operations with ``i`` in front return, and ``wait`` takes.

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

    __slots__ = ("_call", "_id", "_kept", "_values")
    _call: _Call
    _id: Any
    _kept: Any
    _values: Any

    def tree_flatten(self) -> tuple[tuple[Any, ...], Any]:
        """The id, the array that the request keeps, ranks and tags at run time; and what was started."""
        return (self._id, self._kept, self._values), self._call

    @classmethod
    def tree_unflatten(cls, call: _Call, leaves: Any) -> "Request[Any]":
        """A request of these parts."""
        request = object.__new__(cls)
        request._call = call
        request._id, request._kept, request._values = leaves
        return request

    def ids(self) -> list[Any]:
        """Those of the communications that it stands for."""
        return [self._id]

    def with_ids(self, ids: Iterator[Any]) -> "Request[Any]":
        """The same with the next of these ids, as many as it has."""
        return Request.tree_unflatten(self._call, (next(ids), self._kept, self._values))

    def with_template(self, template: Any) -> "Request[Any]":
        """The same with another array that remains where nothing arrives."""
        return Request.tree_unflatten(self._call, (self._id, template, self._values))

    def __repr__(self) -> str:
        """What was started, for messages."""
        return f"Request({self._call})"


def _is_no_array(request: Request[Any], *_: Any) -> NoReturn:
    raise TypeError(
        f"{request} was started, and is no array. wait(request) gives the result, and halo_wait(request) that of "
        "halo_start."
    )


for _name in ("jax_array", "array", "getitem", "neg", "abs", "float", "int"):
    setattr(Request, f"__{_name}__", _is_no_array)
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"):
    setattr(Request, f"__{_name}__", _is_no_array)
    setattr(Request, f"__r{_name}__", _is_no_array)


class RequestOfSeveral(Request[Any]):
    """Several requests, with arrays that their results are put together with."""

    __slots__ = ("_kept", "_plan", "_requests")
    _plan: Any
    _requests: list[Request[Any]]
    _kept: list[Any]

    def __init__(self, plan: Any, requests: Sequence[Request[Any]], kept: Sequence[Any] = ()):
        self._plan, self._requests, self._kept = plan, list(requests), list(kept)

    def tree_flatten(self) -> tuple[tuple[list[Request[Any]], list[Any]], Any]:
        """The requests and the arrays, and how they go together."""
        return (self._requests, self._kept), self._plan

    @classmethod
    def tree_unflatten(cls, plan: Any, parts: Any) -> "Request[Any]":
        """A request of these parts."""
        request = object.__new__(cls)
        request._plan = plan
        request._requests, request._kept = parts
        return request

    def wait(self, after: Any) -> Any:
        """Waits for all of them, once the arrays ``after`` were computed, and puts the results together."""
        raise NotImplementedError

    def ids(self) -> list[Any]:
        """Those of all of them."""
        return [request_id for request in self._requests for request_id in request.ids()]

    def with_ids(self, ids: Iterator[Any]) -> "Request[Any]":
        """The same with the next of these ids."""
        return type(self)(self._plan, [request.with_ids(ids) for request in self._requests], self._kept)

    def __repr__(self) -> str:
        return f"Request({', '.join(map(repr, self._requests))})"


@jax.tree_util.register_pytree_node_class
class _RequestOfTree(RequestOfSeveral):
    """Several requests, whose results make up a pytree."""

    __slots__ = ()
    _plan: Plan

    def wait(self, after: Any) -> Any:
        return self._plan.tree_of(waitall(self._requests, after=after))


def _type(x: Any) -> _Type:
    return _Type(tuple(x.shape), np.dtype(x.dtype))


def _started(call: _Call, *operands: Any, keeps: Any = None, message: dict[str, Any] | None = None) -> Request[Any]:
    params, values = split(message or {})
    call = replace(call, **params)
    (request_id,) = _start.bind(*operands, *values, call=call, batch=0)
    return Request.tree_unflatten(call, (request_id, keeps, values[0] if values else None))


_of_tree = _RequestOfTree


def wait(request: Request[Tree], *, after: Any = None) -> Tree:
    """Waits for a request, and returns the result of its operation.

    Args:
        request: what an operation such as ``isend`` or ``iallreduce`` returned.
        after: arrays (a pytree of them) that are to be computed before the wait: the work that the communication
            overlaps with. They are not changed.

    Returns:
        What the blocking operation returns; for ``isend`` the array that was sent.

    Derivative:
        Linear. Reverse mode starts the communication of the cotangents here, and waits for it where the request was
        started. ``after`` matters in forward mode only; ``before_wait`` in both. The ranks must wait for the requests
        between them in the same order.

    Raises:
        TypeError: for what is no request.
        jax.errors.JaxRuntimeError: when running, for a request that was waited for before.

    Example:
        >>> import jax, jax.numpy as jnp, mpixla
        >>> from mpi4py import MPI
        >>> @jax.jit
        ... def step(x):
        ...     request = mpixla.iallreduce(x, op=MPI.SUM)
        ...     work = jnp.sin(x) * 2
        ...     return mpixla.wait(request, after=work), work
        >>> total, work = step(jnp.ones(3))
        >>> bool((total == mpixla.get_default_comm().Get_size()).all())
        True
    """
    _refuse_other_than_requests(request, "wait")
    if isinstance(request, RequestOfSeveral):
        return request.wait(after)
    if after is not None:
        request, _ = before_wait(request, after)
    operands = [x for x in (request._kept, request._values) if x is not None]
    return _wait.bind(request._id, *operands, call=request._call)[0]


def waitall(requests: Sequence[Request[Tree]], *, after: Any = None) -> list[Tree]:
    """Waits for all of these requests.

    Args:
        requests: the requests.
        after: arrays (a pytree of them) that are to be computed before the first wait.

    Returns:
        The results in the order of the requests.

    Derivative:
        As for ``wait``.

    Raises:
        TypeError: for what is no request.
        jax.errors.JaxRuntimeError: when running, for a request that was waited for before.

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
    # The other waits come after the first one anyway.
    return [wait(request, after=None if i else after) for i, request in enumerate(requests)]


def after_start(requests: Any, arrays: Any) -> Any:
    """Gives arrays back for what is to be computed once these requests were started.

    Without it XLA may put that before the start, and nothing overlaps: it only knows which data a computation needs.
    ``wait(request, after=...)`` is the counterpart, which keeps the wait behind the computation.

    Args:
        requests: a request, or a pytree of them.
        arrays: the arrays that the computation starts from, a pytree of them.

    Returns:
        The same arrays, in the same memory unless they are used without ``after_start`` too, or are arguments of the
        jitted function. What is computed from them is computed after the start.

    Derivative:
        That of the identity. Reverse mode waits for the communication of the cotangents after those of the arrays were
        computed.

    Raises:
        TypeError: for what is no request.

    Example:
        >>> import jax, jax.numpy as jnp, mpixla
        >>> from mpi4py import MPI
        >>> @jax.jit
        ... def step(x):
        ...     request = mpixla.iallreduce(x, op=MPI.SUM)
        ...     work = jnp.sin(mpixla.after_start(request, x)) * 2
        ...     return mpixla.wait(request, after=work), work
        >>> total, work = step(jnp.zeros(3))
        >>> bool((work == 0).all())
        True
    """
    ids = _ids_of(requests, "after_start")
    if not any(isinstance(request_id, jax.core.Tracer) for request_id in ids):
        return arrays  # they were started before

    leaves, tree = jax.tree.flatten(arrays)
    leaves = [jnp.asarray(x) for x in leaves]
    return plan_of_each(tree, leaves).tree_of([hold.after(data_of(x), ids) for x in leaves])


def before_wait(requests: Any, arrays: Any) -> tuple[Any, Any]:
    """Gives requests back that are to be waited for once these arrays were computed, and the arrays.

    It is the counterpart of ``after_start``. ``wait(request, after=arrays)`` does the same, but says nothing about
    reverse mode, where communication starts at the wait. Where what follows uses the arrays that this returns, their
    computation backward comes after that start, and overlaps too.

    Args:
        requests: a request, or a pytree of them.
        arrays: the arrays that the communication overlaps with, a pytree of them.

    Returns:
        The requests and the arrays, in the same memory.

    Derivative:
        That of the identity. What reverse mode computes from the arrays' cotangents, it computes after it has started
        the communication of the cotangents.

    Raises:
        TypeError: for what is no request.

    Example:
        >>> import jax, jax.numpy as jnp, mpixla
        >>> from mpi4py import MPI
        >>> @jax.jit
        ... def step(x):
        ...     request = mpixla.iallreduce(x, op=MPI.SUM)
        ...     work = jnp.sin(mpixla.after_start(request, x)) * 2
        ...     request, work = mpixla.before_wait(request, work)
        ...     return mpixla.wait(request) + work
        >>> bool((jax.grad(lambda x: step(x).sum())(jnp.zeros(3)) == 3).all())
        True
    """
    ids = _ids_of(requests, "before_wait")
    leaves, tree = jax.tree.flatten(arrays)
    if not leaves or not ids:
        return requests, arrays
    leaves = [jnp.asarray(x) for x in leaves]
    ids, data = hold.before(ids, [data_of(x) for x in leaves])
    found = iter(ids)
    held = jax.tree.map(lambda request: request.with_ids(found), requests, is_leaf=_is_request)
    return held, plan_of_each(tree, leaves).tree_of(data)


def _is_request(x: Any) -> bool:
    return isinstance(x, Request)


def _ids_of(requests: Any, name: str) -> list[Any]:
    """Those of a pytree of requests."""
    found = jax.tree.leaves(requests, is_leaf=_is_request)
    for request in found:
        _refuse_other_than_requests(request, name)
    return [request_id for request in found for request_id in request.ids()]


def _refuse_other_than_requests(request: Any, name: str) -> None:
    if not isinstance(request, Request):
        raise TypeError(
            f"{name} needs a Request, which isend, irecv and the other non-blocking operations return, but got "
            f"{kind_of(request)}."
        )


@overload
def isend(x: ArrayLike, dest: Rank, *, tag: Tag = 0, comm: MPI.Comm | None = None) -> Request[jax.Array]: ...
@overload
def isend(x: Tree, dest: Rank, *, tag: Tag = 0, comm: MPI.Comm | None = None) -> Request[Tree]: ...
@moves(collect=_of_tree)
@documented_like(send)
def isend(x: Any, dest: Rank, *, tag: Tag = 0, comm: MPI.Comm | None = None) -> Request[Any]:
    """Starts to send an array to another rank.

    Returns:
        A request; ``wait`` gives ``x``.

    Derivative:
        Linear. Forward mode sends the tangent. Reverse mode receives from ``dest``, under the same tag, the cotangent
        of what was received there, and adds it to that of the wait's result. The receiver may have used ``irecv`` or
        ``recv``, with this rank and tag named.

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
    message = {"dest": as_dest(dest, "dest", "isend", c), "sendtag": as_tag(tag, "tag", "isend", c)}
    return _started(_Call("isend", c, _type(x), _type(x)), x, keeps=x, message=message)


@overload
def irecv(
    x: ArrayLike,
    source: Rank = MPI.ANY_SOURCE,
    *,
    tag: Tag = MPI.ANY_TAG,
    comm: MPI.Comm | None = None,
) -> Request[jax.Array]: ...
@overload
def irecv(
    x: Tree,
    source: Rank = MPI.ANY_SOURCE,
    *,
    tag: Tag = MPI.ANY_TAG,
    comm: MPI.Comm | None = None,
) -> Request[Tree]: ...
@moves(collect=_of_tree)
@documented_like(recv)
def irecv(
    x: Any,
    source: Rank = MPI.ANY_SOURCE,
    *,
    tag: Tag = MPI.ANY_TAG,
    comm: MPI.Comm | None = None,
) -> Request[Any]:
    """Starts to receive an array from another rank.

    Derivative:
        Linear in the message and the template. JAX sees this rank's operands only, so where the message has a
        derivative give a template that has one too: an array that depends on the parameters, such as what is sent,
        and not ``jnp.zeros_like`` of it. Reverse mode sends the cotangent back to ``source``, which must not be
        ``MPI.ANY_SOURCE``, under the same tag (0 for ``MPI.ANY_TAG``).

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
    message = {"source": as_source(source, "source", "irecv", c), "recvtag": as_recvtag(tag, "tag", "irecv", c)}
    return _started(_Call("irecv", c, _type(x), _type(x)), x, keeps=x, message=message)


@overload
def isendrecv(
    sendbuf: Any,
    recvbuf: ArrayLike,
    source: Rank,
    dest: Rank,
    *,
    sendtag: Tag = 0,
    recvtag: Tag = MPI.ANY_TAG,
    comm: MPI.Comm | None = None,
) -> Request[jax.Array]: ...
@overload
def isendrecv(
    sendbuf: Any,
    recvbuf: Tree,
    source: Rank,
    dest: Rank,
    *,
    sendtag: Tag = 0,
    recvtag: Tag = MPI.ANY_TAG,
    comm: MPI.Comm | None = None,
) -> Request[Tree]: ...
@moves(2, collect=_of_tree)
@documented_like(sendrecv)
def isendrecv(
    sendbuf: Any,
    recvbuf: Any,
    source: Rank,
    dest: Rank,
    *,
    sendtag: Tag = 0,
    recvtag: Tag = MPI.ANY_TAG,
    comm: MPI.Comm | None = None,
) -> Request[Any]:
    """Starts to send an array to one rank and to receive one from another.

    Args:
        dest: the rank to send to, or ``MPI.PROC_NULL``; or a ``Shift``. Where both are a ``Shift``, the program is the
            same on every rank. Ranks and tags may be traced: integers that are known when the program runs, one program
            for all of them. Within the batch of a ``jax.vmap`` they must not differ.

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
    message = {
        "dest": as_dest(dest, "dest", "isendrecv", c),
        "sendtag": as_tag(sendtag, "sendtag", "isendrecv", c),
        "source": as_source(source, "source", "isendrecv", c),
        "recvtag": as_recvtag(recvtag, "recvtag", "isendrecv", c),
    }
    call = _Call("isendrecv", c, _type(sendbuf), _type(recvbuf))
    return _started(call, sendbuf, recvbuf, keeps=recvbuf, message=message)


@overload
def iallreduce(x: ArrayLike, op: MPI.Op, *, comm: MPI.Comm | None = None) -> Request[jax.Array]: ...
@overload
def iallreduce(x: Tree, op: MPI.Op, *, comm: MPI.Comm | None = None) -> Request[Tree]: ...
@joins(reduces=True, collect=_of_tree)
@documented_like(allreduce)
def iallreduce(x: Any, op: MPI.Op, *, comm: MPI.Comm | None = None) -> Request[Any]:
    """Starts to reduce the arrays of all ranks, element by element, with the result on every rank.

    Args:
        op: the reduction, such as ``MPI.SUM``.

    Derivative:
        As for ``allreduce``.

    Example:
        >>> from mpi4py import MPI
        >>> import jax.numpy as jnp, mpixla
        >>> request = mpixla.iallreduce(jnp.ones(3), op=MPI.SUM)
        >>> bool((mpixla.wait(request) == mpixla.get_default_comm().Get_size()).all())
        True
    """
    x = as_array(x, "x", "iallreduce")
    return _started(_Call("iallreduce", comm_of(comm), _type(x), _type(x), op=as_reduction(op, x, "iallreduce")), x)


@overload
def ibcast(x: ArrayLike, root: int, *, comm: MPI.Comm | None = None) -> Request[jax.Array]: ...
@overload
def ibcast(x: Tree, root: int, *, comm: MPI.Comm | None = None) -> Request[Tree]: ...
@joins(reduces=False, collect=_of_tree)
@documented_like(bcast)
def ibcast(x: Any, root: int, *, comm: MPI.Comm | None = None) -> Request[Any]:
    """Starts to send the root's array to every rank.

    Derivative:
        As for ``bcast``.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> rank = mpixla.get_default_comm().Get_rank()
        >>> float(mpixla.wait(mpixla.ibcast(jnp.float32(rank + 1), root=0)))
        1.0
    """
    x, c = as_array(x, "x", "ibcast"), comm_of(comm)
    return _started(_Call("ibcast", c, _type(x), _type(x), root=as_rank(root, "root", "ibcast", c)), x)


@moves(collect=_of_tree)
@documented_like(allgather)
def iallgather(x: Any, *, comm: MPI.Comm | None = None) -> Request[Any]:
    """Starts to gather the arrays of all ranks on every rank.

    Derivative:
        As for ``allgather``.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> size = mpixla.get_default_comm().Get_size()
        >>> mpixla.wait(mpixla.iallgather(jnp.ones(3))).shape == (size, 3)
        True
    """
    x, c = as_array(x, "x", "iallgather"), comm_of(comm)
    return _started(_Call("iallgather", c, _type(x), _Type((c.size, *x.shape), np.dtype(x.dtype))), x)


@moves(collect=_of_tree)
@documented_like(alltoall)
def ialltoall(x: Any, *, comm: MPI.Comm | None = None) -> Request[Any]:
    """Starts to send a slice of this rank's array to each rank, and to receive one from each.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> size = mpixla.get_default_comm().Get_size()
        >>> mpixla.wait(mpixla.ialltoall(jnp.ones((size, 2)))).shape == (size, 2)
        True
    """
    x, c = as_array(x, "x", "ialltoall"), comm_of(comm)
    check_leading_size(x, "ialltoall", c)
    return _started(_Call("ialltoall", c, _type(x), _type(x)), x)


@joins(reduces=True, kept_axes=1, collect=_of_tree)
@documented_like(reduce_scatter)
def ireduce_scatter(x: Any, op: MPI.Op, *, comm: MPI.Comm | None = None) -> Request[Any]:
    """Starts to reduce the arrays of all ranks, element by element, with a slice of the result on each rank.

    Args:
        op: the reduction, such as ``MPI.SUM``.

    Example:
        >>> from mpi4py import MPI
        >>> import jax.numpy as jnp, mpixla
        >>> size = mpixla.get_default_comm().Get_size()
        >>> float(mpixla.wait(mpixla.ireduce_scatter(jnp.ones(size), op=MPI.SUM))) == size
        True
    """
    x, c = as_array(x, "x", "ireduce_scatter"), comm_of(comm)
    check_leading_size(x, "ireduce_scatter", c)
    gives = _Type(tuple(x.shape[1:]), np.dtype(x.dtype))
    return _started(_Call("ireduce_scatter", c, _type(x), gives, op=as_reduction(op, x, "ireduce_scatter")), x)
