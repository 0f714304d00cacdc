"""Ghost zones of blocks on a Cartesian communicator: filled in one call, or by messages that are waited for later."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import batching
from mpi4py import MPI

from ..core.eager import eager
from ..core.pack import pack, unpack
from ..core.primitive import accumulation_dtype, lower_in_place, make_primitive, refuse_symbolic
from ..core.tree import Plan, Tree, as_leaves, flatten_tree, plan_of_each, unwrap_keys
from ..jaxprs.spmd import Primitive
from ..mpi.comm import Comm, Shift, comm_of
from .arguments import as_axes, as_integer, as_static
from .request import Request, isendrecv, wait_into
from .shapes import each_same_abstract_eval

# For each array, its axis for each Cartesian dimension.
_Axes = tuple[tuple[int, ...], ...]


def _make_halo_primitive(name: str, transposed: Callable[[], Primitive]) -> Primitive:
    """Return a new primitive for a halo exchange, whose transpose is the primitive that ``transposed`` returns."""

    def jvp(primals: Any, tangents: Any, *, axes: _Axes, **params: Any) -> Sequence[Any]:
        """Exchange the tangents' halos as the primals'; tangents of integer arrays stay as they are."""
        moved = [i for i, x in enumerate(primals) if jnp.issubdtype(x.dtype, jnp.inexact)]
        exchanged = primitive.bind(*(tangents[i] for i in moved), axes=tuple(axes[i] for i in moved), **params)
        results = list(tangents)
        for i, tangent in zip(moved, exchanged, strict=True):
            results[i] = tangent
        return results

    def transpose(*cotangents: Any, types: Any, **params: Any) -> list[Any]:
        # The C library adds floats of 32 bits and more.
        added = transposed().bind(*(ct.astype(accumulation_dtype(ct.dtype)) for ct in cotangents), **params)
        return [y.astype(ct.dtype) for y, ct in zip(added, cotangents, strict=True)]

    def batch(arrays: Any, dims: Any, *, axes: _Axes, **params: Any) -> tuple[Any, Any]:
        """Bind with the arrays' batch axes where they are, and move the exchanged axes behind them up by one."""
        shifted = tuple(
            own if d is None else tuple(axis + (axis >= d) for axis in own) for own, d in zip(axes, dims, strict=True)
        )
        return primitive.bind(*arrays, axes=shifted, **params), list(dims)

    primitive = make_primitive(name, each_same_abstract_eval, lower=lower_in_place, jvp=jvp, transpose=transpose)
    batching.primitive_batchers[primitive] = batch
    return primitive


halo_exchange_p: Primitive = _make_halo_primitive("halo_exchange", lambda: halo_transpose_p)
# Its transpose, whose transpose is the exchange.
halo_transpose_p: Primitive = _make_halo_primitive("halo_transpose", lambda: halo_exchange_p)


def _is_list(values: Any) -> bool:
    if isinstance(values, np.ndarray | jax.Array):
        return values.ndim == 1
    return isinstance(values, Sequence) and not isinstance(values, str | bytes | bytearray)


def _integers_per_dimension(values: Any, what: str, dimensions: int, name: str) -> tuple[int, ...]:
    """Return the integers of a list, or a single one as a list of one; ValueError if they are not ``dimensions``.

    ``what`` and ``name`` are those of the argument and of the operation, for messages. TypeError if one is traced.
    """
    values = list(as_static(values, what, name, "integer")) if _is_list(values) else [as_integer(values, what, name)]
    if len(values) != dimensions:
        raise ValueError(
            f"{what} of {name} has {len(values)} entries, but the communicator has {dimensions} dimension(s). "
            "Give one for each."
        )
    return tuple(as_integer(value, f"{what}[{i}]", name) for i, value in enumerate(values))


def _as_widths(width: Any, dimensions: int, name: str) -> tuple[int, ...]:
    """Return the ghost zones' widths, one for each dimension, of a list or one int; ValueError if < 0 or all 0."""
    if _is_list(width):
        widths = _integers_per_dimension(width, "width", dimensions, name)
    else:
        widths = (as_integer(width, "width", name),) * dimensions
    if any(w < 0 for w in widths):
        raise ValueError(f"width of {name} is {width}, but a ghost zone cannot be negative. Pass 0 for none.")
    if widths and not any(widths):
        raise ValueError(
            f"width of {name} is {width}, so there are no ghost zones, and nothing to exchange. Pass the width of the "
            "ghost zones; of several dimensions 0 is for those without any."
        )
    return widths


