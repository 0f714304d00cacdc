"""Primitives of the C library that do not communicate, and so have no effect (native/helpers)."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import ShapedArray
from jax.interpreters import mlir

from ..mpi import native
from .spmd import Primitive


def make_helper(name: str, shapes: Callable[..., list[ShapedArray]], attributes: Sequence[str] = ()) -> Primitive:
    """Makes the primitive of a handler, by its name, which gets these of its parameters: numbers."""
    primitive = Primitive(name)
    primitive.def_abstract_eval(shapes)

    def lower(ctx: Any, *operands: Any, **params: Any) -> Sequence[Any]:
        rule = jax.ffi.ffi_lowering(native.target_of(name))
        return rule(ctx, *operands, **{key: np.int64(params[key]) for key in attributes})

    def run(*operands: Any, **params: Any) -> list[Any]:
        with jax.disable_jit(False):
            return jax.jit(functools.partial(primitive.bind, **params))(*operands)

    mlir.register_lowering(primitive, lower)
    primitive.def_impl(run)
    return primitive
