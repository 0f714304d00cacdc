"""Recognition of JAX's search for a NaN (``jax_debug_nans``), which runs a function again on this rank alone."""

from ..base.patching import find_in_jax
from ..base.state import state

LOST = "With jax_debug_nans or jax_debug_infs, calls outside of compiled programs are refused."


def install() -> None:
    """Pass the code of JAX's function for the search to core/nan.py, which looks for it on the stack."""
    state.nan = find_in_jax("jax._src.api_util:maybe_recursive_nan_check").__code__
