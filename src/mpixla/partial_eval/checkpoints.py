"""Rules in place of JAX's by which calls in checkpoints and branches are made once, in the program's order.

keep.py describes JAX's own treatment. The rules do not change programs that do not communicate.

The rules of ``custom_partial_eval_rules`` work with a ``JaxprTrace``, its tracers and their recipes. A linearization
without these (``lin`` of the next jax.checkpoint is one, see remat3.py) breaks this hook.
"""

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from jax.lax import cond_p, scan_p, while_p

from ..base.patching import IN_CHECKPOINT, LINEARIZE, UnfitError, need, need_rules
from ..base.words import refuse_without_hook
from ..jaxprs.reveal import show_effects
from ..jaxprs.rewrite import communicates, map_jaxprs
from . import keep

LOST = (
    "A checkpoint that communicates has no derivative, and neither has a branch that does in a derivative rule of the "
    "program's own."
)
_REMAT = "jax._src.ad_checkpoint:remat_p"


def install() -> None:
    """Replace rules by which JAX linearizes, and partially evaluates checkpoints."""
    remat, jit = need(_REMAT), need("jax._src.pjit:jit_p")
    rules = need_rules(LINEARIZE, cond_p, jit, remat, scan_p, while_p)
    in_checkpoint = need_rules(IN_CHECKPOINT, scan_p)
    for primitive in (cond_p, remat):
        rules[primitive] = keep.make_no_drop_rule(primitive, rules[primitive])
    rules[remat] = functools.partial(_apply_to_shown_jaxpr, rules[remat])
    for primitive in (cond_p, jit, remat, scan_p, while_p):
        rules[primitive] = keep.make_no_hoist_rule(primitive, rules[primitive], communicates)
    in_checkpoint[scan_p] = keep.make_scan_checkpoint_rule(in_checkpoint[scan_p])


def _apply_to_shown_jaxpr(rule: Callable[..., Any], trace: Any, *tracers: Any, jaxpr: Any, **params: Any) -> Any:
    """Apply JAX's rule to the jaxpr whose equations show the effect of hidden calls."""
    return rule(trace, *tracers, jaxpr=show_effects(jaxpr), **params)


def install_refusals() -> None:
    """Refuse derivatives in which JAX might drop, repeat or move calls."""
    for what, name in (("branch (jax.lax.cond)", "jax.lax:cond_p"), ("jax.checkpoint", _REMAT)):
        with suppress(UnfitError):
            primitive = need(name)
            rules = need_rules(LINEARIZE, primitive)
            rules[primitive] = functools.partial(_apply_unless_dropped, what, primitive, rules[primitive])


def _apply_unless_dropped(what: str, primitive: Any, rule: Any, trace: Any, *tracers: Any, **params: Any) -> Any:
    """Apply JAX's rule, unless it might drop calls."""
    if keep.find_droppable_operand(primitive, tracers, map_jaxprs(show_effects, params)) is not None:
        refused = f"a {what} that communicates has no derivative here: JAX might drop its calls, or make them twice"
        raise NotImplementedError(refuse_without_hook("checkpoints", refused, "Communicate outside of it."))
    return rule(trace, *tracers, **params)
