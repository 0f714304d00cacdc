"""A notice where a newer JAX is installed than mpixla was tested with."""

import re
import warnings

import jax

from ..base import settings, tested
from ..mpi.mpi import MPI


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
