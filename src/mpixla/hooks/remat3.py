"""The next implementation of jax.checkpoint (``jax_remat3``), which would make calls again on the way back.

It has a registry of rules that say what is kept of a primitive and what is done again. Of a call the results are kept,
and what is done again is an identity of them, whose derivative is that of the call. It has the effect: so a rank that
ignores the results makes its part of the derivative as well.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.interpreters import ad, batching, mlir
from jax.lax import while_p

from ..base.required import custom_partial_eval_rules
from ..core.effect import ordered
from ..core.rewrite import communicates
from ..core.spmd import Primitive
from . import need, replace

LOST = "Under jax_remat3, a checkpoint that communicates makes its calls again on the way back, and may hang."
_REMAT = "jax._src.ad_checkpoint:RematTraced"


def install() -> None:
    """Adds the rules; before JAX 0.12, whose rules do not say what is kept, refuses what communicates."""
    if jax.__version_info__ < (0, 12):
        for put in [replace(f"{_REMAT}.{name}", "self") for name in ("lin", "vjp_fwd")]:
            put(_refuse)
        return
    rules = need("jax._src.interpreters.remat:rules")
    linearized = need("jax._src.hijax:call_hi_primitive_linearized_p")
    replace(f"{_REMAT}.vjp_bwd", "self")(_with_zeros)
    linearized.def_effectful_abstract_eval(_types_of_derivative)
    for primitive in custom_partial_eval_rules:
        if isinstance(primitive, Primitive):  # that communicates (core/keep.py)
            rules[primitive] = functools.partial(_once, primitive)
    rules[while_p] = functools.partial(_no_loop, rules.get(while_p, _all_again))


def _once(primitive: Any, trace: Any, *operands: Any, **params: Any) -> tuple[Any, Any, Any]:
    """The results, what is kept, and what is done again with that and the operands."""
    results = primitive.bind(*operands, **params)

    def again(results: Sequence[Any], *operands: Any) -> list[Any]:
        if not operands:
            return []
        return _kept.bind(*results, *operands, call=primitive, params=tuple(params.items()), count=len(results))

    return results, results, again


_kept = Primitive("kept")  # of so many results, and of the operands: the results
_kept.def_effectful_abstract_eval(lambda *arrays, count, **_: (list(arrays[:count]), {ordered}))
_kept.def_impl(lambda *arrays, count, **_: list(arrays[:count]))


def _lower(ctx: Any, *arrays: Any, count: int, **_: Any) -> Any:
    ctx.set_tokens_out(ctx.tokens_in)
    return arrays[:count]


def _jvp(primals: Any, tangents: Any, *, call: Any, params: Any, count: int) -> tuple[Any, Any]:
    results = _kept.bind(*primals, call=call, params=params, count=count)
    if all(type(t) is ad.Zero for t in tangents[count:]):
        return results, [ad.Zero(jax.typeof(y).to_tangent_aval()) for y in results]
    if call is None:
        raise NotImplementedError(
            "the derivative of a vmap of the derivative of a jax.checkpoint that communicates is not there under "
            "jax_remat3 (JAX_REMAT3). Turn it off, jax.config.update('jax_remat3', False), or communicate outside."
        )
    return results, call.tangents(primals[count:], tangents[count:], results, dict(params))


def _batch(arrays: Any, dims: Any, *, call: Any, params: Any, count: int) -> Any:
    """Has no derivative any more: of the batch, the call would have other parameters."""
    del call, params
    return _kept.bind(*arrays, call=None, params=(), count=count), dims[:count]


mlir.register_lowering(_kept, _lower)
ad.primitive_jvps[_kept] = _jvp
batching.primitive_batchers[_kept] = _batch


def _all_again(trace: Any, *operands: Any, **params: Any) -> tuple[Any, Any, Any]:
    return while_p.bind(*operands, **params), (), lambda _, *operands: while_p.bind(*operands, **params)


def _no_loop(before: Callable[..., Any], trace: Any, *operands: Any, **params: Any) -> Any:
    if communicates(params):
        raise NotImplementedError(_REFUSAL.format("has a while loop that communicates"))
    return before(trace, *operands, **params)


def _types_of_derivative(*operands: Any, _prim: Any, nz_out_flat: Any, **_: Any) -> tuple[list[Any], set[Any]]:
    """That of a checkpoint shows the effect, so that JAX keeps it on a rank that ignores the results."""
    types = [t.to_tangent_aval() for t, nz in zip(_prim.out_avals_flat, nz_out_flat, strict=True) if nz]
    return types, {ordered} & set(_prim.effects)


def _with_zeros(derive: Callable[..., Any], self: Any, kept: Any, cotangents: Any, *rest: Any) -> Any:
    if ordered in self.effects:  # JAX does nothing where all are zero
        cotangents = jax.tree.map(ad.instantiate_zeros, cotangents, is_leaf=lambda ct: type(ct) is ad.Zero)
    return derive(self, kept, cotangents, *rest)


_REFUSAL = (
    "a jax.checkpoint whose function {} has no derivative under jax_remat3 (JAX_REMAT3): JAX would make the calls "
    "again on the way back. Turn it off, jax.config.update('jax_remat3', False), or communicate outside of the "
    "checkpoint."
)


def _refuse(derive: Callable[..., Any], self: Any, *args: Any) -> Any:
    if ordered in self.jaxpr.effects:
        raise NotImplementedError(_REFUSAL.format("communicates"))
    return derive(self, *args)
