"""Modules without files, and the version of their package for importlib.metadata."""

import os
import sys
from collections.abc import Iterable, Mapping
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from types import ModuleType
from typing import Any


def make_module(name: str, contents: Mapping[str, Any]) -> ModuleType:
    """Return a package with this name and these contents, and an empty path: importing further submodules fails."""
    module = ModuleType(name, f"The interface of {name.partition('.')[0]}, provided by mpixla.compat.")
    module.__spec__ = ModuleSpec(name, None, origin="mpixla.compat", is_package=True)
    module.__path__ = []
    module.__package__ = name
    module.__dict__.update(contents)
    return module


def report_version(name: str, version: str) -> None:
    """Make importlib.metadata report this version of a package, even where another one is installed."""

    class ProvidedPackage(Distribution):
        def read_text(self, filename: str) -> str | None:
            is_known = filename == "METADATA"
            return f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" if is_known else None

        def locate_file(self, path: str | os.PathLike[str]) -> Any:
            raise FileNotFoundError(f"{path}: mpixla.compat provides this package without files.")

    class VersionFinder(DistributionFinder):
        def find_spec(self, *args: Any) -> None:
            """Return None: the modules are in sys.modules."""

        def find_distributions(self, context: Any = DistributionFinder.Context()) -> Iterable[Distribution]:  # noqa: B008
            return [ProvidedPackage()] if context.name == name else []

    sys.meta_path.insert(0, VersionFinder())
