"""Whether JAX is running a function again on this rank alone, to find where a NaN comes from (``jax_debug_nans``)."""

from ..core import nan
from . import need

LOST = "With jax_debug_nans or jax_debug_infs, calls outside of compiled programs are refused."


def install() -> None:
    """Has the search recognized by the function of JAX's that is on the stack."""
    nan.search = need("jax._src.api_util:maybe_recursive_nan_check").__code__
