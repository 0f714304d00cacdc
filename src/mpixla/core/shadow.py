"""Tangents and cotangents that one rank takes for constants, and the others do not.

To JAX a constant has no batch and no derivative, and a result that the program ignores has zeros for its cotangent. The
other ranks count on this one's part all the same. So each tangent before a call, and each cotangent after it, gets the
batch of the call's own results (of send, which has none, of what it sends), and a derivative if they have one. Nothing
of that remains in a compiled program.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import jet
from jax.interpreters import ad, batching, mlir

from ..base import required
from .effect import ordered
from .spmd import Primitive, reshaped, vary, varying_axes

_alike = required.Primitive("alike")  # the identity of an array
# It has the effect where JAX would drop it, or make it again in a checkpoint, and `kept` says so.
_tied = Primitive("tied")  # the identity of arrays, none of which is ignored alone


def shadow(x: jax.Array) -> Any:
    """What ``alike`` takes of an array: one without entries, which reverse mode keeps in its place."""
    return _alike.bind(_zeros(reshaped(x.aval, (0,))), x, kept=True)


def alike(x: Any, like: Any, *, is_result: bool = False) -> Any:
    """An array or JAX's zeros, with a batch where ``like`` has one, and a derivative. So is a result's cotangent."""
    if isinstance(x, ad.Zero):
        return _alike.bind(_zeros(x.aval), like, kept=False)
    return _alike.bind(x, like, kept=is_result)


def tied(results: Sequence[Any]) -> list[Any]:
    """The arrays. In reverse mode the zeros of those that the program ignores are like the others' cotangents."""
    ties = [i for i, x in enumerate(results) if jnp.issubdtype(jnp.result_type(x), jnp.inexact)]
    if len(ties) < 2:
        return list(results)
    held = dict(zip(ties, _tied.bind(*(results[i] for i in ties)), strict=True))
    return [held.get(i, x) for i, x in enumerate(results)]


def _zeros(aval: Any) -> Any:
    return vary(jnp.zeros(aval.shape, aval.dtype), varying_axes(aval))


def _alike_lower(ctx: Any, x: Any, like: Any, *, kept: bool) -> list[Any]:
    if kept:
        ctx.set_tokens_out(ctx.tokens_in)
    return [x]


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


def _tied_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    some = [i for i, t in enumerate(tangents) if type(t) is not ad.Zero]
    held = dict(zip(some, tied([tangents[i] for i in some]), strict=True))
    return _tied.bind(*primals), [held.get(i, t) for i, t in enumerate(tangents)]


def _tied_transpose(cotangents: Any, *operands: Any) -> list[Any]:
    def like_the_others(ct: Any) -> Any:
        for other in cotangents:
            if other is not ct and type(other) is not ad.Zero:
                ct = alike(ct, other)
        return ct

    return [like_the_others(ct) for ct in cotangents]


_alike.def_effectful_abstract_eval(lambda x, like, kept: (x, {ordered} if kept else set()))
_alike.def_impl(lambda x, like, kept: x)
ad.primitive_jvps[_alike] = _alike_jvp
ad.primitive_transposes[_alike] = _alike_transpose
batching.primitive_batchers[_alike] = _alike_batch
mlir.register_lowering(_alike, _alike_lower)
_tied.def_abstract_eval(lambda *operands: list(operands))
_tied.def_impl(lambda *operands: list(operands))
ad.primitive_jvps[_tied] = _tied_jvp
ad.primitive_transposes[_tied] = _tied_transpose
batching.primitive_batchers[_tied] = lambda operands, dims: (_tied.bind(*operands), dims)
mlir.register_lowering(_tied, lambda ctx, *operands: operands)
jet.deflinear(_tied)
