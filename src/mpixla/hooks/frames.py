"""Tracebacks of what JAX traces or runs leave out mpixla's own lines, as they leave out JAX's."""

from pathlib import Path
from typing import Any

LOST = "Tracebacks show the lines inside mpixla as well."
NEEDS: dict[str, Any] = {"jax._src.traceback_util:register_exclusion": None}


def install() -> None:
    """Registers the package."""
    from jax._src.traceback_util import register_exclusion

    register_exclusion(str(Path(__file__).parents[1]))
