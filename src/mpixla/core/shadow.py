"""Tangents and cotangents that one rank takes for constants, and the others do not.

To JAX a constant has no batch and no derivative, and a result that the program ignores has zeros for its cotangent. The
other ranks count on this one's part all the same. So each tangent before a call, and each cotangent after it, gets the
batch of the call's own results (of send, which has none, of what it sends), and a derivative if they have one. Nothing
of that remains in a compiled program.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.interpreters import ad, batching, mlir

from ..base import required
from .effect import ordered
from .spmd import varying_axes, with_varying

_alike = required.Primitive("alike")  # the identity of an array
_zeros = required.Primitive("zeros_alike")
# Each has the effect where JAX would drop it, or make it again in a checkpoint, and `kept` says so.


def shadow(x: jax.Array) -> Any:
    """What ``alike`` takes of an array: one without entries, which reverse mode keeps in its place."""
    return _zeros.bind(x, shape=(0,), dtype=x.dtype, axes=varying_axes(jax.typeof(x)), kept=True)


def alike(x: Any, like: Any, *, is_result: bool = False) -> Any:
    """An array or JAX's zeros, with a batch where ``like`` has one, and a derivative. So is a result's cotangent."""
    if isinstance(x, ad.Zero):
        aval: Any = x.aval
        return _zeros.bind(like, shape=aval.shape, dtype=aval.dtype, axes=varying_axes(aval), kept=False)
    return _alike.bind(x, like, kept=is_result)


def _effects(kept: bool) -> set[Any]:
    return {ordered} if kept else set()


def _lowered(ctx: Any, result: Any, kept: bool) -> list[Any]:
    if kept:
        ctx.set_tokens_out(ctx.tokens_in)
    return [result]


def _alike_batch(operands: Any, dims: Any, *, kept: bool) -> tuple[Any, Any]:
    (x, like), (dim, of_like) = operands, dims
    if dim is None:
        x, dim = jnp.broadcast_to(x, (like.shape[of_like], *x.shape)), 0
    return _alike.bind(x, like, kept=kept), dim


def _alike_jvp(primals: Any, tangents: Any, *, kept: bool) -> tuple[Any, Any]:
    t, of_like = tangents
    if type(t) is ad.Zero and type(of_like) is not ad.Zero:
        t = alike(t, of_like)
    return _alike.bind(*primals, kept=kept), t


def _alike_transpose(ct: Any, x: Any, like: Any, *, kept: bool) -> list[Any]:
    if ad.is_undefined_primal(like):
        return [ct if ad.is_undefined_primal(x) else None, ad.Zero(like.aval.to_ct_aval())]
    return [alike(ct, like) if kept else ct, None]


_alike.def_effectful_abstract_eval(lambda x, like, kept: (x, _effects(kept)))
_alike.def_impl(lambda x, like, kept: x)
ad.primitive_jvps[_alike] = _alike_jvp
ad.primitive_transposes[_alike] = _alike_transpose
batching.primitive_batchers[_alike] = _alike_batch
mlir.register_lowering(_alike, lambda ctx, x, like, kept: _lowered(ctx, x, kept))


def _zeros_batch(operands: Any, dims: Any, *, shape: tuple[int, ...], **params: Any) -> tuple[Any, Any]:
    return _zeros.bind(*operands, shape=(operands[0].shape[dims[0]], *shape), **params), 0


def _zeros_jvp(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
    return _zeros.bind(*primals, **params), _zeros.bind(*tangents, **params)


def _zeros_lower(ctx: Any, like: Any, *, shape: Any, dtype: Any, kept: bool, **_: Any) -> list[Any]:
    fun = mlir.lower_fun(lambda _: jnp.zeros(shape, dtype), multiple_results=False)
    (result,) = fun(ctx.replace(), like)  # which has tokens of its own
    return _lowered(ctx, result, kept)


_zeros.def_effectful_abstract_eval(
    lambda like, shape, dtype, axes, kept: (with_varying(ShapedArray(shape, dtype), axes), _effects(kept))
)
_zeros.def_impl(lambda like, shape, dtype, axes, kept: jnp.zeros(shape, dtype))
ad.primitive_jvps[_zeros] = _zeros_jvp
ad.primitive_transposes[_zeros] = lambda ct, like, **params: [ad.Zero(like.aval.to_ct_aval())]
batching.primitive_batchers[_zeros] = _zeros_batch
mlir.register_lowering(_zeros, _zeros_lower)
