"""JAX's own collectives over MPI: what must be so before jaxlib is loaded. So mpixla imports this first of all.

The MPItrampoline in jaxlib loads the library that the environment names at that moment, or none. Under
``python -m mpixla.distributed`` the environment names ours. A process is not started anew for that: MPI would end it.
"""

import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from . import tested

LIBRARY = Path(__file__).parent.with_name("libmpixla_trampoline.so")
LAUNCHER = "mpixla.distributed"

_VARIABLES = {"MPITRAMPOLINE_LIB": str(LIBRARY), "MPITRAMPOLINE_DLOPEN_MODE": "dlopen"}
_TRIAL_SECONDS = 120

is_ready = False
why_not = (
    f"this process was not started by it. Start the job as: mpirun -n 4 python -m {LAUNCHER} script.py (jaxlib looks "
    "for MPI when it is loaded, so nothing that is called later can give it one)"
)


def module_of(arguments: Sequence[str]) -> str | None:
    """The module that a command line of Python's runs with ``-m``, if it does."""
    rest = iter(arguments[1:])
    for argument in rest:
        if not argument.startswith("-") or argument in ("-", "--"):
            return None
        if argument.startswith("--"):
            continue
        for i, option in enumerate(argument[1:], 2):
            if option in "cmWX":
                value = argument[i:] or next(rest, "")
                if option == "m":
                    return value
                if option == "c":
                    return None
                break
    return None


def forget() -> None:
    """Takes the variables out of the environment, so that processes that this one starts load jaxlib as usual."""
    for name in _VARIABLES:
        os.environ.pop(name, None)


def _prepare() -> None:
    global is_ready, why_not
    if any(name in sys.modules for name in ("jaxlib._jax", "jaxlib.xla_extension")):
        why_not = "jaxlib was loaded before it (by a .pth file or sitecustomize?), and looks for MPI when it is loaded"
        return
    version = importlib.metadata.version("jaxlib")
    # Of those that were tested it is known; any other is asked to, in a process of its own, which may end.
    if version not in tested.JAX:
        why_not = _try(version)
        if why_not:
            return
    os.environ.update(_VARIABLES)
    is_ready = True


def _try(version: str) -> str:
    """Why this jaxlib does not load our library; "" if it does."""
    command = [sys.executable, "-c", "import jaxlib._jax"]
    try:
        done = subprocess.run(
            command, env={**os.environ, **_VARIABLES}, capture_output=True, text=True, timeout=_TRIAL_SECONDS
        )
    except subprocess.TimeoutExpired:
        said = f"it took longer than {_TRIAL_SECONDS} s"
    else:
        if done.returncode == 0:
            return ""
        said = " ".join((done.stderr.strip() or f"it ended with status {done.returncode}").split()[-80:])
    return (
        f"jaxlib {version} does not take the library by which mpixla gives it MPI: {said}. Install one of jaxlib "
        f"{', '.join(tested.JAX)}, or run without {LAUNCHER} (then JAX uses gloo)"
    )


# Python looks for the module of -m, and imports this package for it.
if sys.argv[:1] == ["-m"] and module_of(sys.orig_argv) == LAUNCHER:
    _prepare()
