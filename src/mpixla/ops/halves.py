"""halo_start: a halo exchange that is waited for like any other request, so that a program computes meanwhile.

A rank sends a message to each neighbour, diagonal ones too. Each message is as long as the block along the other
dimensions, ghosts included, and they are put in place in the order of how many dimensions they cross: so around a
corner between a wall and a neighbour, where no message of a diagonal neighbour comes, remains what the neighbour's own
message has there, as in halo_exchange. No rank's program says who the neighbours are, or whether it has any.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import lax
from mpi4py import MPI

from ..core.pack import pack, unpack
from ..core.tree import Plan, Tree
from ..mpi.comm import Shift
from .docstrings import documented_like
from .halo import Axes, blocks_of, halo_exchange
from .request import Request, isendrecv

# Tags of messages, which programs hardly use: the last that every MPI has.
_LAST_TAG = 32767


def _directions(widths: Sequence[int]) -> list[tuple[int, ...]]:
    """Where messages go: -1, 0 or 1 for each dimension."""
    found = itertools.product(*((-1, 0, 1) if width else (0,) for width in widths))
    return sorted((way for way in found if any(way)), key=lambda way: sum(map(abs, way)))


def _shift(way: Sequence[int], sign: int) -> Shift:
    crossed = tuple(d for d, step in enumerate(way) if step)
    return Shift(crossed, tuple(sign * way[d] for d in crossed))


def _bounds(x: Any, axes: Sequence[int], widths: Sequence[int], way: Sequence[int], inner: bool) -> Any:
    """From where to where a message lies in a block: at its border, or in its ghosts."""
    begin, end = [0] * x.ndim, list(x.shape)
    for axis, width, step in zip(axes, widths, way, strict=True):
        n = x.shape[axis]
        if step < 0:
            begin[axis], end[axis] = (width, 2 * width) if inner else (0, width)
        if step > 0:
            begin[axis], end[axis] = (n - 2 * width, n - width) if inner else (n - width, n)
    return tuple(begin), tuple(end)


# Each is a program, also eagerly, where the place would be a transfer to the device.
_cut = jax.jit(lax.slice, static_argnums=(1, 2))
_put = jax.jit(lax.dynamic_update_slice, static_argnums=2)


@dataclass(frozen=True)
class _HaloPlan:
    """How the messages are cut out of the blocks, and put into them."""

    tree: Plan
    axes: Axes
    widths: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]  # of the arrays that travel in one message: those of one data type

    def cut(self, blocks: Sequence[Any], way: Sequence[int], inner: bool) -> list[Any]:
        """For each group its border, or its ghosts."""
        parts = [_cut(x, *_bounds(x, axes, self.widths, way, inner)) for x, axes in zip(blocks, self.axes, strict=True)]
        return [pack([parts[i] for i in places], 0) if len(places) > 1 else parts[places[0]] for places in self.groups]

    def put(self, blocks: list[Any], way: Sequence[int], messages: Sequence[Any]) -> None:
        """Replaces the blocks by those with these ghosts."""
        for places, message in zip(self.groups, messages, strict=True):
            bounds = [_bounds(blocks[i], self.axes[i], self.widths, way, False) for i in places]
            shapes = tuple(tuple(np.subtract(end, begin).tolist()) for begin, end in bounds)
            parts = unpack(message, shapes) if len(places) > 1 else [message]
            for i, part, (begin, _) in zip(places, parts, bounds, strict=True):
                blocks[i] = _put(blocks[i], part, begin)

    def wait(self, blocks: Sequence[Any], requests: Sequence[Request[Any]]) -> Any:
        """The pytree of the blocks with their ghosts, of the messages group by group for each direction.

        What no message comes for remains as the messages before have made it.
        """
        filled, coming = list(blocks), iter(requests)
        for way in _directions(self.widths):
            self.put(filled, way, [next(coming).result_in(own) for own in self.cut(filled, way, False)])
        return self.tree.tree_of(filled)


@documented_like(halo_exchange)
def halo_start(x: Tree, comm: MPI.Cartcomm, *, width: Any = 1, axes: Any = None) -> Request[Tree]:
    """Starts a ``halo_exchange``.

    ``overlap`` computes meanwhile what needs no ghosts. A rank sends to its diagonal neighbours as well, so there are
    more messages than in ``halo_exchange``.

    Args:
        x: this rank's block with its ghosts, or a pytree of several, as for ``halo_exchange``. All arrays of one data
            type travel in one message to each neighbour.
        comm: a Cartesian communicator. Between start and wait it is best used for nothing else; messages on it have
            the highest tags up to 32767.

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
    blocks = blocks_of(x, comm, width, axes, "halo_start")
    dtypes = dict.fromkeys(data.dtype for data in blocks.data)
    groups = tuple(tuple(i for i, data in enumerate(blocks.data) if data.dtype == dtype) for dtype in dtypes)
    plan = _HaloPlan(blocks.plan, blocks.axes, blocks.widths, groups)
    requests: list[Request[Any]] = []
    for i, way in enumerate(_directions(blocks.widths)):
        borders = plan.cut(blocks.data, [-step for step in way], True)
        ghosts = plan.cut(blocks.data, way, False)
        source, dest, tag = _shift(way, 1), _shift(way, -1), _LAST_TAG - i
        requests += [
            isendrecv(border, ghost, source, dest, sendtag=tag, recvtag=tag, comm=comm)
            for border, ghost in zip(borders, ghosts, strict=True)
        ]
    return Request.tree_unflatten(plan, (blocks.data, requests))
