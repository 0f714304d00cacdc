"""Ghost zones of blocks on a Cartesian communicator."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.interpreters import batching
from mpi4py import MPI

from ..core.primitive import lower_in_place, make, wide
from ..core.spmd import Primitive
from ..core.tree import Plan, Tree, as_leaf, data_of, flatten, plan_of_each
from ..mpi.comm import Comm, comm_of
from .arguments import as_axes, as_integer
from .shapes import each_like

# For each array, which of its axes each Cartesian dimension is.
Axes = tuple[tuple[int, ...], ...]


def _make(name: str, transposed: Callable[[], Primitive]) -> Primitive:
    def jvp(primals: Any, tangents: Any, *, axes: Axes, **params: Any) -> Sequence[Any]:
        """Arrays of integers have no tangents, whatever they travel with."""
        moved = [i for i, x in enumerate(primals) if jnp.issubdtype(x.dtype, jnp.inexact)]
        exchanged = primitive.bind(*(tangents[i] for i in moved), axes=tuple(axes[i] for i in moved), **params)
        results = list(tangents)
        for i, tangent in zip(moved, exchanged, strict=True):
            results[i] = tangent
        return results

    def transpose(*cotangents: Any, types: Any, **params: Any) -> list[Any]:
        # The C library adds floats of 32 bits and more.
        added = transposed().bind(*(ct.astype(wide(ct.dtype)) for ct in cotangents), **params)
        return [y.astype(ct.dtype) for y, ct in zip(added, cotangents, strict=True)]

    def batch(arrays: Any, dims: Any, *, axes: Axes, **params: Any) -> tuple[Any, Any]:
        """The batch stays where it is; the axes behind it are one further."""
        shifted = tuple(
            own if d is None else tuple(axis + (axis >= d) for axis in own) for own, d in zip(axes, dims, strict=True)
        )
        return primitive.bind(*arrays, axes=shifted, **params), list(dims)

    primitive = make(name, each_like, lower=lower_in_place, jvp=jvp, transpose=transpose)
    batching.primitive_batchers[primitive] = batch
    return primitive


_exchange: Primitive = _make("halo_exchange", lambda: _transposed)
# Its transpose, whose transpose is the exchange.
_transposed: Primitive = _make("halo_transpose", lambda: _exchange)


def _one_for_each(values: Any, what: str, dimensions: int, name: str) -> tuple[int, ...]:
    """Integers, one for each dimension."""
    if isinstance(values, jax.core.Tracer):
        as_integer(values, what, name)
    values = list(values) if hasattr(values, "__len__") else [values]
    if len(values) != dimensions:
        raise ValueError(
            f"{what} of {name} has {len(values)} entries, but the communicator has {dimensions} dimension(s). "
            "Give one for each."
        )
    return tuple(as_integer(value, f"{what}[{i}]", name) for i, value in enumerate(values))


def _widths(width: Any, dimensions: int, name: str) -> tuple[int, ...]:
    if hasattr(width, "__len__") and getattr(width, "ndim", 1) == 1:
        widths = _one_for_each(width, "width", dimensions, name)
    else:
        widths = (as_integer(width, "width", name),) * dimensions
    if any(w < 0 for w in widths):
        raise ValueError(f"width of {name} is {width}, but a ghost zone cannot be negative. Pass 0 for none.")
    return widths


def _axes_of(x: jax.Array, axes: tuple[int, ...], widths: tuple[int, ...], name: str) -> tuple[int, ...]:
    """The axes, counted from the front, of one array that has room for the ghosts."""
    rule = " Each dimension of the communicator needs an axis of its own: pass axes=."
    own = as_axes(axes, x, f"axes of {name} are", rule)
    for axis, width in zip(own, widths, strict=True):
        inner = x.shape[axis] - 2 * width
        if width > 0 and inner < width:
            raise ValueError(
                f"{name} of width {width} along axis {axis} needs at least {3 * width} items there, a ghost "
                f"zone on each side and as many items between them, but x has shape {x.shape}. Use larger blocks on "
                "fewer ranks, or a smaller width."
            )
    return own


def halo_exchange(x: Tree, comm: MPI.Cartcomm, *, width: Any = 1, axes: Any = None) -> Tree:
    """Fills the ghost zones of a block with what the neighbouring blocks have there.

    The ranks of a Cartesian communicator share a domain: each has a block, with ``width`` lines of ghost items around
    it on both sides of each dimension. They become copies of the neighbours' own items, corners and edges included.
    At a wall (the end of a dimension that is not periodic) a ghost zone stays as it was; where it goes on around the
    corner, between a wall and a neighbour, it becomes the neighbour's.

    Args:
        x: this rank's block with its ghosts, or a pytree of several, PRNG keys among them. Along the exchanged axes
            blocks may differ in size; the block without ghosts is at least ``width`` long. All arrays of a pytree
            travel in one message to each neighbour.
        comm: a Cartesian communicator (``comm.Create_cart(dims, periods)``), which says where there are walls.
        width: the width of the ghost zones: an integer, or one for each dimension of the communicator; 0 for none.
        axes: which axis of ``x`` each dimension of the communicator is; by default the first ones. Negative ones
            count from the last. An integer will do for one dimension.

    Returns:
        ``x`` with its ghost zones filled. Inside ``jit`` that is done in the memory of ``x``, if nothing else uses it.

    Derivative:
        Linear. Reverse mode: cotangents of ghosts are added to those of the items that they are copies of, and become
        zero; at a wall they stay.

    Raises:
        TypeError: for a ``comm`` that is not Cartesian, a width or axis that is no static integer, or a dtype
            that MPI cannot move.
        ValueError: for a negative width, axes that ``x`` does not have or that are named twice, not one for each
            dimension, a block that is too small, or a communicator that was freed.

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
    blocks = blocks_of(x, comm, width, axes, "halo_exchange")
    data = blocks.data
    if data and any(blocks.widths):
        data = _exchange.bind(*data, axes=blocks.axes, comm=blocks.comm, width=blocks.widths)
    return blocks.plan.tree_of(data)


class Blocks(NamedTuple):
    """What is exchanged: the arrays of a pytree, which has its plan, and along which of their axes, how wide."""

    data: list[Any]
    plan: Plan
    axes: Axes
    comm: Comm
    widths: tuple[int, ...]


def blocks_of(x: Any, comm: Any, width: Any, axes: Any, name: str) -> Blocks:
    """Checks the arguments of the operation ``name``, and says what they mean.

    Raises:
        TypeError, ValueError: as ``halo_exchange``.
    """
    if comm is None:
        raise TypeError(f"{name} needs a Cartesian communicator: pass what comm.Create_cart(dims, periods) gives.")
    c = comm_of(comm)
    if comm.Get_topology() != MPI.CART:
        raise TypeError(
            f"{name} needs a Cartesian communicator, but '{c.name}' is none. Make one of it with "
            "comm.Create_cart(dims, periods)."
        )
    dimensions = MPI.Cartcomm(comm).Get_dim()
    widths = _widths(width, dimensions, name)
    given = tuple(range(dimensions)) if axes is None else _one_for_each(axes, "axes", dimensions, name)
    leaves, tree = flatten(x)
    arrays = [as_leaf(leaf, "x", name) for leaf in leaves]
    own = tuple(_axes_of(array, given, widths, name) for array in arrays)
    return Blocks([data_of(array) for array in arrays], plan_of_each(tree, arrays), own, c, widths)
