"""Interfaces of mpi4jax and JPI on mpixla, for programs that run unmodified.

``python -m mpixla.compat NAME script.py arguments`` runs one; ``install(NAME)`` does the same from inside a program.
docs/migration.md has the equivalent of each call, and the differences.
"""

import functools
import sys
from collections.abc import Callable
from types import ModuleType, TracebackType

import jax

import mpixla

from ..base.speaker import print_message
from . import _jpi, _mpi4jax
from ._modules import report_version
from ._tokens import new_token

__all__ = ["NAMES", "install"]

_MAKERS: dict[str, Callable[[], dict[str, ModuleType]]] = {
    "mpi4jax": functools.partial(_mpi4jax.make_modules, tokens=False),
    "mpi4jax-tokens": functools.partial(_mpi4jax.make_modules, tokens=True),
    "jpi": _jpi.make_modules,
}

NAMES = tuple(_MAKERS)
"""Names for ``install``: "mpi4jax" is mpi4jax 0.8 and later, "mpi4jax-tokens" is mpi4jax before 0.8, "jpi" is JPI."""

_installed: set[str] = set()


def install(name: str) -> None:
    """Make ``import mpi4jax`` or ``import jpi`` import an interface to mpixla, whether the library is there or not.

    Call it before the library's modules are imported, on every rank.

    Args:
        name: one of ``NAMES``.

    Raises:
        ValueError: if there is no such name.
        RuntimeError: if the library itself, or another version of its interface, was imported before.

    Example:
        >>> import mpixla.compat
        >>> mpixla.compat.install("mpi4jax")
        >>> import mpi4jax
        >>> mpi4jax.has_cuda_support() == mpixla.has_cuda_support()
        True
    """
    if name not in _MAKERS:
        raise ValueError(f"mpixla.compat has no interface named {name!r}. The names are {', '.join(NAMES)}.")
    if name in _installed:
        return
    package = name.partition("-")[0]
    if package in sys.modules:
        raise RuntimeError(
            f"mpixla.compat.install({name!r}) came too late: {package} was imported before. Call it first, or start "
            f"the program as python -m mpixla.compat {name} script.py."
        )
    modules = _MAKERS[name]()
    sys.modules.update(modules)
    for full_name, module in modules.items():
        parent, _, child = full_name.rpartition(".")
        if parent and not hasattr(modules[parent], child):
            setattr(modules[parent], child, module)
    if version := getattr(modules[package], "__version__", None):
        report_version(package, version)
    if name == "mpi4jax-tokens":
        # Functions that return JAX's own tokens are dispatched in Python; those that return arrays are not.
        jax.lax.create_token = lambda _=None: new_token()
    if not _installed:
        _install_error_hook()
    _installed.add(name)


def _install_error_hook() -> None:
    """Install an exception hook that prints mpi4jax's line for an MPI error before the traceback."""
    previous = sys.excepthook

    def print_error_line(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        if error := mpixla.error_of(value):
            text = error.text.partition("\n")[0]
            print_message(f"r{error.rank} | {error.function} returned error code {error.error_class}: {text}\n")
        previous(kind, value, trace)

    sys.excepthook = print_error_line
