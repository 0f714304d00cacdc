"""Tokens, by which programs for JPI, and for mpi4jax before 0.8, say which call comes after which.

mpixla makes calls in the order of the program. A program can pass a call only tokens of calls that stand before it, so
that order is one that the tokens allow, and a token has nothing to do but to be handed on. It is an array of any kind.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Token
from jax.interpreters import ad, batching, mlir

from ..base.required import trace_state_clean
from ..base.words import kind_of
from ..core.rules import with_batch_at
from ..core.spmd import Primitive


def new_token() -> jax.Array:
    """A token to begin with."""
    with jax.transfer_guard("allow"):  # to JAX its own is no transfer either
        return jnp.zeros((), jnp.bool_)


def take_token(token: Any, name: str) -> Any:
    """The token that the operation ``name`` was given, as an array.

    JAX's own token, which neither JAX's control flow nor XLA's programs with effects can do with, becomes a new one;
    so does None.

    Raises:
        TypeError: if it is neither None nor an array nor JAX's token.
    """
    if token is not None and not isinstance(token, (Token, jax.core.Tracer, jax.Array, np.ndarray)):
        raise TypeError(f"token of {name} must be a token, which every operation returns, but is {kind_of(token)}.")
    # JAX's has no shape, also as an argument of a function that is traced.
    return token if hasattr(token, "shape") else new_token()


# The identity of arrays, of which all have a batch if one has.
_batch = Primitive("mpi_batch_with_token")


def batch_with(tree: Any, token: Any) -> tuple[Any, Any]:
    """Gives the arguments back, each with a batch if one of them has one.

    In JPI all that a call in a batch gives back has the batch, the token too; so the next call is in the batch as well.
    Here a receive gets it so from the token, and its partner, who sends a batch, meets one.
    """
    leaves, structure = jax.tree.flatten(tree)
    *leaves, token = _batch.bind(*leaves, token)
    return jax.tree.unflatten(structure, leaves), token


# The identity of arrays, of which all are differentiated if one is.
_tie = Primitive("mpi_tie_to_token")


def pass_on(token: Any) -> Any:
    """The token, as something that the program computes: JAX can wait for a program that gives back nothing else."""
    return token if trace_state_clean() else _tie.bind(token)[0]


def tie(tree: Any, token: Any) -> tuple[Any, Any]:
    """Gives the arguments back, and has JAX differentiate each by all of them, with zeros where there is nothing else.

    A receive is a part of a derivative because of what it receives, of which this rank knows nothing: its template is a
    constant. If the token before it comes from a call that is differentiated, so is the receive then, and the partner,
    who waits for its cotangents, gets them. What has no derivative, such as integers, is left out, as are all arguments
    if the token has none.
    """
    leaves, structure = jax.tree.flatten(tree)
    places = [i for i, x in enumerate(leaves) if _has_derivative(x)] if _has_derivative(token) else []
    *tied, token = _tie.bind(*(leaves[i] for i in places), token)
    for i, x in zip(places, tied, strict=True):
        leaves[i] = x
    return jax.tree.unflatten(structure, leaves), token


def _has_derivative(x: Any) -> bool:
    return jnp.issubdtype(getattr(x, "dtype", np.bool_), jnp.inexact)


for _identity in (_batch, _tie):
    _identity.def_abstract_eval(lambda *operands: list(operands))
    _identity.def_impl(lambda *operands: list(operands))
    mlir.register_lowering(_identity, lambda ctx, *operands: operands)
    ad.primitive_transposes[_identity] = lambda cotangents, *operands: [
        ct if ad.is_undefined_primal(x) else None for ct, x in zip(cotangents, operands, strict=True)
    ]
ad.primitive_jvps[_batch] = lambda primals, tangents: (_batch.bind(*primals), tangents)
batching.primitive_batchers[_batch] = lambda xs, dims: (_batch.bind(*with_batch_at(0, xs, dims)), [0] * len(dims))
ad.primitive_jvps[_tie] = lambda xs, ts: (_tie.bind(*xs), _tie.bind(*map(ad.instantiate_zeros, ts)))
batching.primitive_batchers[_tie] = lambda operands, dims: (_tie.bind(*operands), dims)
