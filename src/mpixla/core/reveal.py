"""Communication inside primitives of others that do not show it.

A primitive's equation shows the effect of what is inside only if the primitive's rules say so, and most that others
define say nothing (those of equinox, by which lineax solves). When JAX lowers such an equation, it has no token for the
calls inside. The program is then lowered once more, with the traced function of each such primitive in place of its
equation, so that the effect is seen everywhere and keeps program order.
"""

import functools
from typing import Any

import jax

from ..runtime.private_jax import ordered, rewrite_where_hidden

_OURS = __name__.partition(".")[0]


class _Program:
    """One program while it is rewritten."""

    def __init__(self) -> None:
        # Each jaxpr and what became of it, by identity: equations that share one share the result.
        self.seen: dict[int, tuple[Any, Any]] = {}
        self.untraceable: dict[str, Exception] = {}

    def reveal(self, jaxpr: Any) -> Any:
        """The jaxpr with all communication visible; the same object if it was before."""
        if id(jaxpr) not in self.seen:
            inner = getattr(jaxpr, "jaxpr", jaxpr)  # a closed one's
            eqns = [self._reveal_in(eqn) for eqn in inner.eqns]
            result = jaxpr
            if any(new is not old for new, old in zip(eqns, inner.eqns, strict=True)):
                effects = {*inner.effects, *(ordered for eqn in eqns if ordered in eqn.effects)}
                result = inner.replace(eqns=eqns, effects=effects)
                if inner is not jaxpr:
                    result = jaxpr.replace(jaxpr=result)
            self.seen[id(jaxpr)] = jaxpr, result
        return self.seen[id(jaxpr)][1]

    def _reveal_in(self, eqn: Any) -> Any:
        if ordered not in eqn.effects and _is_of_others(eqn.primitive):
            return self._traced(eqn)
        return self._with_jaxprs(eqn)

    def _traced(self, eqn: Any) -> Any:
        """The equation, or a call of what its primitive does if that communicates."""
        from jax.extend.core.primitives import closed_call_p  # takes a while to import

        impl = functools.partial(eqn.primitive.impl, **eqn.params)
        try:
            with eqn.ctx.manager:  # settings, as in JAX's own lowering
                traced = jax.make_jaxpr(impl)(*(atom.aval for atom in eqn.invars))
        except Exception as e:  # whatever others raise where they get no arrays
            self.untraceable[eqn.primitive.name] = e
            return eqn
        traced = self.reveal(traced)
        if ordered not in traced.effects:
            return eqn
        return eqn.replace(primitive=closed_call_p, params={"call_jaxpr": traced}, effects={*eqn.effects, ordered})

    def _with_jaxprs(self, eqn: Any) -> Any:
        """The equation with the jaxprs in its parameters rewritten: a loop, a branch, another jitted function."""
        from jax.extend.core import ClosedJaxpr, Jaxpr  # takes a while to import

        def is_jaxpr(x: Any) -> bool:
            return isinstance(x, (Jaxpr, ClosedJaxpr))

        before, structure = jax.tree.flatten(eqn.params, is_leaf=is_jaxpr)
        after = [self.reveal(x) if is_jaxpr(x) else x for x in before]
        changed = [(old, new) for old, new in zip(before, after, strict=True) if new is not old]
        if not changed:
            return eqn
        # A sealed program (core/jit.py) has the effect inside and not outside, and stays so.
        shows = any(ordered not in old.effects for old, new in changed)
        effects = {*eqn.effects, ordered} if shows else eqn.effects
        return eqn.replace(params=jax.tree.unflatten(structure, after), effects=effects)


def _is_of_others(primitive: Any) -> bool:
    """Whether it is neither JAX's nor ours. JAX's show the effects of what is inside."""
    impl = primitive.impl
    while isinstance(impl, functools.partial):
        impl = impl.func
    return getattr(impl, "__module__", "").partition(".")[0] not in ("jax", "jaxlib", _OURS)


def _reveal(jaxpr: Any, name: str) -> Any:
    program = _Program()
    result = program.reveal(jaxpr)
    if result is jaxpr:
        failed = "".join(f" {p} could not be traced ({type(e).__name__}: {e})." for p, e in program.untraceable.items())
        raise NotImplementedError(
            f"The program '{name}' uses an operation of mpixla inside a primitive that does not show the effects of "
            "what it does, so JAX knows no place for the operation in program order. mpixla looks into such "
            "primitives by the function that was given to their def_impl, and found it in none." + failed + " Give "
            "the primitive that function, or let it declare the effects (def_effectful_abstract_eval), or call the "
            "operation outside."
        )
    return result


def install() -> None:
    """Has JAX lower programs with hidden communication."""
    rewrite_where_hidden(_reveal)
