"""Hooks: replacements of JAX's functions and rules, a file each; and the warning where JAX is newer than tested.

The results of programs do not depend on hooks. A hook's ``LOST`` describes the loss without it. ``install`` first looks
up all that it needs of JAX, and then replaces functions. ``install_refusals``, where a hook has it, refuses programs
that need the hook. A hook that does not fit the installed JAX is left off. The order of installation does not matter:
no two hooks replace one function, and no hook calls another. docs/other_tools.md has their table.
"""

import importlib
import os
import re
import warnings
from types import ModuleType
from typing import Any

import jax

from ..base import settings, tested
from ..base.patching import UnfitError
from ..mpi.mpi import MPI

# The hooks that are installed when mpixla is imported.
HOOKS = (
    "ahead",
    "cache",
    "checkpoints",
    "failures",
    "frames",
    "lowering",
    "nan",
    "refusals",
    "remat3",
    "scan",
    "sealing",
    "tokens",
    "while_loops",
)
# Installed by the packages that cannot do without them, and have them.
ON_REQUEST = ("first_run",)
# The rules by which calls stay in place while JAX takes a program apart are beside each other, in another folder.
_OF_PARTIAL_EVAL = ("checkpoints", "remat3", "scan", "while_loops")

installed: set[str] = set()

_VARIABLE = "MPIXLA_HOOKS_OFF"
_IS_OFF = f"{_VARIABLE} turns it off"
# The hooks that are turned off, or "all".
off = {name.strip() for name in os.environ.get(_VARIABLE, "").lower().split(",")} - {""}


class JaxVersionWarning(UserWarning):
    """The warning that JAX is newer than any version that this mpixla was tested with, or does not fit hooks."""


def warn_of_newer_jax() -> None:
    """Warn on rank 0 if JAX is newer than the tested versions."""
    if settings.is_on("MPI4JAX_NO_WARN_JAX_VERSION"):
        return  # mpi4jax's variable, for its programs that run on mpixla
    if _version_numbers(jax.__version__) > _version_numbers(tested.NEWEST) and MPI.COMM_WORLD.Get_rank() == 0:
        warnings.warn(
            f"mpixla was tested with JAX up to {tested.NEWEST} ({tested.NEWEST_IN}), and this is JAX "
            f"{jax.__version__}. If something is wrong with it, look for a newer mpixla. "
            'warnings.filterwarnings("ignore", "mpixla was tested") before the import turns this notice off.',
            JaxVersionWarning,
            stacklevel=3,
        )


def _version_numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, without a development suffix: (0, 12, 1) of 0.12.1.dev20261101."""
    return tuple(int(part) for part in re.match(r"[\d.]*\d", version)[0].split("."))  # type: ignore[index]


def module_of(name: str) -> ModuleType:
    """Return the module of a hook."""
    folder = "partial_eval" if name in _OF_PARTIAL_EVAL else "patches"
    return importlib.import_module(f"..{folder}.{name}", __name__)


def describe_installed() -> dict[str, str]:
    """Return the installed hooks by name, each with what is lost without it."""
    return {name: module_of(name).LOST for name in HOOKS if name in installed}


def _install(name: str, hook: ModuleType, *arguments: Any) -> str | None:
    """Install a hook; return None, or the reason why it is not installed: turned off, or unfit for this JAX."""
    if off & {"all", name}:
        return _IS_OFF
    try:
        hook.install(*arguments)
    except UnfitError as e:
        return str(e)
    installed.add(name)
    return None


def install() -> None:
    """Install all hooks but those in MPIXLA_HOOKS_OFF; ValueError for unknown names; warn on rank 0 of unfit hooks."""
    unknown = off - {*HOOKS, *ON_REQUEST, "all"}
    if unknown:
        raise ValueError(
            f"{_VARIABLE} names {', '.join(sorted(unknown))}, and there is no such hook. It takes all, or "
            f"some of {', '.join((*HOOKS, *ON_REQUEST))}, with commas between them."
        )
    lost = []
    for name in HOOKS:
        hook = module_of(name)
        reason = _install(name, hook)
        if reason is not None:
            getattr(hook, "install_refusals", lambda: None)()
        if reason not in (None, _IS_OFF):
            lost.append(f"{name} ({reason}): {hook.LOST}")
    if lost and MPI.COMM_WORLD.Get_rank() == 0:
        warnings.warn(
            f"parts of mpixla do not fit JAX {jax.__version__}, and are off. Programs are as right as before, or are "
            f"refused. What is lost: {' '.join(lost)} Look for a newer mpixla.",
            JaxVersionWarning,
            stacklevel=3,
        )


def require_hook(hook: ModuleType, feature: str, *arguments: Any) -> None:
    """Install the hook that a feature needs; raise RuntimeError if the hook is off or does not fit this JAX."""
    name = hook.__name__.rpartition(".")[2].lstrip("_")
    reason = _install(name, hook, *arguments)
    if reason is not None:
        raise RuntimeError(
            f"{feature} needs a part of JAX that mpixla replaces ({name}), and in JAX {jax.__version__} it cannot: "
            f"{reason}."
        )
