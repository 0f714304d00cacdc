"""Communication inside primitives that do not declare it: primitives of other libraries, and two of JAX's own.

A primitive's equation shows the effects inside only if the primitive's rules declare them, and most primitives of other
libraries declare none (those of equinox, which lineax uses). When JAX lowers such an equation, it has no token for the
calls inside. The program is then lowered once more, with the traced function of each such primitive in place of its
equation, so that the effect is seen everywhere and keeps program order.

That is too late for derivatives of loops and checkpoints: JAX would make the calls once before the loop, or once more
on the way back. So the partial-evaluation rules of loops and checkpoints get jaxprs whose equations show the effect,
too. The primitives themselves stay as they are.
"""

import functools
from typing import Any

import jax

from .effect import ordered
from .rewrite import JaxprRewriter, lower_loops, replace_by_call

_OURS = __name__.partition(".")[0]
# JAX's primitives that do not show the effects inside.
_HIDING = ("composite", "linear_call")


def may_hide(primitive: Any) -> bool:
    """Return True if a primitive is neither JAX's nor mpixla's, or is named in ``_HIDING``."""
    impl = primitive.impl
    while isinstance(impl, functools.partial):
        impl = impl.func
    module = getattr(impl, "__module__", "").partition(".")[0]
    return module not in ("jax", "jaxlib", _OURS) or primitive.name in _HIDING


def _trace_impl(eqn: Any) -> Any:
    """Return the jaxpr of an equation's primitive, traced from its ``impl``."""
    impl = functools.partial(eqn.primitive.impl, **eqn.params)
    with eqn.ctx.manager:  # settings, as in JAX's own lowering
        return lower_loops(jax.make_jaxpr(impl)(*(atom.aval for atom in eqn.invars)))


def show_effects(jaxpr: Any) -> Any:
    """Return a jaxpr whose equations show all communication; the same object if they do already."""

    def rewrite_eqn(rewriting: JaxprRewriter, eqn: Any) -> Any:
        """Add the effect to an equation that hides communication; rewrite the jaxprs inside others."""
        # The lowering of a composite does not take tokens.
        if ordered in eqn.effects or not may_hide(eqn.primitive) or eqn.primitive.name == "composite":
            return rewriting.rewrite_inside(eqn)
        return eqn.replace(effects={*eqn.effects, ordered}) if _hides_communication(eqn) else eqn

    return JaxprRewriter(rewrite_eqn).rewrite_jaxpr(jaxpr)


def _hides_communication(eqn: Any) -> bool:
    """Return True if the ``impl`` of an equation's primitive communicates; False if it cannot be traced."""
    try:
        traced = _trace_impl(eqn)
    except Exception:  # any error, since other libraries' code gets no arrays
        return False
    return ordered in show_effects(traced).effects


def expose_hidden_calls(jaxpr: Any, name: str) -> Any:
    """Return a jaxpr where calls replace primitives that hide communication; raise NotImplementedError if none does."""
    failed: dict[str, Exception] = {}

    def rewrite_eqn(rewriting: JaxprRewriter, eqn: Any) -> Any:
        """Replace an equation that hides communication by a call of its jaxpr; note a failed trace in ``failed``."""
        if not may_hide(eqn.primitive):
            return rewriting.rewrite_inside(eqn)
        try:
            traced = _trace_impl(eqn)
        except Exception as e:  # any error, since other libraries' code gets no arrays
            failed[eqn.primitive.name] = e
            return eqn
        traced = rewriting.rewrite_jaxpr(traced)
        return replace_by_call(eqn, traced) if ordered in traced.effects else eqn

    result = JaxprRewriter(rewrite_eqn).rewrite_jaxpr(jaxpr)
    if result is jaxpr:
        why = "".join(f" {p} could not be traced ({type(e).__name__}: {e})." for p, e in failed.items())
        raise NotImplementedError(
            f"The program '{name}' uses an operation of mpixla inside a primitive that does not show the effects of "
            "what it does, so JAX knows no place for the operation in program order. mpixla looks into such "
            "primitives by the function that was given to their def_impl, and found it in none." + why + " Give "
            "the primitive that function, or let it declare the effects (def_effectful_abstract_eval), or call the "
            "operation outside."
        )
    return result
