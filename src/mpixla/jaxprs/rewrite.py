"""Rewriting of jaxprs equation by equation, including inner jaxprs: loops, branches, other jitted functions."""

from collections.abc import Callable
from typing import Any

import jax

from .effect import ordered


def is_literal(atom: Any) -> bool:
    """Return True if an operand or result of an equation is a literal and no variable."""
    return hasattr(atom, "val")


def _is_jaxpr(x: Any) -> bool:
    # By attributes, since the module with their classes takes a while to import.
    return hasattr(x, "eqns") and hasattr(x, "outvars")


def jaxprs_in(params: dict[str, Any]) -> list[Any]:
    """Return the jaxprs in an equation's parameters."""
    return [x for x in jax.tree.leaves(params, is_leaf=_is_jaxpr) if _is_jaxpr(x)]


def has_communication(params: dict[str, Any]) -> bool:
    """Return True if a jaxpr in an equation's parameters communicates."""
    return any(ordered in jaxpr.effects for jaxpr in jaxprs_in(params))


def scan_counts(params: dict[str, Any]) -> tuple[int, int]:
    """Return the numbers of constants and of carried values among a scan's operands, from its parameters."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    constants, carried, _ = params["ft_in"].unpack()  # JAX 0.12
    return len(list(constants)), len(list(carried))


def lower_loops(jaxpr: Any) -> Any:
    """Return a jaxpr of ``jax.make_jaxpr`` with loops as JAX lowers them; the same object if they are.

    The loops that JAX 0.12 traces are lowered only in equations that JAX knows, so not in a parameter of ours, nor in a
    jaxpr that is put into a program which JAX is lowering already.
    """
    if not getattr(jaxpr, "is_high", False):
        return jaxpr
    from jax.interpreters.partial_eval import lower_jaxpr2  # type: ignore[attr-defined]

    return lower_jaxpr2(jaxpr)


def replace_parts(jaxpr: Any, **parts: Any) -> Any:
    """Return a copy of a jaxpr, closed or not, with these parts replaced."""
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    result = inner.replace(**parts)
    return result if inner is jaxpr else jaxpr.replace(jaxpr=result)


def evaluate_jaxpr(jaxpr: Any, *operands: Any) -> list[Any]:
    """Return the results of a closed jaxpr for these operands."""
    # Not by jaxpr_as_fun, which turns jax_debug_nans off meanwhile: JAX does not turn it on again in C++.
    return jax.core.eval_jaxpr(getattr(jaxpr, "jaxpr", jaxpr), jaxpr.consts, *operands)


def map_jaxprs(change: Callable[[Any], Any], params: dict[str, Any]) -> dict[str, Any]:
    """Return an equation's parameters with ``change`` applied to each jaxpr; the same object if none has changed."""
    before, structure = jax.tree.flatten(params, is_leaf=_is_jaxpr)
    after = [change(x) if _is_jaxpr(x) else x for x in before]
    if all(new is old for new, old in zip(after, before, strict=True)):
        return params
    return dict(jax.tree.unflatten(structure, after))


def replace_by_call(eqn: Any, jaxpr: Any) -> Any:
    """Replace an equation by a call of ``jaxpr``, which communicates, with the same operands and results."""
    from jax.extend.core.primitives import closed_call_p  # takes a while to import

    return eqn.replace(primitive=closed_call_p, params={"call_jaxpr": jaxpr}, effects={*eqn.effects, ordered})


class JaxprRewriter:
    """The rewriting of one program, which rewrites each jaxpr once."""

    def __init__(self, equation: Callable[["JaxprRewriter", Any], Any]) -> None:
        """Replace each equation by ``equation(self, eqn)``, which calls ``inside(eqn)`` to rewrite its inner jaxprs."""
        self._equation = equation
        # Each jaxpr and its replacement, by id: equations that share a jaxpr share its replacement.
        self._seen: dict[int, tuple[Any, Any]] = {}

    def rewrite_jaxpr(self, jaxpr: Any) -> Any:
        """Rewrite the equations of a jaxpr, and return the new jaxpr; the same object if nothing has changed."""
        if id(jaxpr) not in self._seen:
            inner = getattr(jaxpr, "jaxpr", jaxpr)  # a closed one's
            eqns = [self._equation(self, eqn) for eqn in inner.eqns]
            result = jaxpr
            if any(new is not old for new, old in zip(eqns, inner.eqns, strict=True)):
                effects = {*inner.effects, *(ordered for eqn in eqns if ordered in eqn.effects)}
                result = replace_parts(jaxpr, eqns=eqns, effects=effects)
            self._seen[id(jaxpr)] = jaxpr, result
        return self._seen[id(jaxpr)][1]

    def rewrite_inside(self, eqn: Any) -> Any:
        """Rewrite the jaxprs in an equation's parameters, and return the new equation; the same object if unchanged."""
        params = map_jaxprs(self.rewrite_jaxpr, eqn.params)
        if params is eqn.params:
            return eqn
        # A sealed program (core/seal.py) has the effect inside and not outside, and stays so.
        pairs = zip(jaxprs_in(eqn.params), jaxprs_in(params), strict=True)
        shows = any(new is not old and ordered not in old.effects for old, new in pairs)
        return eqn.replace(params=params, effects={*eqn.effects, ordered} if shows else eqn.effects)
