"""The effect that marks what communicates."""

import functools
from typing import Any

import jax
from jax.interpreters import mlir

from ..base.required import EFFECT_REGISTRIES, Effect


class CommunicationEffect(Effect):
    """Marks a computation that communicates: JAX keeps such computations, and keeps them in program order."""

    def __repr__(self) -> str:
        return "MPI"

    # There is one such effect: jax.export writes its type, and makes an equal one where the program is loaded.

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))


for _registry in (mlir.lowerable_effects, *EFFECT_REGISTRIES):
    _registry.add_type(CommunicationEffect)

ordered = CommunicationEffect()


class HiddenCommunicationError(NotImplementedError):
    """A primitive communicates whose equation does not show it, so JAX has handed it no token.

    Users see it where no program is rewritten before it is lowered, and where JAX lowers a part of one by itself.
    """

    WAY_OUT = "Call it outside."

    def __init__(self, operation: str) -> None:
        self.refused = (
            f"{operation} is used inside a primitive that does not show the effects of what it does, so JAX knows no "
            "place for the operation in program order"
        )
        super().__init__(f"{self.refused}. {self.WAY_OUT}")


def is_missing_token(error: Exception) -> bool:
    """Return whether JAX, or mpixla, has found no token for a call that a primitive hides."""
    # JAX looks for one in a dictionary, where the primitive has the call in a loop, a branch or a jitted function.
    return isinstance(error, HiddenCommunicationError) or (isinstance(error, KeyError) and error.args == (ordered,))


_create_token = jax.lax.create_token  # mpixla.compat puts one of its own there


@functools.cache
def token_aval() -> Any:
    """The type of the values that carry order: JAX's one token type, which jax.ffi recognizes by identity."""
    return jax.make_jaxpr(_create_token)().out_avals[0]
