"""Tracebacks of the package's functions end at the user's line."""

import functools
from collections.abc import Callable
from typing import Any

import jax

from ..base.required import trace_state_clean
from ..base.state import state


def hide_own_frames(e: Exception) -> None:
    """End the traceback of an eager call at the user's line, as JAX does for traced functions."""
    if state.frames and trace_state_clean() and jax.config.jax_traceback_filtering != "off":  # type: ignore[attr-defined]
        e.__traceback__ = state.frames(e.__traceback__)


def explain(e: Exception, name: str, arguments: dict[str, Any]) -> None:
    """Explain a TypeError for a ``token`` argument of the function ``name``, and hide mpixla's frames."""
    if isinstance(e, TypeError) and "token" in arguments:
        e.args = (
            f"{name}() takes no token: calls are made in the order of the program. docs/migration.md says what each "
            "call with a token becomes. python -m mpixla.compat mpi4jax-tokens runs programs that have them.",
        )
    hide_own_frames(e)


def present(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with its exceptions passed through ``explain``."""
    if getattr(function, "hides_own_frames", False):
        return function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        """Call the function, and pass its exception through ``explain``."""
        try:
            return function(*args, **kwargs)
        except Exception as e:
            explain(e, function.__name__, kwargs)
            raise

    return call
