"""The general forms of the derivative and batching rules; mpixla.ops says which operation has which.

Communication in a rule must not depend on symbolic zeros, which differ by rank: the other ranks take part in it. So a
rule that runs makes every call, instantiates symbolic zeros, and treats constants as it treats other operands
(partial_eval/constant_tangents.py).
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypedDict, Unpack

import jax
import jax.numpy as jnp
from jax.experimental.jet import jet_rules
from jax.interpreters import ad, batching

from ..checks import sites
from ..jaxprs.spmd import Primitive, as_varying, varying_axes
from ..mpi.comm import STATUS_NUMBERS
from ..partial_eval.constant_tangents import make_witness, match_tracing
from .values import divide_length, full_params, has_values

# The primals, the tangents (arrays) and the parameters to the results' tangents.
Jvp = Callable[..., Sequence[Any]]
# The results' cotangents, the operands' types and the parameters to the operands' cotangents.
Transpose = Callable[..., Sequence[Any]]
# The batch axes of operands and of results, or a function of the parameters that returns them.
BatchAxes = tuple[int, int] | Callable[..., tuple[int, int]]


class Rules(TypedDict, total=False):
    """The optional rules of a primitive."""

    # Reverse mode. It gets numbers known at run time (values.py) as `values`, if the primitive takes any.
    transpose: Transpose
    # Forward mode, if the primitive is not linear in its operands other than such numbers.
    jvp: Jvp
    # Forward mode of a reduction with PROD, MAX or MIN (SUM is linear): from the operand, its tangent and the
    # parameters to the results' tangents.
    weighted: Callable[..., Sequence[Any]]
    # Batching: the batch axes of operands and results; one call takes the whole batch.
    batch: BatchAxes


def define_rules(primitive: Primitive, **rules: Unpack[Rules]) -> None:
    """Register a primitive's rules for forward mode, reverse mode and batching, as far as they are given."""

    def linear_jvp(primals: Any, tangents: Any, **params: Any) -> Sequence[Any]:
        if "op" in params and params["op"].name != "SUM":
            return rules["weighted"](*primals, *tangents, **params)
        return primitive.bind(*tangents_beside_values(primals, tangents, params), **params)

    if "jvp" in rules or "transpose" in rules:
        _define_jvp(primitive, rules.get("jvp", linear_jvp))
    if "transpose" in rules:
        _define_transpose(primitive, rules["transpose"])
    if "batch" in rules:
        _define_batching(primitive, rules["batch"])


