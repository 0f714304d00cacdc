"""The effect that marks what communicates: JAX keeps it, and keeps it in program order."""

import functools
from typing import Any

import jax
from jax.interpreters import mlir

from ..base.required import (
    Effect,
    control_flow_allowed_effects,
    custom_derivatives_allowed_effects,
    ordered_effects,
    partial_eval_kept_effects,
    remat_allowed_effects,
    shardable_ordered_effects,
)


class CommunicationEffect(Effect):
    """Marks a computation that communicates: JAX keeps such computations, and keeps them in program order."""

    def __repr__(self) -> str:
        return "MPI"

    # There is one such effect: jax.export writes its type, and makes an equal one where the program is loaded.

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))


for _registry in (
    mlir.lowerable_effects,
    ordered_effects,
    # JAX itself would refuse an ordered effect on several devices with a message about its internals; our
    # lowering rule refuses it with one about what to do.
    shardable_ordered_effects,
    control_flow_allowed_effects,
    custom_derivatives_allowed_effects,
    remat_allowed_effects,
    partial_eval_kept_effects,
):
    _registry.add_type(CommunicationEffect)

ordered = CommunicationEffect()


class HiddenCommunicationError(NotImplementedError):
    """A primitive communicates whose equation does not show it, so JAX has handed it no token."""


_create_token = jax.lax.create_token  # mpixla.compat puts one of its own there


@functools.cache
def token_aval() -> Any:
    """The type of the values that carry order: JAX's one token type, which jax.ffi recognizes by identity."""
    return jax.make_jaxpr(_create_token)().out_avals[0]
