"""Partial-evaluation rules: JAX must neither drop, duplicate nor hoist a call when it linearizes or checkpoints.

A rank may ignore a result, and the other ranks still count on its part in reverse mode. JAX keeps equations with the
effect (``partial_eval_kept_effects``), but in a checkpoint or a branch only equations that lead to a result; and it
hoists loop-invariant equations out of a loop in a checkpoint. checkpoints.py puts the rules of JAX's own primitives
into its registries. A loop outside of a checkpoint needs a function of JAX's to be replaced (scan.py).
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.lax import cond_p

from ..base.required import custom_partial_eval_rules
from ..jaxprs.effect import ordered
from ..jaxprs.rewrite import Rewriting, changed, communicates, map_jaxprs

_loop = threading.local()  # `depth`: how many rules that hoist equations out of a scan are running


def register_no_hoist_rule(primitive: Any) -> None:
    """Register a partial-eval rule that keeps ``primitive`` inside the loop that calls it."""
    custom_partial_eval_rules[primitive] = make_no_hoist_rule(primitive, None, lambda params: True)


def make_no_hoist_rule(primitive: Any, before: Any, applies: Callable[[dict[str, Any]], bool]) -> Callable[..., Any]:
    """Return a partial-eval rule that keeps a primitive inside the loop of a checkpoint if ``applies(params)``."""

    def rule(trace: Any, *tracers: Any, **params: Any) -> Any:
        if getattr(_loop, "depth", 0) and applies(params):
            tracers = tuple(trace.instantiate_const(t) for t in tracers)  # as if the operands changed in the loop
        elif before is not None:
            return before(trace, *tracers, **params)
        return trace.default_process_primitive(primitive, tracers, params)

    return rule


def find_droppable_operand(primitive: Any, tracers: Sequence[Any], params: dict[str, Any]) -> int | None:
    """Return the index of the unknown operand with which JAX may drop calls in a branch or a checkpoint, or None.

    JAX keeps all of a branch whose first operand, the index of the branch, is unknown.
    """
    unknown = [i for i, t in enumerate(tracers) if not t.is_known()]
    first = int(primitive is cond_p)
    return unknown[0] - first if unknown and unknown[0] >= first and communicates(params) else None


def make_no_drop_rule(primitive: Any, before: Callable[..., Any]) -> Callable[..., Any]:
    """Return a partial-eval rule that keeps the calls in a primitive's jaxprs by one more result, their operand."""

    def rule(trace: Any, *tracers: Any, **params: Any) -> Any:
        operand = find_droppable_operand(primitive, tracers, params)
        if operand is None:
            return before(trace, *tracers, **params)
        more = map_jaxprs(lambda jaxpr: changed(jaxpr, outvars=[*jaxpr.outvars, jaxpr.invars[operand]]), params)
        *results, held = before(trace, *tracers, **more)
        trace.effect_handles.append(held)  # JAX reads its `parents` and `recipe`, the call's
        return results

    return rule


def _in_a_jit(rewriting: Rewriting, eqn: Any) -> Any:
    """Wrap an equation that communicates and has no no-hoist rule in a jit, which has one; return others unchanged."""
    if eqn.primitive in custom_partial_eval_rules or ordered not in eqn.effects:
        return eqn
    operands = list(dict.fromkeys(atom for atom in eqn.invars if not hasattr(atom, "val")))
    results = [v for v in eqn.outvars if type(v).__name__ != "DropVar"]
    one = {"invars": operands, "outvars": results, "eqns": [eqn], "effects": eqn.effects}
    alone = jax.make_jaxpr(lambda: None)().jaxpr.replace(**one)
    call = jax.jit(lambda *xs: jax.core.eval_jaxpr(alone, (), *xs))
    (inside,) = jax.make_jaxpr(call)(*(v.aval for v in operands)).eqns
    params = map_jaxprs(lambda jaxpr: changed(jaxpr, **one), inside.params)  # the effect is in the inner jaxpr, too
    return eqn.replace(primitive=inside.primitive, params=params, invars=operands, outvars=results)


def make_scan_checkpoint_rule(before: Callable[..., Any]) -> Callable[..., Any]:
    """Return a rule for scans in checkpoints that hoists no call out of a scan that communicates."""

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
