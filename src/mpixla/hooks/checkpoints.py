"""Calls in checkpoints and branches are made once, where the program has them, on each rank: JAX's rules for both.

What JAX does without these rules, and what they do, says core/keep.py. They leave programs alone that do not
communicate.
"""

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from jax.lax import cond_p, scan_p, while_p

from ..core import keep
from ..core.reveal import show
from ..core.rewrite import communicates, map_jaxprs
from . import IN_CHECKPOINT, LINEARIZE, UnfitError, need, need_rules

LOST = (
    "A checkpoint that communicates has no derivative, and neither has a branch that does in a derivative rule of the "
    "program's own."
)
_REMAT = "jax._src.ad_checkpoint:remat_p"


def install() -> None:
    """Replaces rules by which JAX linearizes, and takes checkpoints apart."""
    remat, jit = need(_REMAT), need("jax._src.pjit:jit_p")
    rules = need_rules(LINEARIZE, cond_p, jit, remat, scan_p, while_p)
    in_checkpoint = need_rules(IN_CHECKPOINT, scan_p)
    for primitive in (cond_p, remat):
        rules[primitive] = keep.held(primitive, rules[primitive])
    rules[remat] = functools.partial(_shown, rules[remat])
    for primitive in (cond_p, jit, remat, scan_p, while_p):
        rules[primitive] = keep.staying(primitive, rules[primitive], communicates)
    in_checkpoint[scan_p] = keep.scan_in_checkpoint(in_checkpoint[scan_p])


def _shown(rule: Callable[..., Any], trace: Any, *tracers: Any, jaxpr: Any, **params: Any) -> Any:
    return rule(trace, *tracers, jaxpr=show(jaxpr), **params)


def leave() -> None:
    """Has derivatives refused in which JAX might drop calls, or make them twice, or in another place."""
    for what, name in (("branch (jax.lax.cond)", "jax.lax:cond_p"), ("jax.checkpoint", _REMAT)):
        with suppress(UnfitError):
            primitive = need(name)
            rules = need_rules(LINEARIZE, primitive)
            rules[primitive] = functools.partial(_unless_dropped, what, primitive, rules[primitive])


def _unless_dropped(what: str, primitive: Any, rule: Any, trace: Any, *tracers: Any, **params: Any) -> Any:
    if keep.may_drop(primitive, tracers, map_jaxprs(show, params)) is not None:
        raise NotImplementedError(
            f"a {what} that communicates has no derivative here: JAX might drop its calls, or make them twice (the "
            "hook checkpoints is off). Communicate outside of it."
        )
    return rule(trace, *tracers, **params)
