"""Docstrings of functions that do, or start, what another function does: what both have in common is written once."""

import inspect
import re
import textwrap
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_WIDTH = 116  # lines of 120 in a docstring that is indented by 4


def documented_like(blocking: Callable[..., Any]) -> Callable[[F], F]:
    """Completes the docstring of a function that does what ``blocking`` does, or starts it and gives a request.

    Its own docstring has a summary, an example, and what differs; it gets everything else from that of ``blocking``:
    arguments that are not in its own ``Args``, what ``wait`` then returns, ``Derivative``, and what else it ``Raises``.
    Arguments that it does not take are left out, and a derivative that depends on one is referred to.

    Put it below decorators that copy the docstring.
    """

    def decorate(function: F) -> F:
        if function.__doc__ and blocking.__doc__:  # python -OO has none
            function.__doc__ = _completed(function, blocking)
        return function

    return decorate


def _completed(function: Callable[..., Any], blocking: Callable[..., Any]) -> str:
    own, theirs = _sections(function), _sections(blocking)
    parameters = inspect.signature(function).parameters
    arguments = _entries(theirs["Args"]) | _entries(own.get("Args", ""))
    raises = _entries(theirs["Raises"])
    derivative = own.get("Derivative", theirs["Derivative"])
    for name in inspect.signature(blocking).parameters.keys() - parameters.keys():
        if f"``{name}" in derivative and "Derivative" not in own:
            derivative = f"As for ``{blocking.__name__}``."
        raises = {error: re.sub(rf", (or )?an? ``{name}``[^,]*?(?=,|\.$)", "", text) for error, text in raises.items()}
    for error, text in _entries(own.get("Raises", "")).items():
        raises[error] = f"{raises[error][:-1]}; {text}" if error in raises else text
    summary, example = own[""], own["Example"]
    result = theirs.get("Returns", "").lstrip()
    returns = own.get("Returns") or f"A request; ``wait`` gives {result[:1].lower()}{result[1:]}"
    sections = {
        "Args": [_filled(f"{name}: {arguments[name]}", hanging=4) for name in parameters],
        "Returns": [_filled(returns)],
        "Derivative": [_filled(derivative)],
        "Raises": [_filled(f"{error}: {text}", hanging=4) for error, text in raises.items()],
        "Example": [example],
    }
    return "\n\n".join([summary, *("\n".join([f"{title}:", *parts]) for title, parts in sections.items())])


def _sections(function: Callable[..., Any]) -> dict[str, str]:
    """The texts of a docstring's sections by title; what comes before the first has the title ``""``."""
    before, *rest = re.split(r"^(\w+):\n", inspect.getdoc(function) or "", flags=re.MULTILINE)
    return {"": before.rstrip()} | {title: text.rstrip() for title, text in zip(rest[::2], rest[1::2], strict=True)}


def _entries(text: str) -> dict[str, str]:
    """The texts of a section's entries by name, each in one line."""
    names_and_texts = re.split(r"^    (\w[\w., ]*): ", text, flags=re.MULTILINE)[1:]
    return {
        name: " ".join(entry.split()) for name, entry in zip(names_and_texts[::2], names_and_texts[1::2], strict=True)
    }


def _filled(text: str, hanging: int = 0) -> str:
    return textwrap.fill(
        " ".join(text.split()),
        _WIDTH,
        initial_indent=" " * 4,
        subsequent_indent=" " * (4 + hanging),
        break_long_words=False,
        break_on_hyphens=False,
    )
