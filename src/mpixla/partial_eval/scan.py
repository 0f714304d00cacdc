"""Loop-invariant calls stay in a ``scan`` that is differentiated.

JAX hoists loop-invariant equations out of a ``scan``, such as a receive with a constant template, although they have an
effect, and computes them once. The other rank sends once in each iteration.

JAX's next scan (``jax_scan3``, a primitive with methods for its derivatives) breaks this hook: it does not call the
function that is replaced here. It has no reverse mode yet (test_next_scan of tests/launch/test_jax_machinery.py).
"""

import functools
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from jax.lax import scan_p

from ..base.patching import LINEARIZE, UnfitError, need_rules, replace_function
from ..base.words import refuse_without_hook
from ..jaxprs.effect import ordered
from ..jaxprs.reveal import may_hide, show_effects
from ..jaxprs.rewrite import is_literal, jaxprs_in, scan_counts

LOST = "A scan has no derivative in which a call depends on nothing that changes from one iteration to the next."


def install() -> None:
    """Replace JAX's function that hoists loop-invariant equations: it hoists none if the scan's body communicates."""

    @replace_function("jax._src.lax.control_flow.loops:_scan_known_hoisting", "jaxpr_known", "known_consts")
    def leave_in(take_out: Any, jaxpr: Any, consts: Any, count: int, *rest: Any) -> Any:
        if ordered in show_effects(jaxpr).effects:
            return jaxpr, consts, [False] * count, []
        return take_out(jaxpr, consts, count, *rest)


def install_refusals() -> None:
    """Replace JAX's linearization rules of scans by ones that refuse scans from which a call would be hoisted."""
    # Some versions of JAX have only the first registry.
    for name in (LINEARIZE, "jax._src.interpreters.ad:primitive_linearizations"):
        with suppress(UnfitError):
            rules = need_rules(name, scan_p)
            rules[scan_p] = functools.partial(_apply_unless_hoisted, rules[scan_p])


def _apply_unless_hoisted(rule: Callable[..., Any], *args: Any, jaxpr: Any, **params: Any) -> Any:
    """Apply JAX's rule for a scan; raise NotImplementedError if it would hoist a call out of the scan."""
    shown = show_effects(jaxpr)
    if ordered in shown.effects:
        inner = getattr(shown, "jaxpr", shown)
        _refuse_constant_calls(inner, inner.invars[scan_counts(params)[0] :])
    return rule(*args, jaxpr=jaxpr, **params)


def _refuse_constant_calls(jaxpr: Any, changing: Iterable[Any]) -> None:
    """Raise NotImplementedError if a body has a call that depends on none of its variables ``changing``."""
    changing = set(changing)
    for eqn in jaxpr.eqns:
        changes = [not is_literal(atom) and atom in changing for atom in eqn.invars]
        if any(changes):
            changing.update(eqn.outvars)
        if ordered not in eqn.effects:
            continue
        inner = [] if may_hide(eqn.primitive) else jaxprs_in(eqn.params)
        for part in (getattr(x, "jaxpr", x) for x in inner):
            # JAX evaluates it partially. The operands of a branch or loop body are the last ones of the equation.
            _refuse_constant_calls(part, (v for v, c in zip(part.invars[::-1], changes[::-1], strict=False) if c))
        if not inner and not any(changes):
            refused = (
                f"a scan whose body calls {eqn.primitive.name} with operands that do not change from one iteration to "
                "the next has no derivative here: JAX would make the call once, before the loop"
            )
            advice = "Have an operand depend on what the scan carries."
            raise NotImplementedError(refuse_without_hook("scan", refused, advice))
