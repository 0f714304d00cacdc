"""Loops in a batch whose condition communicates: examples that are done keep what they have.

JAX lowers a loop in another way where its condition has an ordered effect, and leaves out there what it does in all
others: to choose, example by example, between the new values and the old ones. It never needs that itself, since it
refuses its own ordered effects in a batch.
"""

import functools
from typing import Any

import jax

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


def install() -> None:
    """Has JAX lower such loops so."""
    mlir.register_lowering(while_p, _lower)
