"""Rewriting of programs before they are lowered: show the effect of hidden communication, and add checks to loops.

Every program passes here before JAX looks at its effects.
"""

from contextlib import suppress
from typing import Any

from ..base import settings
from ..base.patching import UnfitError, replace_function
from ..base.words import refuse_without_hook
from ..jaxprs import reveal
from ..jaxprs.effect import HiddenCommunicationError, is_missing_token
from ..ops import decisions

LOST = (
    "Programs that communicate inside primitives of others (lineax, equinox) are refused, and with MPIXLA_CHECK it is "
    "not compared how ranks decide when a loop ends."
)


_LOWER = "jax._src.interpreters.pxla:lower_sharding_computation"


def install() -> None:
    """Replace JAX's function that lowers programs: hidden calls get the effect, and loops checks (MPIXLA_CHECK)."""
    check = decisions.check_loops if settings.is_on(settings.CHECK) else lambda jaxpr: jaxpr

    @replace_function(_LOWER, "closed_jaxpr", "api_name", "fun_name")
    def lower_rewritten(lower: Any, jaxpr: Any, api: str, name: str, *args: Any, **options: Any) -> Any:
        """Lower a program, and once more with other libraries' primitives replaced if these hide calls of MPI."""
        while True:
            try:
                return lower(check(jaxpr), api, name, *args, **options)
            except Exception as e:
                if not is_missing_token(e):
                    raise
            jaxpr = reveal.expose_hidden_calls(jaxpr, name)


def install_refusals() -> None:
    """Replace the function by one that refuses hidden calls with a message, where JAX raises ``KeyError: MPI``."""
    with suppress(UnfitError):
        replace_function(_LOWER)(_lower_or_refuse)


def _lower_or_refuse(lower: Any, *args: Any, **options: Any) -> Any:
    """Lower a program; raise NotImplementedError if JAX finds no token for a call that a primitive hides."""
    try:
        return lower(*args, **options)
    except Exception as e:
        if not is_missing_token(e):
            raise
        error = e if isinstance(e, HiddenCommunicationError) else HiddenCommunicationError("an operation of mpixla")
    raise NotImplementedError(refuse_without_hook("lowering", error.refused, error.WAY_OUT))
