"""Rules by which JAX neither drops, duplicates nor hoists a call when it linearizes, in checkpoints and branches too.

A rank may ignore a result, and the other ranks still count on its part in reverse mode. JAX keeps equations with the
effect (``partial_eval_kept_effects``), but in a checkpoint or a branch only equations that lead to a result; and it
hoists loop-invariant equations out of a loop in a checkpoint. A loop outside of a checkpoint needs a function of JAX's
to be replaced (scan.py). The rules do not change programs that do not communicate.

The rules of ``custom_partial_eval_rules`` work with a ``JaxprTrace``, its tracers and their recipes. A linearization
without these (``lin`` of the next jax.checkpoint is one, see remat3.py) breaks this hook.
"""

import functools
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import jax
from jax.lax import cond_p, scan_p, while_p

from ..base.patching import IN_CHECKPOINT, LINEARIZE, UnfitError, find_in_jax, need_rules
from ..base.required import custom_partial_eval_rules
from ..base.words import refuse_without_hook
from ..jaxprs.effect import ordered
from ..jaxprs.reveal import show_effects
from ..jaxprs.rewrite import JaxprRewriter, has_communication, is_literal, map_jaxprs, replace_parts

LOST = (
    "A checkpoint that communicates has no derivative. Neither has a branch that communicates inside a custom "
    "derivative rule."
)
_REMAT = "jax._src.ad_checkpoint:remat_p"

_loop = threading.local()  # `depth`: how many rules that hoist equations out of a scan are running


def register_no_hoist_rule(primitive: Any) -> None:
    """Register a partial-eval rule by which no checkpoint hoists ``primitive`` out of the scan that calls it."""
    custom_partial_eval_rules[primitive] = _make_no_hoist_rule(primitive, None, lambda params: True)


def _make_no_hoist_rule(primitive: Any, before: Any, applies: Callable[[dict[str, Any]], bool]) -> Callable[..., Any]:
    """Wrap the rule ``before`` (None: JAX's default): no checkpoint hoists the primitive from a scan if ``applies``."""

    def apply_rule(trace: Any, *tracers: Any, **params: Any) -> Any:
        """Make known operands unknown while JAX hoists from a scan, so that the call stays; else apply JAX's rule."""
        if getattr(_loop, "depth", 0) and applies(params):
            tracers = tuple(trace.instantiate_const(t) for t in tracers)  # as if the operands changed in the loop
        elif before is not None:
            return before(trace, *tracers, **params)
        return trace.default_process_primitive(primitive, tracers, params)

    return apply_rule


def _find_droppable_operand(primitive: Any, tracers: Sequence[Any], params: dict[str, Any]) -> int | None:
    """Return the index, in its jaxprs, of an unknown operand of a cond or checkpoint that may lose calls; None if none.

    JAX keeps all of a branch whose first operand, the index of the branch, is unknown.
    """
    unknown = [i for i, t in enumerate(tracers) if not t.is_known()]
    first = int(primitive is cond_p)
    return unknown[0] - first if unknown and unknown[0] >= first and has_communication(params) else None


