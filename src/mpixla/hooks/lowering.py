"""Programs are rewritten before they are lowered: hidden communication is brought to light, and loops get checks.

Every program comes through here, before JAX makes anything of its effects.
"""

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from jax.interpreters import ad
from jax.lax import scan_p

from ..base import settings
from ..base.required import custom_partial_eval_rules, partial_eval_jaxpr_custom_rules, remat_p
from ..core import reveal
from ..core.effect import HiddenCommunicationError, ordered
from ..ops import decisions
from . import UnfitError, need, replace

LOST = (
    "Programs that communicate inside primitives of others (lineax, equinox) are refused, and with MPIXLA_CHECK it is "
    "not compared how ranks decide when a loop ends."
)


def install() -> None:
    """Replaces the function that lowers programs."""
    check = decisions.check if settings.is_on(settings.CHECK) else lambda jaxpr: jaxpr

    @replace("jax._src.interpreters.pxla:lower_sharding_computation", "closed_jaxpr", "api_name", "fun_name")
    def lower_rewritten(lower: Any, jaxpr: Any, api: str, name: str, *args: Any, **options: Any) -> Any:
        while True:
            try:
                return lower(check(jaxpr), api, name, *args, **options)
            except (HiddenCommunicationError, KeyError) as e:
                # In a loop or a branch it is JAX that finds no token.
                if isinstance(e, KeyError) and e.args != (ordered,):
                    raise
            jaxpr = reveal.reveal(jaxpr, name)

    with suppress(UnfitError):
        types = need("jax._src.interpreters.partial_eval:_cached_abstract_eval")
        reveal.forget_types = getattr(types, "cache_clear", reveal.forget_types)
    registries = [ad.primitive_jvps, custom_partial_eval_rules]
    with suppress(UnfitError):  # a JAX without this one has only the former's rules
        registries.append(need("jax._src.interpreters.ad:primitive_linearizations"))
    for rules in registries:
        for primitive in (remat_p, scan_p):
            if primitive in rules:
                rules[primitive] = functools.partial(_of_shown, rules[primitive])
    for primitive in (remat_p, scan_p):
        rule = partial_eval_jaxpr_custom_rules[primitive]
        partial_eval_jaxpr_custom_rules[primitive] = functools.partial(_of_shown_equation, rule)


def _of_shown(rule: Callable[..., Any], *args: Any, jaxpr: Any, **params: Any) -> Any:
    return rule(*args, jaxpr=reveal.show(jaxpr), **params)


def _of_shown_equation(rule: Callable[..., Any], saveable: Any, unknown: Any, instantiated: Any, eqn: Any) -> Any:
    jaxpr = reveal.show(eqn.params["jaxpr"])
    if jaxpr is not eqn.params["jaxpr"]:
        eqn = eqn.replace(params={**eqn.params, "jaxpr": jaxpr}, effects={*eqn.effects, *jaxpr.effects})
    return rule(saveable, unknown, instantiated, eqn)
