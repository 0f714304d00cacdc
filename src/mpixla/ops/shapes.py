"""What several operations share: shapes of results, and where operands and results have the batch of a vmap."""

from typing import Any

from jax.core import ShapedArray

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
    return [x.update(shape=(comm.size, *x.shape)) if root in (None, comm.rank) else x]


def unstacked(x: ShapedArray, *, comm: Comm, root: int | None = None, **params: Any) -> list[ShapedArray]:
    """The result is one of the operand's first axis."""
    return [x.update(shape=x.shape[1:]) if root in (None, comm.rank) else x]


def nothing(*operands: ShapedArray, **params: Any) -> list[ShapedArray]:
    """There is no result."""
    return []


def batch_in_front(**params: Any) -> tuple[int, int]:
    """The batch is the first axis."""
    return 0, 0


def batch_second(**params: Any) -> tuple[int, int]:
    """The batch is the second axis, behind that of the ranks, or of the rows that are counted."""
    return 1, 1


def batch_behind(**params: Any) -> tuple[int, int]:
    """The batch is the last axis. So a message that is shorter than the template is the beginning of each part."""
    return -1, -1


def batch_behind_stack(*, comm: Comm, root: int | None = None, **params: Any) -> tuple[int, int]:
    """The operand's batch is its first axis; the result's comes after that of the ranks."""
    return 0, int(root in (None, comm.rank))


def batch_from_behind_stack(*, comm: Comm, root: int | None = None, **params: Any) -> tuple[int, int]:
    """The operand's batch comes after the axis of the ranks; the result's is the first."""
    return int(root in (None, comm.rank)), 0
