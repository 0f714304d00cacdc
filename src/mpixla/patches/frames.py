"""Tracebacks without mpixla's own frames, as without JAX's."""

from pathlib import Path

from ..base.patching import need
from ..base.state import state

LOST = "Tracebacks show the lines inside mpixla as well."


def install() -> None:
    """Register the package's frames with JAX's traceback filter, and give that filter to eager calls."""
    register = need("jax._src.traceback_util:register_exclusion")
    state.frames = need("jax._src.traceback_util:filter_traceback")
    register(str(Path(__file__).parents[1]))
