"""Communication that a value puts in order, the *token*, and no effect of JAX.

The primitive ``call`` does what one of mpixla's primitives does, after everything that its token depends on, and gives
the token on. So a program whose calls pass a token from one to the next needs no effect: JAX dispatches it in C++. A
token is an array of any kind, whose value is passed on. JAX's own token becomes an array at its first use, since
neither JAX's control flow nor XLA's programs with effects can do with it.

Where values cannot carry the order, the effect does. The primitive ``sync`` brings a token into the chain of the effect
and out again. It stands around derivatives, since neither may a result depend on tangents, nor may the tangents' calls
go their own way; and around calls that are given no token.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Token, jaxprs_in_params
from jax.interpreters import ad, batching, mlir
from jax.interpreters.partial_eval import dce_rules
from jax.lax import while_p

from ..core.effect import ordered, token_aval
from ..core.spmd import Primitive
from ..runtime.native import ORDER_TARGET
from ..runtime.required import trace_state_clean
from ..runtime.words import kind_of

_Params = tuple[tuple[str, Any], ...]


def new_token() -> jax.Array:
    """A token that nothing comes before."""
    return jnp.zeros((), jnp.bool_)


def check_token(token: Any, name: str) -> None:
    """Refuses what cannot be a token.

    Raises:
        TypeError: if it is neither None nor an array nor JAX's token.
    """
    if not (token is None or isinstance(token, (jax.core.Tracer, jax.Array, np.ndarray)) or _is_jax_token(token)):
        raise TypeError(
            f"token of {name} must be what another operation or jax.lax.create_token() returned, but is "
            f"{kind_of(token)}."
        )
    if token is not None and not _is_jax_token(token) and jnp.size(token) == 0:
        raise TypeError(
            f"token of {name} is an array of shape {jnp.shape(token)}, which has no entries, so nothing can depend on "
            "it. Use jax.lax.create_token()."
        )


def _is_jax_token(token: Any) -> bool:
    return isinstance(token, Token) or getattr(token, "aval", None) is token_aval()


_always_by_effect = False
_by_effect = contextvars.ContextVar("mpixla.compat: order by effect", default=False)


@contextlib.contextmanager
def order_by_effect() -> Iterator[None]:
    """In this context all calls are made in program order, whatever their tokens."""
    before = _by_effect.set(True)
    try:
        yield
    finally:
        _by_effect.reset(before)


def always_order_by_effect() -> None:
    """From now on all calls are made in program order, in every thread."""
    global _always_by_effect
    _always_by_effect = True


def thread(token: Any, fun: Callable[..., Any], *args: Any) -> tuple[Any, Any]:
    """Calls ``fun(*args)``, which communicates, after what the token depends on.

    Args:
        token: a token, or None for the place in program order where this is called.
        fun: what to do with mpixla's operations.
        args: its arguments: pytrees of arrays.

    Returns:
        The result, and a token that depends on the call.
    """
    if _is_jax_token(token):
        token = _array_of.bind(token)
    if trace_state_clean():  # dispatches from one thread run in order
        return fun(*args), new_token() if token is None else token
    if token is None or _always_by_effect or _by_effect.get():
        before = new_token() if token is None else _sync(token)
        return fun(*args), _sync(before)
    closed, shapes = jax.make_jaxpr(fun, return_shape=True)(*args)
    results, token = _evaluate(closed, jax.tree.leaves(args), token)
    return jax.tree.unflatten(jax.tree.structure(shapes), results), token


def _evaluate(closed: Any, args: Sequence[Any], token: Any) -> tuple[list[Any], Any]:
    """Evaluates a jaxpr with its communication put in order by the token rather than the effect."""
    jaxpr = closed.jaxpr
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*closed.consts, *args], strict=True))

    def read(atom: Any) -> Any:
        return atom.val if hasattr(atom, "val") else values[atom]

    for eqn in jaxpr.eqns:
        operands = [read(atom) for atom in eqn.invars]
        if ordered in eqn.effects and not _has_jaxprs(eqn):
            *results, token = _call.bind(*operands, token, op=eqn.primitive, params=tuple(eqn.params.items()))
        else:
            if ordered in eqn.effects:
                token = _sync(token)
            results = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(eqn.params))
            if not eqn.primitive.multiple_results:
                results = [results]
            if ordered in eqn.effects:
                token = _sync(token)
        values.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars], token


def _has_jaxprs(eqn: Any) -> bool:
    return any(True for _ in jaxprs_in_params(eqn.params))


# Lowering: an array becomes a token of XLA's, and the other way round, by a custom call that does nothing. XLA would
# remove an optimization barrier before it decides the order in which computations run.


def _order(ctx: Any, array: Any, aval: Any, token: Any, *, to_token: bool, to_array: bool) -> list[Any]:
    """Passes on an array and a token of XLA's, each where it is given and asked for."""
    inner = ctx.replace(
        avals_in=[aval] if token is None else [aval, token_aval()],
        avals_out=[*([aval] if to_array else []), *([token_aval()] if to_token else [])],
    )
    aliases = {0: 0} if to_array else None
    rule = jax.ffi.ffi_lowering(ORDER_TARGET, has_side_effect=True, operand_output_aliases=aliases)
    return list(rule(inner, array, *([] if token is None else [token])))


