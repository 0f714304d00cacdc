"""Shape rules and batch axes that several operations share."""

from typing import Any

from jax.core import ShapedArray

from ..jaxprs.spmd import with_shape
from ..mpi.comm import Comm


def same_abstract_eval(x: ShapedArray, *values: ShapedArray, **params: Any) -> list[ShapedArray]:
    """Return [the type of ``x``] for an operation with one such result; operands of numbers at run time are ignored."""
    return [x]


def each_same_abstract_eval(*arrays: ShapedArray, **params: Any) -> list[ShapedArray]:
    """Return the types of as many results as operands, each like its operand."""
    return list(arrays)


# Operations with a root change the first axis only on the root; elsewhere the result is like the operand.


def stack_abstract_eval(x: ShapedArray, *, comm: Comm, root: int | None = None, **params: Any) -> list[ShapedArray]:
    """Return [the type of ``x`` with a new first axis of the ranks]; with a root, off the root [that of ``x``]."""
    return [with_shape(x, (comm.size, *x.shape)) if root in (None, comm.rank) else x]


def unstack_abstract_eval(x: ShapedArray, *, comm: Comm, root: int | None = None, **params: Any) -> list[ShapedArray]:
    """Return [the type of ``x`` without its first axis]; with a root, off the root [that of ``x``]."""
    return [with_shape(x, x.shape[1:]) if root in (None, comm.rank) else x]


def empty_abstract_eval(*operands: ShapedArray, **params: Any) -> list[ShapedArray]:
    """Return no types, for an operation without a result."""
    return []


# Axes of a batch, of operands and of results: the first; the second, behind the axis of the ranks or of counted rows;
# or the last, so that a message that is shorter than the template is the beginning of each part.
BATCH_FIRST, BATCH_SECOND, BATCH_LAST = (0, 0), (1, 1), (-1, -1)


def stack_batch_axes(*, comm: Comm, root: int | None = None, **params: Any) -> tuple[int, int]:
    """Return the batch axes of operand and result: 0, and 1 behind the result's axis of ranks; off a root 0 and 0."""
    return 0, int(root in (None, comm.rank))


def unstack_batch_axes(*, comm: Comm, root: int | None = None, **params: Any) -> tuple[int, int]:
    """Return the batch axes of operand and result: 1 behind the operand's axis of ranks, and 0; off a root 0 and 0."""
    return int(root in (None, comm.rank)), 0
