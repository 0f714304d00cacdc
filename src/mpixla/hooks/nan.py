"""Whether JAX is running a function again on this rank alone, to find where a NaN comes from (``jax_debug_nans``)."""

from ..core import nan

LOST = "With jax_debug_nans or jax_debug_infs, calls outside of compiled programs are refused."
NEEDS = {f"jax._src.api_util:{nan.SEARCH}": None}


def install() -> None:
    """Has the search recognized by the function of JAX's that is on the stack."""
    nan.knows_search = True
