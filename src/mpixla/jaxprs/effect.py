"""The JAX effect that marks communication."""

import functools
from typing import Any

import jax
from jax.interpreters import mlir

from ..base.required import EFFECT_REGISTRIES, Effect


class CommunicationEffect(Effect):
    """Marks a computation that communicates: JAX keeps such computations, and keeps them in program order."""

    __module__ = "mpixla.core.effect"  # part of the name by which exported programs have it: it never changes

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
    """A primitive's equation does not declare the communication inside, so JAX has given the call no token.

    Users see it where no program is rewritten before it is lowered, and where JAX lowers a part of a program by itself.
    """

    WAY_OUT = "Call it outside."

    def __init__(self, operation: str) -> None:
        self.refused = (
            f"{operation} is used inside a primitive that does not show the effects of what it does, so JAX knows no "
            "place for the operation in program order"
        )
        super().__init__(f"{self.refused}. {self.WAY_OUT}")


def is_missing_token(error: Exception) -> bool:
    """Return True if an error says that a call inside a primitive got no token."""
    # JAX's own lookup raises KeyError where the primitive has the call in a loop, a branch or a jitted function.
    return isinstance(error, HiddenCommunicationError) or (isinstance(error, KeyError) and error.args == (ordered,))


_create_token = jax.lax.create_token  # the original: mpixla.compat replaces jax.lax.create_token


@functools.cache
def token_aval() -> Any:
    """Return the aval of JAX's token type, which jax.ffi recognizes by identity."""
    return jax.make_jaxpr(_create_token)().out_avals[0]
