"""A loop that is differentiated keeps the calls that do not depend on what changes in it.

JAX takes out of a ``scan`` what depends on nothing that changes, as a receive into a constant does, and computes it
once, although it has an effect. The other rank sends once in each iteration.
"""

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from jax.lax import scan_p

from ..base.required import custom_partial_eval_rules
from ..core.effect import ordered
from . import UnfitError, need, replace

LOST = "A scan has no derivative in which a call depends on nothing that changes from one iteration to the next."


def install() -> None:
    """Replaces the function that takes out what does not change."""

    @replace("jax._src.lax.control_flow.loops:_scan_known_hoisting", "jaxpr_known", "known_consts")
    def leave_in(take_out: Any, jaxpr: Any, consts: Any, count: int, *rest: Any) -> Any:
        if ordered in jaxpr.effects:
            return jaxpr, consts, [False] * count, []
        return take_out(jaxpr, consts, count, *rest)


def leave() -> None:
    """Has derivatives refused in which JAX would take a call out of its loop."""
    registries = [custom_partial_eval_rules]
    with suppress(UnfitError):  # a JAX without this one has only the former's rules
        registries.append(need("jax._src.interpreters.ad:primitive_linearizations"))
    for rules in registries:
        rules[scan_p] = functools.partial(_unless_constant, rules[scan_p])


def _unless_constant(rule: Callable[..., Any], *args: Any, jaxpr: Any, **params: Any) -> Any:
    if ordered in jaxpr.effects:
        consts = params["num_consts"] if "num_consts" in params else len(list(params["ft_in"].unpack()[0]))
        _refuse_constant_calls(getattr(jaxpr, "jaxpr", jaxpr), consts)
    return rule(*args, jaxpr=jaxpr, **params)


def _refuse_constant_calls(jaxpr: Any, consts: int) -> None:
    changing = set(jaxpr.invars[consts:])
    for eqn in jaxpr.eqns:
        if any(not hasattr(atom, "val") and atom in changing for atom in eqn.invars):
            changing.update(eqn.outvars)
        elif ordered in eqn.effects:
            raise NotImplementedError(
                f"a scan whose body calls {eqn.primitive.name} with operands that do not change from one iteration to "
                "the next has no derivative here: JAX would make the call once, before the loop (the hook scan is "
                "off). Have an operand depend on what the scan carries."
            )
