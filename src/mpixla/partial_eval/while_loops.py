"""Rules for batches, checkpoints and reverse mode of while loops that communicate.

JAX has a lowering of its own for a loop whose condition has an ordered effect. There it does not select, for each
example of a batch, between the new values and the old ones: it refuses its own ordered effects in a batch. So such a
loop is batched as a loop that evaluates the condition at the end of its body and carries the decision.

A while loop that becomes a primitive with methods of its own, as JAX's next scan is, breaks this hook: the registries
then have no rules of ``while_p``, and the refusals take their place.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import jax
from jax.interpreters.partial_eval import dce_jaxpr
from jax.lax import while_p

from ..base.patching import IN_CHECKPOINT, LINEARIZE, UnfitError, need_rules
from ..base.words import refuse_without_hook
from ..jaxprs.effect import ordered
from ..jaxprs.rewrite import evaluate_jaxpr

LOST = (
    "A while loop that communicates has no derivative in a checkpoint, and none in reverse mode if it only compares "
    "what is differentiated; one whose condition communicates has no batch."
)
_BATCH = "jax._src.interpreters.batching:fancy_primitive_batchers"


def make_loop_decided_before(params: dict[str, Any], condition: Callable[..., Any]) -> Callable[..., list[Any]]:
    """Return a while loop as a function of its operands: it evaluates ``condition`` before the first turn and in each.

    Each turn runs the body, and then ``condition(*constants of the condition, *carried arrays)``, in place of
    ``params["cond_jaxpr"]``. Its result may be a batch, whose axes are the first axes of all carried arrays: entries
    that are False keep their carried arrays, and the loop ends once all are False.
    """
    split = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]

    def run_loop(*operands: Any) -> list[Any]:
        """Run the loop, and return the arrays that it carries at its end."""
        of_condition, of_body, first = operands[: split[0]], operands[slice(*split)], operands[split[1] :]

        def next_state(state: tuple[Any, list[Any]]) -> tuple[Any, list[Any]]:
            """Return the next state: the body's results where the loop goes on, else the old, and their condition."""
            goes_on, old = state

            def select_by_decision(x: Any, y: Any) -> Any:
                return jax.lax.select(jax.lax.broadcast_in_dim(goes_on, x.shape, range(goes_on.ndim)), x, y)

            new = list(map(select_by_decision, evaluate_jaxpr(params["body_jaxpr"], *of_body, *old), old))
            return condition(*of_condition, *new), new

        state = condition(*of_condition, *first), list(first)
        return jax.lax.while_loop(lambda state: state[0].any(), next_state, state)[1]

    return run_loop


def _batch_loop(before: Callable[..., Any], axis: Any, operands: Any, dims: Any, **params: Any) -> Any:
    """Apply JAX's batching rule ``before``; a loop whose condition communicates is batched as decided in its body."""
    condition = params["cond_jaxpr"]
    if ordered not in condition.effects:
        return before(axis, operands, dims, **params)
    batched = jax.vmap(
        make_loop_decided_before(params, lambda *xs: evaluate_jaxpr(condition, *xs)[0]),
        tuple(dims),
        axis_size=axis.size,
        axis_name=axis.name,
        spmd_axis_name=axis.spmd_name,
    )
    results = batched(*operands)
    return results, [0] * len(results)


def _drop_unused(params: dict[str, Any], unknown: Sequence[bool]) -> tuple[list[bool], dict[str, Any]]:
    """Return which operands a loop needs, and its parameters without unknown constants that its body does not use.

    Tangents of arrays that are only compared are such constants. JAX removes them from loops without effects only.
    """
    first, count, body = params["cond_nconsts"], params["body_nconsts"], params["body_jaxpr"]
    carried = [True] * (len(unknown) - first - count)
    known = [not x for x in unknown[first : first + count]]
    less, needs = dce_jaxpr(body.jaxpr, True, known + carried)
    less_params = {"body_jaxpr": body.replace(jaxpr=less), "body_nconsts": sum(needs[:count])}
    return [True] * first + needs, {**params, **less_params}


def _linearize_loop(before: Callable[..., Any], trace: Any, *tracers: Any, **params: Any) -> Any:
    """Apply JAX's linearization rule ``before``, to a loop whose body communicates without its unused operands."""
    if ordered in params["body_jaxpr"].effects:
        needs, params = _drop_unused(params, [not tracer.is_known() for tracer in tracers])
        tracers = tuple(itertools.compress(tracers, needs))
    return before(trace, *tracers, **params)


def _partial_eval_loop(before: Callable[..., Any], saveable: Any, unknown: Any, instantiated: Any, eqn: Any) -> Any:
    """Apply JAX's rule ``before`` for checkpoints; a loop that communicates stays whole, and runs once."""
    if ordered not in eqn.effects:
        return before(saveable, unknown, instantiated, eqn)
    needs, params = _drop_unused(eqn.params, unknown)
    eqn = eqn.replace(params=params, invars=list(itertools.compress(eqn.invars, needs)))
    unknown, instantiated = (list(itertools.compress(which, needs)) for which in (unknown, instantiated))
    if not any(unknown):
        return eqn, None, [False] * len(eqn.outvars), [False] * len(eqn.outvars), []
    new = [x for x, i in zip(eqn.invars, instantiated, strict=True) if not i and not hasattr(x, "val")]
    return None, eqn, [True] * len(eqn.outvars), [True] * len(eqn.outvars), new


def install() -> None:
    """Replace JAX's rules for batches, checkpoints and linearization of while loops; UnfitError if one is missing."""
    new: dict[str, Callable[..., Any]] = {
        _BATCH: _batch_loop,
        IN_CHECKPOINT: _partial_eval_loop,
        LINEARIZE: _linearize_loop,
    }
    registries = {name: need_rules(name, while_p) for name in new}
    for name, rules in registries.items():
        rules[while_p] = functools.partial(new[name], rules[while_p])


def install_refusals() -> None:
    """Replace JAX's batching and checkpoint rules of while loops by ones that refuse loops that communicate."""
    for name, refuse in ((_BATCH, _batch_or_refuse), (IN_CHECKPOINT, _partial_eval_or_refuse)):
        with suppress(UnfitError):
            rules = need_rules(name, while_p)
            rules[while_p] = functools.partial(refuse, rules[while_p])


def _batch_or_refuse(rule: Callable[..., Any], *args: Any, **params: Any) -> Any:
    """Apply JAX's batching rule for loops; raise NotImplementedError if the loop's condition communicates."""
    if ordered in params["cond_jaxpr"].effects:
        refused = "a jax.lax.while_loop whose condition communicates has no batch (jax.vmap) here"
        advice = "Communicate in its body, and have the condition look at the result."
        raise NotImplementedError(refuse_without_hook("while_loops", refused, advice))
    return rule(*args, **params)


def _partial_eval_or_refuse(rule: Callable[..., Any], *args: Any) -> Any:
    """Apply JAX's rule for loops in checkpoints; raise NotImplementedError if the loop communicates."""
    if ordered in args[-1].effects:
        refused = "a jax.lax.while_loop that communicates has no derivative in a jax.checkpoint here"
        advice = "Run the loop outside of the checkpoint."
        raise NotImplementedError(refuse_without_hook("while_loops", refused, advice))
    return rule(*args)