def _axes_of(x: jax.Array, axes: tuple[int, ...], widths: tuple[int, ...], name: str) -> tuple[int, ...]:
    """Return the axes of one array, counted from the front, to exchange along; raise ValueError if it is too small."""
    rule = " Each dimension of the communicator needs an axis of its own: pass axes=."
    own = as_axes(axes, x, f"axes of {name} are", rule)
    for axis, width in zip(own, widths, strict=True):
        if x.shape[axis] < 3 * width:
            raise ValueError(
                f"{name} of width {width} along axis {axis} needs at least {3 * width} items there, a ghost "
                f"zone on each side and as many items between them, but x has shape {x.shape}. Use larger blocks on "
                "fewer ranks, or a smaller width."
            )
    return own


# halo_start. A rank sends a message to each neighbour, diagonal ones too. Each message is as long as the block along
# the other dimensions, ghosts included, and they are put in place in the order of how many dimensions they cross: so
# around a corner between a wall and a neighbour, where no message of a diagonal neighbour comes, the entries of the
# neighbour's own message remain, as in halo_exchange. No program contains its rank's neighbours, or whether it has any.

# Tags count down from the last that every MPI has: programs rarely use these.
_LAST_TAG = 32767


def _message_directions(widths: Sequence[int]) -> list[tuple[int, ...]]:
    """Return all directions but zero, -1, 0 or 1 for each dimension with a width, sorted by how many are not 0."""
    found = itertools.product(*((-1, 0, 1) if width else (0,) for width in widths))
    return sorted((way for way in found if any(way)), key=lambda way: sum(map(abs, way)))


def _neighbour_shift(way: Sequence[int], sign: int) -> Shift:
    crossed = tuple(d for d, step in enumerate(way) if step)
    return Shift(crossed, tuple(sign * way[d] for d in crossed))


def _message_bounds(x: Any, axes: Sequence[int], widths: Sequence[int], way: Sequence[int], inner: bool) -> Any:
    """Return (begin, end) of the slice of ``x`` at the side ``way``: its border's items if ``inner``, else ghosts."""
    begin, end = [0] * x.ndim, list(x.shape)
    for axis, width, step in zip(axes, widths, way, strict=True):
        n = x.shape[axis]
        if step < 0:
            begin[axis], end[axis] = (width, 2 * width) if inner else (0, width)
        if step > 0:
            begin[axis], end[axis] = (n - 2 * width, n - width) if inner else (n - width, n)
    return tuple(begin), tuple(end)


# Jitted, so that each is one program in eager calls, too: its indices would otherwise be transfers to the device.
_cut = jax.jit(lax.slice, static_argnums=(1, 2))
_put = jax.jit(lax.dynamic_update_slice, static_argnums=2)


@dataclass(frozen=True)
class _HaloMessages:
    """The exchange of the arrays of a pytree: how messages are cut out of them, and put into them."""

    plan: Plan
    comm: Comm
    axes: _Axes
    widths: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]  # of arrays that travel in one message: arrays of one dtype

    def cut_messages(self, blocks: Sequence[Any], way: Sequence[int], inner: bool) -> list[Any]:
        """Return an array for each group of ``blocks``: the borders at the side ``way`` if ``inner``, else ghosts."""
        parts = [
            _cut(x, *_message_bounds(x, axes, self.widths, way, inner))
            for x, axes in zip(blocks, self.axes, strict=True)
        ]
        return [pack([parts[i] for i in places], 0) if len(places) > 1 else parts[places[0]] for places in self.groups]

    def put_ghosts(self, blocks: list[Any], way: Sequence[int], messages: Sequence[Any]) -> None:
        """Replace, in the list ``blocks``, each array by one with the ghosts at the side ``way`` from ``messages``."""
        for places, message in zip(self.groups, messages, strict=True):
            bounds = [_message_bounds(blocks[i], self.axes[i], self.widths, way, False) for i in places]
            shapes = tuple(tuple(np.subtract(end, begin).tolist()) for begin, end in bounds)
            parts = unpack(message, shapes) if len(places) > 1 else [message]
            for i, part, (begin, _) in zip(places, parts, bounds, strict=True):
                blocks[i] = _put(blocks[i], part, begin)

    def wait(self, blocks: Sequence[Any], requests: Sequence[Request[Any]]) -> Any:
        """Wait for the requests of each direction, group by group, and return the pytree of the filled blocks.

        Ghosts for which no message comes keep their values, which earlier messages may have set.
        """
        filled, coming = list(blocks), iter(requests)
        for way in _message_directions(self.widths):
            self.put_ghosts(
                filled, way, [wait_into(next(coming), own) for own in self.cut_messages(filled, way, False)]
            )
        return self.plan.tree_of(filled)


