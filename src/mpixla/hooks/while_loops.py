"""While loops that communicate, in batches, checkpoints and reverse mode: JAX's rules for them (core/loops.py)."""

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from jax.lax import while_p

from ..core import loops
from ..core.effect import ordered
from . import IN_CHECKPOINT, LINEARIZE, UnfitError, need_rules

LOST = (
    "A while loop that communicates has no derivative in a checkpoint, and none in reverse mode if it only compares "
    "what is differentiated; one whose condition communicates has no batch."
)
_BATCH = "jax._src.interpreters.batching:fancy_primitive_batchers"


def install() -> None:
    """Replaces the rules."""
    new: dict[str, Callable[..., Any]] = {
        _BATCH: loops.batch,
        IN_CHECKPOINT: loops.in_checkpoint,
        LINEARIZE: loops.linearize,
    }
    registries = {name: need_rules(name, while_p) for name in new}
    for name, rules in registries.items():
        rules[while_p] = functools.partial(new[name], rules[while_p])


def leave() -> None:
    """Has batches and checkpoints refused; reverse mode JAX refuses itself."""
    for name, refuse in ((_BATCH, _refuse_batch), (IN_CHECKPOINT, _refuse_in_checkpoint)):
        with suppress(UnfitError):
            rules = need_rules(name, while_p)
            rules[while_p] = functools.partial(refuse, rules[while_p])


def _refuse_batch(rule: Callable[..., Any], *args: Any, **params: Any) -> Any:
    if ordered in params["cond_jaxpr"].effects:
        raise _refusal("whose condition communicates has no batch (jax.vmap)")
    return rule(*args, **params)


def _refuse_in_checkpoint(rule: Callable[..., Any], *args: Any) -> Any:
    if ordered in args[-1].effects:
        raise _refusal("that communicates has no derivative in a jax.checkpoint")
    return rule(*args)


def _refusal(what: str) -> NotImplementedError:
    return NotImplementedError(f"a jax.lax.while_loop {what} here (the hook while_loops is off).")
