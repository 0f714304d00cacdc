"""Programs are rewritten before they are lowered: hidden communication is brought to light, and loops get checks.

Every program comes through here, before JAX makes anything of its effects.
"""

import functools
from typing import Any

from ..base import settings
from ..core import reveal
from ..core.effect import HiddenCommunicationError, ordered
from ..ops import decisions

LOST = (
    "Programs that communicate inside primitives of others (lineax, equinox) are refused, and with MPIXLA_CHECK it is "
    "not compared how ranks decide when a loop ends."
)
NEEDS = {"jax._src.interpreters.pxla:lower_sharding_computation": ("closed_jaxpr", "api_name", "fun_name")}


def install() -> None:
    """Replaces the function that lowers programs."""
    from jax._src.interpreters import pxla

    lower = pxla.lower_sharding_computation
    check = decisions.check if settings.is_on(settings.CHECK) else lambda jaxpr: jaxpr

    @functools.wraps(lower)
    def lower_rewritten(jaxpr: Any, api: str, name: str, *args: Any, **options: Any) -> Any:
        while True:
            try:
                return lower(check(jaxpr), api, name, *args, **options)
            except (HiddenCommunicationError, KeyError) as e:
                # In a loop or a branch it is JAX that finds no token.
                if isinstance(e, KeyError) and e.args != (ordered,):
                    raise
            jaxpr = reveal.reveal(jaxpr, name)

    pxla.lower_sharding_computation = lower_rewritten
