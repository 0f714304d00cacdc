"""Tangents and cotangents that one rank takes for constants, and the others do not.

To JAX a constant has no batch and no derivative, and a result that the program ignores has a cotangent of zeros. The
other ranks wait for this rank's part all the same. So each tangent before a call, and each cotangent after it, gets the
batch of the call's own results (for send, which has none, of its operands), and a derivative if they have one. Nothing
of this remains in a compiled program.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import jet
from jax.interpreters import ad, batching, mlir

from ..base import required
from ..jaxprs.effect import ordered
from ..jaxprs.spmd import Primitive, as_varying, varying_axes, with_shape

_alike = required.Primitive("alike")  # the identity of an array
# `kept`: it has the effect, so that JAX neither drops nor recomputes it. `is_zero`: its operand is zeros.
_tied = Primitive("tied")  # the identity of arrays, none of which is ignored alone


def make_witness(x: jax.Array) -> Any:
    """Return an array of shape (0,), a tracer of the same transforms as ``x``, for ``like`` of ``match_tracing``."""
    return _alike.bind(_zeros_of(with_shape(x.aval, (0,))), x, kept=True, is_zero=True)


def match_tracing(x: Any, like: Any, *, is_result: bool = False) -> Any:
    """Return ``x``, an array or symbolic zeros, as a tracer of the same transforms (vmap, jvp) as ``like``.

    With ``is_result`` its cotangent gets them, too.
    """
    if isinstance(x, ad.Zero):
        return _alike.bind(_zeros_of(x.aval), like, kept=False, is_zero=True)
    return _alike.bind(x, like, kept=is_result, is_zero=False)


def tie_cotangents(results: Sequence[Any]) -> list[Any]:
    """Return the arrays unchanged; in reverse mode cotangents of zeros get the others' batch and derivative."""
    ties = [i for i, x in enumerate(results) if jnp.issubdtype(jnp.result_type(x), jnp.inexact)]
    if len(ties) < 2:
        return list(results)
    held = dict(zip(ties, _tied.bind(*(results[i] for i in ties)), strict=True))
    return [held.get(i, x) for i, x in enumerate(results)]


def _zeros_of(aval: Any) -> Any:
    return as_varying(jnp.zeros(aval.shape, aval.dtype), varying_axes(aval))


def _alike_lower(ctx: Any, x: Any, like: Any, *, kept: bool, is_zero: bool) -> list[Any]:
    if kept:
        ctx.set_tokens_out(ctx.tokens_in)
    return [x]


def _alike_batch(operands: Any, dims: Any, **params: bool) -> tuple[Any, Any]:
    """Bind with the first operand broadcast to a batch if only the second has one; return result and batch axis."""
    (x, like), (dim, of_like) = operands, dims
    if dim is None:
        x, dim = jnp.broadcast_to(x, (like.shape[of_like], *x.shape)), 0
    return _alike.bind(x, like, **params), dim


def _alike_jvp(primals: Any, tangents: Any, **params: bool) -> tuple[Any, Any]:
    """Return the first operand, and its tangent: symbolic zeros become an array if the second operand has a tangent."""
    t, of_like = tangents
    if type(t) is ad.Zero and type(of_like) is not ad.Zero:
        t = match_tracing(t, of_like)
    return _alike.bind(*primals, **params), t


def _alike_transpose(ct: Any, x: Any, like: Any, *, kept: bool, is_zero: bool) -> list[Any]:
    if ad.is_undefined_primal(like):
        return [ct if ad.is_undefined_primal(x) else None, ad.Zero(like.aval.to_ct_aval())]
    return [match_tracing(ct, like) if kept else ct, None]


# jax.lax.custom_root differentiates the function that a linear solve inverts by operands that are unknown. A known
# tangent, such as a column of the identity, must stay known there: JAX transposes a linear solve only if its matrix is
# known. Zeros are linear in any unknown operand, and become unknown with it.


def _is_known(x: bool, like: bool, is_zero: bool) -> bool:
    return x and (like or not is_zero)


def _alike_partial_eval(trace: Any, x: Any, like: Any, *, kept: bool, is_zero: bool) -> Any:
    if not like.is_known() and _is_known(x.is_known(), False, is_zero):
        return x
    return trace.default_process_primitive(_alike, (x, like), {"kept": kept, "is_zero": is_zero})


def _alike_in_checkpoint(saveable: Any, unknown: Any, instantiated: Any, eqn: Any) -> Any:
    """Evaluate the primitive before the checkpoint if its operand is known, else recompute it in the checkpoint."""
    x, like = eqn.invars
    if _is_known(not unknown[0], not unknown[1], eqn.params["is_zero"]):
        return eqn.replace(invars=[x, x if unknown[1] else like]), None, [False], [False], []
    missing = [v for v, i in zip(eqn.invars, instantiated, strict=True) if not i and not hasattr(v, "val")]
    return None, eqn, [True], [True], missing


def _tied_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    some = [i for i, t in enumerate(tangents) if type(t) is not ad.Zero]
    held = dict(zip(some, tie_cotangents([tangents[i] for i in some]), strict=True))
    return _tied.bind(*primals), [held.get(i, t) for i, t in enumerate(tangents)]


def _tied_transpose(cotangents: Any, *operands: Any) -> list[Any]:
    """Return the cotangents, each with the batch and derivative of all the others."""

    def like_the_others(ct: Any) -> Any:
        """Return a cotangent with the batch and derivative of all others."""
        for other in cotangents:
            if other is not ct and type(other) is not ad.Zero:
                ct = match_tracing(ct, other)
        return ct

    return [like_the_others(ct) for ct in cotangents]


_alike.def_effectful_abstract_eval(lambda x, like, kept, is_zero: (x, {ordered} if kept else set()))
_alike.def_impl(lambda x, like, **_: x)
ad.primitive_jvps[_alike] = _alike_jvp
ad.primitive_transposes[_alike] = _alike_transpose
batching.primitive_batchers[_alike] = _alike_batch
required.custom_partial_eval_rules[_alike] = _alike_partial_eval
required.partial_eval_jaxpr_custom_rules[_alike] = _alike_in_checkpoint
mlir.register_lowering(_alike, _alike_lower)
_tied.def_abstract_eval(lambda *operands: list(operands))
_tied.def_impl(lambda *operands: list(operands))
ad.primitive_jvps[_tied] = _tied_jvp
ad.primitive_transposes[_tied] = _tied_transpose
batching.primitive_batchers[_tied] = lambda operands, dims: (_tied.bind(*operands), dims)
mlir.register_lowering(_tied, lambda ctx, *operands: operands)
jet.deflinear(_tied)
