"""Tokens, by which programs for JPI, and for mpi4jax before 0.8, order their calls.

mpixla makes calls in the order of the program. A program can pass a call only tokens of earlier calls, so this order
satisfies the tokens, and a token need only be passed on. It is an array of any kind.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Token
from jax.interpreters import ad, batching, mlir

from ..base.required import trace_state_clean
from ..base.words import kind_of
from ..extend import Primitive, with_batch_at


def new_token() -> jax.Array:
    """Return a new token."""
    with jax.transfer_guard("allow"):  # JAX's own tokens are no transfers either
        return jnp.zeros((), jnp.bool_)


def take_token(token: Any, name: str) -> Any:
    """Return the token of operation ``name`` as an array, a new one for None or JAX's; raise TypeError for others.

    JAX's own token is replaced by a new one, since neither JAX's control flow nor XLA's programs with effects accept
    it; None is replaced, too.

    Raises:
        TypeError: if it is neither None nor an array nor JAX's token.
    """
    if token is not None and not isinstance(token, (Token, jax.core.Tracer, jax.Array, np.ndarray)):
        raise TypeError(f"token of {name} must be a token, which every operation returns, but is {kind_of(token)}.")
    # JAX's own token has no shape, also as an argument of a function that is traced.
    return token if hasattr(token, "shape") else new_token()


# The identity of arrays: under vmap all results are batched if one operand is.
_batch = Primitive("mpi_batch_with_token")


def match_batches(tree: Any, token: Any) -> tuple[Any, Any]:
    """Return the arguments unchanged, all batched if one of them is.

    In JPI all results of a batched call are batched, the token too, and so is the next call. In this way a receive is
    batched by its token, and matches the send of a batch by its partner.
    """
    leaves, structure = jax.tree.flatten(tree)
    *leaves, token = _batch.bind(*leaves, token)
    return jax.tree.unflatten(structure, leaves), token


# The identity of arrays: all results have tangents if one operand has.
_tie = Primitive("mpi_tie_to_token")


def pass_on(token: Any) -> Any:
    """Return the token as a computed result, so that JAX can wait for a program with no other result."""
    return token if trace_state_clean() else _tie.bind(token)[0]


def tie_tangents(tree: Any, token: Any) -> tuple[Any, Any]:
    """Return the arguments unchanged, all with tangents if one of them has, zeros where there is no other tangent.

    This rank cannot know whether a receive is differentiated: that depends on the sender, and the template is a
    constant. If the receive's token comes from a call that is differentiated, so is the receive, and the partner gets
    the cotangents that it waits for. Arguments without derivatives, such as integers, are left out, as are all
    arguments if the token has none.
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
