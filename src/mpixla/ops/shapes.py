"""What several operations share: shapes of results, and where operands and results have the batch of a vmap."""

from typing import Any

from jax.core import ShapedArray

from ..core.spmd import reshaped
from ..mpi.comm import Comm


def like(x: ShapedArray, *values: ShapedArray, **params: Any) -> list[ShapedArray]:
    """The result is like the operand, whatever numbers at run time come behind it."""
    return [x]


def each_like(*arrays: ShapedArray, **params: Any) -> list[ShapedArray]:
    """As many results as operands, each like its own."""
    return list(arrays)


# What has a root does something to the first axis only there; elsewhere the result is like the operand.


def stacked(x: ShapedArray, *, comm: Comm, root: int | None = None, **params: Any) -> list[ShapedArray]:
    """The result has one operand for each rank."""
    return [reshaped(x, (comm.size, *x.shape)) if root in (None, comm.rank) else x]


def unstacked(x: ShapedArray, *, comm: Comm, root: int | None = None, **params: Any) -> list[ShapedArray]:
    """The result is one of the operand's first axis."""
    return [reshaped(x, x.shape[1:]) if root in (None, comm.rank) else x]


def nothing(*operands: ShapedArray, **params: Any) -> list[ShapedArray]:
    """There is no result."""
    return []


# Axes of a batch, of operands and of results: the first; the second, behind that of the ranks, or of the rows that are
# counted; or the last, so that a message that is shorter than the template is the beginning of each part.
IN_FRONT, SECOND, BEHIND = (0, 0), (1, 1), (-1, -1)


def batch_behind_stack(*, comm: Comm, root: int | None = None, **params: Any) -> tuple[int, int]:
    """The operand's batch is its first axis; the result's comes after that of the ranks."""
    return 0, int(root in (None, comm.rank))


def batch_from_behind_stack(*, comm: Comm, root: int | None = None, **params: Any) -> tuple[int, int]:
    """The operand's batch comes after the axis of the ranks; the result's is the first."""
    return int(root in (None, comm.rank)), 0
