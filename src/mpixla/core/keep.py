"""What communicates, when JAX takes a program apart for its derivatives: no call is dropped, made twice, or moved.

A rank may ignore a result, and the other ranks still count on its part in reverse mode. JAX keeps what has the effect
(``partial_eval_kept_effects``), but of a checkpoint and a branch it only keeps what leads to a result; and in a
checkpoint it takes out of a loop what does not change in it, and computes it once. All here is by JAX's registries of
rules. A loop outside of a checkpoint needs a function of JAX's to be replaced (hooks/scan.py).
"""

import threading
from collections.abc import Callable
from typing import Any

import jax
from jax.lax import cond_p, scan_p, while_p

from ..base.required import custom_partial_eval_rules, jit_p, partial_eval_jaxpr_custom_rules, remat_p
from .effect import ordered
from .rewrite import Rewriting, changed, communicates, map_jaxprs

_loop = threading.local()  # `depth`: how many of the rules below are at work that take things out of a loop


def keep(primitive: Any) -> None:
    """Has a primitive that communicates stay in its loop."""
    custom_partial_eval_rules[primitive] = _staying(primitive, lambda params: True)


def _staying(primitive: Any, applies: Callable[[dict[str, Any]], bool]) -> Callable[..., Any]:
    before = custom_partial_eval_rules.get(primitive)

    def rule(trace: Any, *tracers: Any, **params: Any) -> Any:
        if getattr(_loop, "depth", 0) and applies(params):
            tracers = tuple(trace.instantiate_const(t) for t in tracers)  # as if it changed in the loop
        elif before is not None:
            return before(trace, *tracers, **params)
        return trace.default_process_primitive(primitive, tracers, params)

    return rule


def _held(primitive: Any) -> Callable[..., Any]:
    """A rule that keeps what communicates in a primitive's functions, by one more result: one of their operands."""
    before = custom_partial_eval_rules[primitive]
    # The first operand of a cond says which branch; if it is unknown, JAX keeps all.
    first = 1 if primitive is cond_p else 0

    def rule(trace: Any, *tracers: Any, **params: Any) -> Any:
        unknown = [i for i, t in enumerate(tracers) if not t.is_known()]
        if not unknown or unknown[0] < first or not communicates(params):
            return before(trace, *tracers, **params)
        more = map_jaxprs(lambda jaxpr: _returning(jaxpr, unknown[0] - first), params)
        *results, held = before(trace, *tracers, **more)
        trace.effect_handles.append(held)  # of which JAX wants `parents` and `recipe`: those of the call
        return results

    return rule


def _returning(jaxpr: Any, operand: int) -> Any:
    return changed(jaxpr, outvars=[*jaxpr.outvars, jaxpr.invars[operand]])


def _in_a_jit(rewriting: Rewriting, eqn: Any) -> Any:
    """A call that is processed by no rule, inside of a jit, which is."""
    if eqn.primitive.name not in ("closed_call", "custom_jvp_call", "custom_vjp_call") or ordered not in eqn.effects:
        return eqn
    operands = list(dict.fromkeys(atom for atom in eqn.invars if not hasattr(atom, "val")))
    results = [v for v in eqn.outvars if type(v).__name__ != "DropVar"]
    empty = jax.make_jaxpr(lambda: None)().jaxpr
    one = empty.replace(invars=operands, outvars=results, eqns=[eqn], effects=eqn.effects)
    call = jax.jit(lambda *xs: jax.core.eval_jaxpr(one, (), *xs))
    (inside,) = jax.make_jaxpr(call)(*(v.aval for v in operands)).eqns
    return inside.replace(invars=operands, outvars=results, source_info=eqn.source_info)


def _scan_in_checkpoint(before: Callable[..., Any]) -> Callable[..., Any]:
    def rule(saveable: Any, unknown: Any, instantiated: Any, eqn: Any) -> Any:
        if ordered not in eqn.effects:
            return before(saveable, unknown, instantiated, eqn)
        _loop.depth = getattr(_loop, "depth", 0) + 1
        try:
            jaxpr = Rewriting(_in_a_jit).of(eqn.params["jaxpr"])
            return before(saveable, unknown, instantiated, eqn.replace(params={**eqn.params, "jaxpr": jaxpr}))
        finally:
            _loop.depth -= 1

    return rule


for _primitive in (cond_p, remat_p):
    custom_partial_eval_rules[_primitive] = _held(_primitive)
for _primitive in (cond_p, jit_p, remat_p, scan_p, while_p):
    custom_partial_eval_rules[_primitive] = _staying(_primitive, communicates)
partial_eval_jaxpr_custom_rules[scan_p] = _scan_in_checkpoint(partial_eval_jaxpr_custom_rules[scan_p])
