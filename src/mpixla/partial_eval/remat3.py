"""Refusal of the derivative of a checkpoint that communicates, under JAX's next implementation (``jax_remat3``).

That implementation repeats calls in the backward pass, and drops calls whose result a rank does not use. Once it is
JAX's default, this refusal has to become a rule (test_next_checkpoint of tests/launch/test_jax_machinery.py).
"""

from typing import Any

from ..base.patching import replace_function
from ..jaxprs.effect import ordered
from ..jaxprs.reveal import show_effects

LOST = "Under jax_remat3, a checkpoint that communicates makes its calls again on the way back, and may hang."
_REMAT = "jax._src.ad_checkpoint:RematTraced"


def install() -> None:
    """Replace ``lin`` and ``vjp_fwd`` of JAX's RematTraced by functions that refuse checkpoints that communicate."""
    for put in [replace_function(f"{_REMAT}.{name}", "self") for name in ("lin", "vjp_fwd")]:
        put(_derive_or_refuse)


def _derive_or_refuse(derive: Any, self: Any, *args: Any) -> Any:
    """Differentiate a checkpoint as JAX does; raise NotImplementedError if it communicates."""
    jaxpr = show_effects(self.jaxpr)
    if ordered in jaxpr.effects:
        where = getattr(jaxpr, "jaxpr", jaxpr).debug_info.func_src_info
        raise NotImplementedError(
            f"the jax.checkpoint of {where}, which communicates, has no derivative under jax_remat3 (JAX_REMAT3): JAX "
            "would make its calls again on the way back. Turn it off, jax.config.update('jax_remat3', False), or "
            "communicate outside of the checkpoint."
        )
    return derive(self, *args)