def _blocks_of(x: Any, comm: Any, width: Any, axes: Any, name: str) -> tuple[list[Any], _HaloMessages]:
    """Return ``x``'s arrays and their exchange; TypeError if ``comm`` is not Cartesian, ValueError for unfit blocks."""
    if comm is None:
        raise TypeError(f"{name} needs a Cartesian communicator: pass what comm.Create_cart(dims, periods) gives.")
    c = comm_of(comm)
    if comm.Get_topology() != MPI.CART:
        raise TypeError(
            f"{name} needs a Cartesian communicator, but '{c.name}' has no Cartesian topology. Make a communicator "
            "that has one, comm.Create_cart(dims, periods), and pass that."
        )
    dimensions = MPI.Cartcomm(comm).Get_dim()
    widths = _as_widths(width, dimensions, name)
    given = tuple(range(dimensions)) if axes is None else _integers_per_dimension(axes, "axes", dimensions, name)
    leaves, tree = flatten_tree(x)
    arrays = as_leaves(x, leaves, "x", name)
    refuse_symbolic(arrays, name)
    own = tuple(_axes_of(array, given, widths, name) for array in arrays)
    data = [unwrap_keys(array) for array in arrays]
    dtypes = dict.fromkeys(y.dtype for y in data)
    groups = tuple(tuple(i for i, y in enumerate(data) if y.dtype == dtype) for dtype in dtypes)
    return data, _HaloMessages(plan_of_each(tree, arrays), c, own, widths, groups)


@eager(1)
def halo_exchange(x: Tree, comm: MPI.Cartcomm, *, width: Any = 1, axes: Any = None) -> Tree:
    """Fill the ghost zones of a block with the items of the neighbouring blocks.

    The ranks of a Cartesian communicator share a domain: each has a block, with ``width`` lines of ghost items around
    it on both sides of each dimension. They become copies of the neighbours' own items, corners and edges included.
    At a wall (the end of a dimension that is not periodic) a ghost zone stays as it was; where it goes on around the
    corner, between a wall and a neighbour, it becomes the neighbour's.

    Args:
        x: this rank's block with its ghosts, or a pytree of several, PRNG keys among them. Along the exchanged axes
            blocks may differ in size; the block without ghosts is at least ``width`` long. All arrays of a pytree
            travel in one message to each neighbour.
        comm: a Cartesian communicator (``comm.Create_cart(dims, periods)``), which says where there are walls.
        width: the width of the ghost zones: an integer, or one for each dimension of the communicator, of which some,
            and not all, may be 0, for none.
        axes: which axis of ``x`` each dimension of the communicator is; by default the first ones. Negative ones
            count from the last. An integer will do for one dimension.

    Returns:
        ``x`` with its ghost zones filled. Inside ``jit`` that is done in the memory of ``x``, if nothing else uses it.

    Derivative:
        Linear. Reverse mode: the cotangent of a ghost is added to the cotangent of its original item, and becomes zero;
        at a wall it stays.

    Raises:
        TypeError: for a ``comm`` that is not Cartesian, a width or axis that is no static integer, or a dtype
            that MPI cannot move.
        ValueError: for a negative width, a width that is 0 in all dimensions, axes that ``x`` does not have or that are
            named twice, not one for each dimension, a block that is too small, or a communicator that was freed.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> from mpi4py import MPI
        >>> ring = MPI.COMM_WORLD.Create_cart([MPI.COMM_WORLD.Get_size()], periods=[True])
        >>> x = jnp.array([0, 1, 2, 0]) + 10 * ring.Get_rank()  # two items, with a ghost on each side
        >>> y = mpixla.halo_exchange(x, ring)
        >>> below, above = ring.Shift(0, 1)
        >>> [int(y[0]), int(y[-1])] == [10 * below + 2, 10 * above + 1]
        True
        >>> ring.Free()
    """
    blocks, halo = _blocks_of(x, comm, width, axes, "halo_exchange")
    if blocks and any(halo.widths):
        blocks = halo_exchange_p.bind(*blocks, axes=halo.axes, comm=halo.comm, width=halo.widths)
    return halo.plan.tree_of(blocks)


