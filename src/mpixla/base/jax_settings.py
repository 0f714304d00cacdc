"""JAX's settings that a program makes in the environment before it imports JAX, where mpixla has imported it before."""

import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import jax

from . import settings


def heed_until_import() -> None:
    """Has the next import of JAX, which is the program's, take the settings that have changed since this call."""
    sys.meta_path.insert(0, _Import())


class _Import(MetaPathFinder, Loader):
    """Finds JAX as it is, once."""

    def __init__(self) -> None:
        self._environment = dict(os.environ)
        self._spec = jax.__spec__
        self._modules = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "jax"}

    def find_spec(self, name: str, *args: Any) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name == "jax" else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return jax

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec
        for variable, word in os.environ.items():
            option = variable.lower()
            if self._environment.get(variable) != word and option[:4] == "jax_" and hasattr(jax.config, option):
                jax.config.update(option, _value(variable, word, getattr(jax.config, option)))
        sys.modules.update(self._modules)
        sys.meta_path.remove(self)


def _value(variable: str, word: str, before: Any) -> Any:
    """What the word means to JAX, by the type of the option's value before."""
    if not isinstance(before, bool):
        return type(before)(word) if isinstance(before, int | float) else word
    if word.lower() not in (*settings.ON, *settings.OFF, "t", "f"):
        raise ValueError(f"{variable} is {word!r}, but JAX takes 1 or 0 for it.")
    return word.lower() in (*settings.ON, "t")
