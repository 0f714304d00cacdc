"""Tracebacks leave out mpixla's own lines, as they leave out JAX's."""

from pathlib import Path

from ..core import tracebacks
from . import need

LOST = "Tracebacks show the lines inside mpixla as well."


def install() -> None:
    """Registers the package, for what JAX traces or runs, and has eager calls filtered as JAX does it."""
    register = need("jax._src.traceback_util:register_exclusion")
    tracebacks.filtered = need("jax._src.traceback_util:filter_traceback")
    register(str(Path(__file__).parents[1]))