# call: one communicating primitive, `op`, put in order by its last operand

_call = Primitive("mpi_call_after_token")
_call.multiple_results = True


def _call_abstract(*operands: ShapedArray, op: Primitive, params: _Params) -> list[Any]:
    *xs, token = operands
    results, _effects = op.abstract_eval(*xs, **dict(params))
    return [*results, token]


def _call_impl(*operands: Any, op: Primitive, params: _Params) -> list[Any]:
    *xs, token = operands
    return [*op.bind(*xs, **dict(params)), token]


def _call_lower(ctx: Any, *operands: Any, op: Primitive, params: _Params) -> Sequence[Any]:
    *xs, token = operands
    *avals_in, aval = ctx.avals_in
    (before,) = _order(ctx, token, aval, None, to_token=True, to_array=False)
    inner = ctx.replace(
        primitive=op,
        avals_in=avals_in,
        avals_out=ctx.avals_out[:-1],
        tokens_in=mlir.TokenSet({ordered: before}),
        tokens_out=None,
    )
    results = mlir.lower_fun(lambda *xs: op.bind(*xs, **dict(params)), multiple_results=True)(inner, *xs)
    after = inner.tokens_out.get(ordered)
    return [*results, *_order(ctx, token, aval, after, to_token=False, to_array=True)]


def _call_jvp(primals: Any, tangents: Any, *, op: Primitive, params: _Params) -> tuple[Any, Any]:
    *xs, token = primals
    *ts, token_tangent = tangents
    if all(isinstance(t, ad.Zero) for t in ts):
        *results, token = _call.bind(*primals, op=op, params=params)
        zeros = [ad.Zero(jax.typeof(y).to_tangent_aval()) for y in results]
        return [*results, token], [*zeros, token_tangent]
    token = _sync(token)
    results, result_tangents = ad.primitive_jvps[op](xs, ts, **dict(params))
    return [*results, _sync(token)], [*result_tangents, token_tangent]


def _call_transpose(cotangents: Any, *operands: Any, op: Primitive, params: _Params) -> list[Any]:
    *xs, token = operands
    *cts, token_cotangent = cotangents
    if not ad.is_undefined_primal(token):
        _sync(token)
        token_cotangent = None
    return [*ad.primitive_transposes[op](cts, *xs, **dict(params)), token_cotangent]


def _call_batch(operands: Any, dims: Any, *, op: Primitive, params: _Params) -> tuple[Any, Any]:
    *xs, token = operands
    *x_dims, token_dim = dims
    if all(d is None for d in x_dims):
        results = _call.bind(*operands, op=op, params=params)
        return results, [*[None] * (len(results) - 1), token_dim]
    whole_batch = jax.vmap(lambda *xs: op.bind(*xs, **dict(params)), in_axes=tuple(x_dims))
    results, token = thread(token, whole_batch, *xs)
    return [*results, token], [*[0] * len(results), token_dim]


_call.def_abstract_eval(_call_abstract)
_call.def_impl(_call_impl)
mlir.register_lowering(_call, _call_lower)
ad.primitive_jvps[_call] = _call_jvp
ad.primitive_transposes[_call] = _call_transpose
batching.primitive_batchers[_call] = _call_batch


# sync: the effect waits for the token, and the token for the effect

_sync_primitive = Primitive("mpi_sync_token")


def _sync(token: Any) -> Any:
    return _sync_primitive.bind(token)


def _sync_lower(ctx: Any, token: Any) -> Sequence[Any]:
    (aval,) = ctx.avals_in
    result, after = _order(ctx, token, aval, ctx.tokens_in.get(ordered), to_token=True, to_array=True)
    ctx.set_tokens_out(mlir.TokenSet({**dict(ctx.tokens_in.items()), ordered: after}))
    return [result]


