"""Preparations before jaxlib is loaded. So mpixla imports this module first of all (satellites.py).

The MPItrampoline in jaxlib loads the library that the environment names at that moment, or none. Under
``python -m mpixla.distributed`` the environment names ours. The process is not restarted for that: MPI would end it.
"""

import importlib.metadata
import os
import subprocess
import sys

from ..base import tested
from ..base.files import own_file

LIBRARY = own_file("libmpixla_trampoline.so")
LAUNCHER = "mpixla.distributed"

_VARIABLES = {"MPITRAMPOLINE_LIB": str(LIBRARY), "MPITRAMPOLINE_DLOPEN_MODE": "dlopen"}
_TRIAL_SECONDS = 120

# The reason why JAX's own collectives cannot go over MPI in this process; "" where they can.
why_not = (
    f"this process was not started by it. Start the job as: mpirun -n 4 python -m {LAUNCHER} script.py (jaxlib looks "
    "for MPI when it is loaded, so nothing that is called later can give it one)"
)


def forget_variables() -> None:
    """Remove the variables from the environment, so that child processes load jaxlib as usual."""
    for name in _VARIABLES:
        os.environ.pop(name, None)


def prepare_jaxlib() -> None:
    """Set ``why_not``: "" and the variables that give jaxlib mpixla's MPI library, or why jaxlib cannot use it."""
    global why_not
    if "jaxlib._jax" in sys.modules:
        why_not = "jaxlib was loaded before it (by a .pth file or sitecustomize?), and looks for MPI when it is loaded"
        return
    version = importlib.metadata.version("jaxlib")
    # Tested versions are known to work; any other is tried in a child process, which may crash.
    why_not = "" if version in tested.JAX else _try_loading(version)
    if not why_not:
        os.environ.update(_VARIABLES)


def _try_loading(version: str) -> str:
    """Return why this jaxlib does not load our library; "" if it does."""
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
