"""Which JAX mpixla was tested with, and a notice where a newer one is installed."""

import os
import re
import warnings

import jax

from .mpi import MPI

# The newest JAX that the tests have passed with, and when.
NEWEST_TESTED = "0.12.0.1"
TESTED_IN = "November 2026"


class JaxVersionWarning(UserWarning):
    """JAX is newer than any that this mpixla was tested with."""


def notice() -> None:
    """Warns on one rank, once, where JAX is newer than tested."""
    if is_truthy("MPI4JAX_NO_WARN_JAX_VERSION"):
        return  # what users of mpi4jax set, who run their programs on mpixla
    if _parts(jax.__version__) > _parts(NEWEST_TESTED) and MPI.COMM_WORLD.Get_rank() == 0:
        warnings.warn(
            f"mpixla was tested with JAX up to {NEWEST_TESTED} ({TESTED_IN}), and this is JAX {jax.__version__}. If "
            'something is wrong with it, look for a newer mpixla. warnings.filterwarnings("ignore", "mpixla was '
            'tested") before the import turns this notice off.',
            JaxVersionWarning,
            stacklevel=3,
        )


def is_truthy(name: str) -> bool:
    """Whether the environment variable is set to what mpi4jax takes for yes."""
    return os.environ.get(name, "").lower() in ("true", "1", "on")


def _parts(version: str) -> tuple[int, ...]:
    """The numbers of a release, without what marks it as a development version: (0, 12, 1) of 0.12.1.dev20261101."""
    return tuple(int(part) for part in re.match(r"[\d.]*\d", version)[0].split("."))  # type: ignore[index]
