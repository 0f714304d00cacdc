"""Searches for a NaN: JAX runs a function again on the rank whose result has one, operation by operation."""

import sys
from typing import Any

import jax

from ..base.required import maybe_recursive_nan_check


def is_searched() -> bool:
    """Whether an eager call is one of such a search, in which the other ranks do not take part."""
    if not (jax.config.jax_debug_nans or jax.config.jax_debug_infs):  # type: ignore[attr-defined]
        return False
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code is not maybe_recursive_nan_check.__code__:
        frame = frame.f_back
    return frame is not None
