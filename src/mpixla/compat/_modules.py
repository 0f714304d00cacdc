"""Modules that are no files."""

from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def make_module(name: str, contents: Mapping[str, Any]) -> ModuleType:
    """A package of this name with these contents, and no file to import more from."""
    module = ModuleType(name, f"The interface of {name.partition('.')[0]}, provided by mpixla.compat.")
    module.__spec__ = ModuleSpec(name, None, origin="mpixla.compat", is_package=True)
    module.__path__ = []
    module.__package__ = name
    module.__dict__.update(contents)
    return module