@eager(1)
def halo_start(x: Tree, comm: MPI.Cartcomm, *, width: Any = 1, axes: Any = None) -> Request[Tree]:
    """Start a ``halo_exchange`` and return its request.

    Meanwhile ``overlap`` computes results that need no ghosts. A rank sends to its diagonal neighbours as well, so
    there are more messages than in ``halo_exchange``.

    Args:
        x: this rank's block with its ghosts, or a pytree of several, as for ``halo_exchange``. All arrays of one data
            type travel in one message to each neighbour.
        comm: a Cartesian communicator. Its messages have the highest tags up to 32767, and come from a rank that is
            ahead before this rank starts: on this communicator, receive with ``MPI.ANY_SOURCE`` and ``MPI.ANY_TAG``
            together nowhere, and use it for nothing else between start and wait.
        width: the width of the ghost zones: an integer, or one for each dimension of the communicator, of which some,
            and not all, may be 0, for none.
        axes: which axis of ``x`` each dimension of the communicator is; by default the first ones. Negative ones count
            from the last. An integer will do for one dimension.

    Returns:
        A request; ``wait`` gives ``x`` with its ghost zones filled. Inside ``jit`` that is done in the memory of ``x``,
        if nothing else uses it.

    Derivative:
        Linear. Reverse mode: the cotangent of a ghost is added to the cotangent of its original item, and becomes zero;
        at a wall it stays.

    Raises:
        TypeError: for a ``comm`` that is not Cartesian, a width or axis that is no static integer, or a dtype that MPI
            cannot move.
        ValueError: for a negative width, a width that is 0 in all dimensions, axes that ``x`` does not have or that are
            named twice, not one for each dimension, a block that is too small, or a communicator that was freed.

    Example:
        >>> import jax, jax.numpy as jnp, mpixla
        >>> from mpi4py import MPI
        >>> ring = MPI.COMM_WORLD.Create_cart([MPI.COMM_WORLD.Get_size()], periods=[True])
        >>> @jax.jit
        ... def differences(x):
        ...     request = mpixla.halo_start(x, ring)
        ...     x, inner = mpixla.overlap(request, lambda x: x[2:-1] - x[1:-2], x)  # which needs no ghosts
        ...     return jnp.concatenate([x[1:2] - x[:1], inner, x[-1:] - x[-2:-1]])
        >>> x = jnp.array([0.0, 1.0, 2.0, 4.0, 0.0])  # three items, with a ghost on each side
        >>> differences(x).tolist()
        [-3.0, 1.0, 2.0, -3.0]
        >>> ring.Free()
    """
    given, halo = _blocks_of(x, comm, width, axes, "halo_start")
    blocks = [lax.convert_element_type(block, block.dtype) for block in given]  # not weak, as received arrays are not
    requests: list[Request[Any]] = []
    for i, way in enumerate(_message_directions(halo.widths)):
        borders = halo.cut_messages(blocks, [-step for step in way], True)
        ghosts = halo.cut_messages(blocks, way, False)
        source, dest, tag = _neighbour_shift(way, 1), _neighbour_shift(way, -1), _LAST_TAG - i
        requests += [
            isendrecv(border, ghost, source, dest, sendtag=tag, recvtag=tag, comm=comm)
            for border, ghost in zip(borders, ghosts, strict=True)
        ]
    return Request.tree_unflatten(halo, (blocks, requests))
