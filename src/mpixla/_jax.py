"""Everything that mpixla takes from JAX beyond its documented API, in one place, with the reason for each.

``jax.extend`` and ``jax.interpreters`` are public but less stable than ``jax`` itself; ``jax._src`` is private.
"""

from typing import Any

# JAX's one token type, which jax.ffi recognizes by identity.
from jax._src import core as _core

# The set of tokens that JAX hands from one dispatch to the next; see RuntimeTokenSet below.
from jax._src import dispatch as _dispatch

# The registries of effect types: JAX has no public way to declare an ordered effect, and without one XLA may
# reorder the communication inside a program.
from jax._src import effects as _effects

# Rules for reverse mode alone: JAX differentiates a call without results in forward mode, and drops it in reverse mode.
from jax._src.interpreters.ad import primitive_linearizations

# What is dropped when nothing uses its results: calls that a token puts in order (compat) have no effect to keep them.
from jax._src.interpreters.partial_eval import dce_rules

# Whether JAX has started: asking in public starts it.
from jax._src.xla_bridge import backends_are_initialized as jax_has_started
from jax.core import ShapedArray
from jax.extend.core import Effect, Primitive
from jax.extend.core.primitives import while_p
from jax.interpreters import mlir

__all__ = [
    "CommunicationEffect",
    "Primitive",
    "ShapedArray",
    "dce_rules",
    "is_tracing",
    "jax_has_started",
    "mlir",
    "ordered",
    "primitive_linearizations",
    "token_aval",
    "while_p",
]


class CommunicationEffect(Effect):
    """Marks a computation that communicates: JAX keeps such computations, and keeps them in program order."""

    def __repr__(self) -> str:
        return "MPI"


ordered = CommunicationEffect()

# The type of the values that carry order.
token_aval = _core.abstract_token


def is_tracing() -> bool:
    """Whether what is called now is traced or transformed, rather than run at once."""
    return not _core.trace_state_clean()


for _registry in (
    mlir.lowerable_effects,
    _effects.ordered_effects,
    # JAX itself would refuse an ordered effect on several devices with a message about its internals; our
    # lowering rule refuses it with one about what to do.
    _effects.shardable_ordered_effects,
    _effects.control_flow_allowed_effects,
    _effects.custom_derivatives_allowed_effects,
    _effects.remat_allowed_effects,
    # Else reverse mode drops, inside remat, what leads to no result on this rank: the other ranks would wait for it.
    _effects.partial_eval_kept_effects,
):
    _registry.add_type(CommunicationEffect)


_next_token = _dispatch.RuntimeTokenSet.get_token_input


def _fresh_token(self: Any, effect: Effect, devices: list[Any]) -> Any:
    """Gives each dispatch of a communicating program a new token instead of its predecessor's.

    JAX would hand the token of a failed program to every later one and so fail them all. Nothing is lost:
    dispatches from one thread to one device run in program order without it (ARCHITECTURE.md, "Order").
    """
    if isinstance(effect, CommunicationEffect):
        self.current_tokens.pop(effect, None)
    return _next_token(self, effect, devices)


_dispatch.RuntimeTokenSet.get_token_input = _fresh_token  # type: ignore[assignment, method-assign]
