"""Programs rewritten equation by equation, also those inside others: loops, branches, other jitted functions."""

from collections.abc import Callable
from typing import Any

import jax

from ..runtime.private_jax import ordered


def jaxprs_in(eqn: Any) -> list[Any]:
    """The jaxprs in an equation's parameters."""
    is_jaxpr = _is_jaxpr()
    return [x for x in jax.tree.leaves(eqn.params, is_leaf=is_jaxpr) if is_jaxpr(x)]


def _is_jaxpr() -> Callable[[Any], bool]:
    from jax.extend.core import ClosedJaxpr, Jaxpr  # takes a while to import

    return lambda x: isinstance(x, (Jaxpr, ClosedJaxpr))


class Rewriting:
    """One program while it is rewritten."""

    def __init__(self, equation: Callable[["Rewriting", Any], Any]) -> None:
        """What ``equation`` gives for each equation has its place; it calls ``inside`` where it looks further."""
        self._equation = equation
        # Each jaxpr and what became of it, by identity: equations that share one share the result.
        self._seen: dict[int, tuple[Any, Any]] = {}

    def of(self, jaxpr: Any) -> Any:
        """The jaxpr with its equations rewritten; the same object if none has changed."""
        if id(jaxpr) not in self._seen:
            inner = getattr(jaxpr, "jaxpr", jaxpr)  # a closed one's
            eqns = [self._equation(self, eqn) for eqn in inner.eqns]
            result = jaxpr
            if any(new is not old for new, old in zip(eqns, inner.eqns, strict=True)):
                effects = {*inner.effects, *(ordered for eqn in eqns if ordered in eqn.effects)}
                result = inner.replace(eqns=eqns, effects=effects)
                if inner is not jaxpr:
                    result = jaxpr.replace(jaxpr=result)
            self._seen[id(jaxpr)] = jaxpr, result
        return self._seen[id(jaxpr)][1]

    def inside(self, eqn: Any) -> Any:
        """The equation with the jaxprs in its parameters rewritten; the same object if none has changed."""
        is_jaxpr = _is_jaxpr()
        before, structure = jax.tree.flatten(eqn.params, is_leaf=is_jaxpr)
        after = [self.of(x) if is_jaxpr(x) else x for x in before]
        changed = [(old, new) for old, new in zip(before, after, strict=True) if new is not old]
        if not changed:
            return eqn
        # A sealed program (jit.py) has the effect inside and not outside, and stays so.
        shows = any(ordered not in old.effects for old, new in changed)
        effects = {*eqn.effects, ordered} if shows else eqn.effects
        return eqn.replace(params=jax.tree.unflatten(structure, after), effects=effects)