def _define_jvp(primitive: Primitive, jvp: Jvp) -> None:
    """Register the rules for forward mode and Taylor series from ``jvp``, which gets an array for each tangent."""

    def tangents_of(primals: Any, tangents: Any, results: Any, params: dict[str, Any]) -> Any:
        """Return a call's tangents by ``jvp``, which gets arrays for symbolic zeros, batched as the call's results."""
        if primitive.name == "sendrecv":
            refuse_one_way("sendrecv", primals[0].dtype, results[0].dtype)
        if results and not any(map(_is_inexact, results)):
            return [ad.Zero(jax.typeof(y).to_tangent_aval()) for y in results]
        arrays = [_instantiate_tangent(t, x) for t, x in zip(tangents, primals, strict=True)]
        # send has no results: its tangent gets the batch, and the derivative, of its operands.
        traced = (y for y in results or primals if _is_inexact(y) and isinstance(y, jax.core.Tracer))
        like = next(map(make_witness, traced), None)

        def with_batch(t: Any, **which: bool) -> Any:
            return t if like is None else match_tracing(t, like, **which)

        given = jvp(primals, [with_batch(t) if _is_inexact(t) else t for t in arrays], **params)
        return [
            with_batch(t, is_result=True) if _is_inexact(y) else ad.Zero(jax.typeof(y).to_tangent_aval())
            for t, y in zip(given, results, strict=True)
        ]

    def jvp_rule(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
        """Bind the primitive, and return its results and tangents; raise TypeError for an op without derivative."""
        call = full_params(params)
        op, name = call.get("op"), call.get("name", primitive.name)
        if op is not None and op.name not in ("SUM", "PROD", "MAX", "MIN"):
            raise TypeError(
                f"{name} with op {op.name} has no derivative. SUM, PROD, MAX and MIN have one; jax.lax.stop_gradient "
                "keeps others out of a derivative."
            )
        primals = [jnp.asarray(x) for x in primals]  # a Python number is no array yet
        results = primitive.bind(*primals, **params)
        return results, tangents_of(primals, tangents, results, params)

    primitive.tangents = tangents_of
    ad.primitive_jvps[primitive] = jvp_rule
    jet_rules[primitive] = functools.partial(_propagate_series, primitive, jvp)


def refuse_one_way(name: str, sent: Any, received: Any) -> None:
    """Raise TypeError if only one of the dtypes sent and received has a derivative: ranks would disagree on calls."""
    if jnp.issubdtype(sent, jnp.inexact) != jnp.issubdtype(received, jnp.inexact):
        raise TypeError(
            f"{name} sends {sent} and receives {received}, of which one has a derivative and the other none, so that "
            "ranks would not agree on what to exchange for it. Send and receive by calls of their own, or keep it out "
            "of the derivative with jax.lax.stop_gradient."
        )


def _propagate_series(primitive: Primitive, jvp: Jvp, primals: Any, series: Any, **params: Any) -> tuple[Any, Any]:
    """Return results and Taylor terms (jax.experimental.jet) of a primitive; NotImplementedError if not linear."""
    op = full_params(params).get("op")
    if op is not None and op.name != "SUM":
        raise NotImplementedError(
            f"{primitive.name} with op {op.name} has no rule for Taylor series (jax.experimental.jet): only what is "
            "linear has one. Take its derivatives with jax.jvp."
        )
    primals = [jnp.asarray(x) for x in primals]
    results = primitive.bind(*primals, **params)
    terms = [jvp(primals, list(tangents), **params) for tangents in zip(*series, strict=True)]
    return results, list(zip(*terms, strict=True))


def tangents_beside_values(primals: Any, tangents: Any, params: dict[str, Any]) -> list[Any]:
    """Return the operands of a linear primitive's JVP: the tangents, with its numbers at run time unchanged."""
    return [*tangents[:-1], primals[-1]] if has_values(params) else list(tangents)


def _is_inexact(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


def _instantiate_tangent(tangent: Any, primal: Any) -> Any:
    """Return a tangent as an array, zeros for a symbolic zero, and for integers zeros of the primal's dtype."""
    # Integers have float0 tangents; the communication takes zeros of the primal's dtype.
    if isinstance(tangent, ad.Zero) or jnp.result_type(tangent) == jax.dtypes.float0:
        return jnp.zeros(primal.shape, primal.dtype)
    return jnp.asarray(tangent)


def _define_transpose(primitive: Primitive, transpose: Transpose) -> None:
    """Register the rule for reverse mode from ``transpose``, which gets an array for each cotangent."""

    def transpose_rule(cotangents: Any, *operands: Any, **params: Any) -> list[Any]:
        """Return the operands' cotangents, None for known ones; raise TypeError for an op that is not linear."""
        call = full_params(params)
        op, name = call.get("op"), call.get("name", primitive.name)
        if op is not None and op.name != "SUM":
            raise TypeError(
                f"{name} with op {op.name} is not linear, so it has no "
                "transpose (jax.linear_transpose). PROD, MAX and MIN have a derivative: use jax.vjp or jax.grad."
            )
        n = len(operands) - has_values(params)
        data, values = operands[:n], operands[n:]
        types = [x.aval if ad.is_undefined_primal(x) else jax.typeof(x) for x in data]
        known = {"values": values} if values else {}
        with sites.annotate_calls(sites.REVERSE):
            results = transpose(*map(ad.instantiate_zeros, cotangents), types=types, **known, **params)
        return [
            as_varying(ct, varying_axes(aval)) if ad.is_undefined_primal(x) else None
            for ct, aval, x in zip(results, types, data, strict=True)
        ] + [None] * len(values)

    ad.primitive_transposes[primitive] = transpose_rule


def with_batch_at(axis: int, operands: Sequence[Any], dims: Sequence[int | None]) -> list[Any]:
    """Return the operands with batch axes at ``axis`` (-1: last), broadcast where None; one of ``dims`` is no None."""
    size = next(x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None)

    def move_batch(x: Any, d: int | None) -> Any:
        if d is None:
            x, d = jnp.broadcast_to(x, (size, *x.shape)), 0
        return jnp.moveaxis(x, d, axis)

    return [move_batch(x, d) for x, d in zip(operands, dims, strict=True)]


def _define_batching(primitive: Primitive, axes: BatchAxes) -> None:
    """Register a batching rule: one call for the whole batch, at ``axes`` = (operands' axis, results' axis).

    Where numbers at run time differ within the batch, the rule makes one call for each example, in order.
    """

    def batching_rule(operands: Any, dims: Any, **params: Any) -> tuple[Any, Any]:
        """Bind the primitive once for the batch, or per entry if ranks or tags differ; return results and axes."""
        n = len(operands) - has_values(params)
        if any(dim is not None for dim in dims[n:]):
            return _bind_one_by_one(primitive, operands, dims, params)
        before, after = axes(**params) if callable(axes) else axes
        data = with_batch_at(before, operands[:n], dims[:n])
        results = primitive.bind(*data, *operands[n:], **params)
        if params.get("status") == STATUS_NUMBERS:  # of the one message
            array, numbers = results
            return [array, divide_length(numbers, data[0].shape[before])], [after % array.ndim, None]
        return results, [after % y.ndim for y in results]

    batching.primitive_batchers[primitive] = batching_rule


def _bind_one_by_one(primitive: Primitive, operands: Any, dims: Any, params: dict[str, Any]) -> tuple[Any, Any]:
    """Bind a primitive for each entry of a batch, one after another, and return the stacked results."""
    with_batch = [dim is not None for dim in dims]
    moved = [jnp.moveaxis(x, dim, 0) for x, dim in zip(operands, dims, strict=True) if dim is not None]

    def bind_one(parts: Any) -> Any:
        """Bind the primitive for one entry of the batch, for ``jax.lax.map`` over the batched operands."""
        part = iter(parts)
        return primitive.bind(
            *(next(part) if has else x for x, has in zip(operands, with_batch, strict=True)), **params
        )

    results = jax.lax.map(bind_one, moved)
    return results, [0] * len(results)
