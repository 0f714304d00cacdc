"""The next implementation of jax.checkpoint (``jax_remat3``) would make calls again on the way back."""

import functools
from collections.abc import Callable
from typing import Any

from ..core.effect import ordered

LOST = "Under jax_remat3, a checkpoint that communicates makes its calls again on the way back, and may hang."
NEEDS = {
    "jax._src.ad_checkpoint:RematTraced.vjp_fwd": ("self",),
    "jax._src.ad_checkpoint:RematTraced.lin": ("self",),
}


def install() -> None:
    """Replaces its derivatives by ones that refuse what communicates."""
    from jax._src.ad_checkpoint import RematTraced

    for name in ("vjp_fwd", "lin"):
        setattr(RematTraced, name, _refusing(getattr(RematTraced, name)))


def _refusing(derive: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(derive)
    def call(self: Any, *args: Any) -> Any:
        if ordered in self.jaxpr.effects:
            raise NotImplementedError(
                "a jax.checkpoint whose function communicates has no derivative under jax_remat3 (JAX_REMAT3): JAX "
                "would make the calls again on the way back. Turn it off, jax.config.update('jax_remat3', False), or "
                "communicate outside of the checkpoint."
            )
        return derive(self, *args)

    return call
