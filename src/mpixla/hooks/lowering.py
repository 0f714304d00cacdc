"""Programs are rewritten before they are lowered: hidden communication is brought to light, and loops get checks.

Every program comes through here, before JAX makes anything of its effects.
"""

from contextlib import suppress
from typing import Any

from ..base import settings
from ..core import reveal
from ..core.effect import HiddenCommunicationError, is_missing_token
from ..ops import decisions
from . import UnfitError, replace

LOST = (
    "Programs that communicate inside primitives of others (lineax, equinox) are refused, and with MPIXLA_CHECK it is "
    "not compared how ranks decide when a loop ends."
)


_LOWER = "jax._src.interpreters.pxla:lower_sharding_computation"


def install() -> None:
    """Replaces the function that lowers programs."""
    check = decisions.check if settings.is_on(settings.CHECK) else lambda jaxpr: jaxpr

    @replace(_LOWER, "closed_jaxpr", "api_name", "fun_name")
    def lower_rewritten(lower: Any, jaxpr: Any, api: str, name: str, *args: Any, **options: Any) -> Any:
        while True:
            try:
                return lower(check(jaxpr), api, name, *args, **options)
            except Exception as e:
                if not is_missing_token(e):
                    raise
            jaxpr = reveal.reveal(jaxpr, name)


def leave() -> None:
    """Has JAX's own words for a missing token replaced by a sentence, whatever else that function takes."""
    with suppress(UnfitError):
        replace(_LOWER)(_lower_or_refuse)


def _lower_or_refuse(lower: Any, *args: Any, **options: Any) -> Any:
    try:
        return lower(*args, **options)
    except KeyError as e:
        if not is_missing_token(e):
            raise
    raise HiddenCommunicationError
