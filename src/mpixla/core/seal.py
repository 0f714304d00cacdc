"""Sealing: a program that communicates becomes one equation without the effect.

JAX dispatches a program with effects in Python and one without in C++, which is many times faster. The effect only has
to keep the order within the program, so it is hidden when the program is lowered: the jaxpr that JAX then lowers
consists of one primitive without effects, whose lowering makes the token that threads through the communication inside.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.core import ShapedArray
from jax.interpreters import mlir

from ..base.state import state
from ..checks import sites
from ..jaxprs.effect import ordered
from ..jaxprs.rewrite import evaluate_jaxpr, replace_parts
from ..jaxprs.spmd import Primitive

# Its results are the program's, and one to wait for: JAX drops an equation without effects unless a result is used.
# `is_eager`: several call sites share the program of an eager call (checks/sites.py).
sealed_p = Primitive("mpi_program")

_DONE = ShapedArray((0,), np.dtype(np.bool_))


def _abstract_eval(*operands: ShapedArray, jaxpr: Any, is_eager: bool) -> tuple[list[ShapedArray], set[Any]]:
    return [*jaxpr.out_avals, _DONE], {effect for effect in jaxpr.effects if effect is not ordered}


def _lower_inline(ctx: Any, jaxpr: Any, *operands: Any) -> Sequence[Any]:
    """Lower a jaxpr's equations into the MLIR function of ``ctx``, set the tokens out, and return the results.

    Tracing the jaxpr again, as JAX does, takes twice as long.
    """
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    if inner.effects - {ordered}:  # effects of jax.Ref, among others, which JAX removes in that second trace
        return mlir.lower_fun(functools.partial(evaluate_jaxpr, jaxpr), multiple_results=True)(ctx, *operands)
    constants = zip(jaxpr.consts, inner.constvars, strict=True)
    results, tokens = mlir.jaxpr_subcomp(
        ctx.module_context if ctx.platforms is None else ctx.module_context.replace(platforms=ctx.platforms),
        inner,
        ctx.name_stack,
        ctx.tokens_in,
        [mlir.ir_constant(c, const_lowering=ctx.const_lowering, aval=v.aval) for c, v in constants],
        *operands,
        dim_var_values=ctx.dim_var_values,
        const_lowering=ctx.const_lowering,
        outer_traceback=None,
    )
    ctx.set_tokens_out(tokens)
    return results


def _is_for_host(ctx: Any) -> bool:
    """Return True if a program is lowered for the host only."""
    return tuple(ctx.platforms or ctx.module_context.platforms) == ("cpu",)


def _lower(ctx: Any, *operands: Any, jaxpr: Any, is_eager: bool) -> Sequence[Any]:
    """Lower a sealed program's equations inline, with a token of its own; on the host with windows (windows.py)."""
    if state.windows is not None and not is_eager and _is_for_host(ctx):
        jaxpr = state.windows(jaxpr)
    inner = ctx.replace(
        avals_out=jaxpr.out_avals,
        tokens_in=mlir.TokenSet({**dict(ctx.tokens_in.items()), **dict(mlir.TokenSet.create([ordered]).items())}),
        tokens_out=None,
    )
    with sites.use_thread_site(is_eager):
        results = _lower_inline(inner, jaxpr, *operands)
    ctx.set_tokens_out(ctx.tokens_in.update_tokens(inner.tokens_out))
    return [*results, mlir.ir_constant(np.zeros(_DONE.shape, _DONE.dtype))]


sealed_p.def_effectful_abstract_eval(_abstract_eval)
mlir.register_lowering(sealed_p, _lower, cacheable=False)  # for primitive._is_argument


def computes_results(jaxpr: Any) -> bool:
    """Return True if an equation makes a result of the program; False if all are arguments or constants, or none."""
    made = {id(v) for eqn in jaxpr.jaxpr.eqns for v in eqn.outvars}
    return any(id(v) in made for v in jaxpr.jaxpr.outvars)


def seal_program(jaxpr: Any) -> Any:
    """Return a jaxpr of one ``sealed_p`` equation without the ordered effect; ``jaxpr`` if no equation makes a result.

    JAX waits by the effect for a program whose results are all arguments or constants, or that has none.
    """
    if not computes_results(jaxpr):
        return jaxpr
    sealed = jax.make_jaxpr(lambda *xs: sealed_p.bind(*xs, jaxpr=jaxpr, is_eager=False)[:-1])(*jaxpr.in_avals)
    return replace_parts(sealed, debug_info=jaxpr.jaxpr.debug_info)
