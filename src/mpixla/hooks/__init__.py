"""The functions and rules of JAX's that are replaced, a file each; and the notice where JAX is newer than tested.

What mpixla computes does not rest on them. A hook's ``LOST`` says what is lost without it, ``install`` takes what it
needs of JAX, before it changes anything, and replaces functions, and ``install_refusals``, where there is one, has the
programs refused that would need it. One that does not fit the installed JAX is left off. In which order they are
installed does not matter: no two replace one function, and none calls another. docs/other_tools.md has their table.
"""

import functools
import importlib
import inspect
import os
import re
import warnings
from collections.abc import Callable
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

import jax

from ..base import settings, tested
from ..mpi.mpi import MPI

# Installed when mpixla is imported.
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
# Installed by the features that are nothing without them.
ON_REQUEST = ("first_run",)

installed: set[str] = set()

_VARIABLE = "MPIXLA_HOOKS_OFF"
_IS_OFF = f"{_VARIABLE} turns it off"
# The hooks that are not to be installed, or "all".
off = {name.strip() for name in os.environ.get(_VARIABLE, "").lower().split(",")} - {""}


# Registries of JAX's rules for its primitives, by which it linearizes, and takes checkpoints apart.
LINEARIZE = "jax._src.interpreters.partial_eval:custom_partial_eval_rules"
IN_CHECKPOINT = "jax._src.interpreters.partial_eval:partial_eval_jaxpr_custom_rules"


class JaxVersionWarning(UserWarning):
    """JAX is newer than any that this mpixla was tested with."""


def notice() -> None:
    """Warns on one rank, once, where JAX is newer than tested."""
    if settings.is_on("MPI4JAX_NO_WARN_JAX_VERSION"):
        return  # what users of mpi4jax set, who run their programs on mpixla
    if _parts(jax.__version__) > _parts(tested.NEWEST) and MPI.COMM_WORLD.Get_rank() == 0:
        warnings.warn(
            f"mpixla was tested with JAX up to {tested.NEWEST} ({tested.NEWEST_IN}), and this is JAX "
            f"{jax.__version__}. If something is wrong with it, look for a newer mpixla. "
            'warnings.filterwarnings("ignore", "mpixla was tested") before the import turns this notice off.',
            JaxVersionWarning,
            stacklevel=3,
        )


def _parts(version: str) -> tuple[int, ...]:
    """The numbers of a release, without what marks it as a development version: (0, 12, 1) of 0.12.1.dev20261101."""
    return tuple(int(part) for part in re.match(r"[\d.]*\d", version)[0].split("."))  # type: ignore[index]


class UnfitError(Exception):
    """This JAX does not have what a hook takes."""


def need(name: str, *arguments: str) -> Any:
    """What this JAX has by a name: a function that takes these arguments first, where there are any."""
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
    """A registry of JAX's by its name, which has rules for these primitives."""
    rules = need(name)
    for primitive in primitives:
        if primitive not in rules:
            raise UnfitError(f"{name} has no rule for {primitive}")
    return rules


def replace(name: str, *arguments: str) -> Callable[[Callable[..., Any]], None]:
    """Decorates what takes the place of a function that a hook needs, which it is given before its own arguments."""
    original = need(name, *arguments)
    outer, last = re.split(r"[.:](?=\w+$)", name)

    def put(new: Callable[..., Any]) -> None:
        @functools.wraps(original)
        def call(*args: Any, **options: Any) -> Any:
            return new(original, *args, **options)

        setattr(resolve_name(outer), last, call)

    return put


def _install(name: str, *arguments: Any) -> tuple[ModuleType, str | None]:
    """A hook, and why it is not installed, if it is not: it is turned off, or does not fit this JAX."""
    hook = importlib.import_module(f".{name}", __name__)
    if off & {"all", name}:
        return hook, _IS_OFF
    try:
        hook.install(*arguments)
    except UnfitError as e:
        return hook, str(e)
    installed.add(name)
    return hook, None


def install() -> None:
    """Installs the hooks that fit, but for those that ``MPIXLA_HOOKS_OFF`` names, and says which do not."""
    unknown = off - {*HOOKS, *ON_REQUEST, "all"}
    if unknown:
        raise ValueError(
            f"{_VARIABLE} names {', '.join(sorted(unknown))}, and there is no such hook. It takes all, or "
            f"some of {', '.join((*HOOKS, *ON_REQUEST))}, with commas between them."
        )
    lost = []
    for name in HOOKS:
        hook, reason = _install(name)
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


def require(name: str, feature: str, *arguments: Any) -> None:
    """Installs the hook that a feature is nothing without, or refuses the feature."""
    _, reason = _install(name, *arguments)
    if reason is not None:
        raise RuntimeError(
            f"{feature} needs a part of JAX that mpixla replaces ({name}), and in JAX {jax.__version__} it cannot: "
            f"{reason}."
        )
