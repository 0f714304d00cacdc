"""Shape rules and batch axes that several operations share."""

from typing import Any

from jax.core import ShapedArray

from ..jaxprs.spmd import with_shape
from ..mpi.comm import Comm


def same_abstract_eval(x: ShapedArray, *values: ShapedArray, **params: Any) -> list[ShapedArray]:
    """Return the type of one result, like the operand; numbers known at run time may come behind it."""
    return [x]


def each_same_abstract_eval(*arrays: ShapedArray, **params: Any) -> list[ShapedArray]:
    """Return the types of as many results as operands, each like its operand."""
    return list(arrays)


# Operations with a root change the first axis only on the root; elsewhere the result is like the operand.


def stack_abstract_eval(x: ShapedArray, *, comm: Comm, root: int | None = None, **params: Any) -> list[ShapedArray]:
    """Return the type of a result with a new first axis, of one operand for each rank."""
    return [with_shape(x, (comm.size, *x.shape)) if root in (None, comm.rank) else x]


def unstack_abstract_eval(x: ShapedArray, *, comm: Comm, root: int | None = None, **params: Any) -> list[ShapedArray]:
    """Return the type of a result that is one entry of the operand's first axis."""
    return [with_shape(x, x.shape[1:]) if root in (None, comm.rank) else x]


def empty_abstract_eval(*operands: ShapedArray, **params: Any) -> list[ShapedArray]:
    """Return no types, for an operation without a result."""
    return []


# Axes of a batch, of operands and of results: the first; the second, behind the axis of the ranks or of counted rows;
# or the last, so that a message that is shorter than the template is the beginning of each part.
BATCH_FIRST, BATCH_SECOND, BATCH_LAST = (0, 0), (1, 1), (-1, -1)


def stack_batch_axes(*, comm: Comm, root: int | None = None, **params: Any) -> tuple[int, int]:
    """Return the batch axes: the operand's first, and the result's behind the axis of the ranks."""
    return 0, int(root in (None, comm.rank))


def unstack_batch_axes(*, comm: Comm, root: int | None = None, **params: Any) -> tuple[int, int]:
    """Return the batch axes: the operand's behind the axis of the ranks, and the result's first."""
    return int(root in (None, comm.rank)), 0
