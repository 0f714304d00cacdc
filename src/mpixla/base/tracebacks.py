"""Tracebacks of the package's functions end at the user's line."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax

from .required import trace_state_clean
from .state import state

F = TypeVar("F", bound=Callable[..., Any])

PACKAGE = __name__.partition(".")[0]  # the module of public names: what help says, and where pickle finds them


def hide_own_frames(e: Exception) -> None:
    """Drop mpixla's frames from an exception's traceback, except while tracing or if JAX's filter is off."""
    if state.frames and trace_state_clean() and jax.config.jax_traceback_filtering != "off":  # type: ignore[attr-defined]
        e.__traceback__ = state.frames(e.__traceback__)


def explain_error(e: Exception, name: str, arguments: dict[str, Any]) -> None:
    """Replace a TypeError's text by advice if ``token`` was passed; hide mpixla's frames in any exception."""
    if isinstance(e, TypeError) and "token" in arguments:
        e.args = (
            f"{name}() takes no token: calls are made in the order of the program. docs/migration.md says what each "
            "call with a token becomes. python -m mpixla.compat mpi4jax-tokens runs programs that have them.",
        )
    hide_own_frames(e)


def public(function: F) -> F:
    """Wrap a public function: its module is ``mpixla``, and its exceptions pass through ``explain_error``."""

    @functools.wraps(function)
    def call_public(*args: Any, **kwargs: Any) -> Any:
        """Call the function; pass an exception through ``explain_error``, and raise it again."""
        try:
            return function(*args, **kwargs)
        except Exception as e:
            explain_error(e, function.__name__, kwargs)
            raise

    call_public.__module__ = PACKAGE
    return call_public  # type: ignore[return-value]
