"""Replacing functions and rules of JAX: looking them up, and refusing where this JAX has others.

The replacements are in the files of ``patches/`` and ``partial_eval/``.
"""

import functools
import inspect
import re
from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

# Registries of JAX's rules for its primitives: for linearization, and for partial evaluation of checkpoints.
LINEARIZE = "jax._src.interpreters.partial_eval:custom_partial_eval_rules"
IN_CHECKPOINT = "jax._src.interpreters.partial_eval:partial_eval_jaxpr_custom_rules"


class UnfitError(Exception):
    """The error that this JAX lacks a function or rule that a hook needs."""


def find_in_jax(name: str, *arguments: str) -> Any:
    """Return JAX's object ``name``; raise UnfitError if it is missing, or its first parameters are not ``arguments``.

    Raises:
        UnfitError: if this JAX has no such object.
    """
    try:
        found = resolve_name(name)
    except (ImportError, AttributeError):
        raise UnfitError(f"there is no {name}") from None
    if not arguments:
        return found
    try:
        taken = tuple(inspect.signature(found).parameters)
    except (TypeError, ValueError):  # it is no function any more, or one of C++
        raise UnfitError(f"{name} does not say what it takes") from None
    if taken[: len(arguments)] != arguments:
        raise UnfitError(f"{name} takes {', '.join(taken) or 'nothing'}, not {', '.join(arguments)}")
    return found


def need_rules(name: str, *primitives: Any) -> dict[Any, Any]:
    """Return a registry of JAX's by its name; raise UnfitError if it lacks a rule for one of these primitives."""
    rules = find_in_jax(name)
    for primitive in primitives:
        if primitive not in rules:
            raise UnfitError(f"{name} has no rule for {primitive}")
    return rules


def replace_function(name: str, *arguments: str) -> Callable[[Callable[..., Any]], None]:
    """Return a decorator that replaces a function of JAX's; the new one gets JAX's own as its first argument.

    Raises:
        UnfitError: if this JAX has no such function.
    """
    original = find_in_jax(name, *arguments)
    outer, last = re.split(r"[.:](?=\w+$)", name)

    def set_wrapper(new: Callable[..., Any]) -> None:
        """Put into JAX's module a wrapper that calls ``new`` with the original function before the arguments."""

        @functools.wraps(original)
        def call_replacement(*args: Any, **options: Any) -> Any:
            return new(original, *args, **options)

        setattr(resolve_name(outer), last, call_replacement)

    return set_wrapper
