"""Programs are rewritten before they are lowered: hidden communication is brought to light, and loops get checks.

Every program comes through here, before JAX makes anything of its effects.
"""

from typing import Any

from ..base import settings
from ..core import reveal
from ..core.effect import HiddenCommunicationError, ordered
from ..ops import decisions
from . import replace

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
