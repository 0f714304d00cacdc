"""Two identities that XLA sees as dependences: they keep computation behind a start of communication, or before a wait.

A dependence of data is all that XLA keeps: it would remove an optimization barrier before it decides the order of
computations. So each is a custom call that does nothing (native/helpers/order.c), on one operand's memory, and takes
what is to come first as further operands. What either holds back in one direction, the other holds back in reverse
mode.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import jet
from jax.interpreters import ad, batching, mlir

from ..runtime import native
from .primitive import row_major
from .spmd import Primitive, vary, varying_axes

_after = Primitive("after_start")  # of an array and ids: the array, which is there after the ids
_before = Primitive("before_wait")  # of `ids` ids and arrays: all of them, where the ids are there after the arrays
_before.multiple_results = True


def after(x: Any, ids: Sequence[Any]) -> Any:
    """The array ``x``, for what is to be computed after the requests with these ids were started."""
    return _after.bind(x, *ids)


def before(ids: Sequence[Any], arrays: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The ids, for waits that come after these arrays were computed, and the arrays."""
    found = _before.bind(*ids, *arrays, ids=len(ids))
    return found[: len(ids)], found[len(ids) :]


def _lower_after(ctx: Any, x: Any, *others: Any) -> Any:
    rule = jax.ffi.ffi_lowering(native.ORDER_TARGET, operand_output_aliases={0: 0}, skip_ffi_layout_processing=True)
    (held,) = rule(ctx, row_major(ctx, ctx.avals_in[0], x), *others)
    return [row_major(ctx, ctx.avals_out[0], held)]


def _lower_before(ctx: Any, *operands: Any, ids: int) -> Any:
    held = []
    for i in range(ids):
        inner = ctx.replace(avals_in=[ctx.avals_in[i], *ctx.avals_in[ids:]], avals_out=[ctx.avals_in[i]])
        held += _lower_after(inner, operands[i], *operands[ids:])
    return [*held, *operands[ids:]]


def _before_now(*operands: Any, ids: int) -> list[Any]:
    jax.block_until_ready(operands[ids:])
    return list(operands)


_after.def_abstract_eval(lambda x, *ids: x)
_after.def_impl(lambda x, *ids: x)  # what was dispatched before runs before
_before.def_abstract_eval(lambda *operands, ids: list(operands))
_before.def_impl(_before_now)
mlir.register_lowering(_after, _lower_after)
mlir.register_lowering(_before, _lower_before)


def _is_zero(x: Any) -> bool:
    return type(x) is ad.Zero


# The cotangent of an id is the id of the communication of the cotangents, and its tangent that of the tangents.


def _after_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    x_dot, *dots = tangents
    if not _is_zero(x_dot):
        x_dot = after(x_dot, [i if _is_zero(dot) else dot for i, dot in zip(primals[1:], dots, strict=True)])
    return after(primals[0], primals[1:]), x_dot


def _after_transpose(ct: Any, x: Any, *ids: Any) -> list[Any]:
    """To each id it adds zeros, which are there after the cotangent: so the wait for the sum comes after it."""

    def of_id(request_id: Any) -> Any:
        zeros = jnp.zeros(request_id.aval.shape, request_id.aval.dtype)
        return after(vary(zeros, varying_axes(request_id.aval)), [ct])

    held = [not _is_zero(ct) and ad.is_undefined_primal(request_id) for request_id in ids]
    return [
        ct if ad.is_undefined_primal(x) else None,
        *[of_id(request_id) if holds else None for request_id, holds in zip(ids, held, strict=True)],
    ]


def _before_jvp(primals: Any, tangents: Any, *, ids: int) -> tuple[Any, Any]:
    results = _before.bind(*primals, ids=ids)
    moved = [i for i, dot in enumerate(tangents) if not _is_zero(dot)]
    waited = sum(i < ids for i in moved)
    dots = list(tangents)
    if 0 < waited < len(moved):
        for i, dot in zip(moved, _before.bind(*(dots[i] for i in moved), ids=waited), strict=True):
            dots[i] = dot
    return results, dots


def _before_transpose(cts: Any, *operands: Any, ids: int) -> list[Any]:
    started = [ct for ct in cts[:ids] if not _is_zero(ct)]
    held = [ct if _is_zero(ct) or not started else after(ct, started) for ct in cts[ids:]]
    return [ct if ad.is_undefined_primal(x) else None for ct, x in zip([*cts[:ids], *held], operands, strict=True)]


ad.primitive_jvps[_after] = _after_jvp
ad.primitive_transposes[_after] = _after_transpose
batching.primitive_batchers[_after] = lambda operands, axes: (_after.bind(*operands), axes[0])
ad.primitive_jvps[_before] = _before_jvp
jet.deflinear(_after)
jet.deflinear(_before)
ad.primitive_transposes[_before] = _before_transpose
batching.primitive_batchers[_before] = lambda operands, axes, *, ids: (_before.bind(*operands, ids=ids), axes)
