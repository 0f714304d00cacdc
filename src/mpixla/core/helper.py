"""Primitives of the C library that do not communicate, and so have no effect (native/helpers)."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import ShapedArray
from jax.interpreters import mlir

from ..jaxprs.spmd import Primitive, without_weak_type
from ..mpi import native
from ..mpi.comm import Shift


def attributes_of(names: Sequence[str], params: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the named parameters as FFI attributes: a dict of numbers and texts, and a dict of arrays."""
    scalars: dict[str, Any] = {}
    arrays: dict[str, Any] = {}
    for name in names:
        value = params[name]
        if isinstance(value, tuple):
            # Readable in a program's text: array<i64: 1, 2> rather than JAX's dense<[1, 2]> : tensor<2xi64>.
            numbers = value.steps if isinstance(value, Shift) else np.ravel(value).tolist()
            arrays[name] = mlir.dense_int_array(numbers)
        else:
            scalars[name] = value if isinstance(value, str) else np.int64(getattr(value, "id", value))
    return scalars, arrays


def make_helper(
    name: str,
    shapes: Callable[..., list[ShapedArray]],
    attributes: Sequence[str] = (),
    check: Callable[[Any], None] = lambda module: None,
) -> Primitive:
    """Return a new primitive without effects, lowered to the C handler ``name`` with the parameters ``attributes``.

    ``check`` gets JAX's context of each lowering, and raises an exception for a program that is unfit.
    """
    primitive = Primitive(name)
    primitive.def_abstract_eval(lambda *operands, **params: list(map(without_weak_type, shapes(*operands, **params))))

    def lower(ctx: Any, *operands: Any, **params: Any) -> Sequence[Any]:
        check(ctx.module_context)
        scalars, arrays = attributes_of(attributes, params)
        return jax.ffi.ffi_lowering(native.target_of(name), backend_config=arrays)(ctx, *operands, **scalars)

    # One function object for all calls: for another one JAX would compile the same program again.
    program = jax.jit(lambda params, *operands: primitive.bind(*operands, **dict(params)), static_argnums=0)

    def run_helper(*operands: Any, **params: Any) -> list[Any]:
        with jax.disable_jit(False):
            return program(tuple(params.items()), *operands)

    mlir.register_lowering(primitive, lower)
    primitive.def_impl(run_helper)
    return primitive
