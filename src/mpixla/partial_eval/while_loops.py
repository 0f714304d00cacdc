"""Rules for batches, checkpoints and reverse mode of while loops that communicate (loops.py).

A while loop that becomes a primitive with methods of its own, as JAX's next scan is, breaks this hook: the registries
then have no rules of ``while_p``, and the refusals take their place.
"""

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from jax.lax import while_p

from ..base.patching import IN_CHECKPOINT, LINEARIZE, UnfitError, need_rules
from ..base.words import refuse_without_hook
from ..jaxprs.effect import ordered
from . import loops

LOST = (
    "A while loop that communicates has no derivative in a checkpoint, and none in reverse mode if it only compares "
    "what is differentiated; one whose condition communicates has no batch."
)
_BATCH = "jax._src.interpreters.batching:fancy_primitive_batchers"


def install() -> None:
    """Replace JAX's rules for while loops."""
    new: dict[str, Callable[..., Any]] = {
        _BATCH: loops.batch_loop,
        IN_CHECKPOINT: loops.partial_eval_loop,
        LINEARIZE: loops.linearize_loop,
    }
    registries = {name: need_rules(name, while_p) for name in new}
    for name, rules in registries.items():
        rules[while_p] = functools.partial(new[name], rules[while_p])


def install_refusals() -> None:
    """Refuse batches and checkpoints. JAX itself refuses reverse mode."""
    for name, refuse in ((_BATCH, _batch_or_refuse), (IN_CHECKPOINT, _partial_eval_or_refuse)):
        with suppress(UnfitError):
            rules = need_rules(name, while_p)
            rules[while_p] = functools.partial(refuse, rules[while_p])


def _batch_or_refuse(rule: Callable[..., Any], *args: Any, **params: Any) -> Any:
    """Apply JAX's rule for batches, unless the condition communicates."""
    if ordered in params["cond_jaxpr"].effects:
        refused = "a jax.lax.while_loop whose condition communicates has no batch (jax.vmap) here"
        advice = "Communicate in its body, and have the condition look at the result."
        raise NotImplementedError(refuse_without_hook("while_loops", refused, advice))
    return rule(*args, **params)


def _partial_eval_or_refuse(rule: Callable[..., Any], *args: Any) -> Any:
    """Apply JAX's rule for checkpoints, unless the loop communicates."""
    if ordered in args[-1].effects:
        refused = "a jax.lax.while_loop that communicates has no derivative in a jax.checkpoint here"
        advice = "Run the loop outside of the checkpoint."
        raise NotImplementedError(refuse_without_hook("while_loops", refused, advice))
    return rule(*args)
