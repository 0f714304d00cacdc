"""Refusal of JAX's environment variables that a program sets after mpixla, which runs it, has imported JAX."""

import os

import jax

from . import settings

_BOOLS = {**dict.fromkeys((*settings.ON, "t"), "True"), **dict.fromkeys((*settings.OFF, "f"), "False")}

_module = ""
_before: dict[str, str] | None = None  # the environment when JAX was imported; None where the program imports it


def note_environment(module: str) -> None:
    """Save the environment, and the name of the module that will run the program, for ``refuse_late``."""
    global _module, _before
    _module, _before = module, dict(os.environ)


def refuse_late() -> None:
    """Raise RuntimeError if a JAX variable set since ``note_environment`` has no effect; check until all have."""
    global _before
    if (before := _before) is None:
        return
    for variable, word in os.environ.items():
        option = variable.lower()
        if option[:4] != "jax_" or not word or before.get(variable) == word or not hasattr(jax.config, option):
            continue
        now = getattr(jax.config, option)
        meant = _BOOLS.get(word.lower(), word) if isinstance(now, bool) else word
        if meant != str(now):
            raise RuntimeError(
                f"{variable} was set to {word!r} after python -m {_module} had imported JAX, so it has no effect. Set "
                f"it in the environment of the command, or call jax.config.update({option!r}, "
                f"{meant if isinstance(now, int | float) else repr(meant)})."
            )
    _before = None
