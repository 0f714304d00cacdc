"""Packing of many arrays into one, for one MPI call, and unpacking (native/helpers/pack.c)."""

import math
from collections.abc import Sequence
from typing import Any

import jax
from jax.core import ShapedArray
from jax.interpreters import batching

from ..jaxprs.spmd import with_shape
from .helper import make_helper
from .rules import define_rules, with_batch_at

Shapes = tuple[tuple[int, ...], ...]


def _packed_types(*arrays: ShapedArray, kept_axes: int) -> list[ShapedArray]:
    kept = arrays[0].shape[:kept_axes]
    return [with_shape(arrays[0], (*kept, sum(math.prod(x.shape[kept_axes:]) for x in arrays)))]


def _unpacked_types(array: ShapedArray, *, shapes: Shapes) -> list[ShapedArray]:
    return [with_shape(array, (*array.shape[:-1], *shape)) for shape in shapes]


_pack = make_helper("pack", _packed_types)
_unpack = make_helper("unpack", _unpacked_types)


def _transpose_of_pack(ct: Any, *, types: Any, kept_axes: int) -> list[Any]:
    return _unpack.bind(ct, shapes=tuple(x.shape[kept_axes:] for x in types))


def _transpose_of_unpack(*cts: Any, types: Any, shapes: Shapes) -> list[Any]:
    return _pack.bind(*cts, kept_axes=types[0].ndim - 1)


define_rules(_pack, transpose=_transpose_of_pack)
define_rules(_unpack, transpose=_transpose_of_unpack, batch=(0, 0))


def _batch_of_pack(operands: Any, dims: Any, *, kept_axes: int) -> tuple[Any, Any]:
    return _pack.bind(*with_batch_at(0, operands, dims), kept_axes=kept_axes + 1), [0]


batching.primitive_batchers[_pack] = _batch_of_pack


def pack(arrays: Sequence[jax.Array], kept_axes: int) -> jax.Array:
    """Join arrays of one type, equal in their first ``kept_axes`` axes, along one further axis; return the result."""
    if len(arrays) == 1:
        return arrays[0].reshape(*arrays[0].shape[:kept_axes], -1)
    return _pack.bind(*arrays, kept_axes=kept_axes)[0]


def unpack(packed: jax.Array, shapes: Shapes) -> list[jax.Array]:
    """Return arrays split from ``packed``'s last axis: for each of ``shapes`` one, behind the axes before it."""
    if len(shapes) == 1:
        return [packed.reshape(*packed.shape[:-1], *shapes[0])]
    return _unpack.bind(packed, shapes=shapes)