_sync_primitive.def_effectful_abstract_eval(lambda token: (token, {ordered}))
_sync_primitive.def_impl(lambda token: token)
mlir.register_lowering(_sync_primitive, _sync_lower)
ad.primitive_jvps[_sync_primitive] = lambda primals, tangents: (_sync(*primals), *tangents)
ad.primitive_transposes[_sync_primitive] = lambda cotangent, token: [cotangent]
batching.primitive_batchers[_sync_primitive] = lambda operands, dims: (_sync(*operands), *dims)


# tie: arrays and a token of which all are differentiated if one is

_tie = Primitive("mpi_tie_to_token")
_tie.multiple_results = True


def tie(tree: Any, token: Any) -> tuple[Any, Any]:
    """Gives the arguments back, and has JAX differentiate each by all of them, with zeros where there is nothing else.

    A receive is a part of a derivative because of what it receives, of which this rank knows nothing: its template is a
    constant. If the token before it comes from a call that is differentiated, so is the receive then, and the partner,
    who waits for its cotangents, gets them. What has no derivative, such as integers, is left out, as are all arguments
    if the token has none.
    """
    leaves, structure = jax.tree.flatten(tree)
    places = [i for i, x in enumerate(leaves) if _has_derivative(x)]
    if trace_state_clean() or not places or not _has_derivative(token):
        return tree, token
    *tied, token = _tie.bind(*(leaves[i] for i in places), token)
    for i, x in zip(places, tied, strict=True):
        leaves[i] = x
    return jax.tree.unflatten(structure, leaves), token


def _has_derivative(x: Any) -> bool:
    return jnp.issubdtype(getattr(x, "dtype", np.bool_), jnp.inexact)


def _tie_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    return _tie.bind(*primals), _tie.bind(*map(ad.instantiate_zeros, tangents))


def _tie_transpose(cotangents: Any, *operands: Any) -> list[Any]:
    cotangents = _tie.bind(*map(ad.instantiate_zeros, cotangents))
    return [ct if ad.is_undefined_primal(x) else None for ct, x in zip(cotangents, operands, strict=True)]


_tie.def_abstract_eval(lambda *operands: list(operands))
_tie.def_impl(lambda *operands: list(operands))
mlir.register_lowering(_tie, lambda ctx, *operands: operands)
ad.primitive_jvps[_tie] = _tie_jvp
ad.primitive_transposes[_tie] = _tie_transpose
batching.primitive_batchers[_tie] = lambda operands, dims: (_tie.bind(*operands), dims)


# array_of: a token of JAX's as an array

_array_of = Primitive("mpi_array_of_token")
_TOKEN = ShapedArray((), np.dtype(np.bool_))


def _array_of_lower(ctx: Any, token: Any) -> Sequence[Any]:
    array = mlir.ir_constant(np.zeros(_TOKEN.shape, _TOKEN.dtype))
    return _order(ctx, array, _TOKEN, token, to_token=False, to_array=True)


_array_of.def_abstract_eval(lambda token: _TOKEN)
_array_of.def_impl(lambda token: new_token())
mlir.register_lowering(_array_of, _array_of_lower)


# JAX drops what has no effect and no result that is used. Other ranks wait for these calls all the same, also where a
# program does not pass on the token of its last call.


# The rules' arguments: which results are used, in later versions of JAX what else is, and the equation.


def _keep(*args: Any) -> tuple[list[bool], Any]:
    eqn = args[-1]
    return [True] * len(eqn.invars), eqn


def _communicates(params: Any) -> bool:
    return any(
        eqn.primitive is _call or _communicates(eqn.params) for jaxpr in jaxprs_in_params(params) for eqn in jaxpr.eqns
    )


def _keep_if_communicating(rule: Callable[..., Any] | None) -> Callable[..., Any]:
    def dce(used: list[bool], *args: Any) -> Any:
        eqn = args[-1]
        if not any(used) and _communicates(eqn.params):
            return _keep(eqn)
        if rule is not None:
            return rule(used, *args)
        return _keep(eqn) if any(used) or eqn.effects else ([False] * len(eqn.invars), None)

    return dce


def _keep_calls() -> None:
    for primitive in {*dce_rules, while_p}:
        dce_rules[primitive] = _keep_if_communicating(dce_rules.get(primitive))
    dce_rules[_call] = _keep


_keep_calls()