def _make_no_drop_rule(primitive: Any, before: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap JAX's linearization rule ``before``: jaxprs that may lose calls also return an operand, so JAX keeps all.

    The operand is an unknown one, by which JAX takes the whole equation as unknown; its result is dropped again.
    """

    def apply_rule(trace: Any, *tracers: Any, **params: Any) -> Any:
        """Apply JAX's rule; where it may drop calls, to jaxprs with one more result, which JAX keeps with the calls."""
        operand = _find_droppable_operand(primitive, tracers, params)
        if operand is None:
            return before(trace, *tracers, **params)
        more = map_jaxprs(lambda jaxpr: replace_parts(jaxpr, outvars=[*jaxpr.outvars, jaxpr.invars[operand]]), params)
        *results, held = before(trace, *tracers, **more)
        trace.effect_handles.append(held)  # JAX reads its `parents` and `recipe`, the call's
        return results

    return apply_rule


def _wrap_in_jit(rewriting: JaxprRewriter, eqn: Any) -> Any:
    """Wrap an equation that communicates and has no no-hoist rule in a jit, which has one; return others unchanged."""
    if eqn.primitive in custom_partial_eval_rules or ordered not in eqn.effects:
        return eqn
    operands = list(dict.fromkeys(atom for atom in eqn.invars if not is_literal(atom)))
    results = [v for v in eqn.outvars if type(v).__name__ != "DropVar"]
    one = {"invars": operands, "outvars": results, "eqns": [eqn], "effects": eqn.effects}
    alone = jax.make_jaxpr(lambda: None)().jaxpr.replace(**one)
    call = jax.jit(lambda *xs: jax.core.eval_jaxpr(alone, (), *xs))
    (inside,) = jax.make_jaxpr(call)(*(v.aval for v in operands)).eqns
    params = map_jaxprs(
        lambda jaxpr: replace_parts(jaxpr, **one), inside.params
    )  # the effect is in the inner jaxpr, too
    return eqn.replace(primitive=inside.primitive, params=params, invars=operands, outvars=results)


def _make_scan_checkpoint_rule(before: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap JAX's rule ``before`` for scans in checkpoints: no call is hoisted out of a scan that communicates."""

    def apply_rule(saveable: Any, unknown: Any, instantiated: Any, eqn: Any) -> Any:
        """Apply JAX's rule for a scan in a checkpoint, with no call hoisted out of the scan's body."""
        if ordered not in eqn.effects:
            return before(saveable, unknown, instantiated, eqn)
        _loop.depth = getattr(_loop, "depth", 0) + 1
        try:
            jaxpr = JaxprRewriter(_wrap_in_jit).rewrite_jaxpr(eqn.params["jaxpr"])
            return before(saveable, unknown, instantiated, eqn.replace(params={**eqn.params, "jaxpr": jaxpr}))
        finally:
            _loop.depth -= 1

    return apply_rule


def install() -> None:
    """Replace JAX's linearization and checkpoint rules by ones that keep calls in place; UnfitError if it lacks one."""
    remat, jit = find_in_jax(_REMAT), find_in_jax("jax._src.pjit:jit_p")
    rules = need_rules(LINEARIZE, cond_p, jit, remat, scan_p, while_p)
    in_checkpoint = need_rules(IN_CHECKPOINT, scan_p)
    for primitive in (cond_p, remat):
        rules[primitive] = _make_no_drop_rule(primitive, rules[primitive])
    rules[remat] = functools.partial(_apply_to_shown_jaxpr, rules[remat])
    for primitive in (cond_p, jit, remat, scan_p, while_p):
        rules[primitive] = _make_no_hoist_rule(primitive, rules[primitive], has_communication)
    in_checkpoint[scan_p] = _make_scan_checkpoint_rule(in_checkpoint[scan_p])


def _apply_to_shown_jaxpr(rule: Callable[..., Any], trace: Any, *tracers: Any, jaxpr: Any, **params: Any) -> Any:
    """Apply JAX's rule to the jaxpr whose equations show the effect of hidden calls."""
    return rule(trace, *tracers, jaxpr=show_effects(jaxpr), **params)


def install_refusals() -> None:
    """Replace JAX's rules by ones that refuse derivatives of branches and checkpoints whose calls might be dropped."""
    for what, name in (("branch (jax.lax.cond)", "jax.lax:cond_p"), ("jax.checkpoint", _REMAT)):
        with suppress(UnfitError):
            primitive = find_in_jax(name)
            rules = need_rules(LINEARIZE, primitive)
            rules[primitive] = functools.partial(_apply_unless_dropped, what, primitive, rules[primitive])


def _apply_unless_dropped(what: str, primitive: Any, rule: Any, trace: Any, *tracers: Any, **params: Any) -> Any:
    """Apply JAX's ``rule``; raise NotImplementedError, naming ``what``, if it might drop calls in the jaxprs."""
    if _find_droppable_operand(primitive, tracers, map_jaxprs(show_effects, params)) is not None:
        refused = f"a {what} that communicates has no derivative here: JAX might drop its calls, or make them twice"
        raise NotImplementedError(refuse_without_hook("checkpoints", refused, "Communicate outside of it."))
    return rule(trace, *tracers, **params)
