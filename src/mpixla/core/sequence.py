"""An identity with a data dependence, by which XLA computes some arrays after others.

So computation stays behind a start of communication (its request first, then the arrays), and a wait behind computation
(the arrays first, then the request). Reverse mode starts at the wait and waits at the start, and the transpose is the
same identity the other way round.

XLA keeps data dependences alone: it removes optimization barriers before it schedules computations. So this is a custom
call that does nothing (native/helpers/order.c): its result aliases one operand, and the arrays that come first are
further operands. (``where`` with a condition that always holds is a dependence, too, but makes the kernels that read
the arrays several times slower.)
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.core import ShapedArray
from jax.experimental import jet
from jax.interpreters import ad, batching, mlir

from ..jaxprs.spmd import Primitive
from ..mpi import native
from .primitive import row_major

_hold = Primitive("hold")  # the identity; operands[first:] depend on operands[:first]


def sequence_after(first: Sequence[Any], then: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return both lists unchanged, tied so that XLA computes users of ``then`` after ``first``; untied if one is []."""
    if not first or not then:
        return list(first), list(then)
    held = _hold.bind(*first, *then, first=len(first))
    return held[: len(first)], held[len(first) :]


def _wait_for_first(*operands: Any, first: int) -> list[Any]:
    jax.block_until_ready(operands[:first])
    return list(operands)


def _lower(ctx: Any, *operands: Any, first: int) -> list[Any]:
    """Lower to a scalar that depends on ``operands[:first]``, on which each of the other operands depends.

    So the first operands have one reader, after which XLA may reuse their memory; with several readers it copies them.
    """
    rule = jax.ffi.ffi_lowering(
        native.target_of("order"), operand_output_aliases={0: 0}, skip_ffi_layout_processing=True
    )

    def order_after(x: Any, aval: Any, others: Sequence[Any], types: Sequence[Any]) -> Any:
        inner = ctx.replace(avals_in=[aval, *types], avals_out=[aval])
        (held,) = rule(inner, row_major(ctx, aval, x), *others)
        return row_major(ctx, aval, held)

    number = ShapedArray((), np.dtype(np.float32))
    zero = mlir.ir_constant(np.zeros(number.shape, number.dtype))
    there = order_after(zero, number, operands[:first], ctx.avals_in[:first])
    then = zip(operands[first:], ctx.avals_in[first:], strict=True)
    return [*operands[:first], *(order_after(x, aval, [there], [number]) for x, aval in then)]


def _jvp(primals: Any, tangents: Any, *, first: int) -> tuple[Any, Any]:
    return _hold.bind(*primals, first=first), _sequence_nonzeros(tangents[:first], tangents[first:])


def _transpose(cotangents: Any, *operands: Any, first: int) -> list[Any]:
    """Return the operands' cotangents, in sequence the other way round: those of the first ones come last."""
    then = _sequence_nonzeros(cotangents[first:], cotangents[:first])
    back = len(operands) - first
    return [
        ct if ad.is_undefined_primal(x) else None for ct, x in zip([*then[back:], *then[:back]], operands, strict=True)
    ]


def _sequence_nonzeros(first: Sequence[Any], then: Sequence[Any]) -> list[Any]:
    """Apply ``sequence_after`` to tangents or cotangents, except symbolic zeros; return all in one list."""
    values = [*first, *then]
    some = [i for i, x in enumerate(values) if type(x) is not ad.Zero]
    n = sum(i < len(first) for i in some)
    held, behind = sequence_after([values[i] for i in some[:n]], [values[i] for i in some[n:]])
    for i, x in zip(some, [*held, *behind], strict=True):
        values[i] = x
    return values


_hold.def_abstract_eval(lambda *operands, first: list(operands))
_hold.def_impl(_wait_for_first)
mlir.register_lowering(_hold, _lower)
ad.primitive_jvps[_hold] = _jvp
ad.primitive_transposes[_hold] = _transpose
batching.primitive_batchers[_hold] = lambda operands, axes, *, first: (_hold.bind(*operands, first=first), axes)
jet.deflinear(_hold)
