"""Words for messages."""

from typing import Any

import jax
import numpy as np


def kind_of(value: Any) -> str:
    """Return the name of a value's type with an article: ``an int``, ``a numpy.ndarray``; ``None`` for None."""
    if value is None:
        return "None"
    if isinstance(value, jax.Array):
        return "a jax.Array"
    if isinstance(value, jax.Ref):  # also a traced one
        return "a jax.Ref"
    module = type(value).__module__.partition("._")[0]  # private modules' names are exported by their package
    name = f"{module}.{type(value).__qualname__}".removeprefix("builtins.").removeprefix("__main__.")
    spoken_with_a_vowel = name[0].lower() in "aeio" or name.startswith("mpi")  # em-pee-eye
    return f"{'an' if spoken_with_a_vowel else 'a'} {name}"


def as_flag(value: Any, what: str, name: str) -> bool:
    """Return a bool argument; raise TypeError for any other value, such as "off", whose truth would be ambiguous."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{what} of {name} must be True or False, but is {value!r}.")
    return bool(value)


def refuse_without_hook(hook: str, refused: str, advice: str) -> str:
    """Return the message for a program that is refused because a hook in JAX (mpixla/patches) is off."""
    return f"{refused} (the hook {hook} is off). {advice}"
