"""While loops that communicate, in batches and in checkpoints.

JAX lowers a loop in another way where its condition has an ordered effect, and leaves out there what it does in all
others: to choose, example by example of a batch, between the new values and the old ones. It never needs that itself,
since it refuses its own ordered effects in a batch.
"""

import functools
from typing import Any

import jax
from jax.interpreters.partial_eval import partial_eval_jaxpr_custom_rules

from ..runtime.private_jax import lower_while, mlir, ordered, while_p


def _evaluate(jaxpr: Any, *operands: Any) -> list[Any]:
    return jax.core.eval_jaxpr(getattr(jaxpr, "jaxpr", jaxpr), jaxpr.consts, *operands)


def _loop(*operands: Any, cond_jaxpr: Any, cond_nconsts: int, body_jaxpr: Any, body_nconsts: int) -> list[Any]:
    """A loop whose condition gives a batch, with the condition asked before the first turn and at the end of each."""
    split = cond_nconsts + body_nconsts
    of_condition, of_body, first = operands[:cond_nconsts], operands[cond_nconsts:split], operands[split:]

    def decided(state: list[Any]) -> tuple[Any, list[Any]]:
        return _evaluate(cond_jaxpr, *of_condition, *state)[0], state

    def turn(decided_before: tuple[Any, list[Any]]) -> tuple[Any, list[Any]]:
        goes_on, old = decided_before

        def chosen(x: Any, y: Any) -> Any:
            return jax.lax.select(jax.lax.broadcast_in_dim(goes_on, x.shape, range(goes_on.ndim)), x, y)

        return decided(list(map(chosen, _evaluate(body_jaxpr, *of_body, *old), old)))

    return jax.lax.while_loop(lambda decided_before: decided_before[0].any(), turn, decided(list(first)))[1]


def _lower(ctx: Any, *operands: Any, **params: Any) -> Any:
    condition = params["cond_jaxpr"]
    if ordered in condition.effects and condition.out_avals[0].shape:
        return mlir.lower_fun(functools.partial(_loop, **params), multiple_results=True)(ctx, *operands)
    return lower_while(ctx, *operands, **params)


_in_checkpoint = partial_eval_jaxpr_custom_rules[while_p]


def _keep_in_checkpoint(saveable: Any, unknown: Any, instantiated: Any, eqn: Any) -> Any:
    """A loop that communicates is run once, and its results are kept, as those of every call are."""
    if ordered not in eqn.effects:
        return _in_checkpoint(saveable, unknown, instantiated, eqn)
    if not any(unknown):
        return eqn, None, [False] * len(eqn.outvars), [False] * len(eqn.outvars), []
    new = [x for x, i in zip(eqn.invars, instantiated, strict=True) if not i and not hasattr(x, "val")]
    return None, eqn, [True] * len(eqn.outvars), [True] * len(eqn.outvars), new


def install() -> None:
    """Has JAX lower loops, and keep what they give in checkpoints, by these rules."""
    mlir.register_lowering(while_p, _lower)
    partial_eval_jaxpr_custom_rules[while_p] = _keep_in_checkpoint
