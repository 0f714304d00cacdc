"""Batching and partial-evaluation rules for while loops that communicate.

JAX has a lowering of its own for a loop whose condition has an ordered effect. There it does not select, for each
example of a batch, between the new values and the old ones: it refuses its own ordered effects in a batch. So such a
loop is batched as a loop that evaluates the condition at the end of its body and carries the decision.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.interpreters.partial_eval import dce_jaxpr

from ..jaxprs.effect import ordered
from ..jaxprs.rewrite import evaluate


def make_loop_decided_before(params: dict[str, Any], condition: Callable[..., Any]) -> Callable[..., list[Any]]:
    """Return the loop as a function of its operands, with ``condition`` evaluated at the end of its body.

    The condition's result may be a batch: its axes are the first axes of all arrays that the loop carries.
    """
    split = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]

    def loop(*operands: Any) -> list[Any]:
        of_condition, of_body, first = operands[: split[0]], operands[slice(*split)], operands[split[1] :]

        def turn(state: tuple[Any, list[Any]]) -> tuple[Any, list[Any]]:
            goes_on, old = state

            def chosen(x: Any, y: Any) -> Any:
                return jax.lax.select(jax.lax.broadcast_in_dim(goes_on, x.shape, range(goes_on.ndim)), x, y)

            new = list(map(chosen, evaluate(params["body_jaxpr"], *of_body, *old), old))
            return condition(*of_condition, *new), new

        state = condition(*of_condition, *first), list(first)
        return jax.lax.while_loop(lambda state: state[0].any(), turn, state)[1]

    return loop


def batch_loop(before: Callable[..., Any], axis: Any, operands: Any, dims: Any, **params: Any) -> Any:
    """Apply JAX's batching rule, or one for a loop whose condition communicates."""
    condition = params["cond_jaxpr"]
    if ordered not in condition.effects:
        return before(axis, operands, dims, **params)
    batched = jax.vmap(
        make_loop_decided_before(params, lambda *xs: evaluate(condition, *xs)[0]),
        tuple(dims),
        axis_size=axis.size,
        axis_name=axis.name,
        spmd_axis_name=axis.spmd_name,
    )
    results = batched(*operands)
    return results, [0] * len(results)


def _without_unused(params: dict[str, Any], unknown: Sequence[bool]) -> tuple[list[bool], dict[str, Any]]:
    """Return which operands a loop needs, and its parameters without unknown constants that its body does not use.

    Tangents of arrays that are only compared are such constants. JAX removes them from loops without effects only.
    """
    first, count, body = params["cond_nconsts"], params["body_nconsts"], params["body_jaxpr"]
    carried = [True] * (len(unknown) - first - count)
    known = [not x for x in unknown[first : first + count]]
    less, needs = dce_jaxpr(body.jaxpr, True, known + carried)
    less_params = {"body_jaxpr": body.replace(jaxpr=less), "body_nconsts": sum(needs[:count])}
    return [True] * first + needs, {**params, **less_params}


def linearize_loop(before: Callable[..., Any], trace: Any, *tracers: Any, **params: Any) -> Any:
    """Apply JAX's linearization rule, without the unused operands of a loop whose body communicates."""
    if ordered in params["body_jaxpr"].effects:
        needs, params = _without_unused(params, [not tracer.is_known() for tracer in tracers])
        tracers = tuple(itertools.compress(tracers, needs))
    return before(trace, *tracers, **params)


def partial_eval_loop(before: Callable[..., Any], saveable: Any, unknown: Any, instantiated: Any, eqn: Any) -> Any:
    """Apply JAX's rule for checkpoints, or keep a loop that communicates whole, so that it runs once."""
    if ordered not in eqn.effects:
        return before(saveable, unknown, instantiated, eqn)
    needs, params = _without_unused(eqn.params, unknown)
    eqn = eqn.replace(params=params, invars=list(itertools.compress(eqn.invars, needs)))
    unknown, instantiated = (list(itertools.compress(which, needs)) for which in (unknown, instantiated))
    if not any(unknown):
        return eqn, None, [False] * len(eqn.outvars), [False] * len(eqn.outvars), []
    new = [x for x, i in zip(eqn.invars, instantiated, strict=True) if not i and not hasattr(x, "val")]
    return None, eqn, [True] * len(eqn.outvars), [True] * len(eqn.outvars), new
