"""Tracebacks without mpixla's own frames, as without JAX's."""

from pathlib import Path

from ..base.patching import find_in_jax
from ..base.state import state

LOST = "Tracebacks show the lines inside mpixla as well."


def install() -> None:
    """Register the package's frames with JAX's traceback filter, and give that filter to eager calls."""
    register = find_in_jax("jax._src.traceback_util:register_exclusion")
    state.frames = find_in_jax("jax._src.traceback_util:filter_traceback")
    register(str(Path(__file__).parents[1]))
