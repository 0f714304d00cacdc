"""What a user sees of functions beside their results: signatures, and tracebacks.

Signatures have names that a user knows, where Python would show what they stand for. Tracebacks end at the user's line.
"""

import functools
import inspect
import re
from collections.abc import Callable
from types import TracebackType
from typing import Any

import jax

from ..base.required import trace_state_clean
from ..mpi.native import Named

_NAMES = (
    (r"(jax\.)?jaxlib\.[\w.]*\bArray\b", "jax.Array"),
    (r"\bmpi4py\.MPI\.", "MPI."),
    (r"\bmpixla\.(\w+\.)+(?=[A-Z])", "mpixla."),
    (r"\b(typing|collections\.abc)\.", ""),
    (r"~(?=\w)", ""),
)
_CONSTANTS = {"source": "MPI.ANY_SOURCE", "tag": "MPI.ANY_TAG", "recvtag": "MPI.ANY_TAG"}


def _annotation(annotation: Any) -> Any:
    if annotation is inspect.Signature.empty:
        return annotation
    text = inspect.formatannotation(annotation)
    for pattern, name in _NAMES:
        text = re.sub(pattern, name, text)
    return type(text, (), {"__module__": "builtins"})  # which inspect shows by its name alone


def _parameter(parameter: inspect.Parameter) -> inspect.Parameter:
    default = parameter.default
    if type(default) is int and default < 0 and parameter.name in _CONSTANTS:
        default = Named(default, _CONSTANTS[parameter.name])
    return parameter.replace(default=default, annotation=_annotation(parameter.annotation))


# What leaves out mpixla's frames, unless hooks/frames.py is off.
filtered: Callable[[TracebackType | None], TracebackType | None] | None = None


def hide_own_frames(e: Exception) -> None:
    """Has the traceback of an eager call end at the user's line, as JAX has that of what it traces."""
    if filtered and trace_state_clean() and jax.config.jax_traceback_filtering != "off":  # type: ignore[attr-defined]
        e.__traceback__ = filtered(e.__traceback__)


def explain(e: Exception, name: str, arguments: dict[str, Any]) -> None:
    """Makes of an exception what the user sees who has called the function."""
    if isinstance(e, TypeError) and "token" in arguments:
        e.args = (
            f"{name}() takes no token: calls are made in the order of the program. docs/migration.md says what each "
            "call with a token becomes. python -m mpixla.compat mpi4jax-tokens runs programs that have them.",
        )
    hide_own_frames(e)


def present(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as users see it."""
    presented = function if getattr(function, "hides_own_frames", False) else _hiding(function)
    signature = inspect.signature(function)
    presented.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[_parameter(p) for p in signature.parameters.values()],
        return_annotation=_annotation(signature.return_annotation),
    )
    return presented


def _hiding(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as e:
            explain(e, function.__name__, kwargs)
            raise

    return call
