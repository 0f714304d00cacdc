"""JAX's search for a NaN: it reruns a function, operation by operation, on the rank whose result has one."""

import sys
from typing import Any

import jax

from ..base.state import state


def refuses_calls() -> bool:
    """Return True if JAX's search for a NaN calls this, on this rank alone; without the hook, if JAX may search.

    Without the hook that is unknown: then True whenever JAX is set to look for NaNs or infinities.
    """
    if not (jax.config.jax_debug_nans or jax.config.jax_debug_infs):  # type: ignore[attr-defined]
        return False
    if state.nan is None:
        return True
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code is not state.nan:
        frame = frame.f_back
    return frame is not None
