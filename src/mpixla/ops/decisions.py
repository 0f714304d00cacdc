"""Checked mode: all ranks must agree when a loop that communicates ends.

A solver that was not written for MPI decides by an inner product of this rank's part. The ranks then leave its loop at
different times, or at the same time with a wrong result. So where the body of a while loop makes collective calls, its
condition gets a check: it is an error unless all ranks go on or none. The real numbers in the condition's comparisons
may rightly differ between ranks, where each rank has a limit of its own: a difference is reported, once for each loop.
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.lax import while_p

from ..base.required import user_context
from ..core.values import full_params
from ..jaxprs.effect import ordered
from ..jaxprs.rewrite import JaxprRewriter, is_literal, jaxprs_in, lower_loops, replace_by_call
from ..mpi.comm import Comm
from ..partial_eval.while_loops import make_loop_decided_before
from .replicated import CHECKED, REPORTED, compare_arrays

COMPARISONS = ("eq", "ge", "gt", "le", "lt", "ne")
ASKS = "(a norm or an inner product of this rank's part? docs/solvers.md)"


def check_loops(jaxpr: Any) -> Any:
    """Return a jaxpr whose while loops with collective calls check that ranks decide alike; itself if it has none."""
    return JaxprRewriter(_check_eqn).rewrite_jaxpr(jaxpr)


def _collective_comms(jaxpr: Any) -> Iterator[Comm]:
    """Yield the communicators of the collective calls in a jaxpr and in its inner jaxprs."""
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        params = full_params(eqn.params)
        if ordered in eqn.effects and isinstance(params.get("comm"), Comm):
            if params.get("dest") is None and params.get("source") is None:
                yield params["comm"]
        else:
            for inner in jaxprs_in(eqn.params):
                yield from _collective_comms(inner)


def _check_eqn(rewriting: JaxprRewriter, eqn: Any) -> Any:
    eqn = rewriting.rewrite_inside(eqn)
    comms = tuple(dict.fromkeys(_collective_comms(eqn.params["body_jaxpr"]))) if eqn.primitive is while_p else ()
    return _add_check(eqn, comms) if comms else eqn


def _add_check(eqn: Any, comms: tuple[Comm, ...]) -> Any:
    """Return a while loop's equation whose condition checks that all ranks of ``comms`` decide alike to go on."""
    cond = eqn.params["cond_jaxpr"]

    def checked_condition(*args: Any) -> Any:
        """Return the loop's condition; fail if ranks differ in it, report if they differ in numbers it compares."""
        goes_on, compared = _evaluate_condition(cond, args)
        numbers = {f"number {i + 1} by which a loop ends {ASKS}": x for i, x in enumerate(compared)}
        for comm in comms:
            if numbers:
                compare_arrays(numbers, comm, REPORTED)
            compare_arrays({f"whether a loop goes on {ASKS}": goes_on}, comm, CHECKED)
        return goes_on

    # The check gets the source line of the loop.
    with user_context(eqn.source_info.traceback, name_stack=eqn.source_info.name_stack), eqn.ctx.manager:
        if cond.out_avals[0].shape:  # a batch of loops (partial_eval/while_loops.py)
            loop = make_loop_decided_before(eqn.params, checked_condition)
            return replace_by_call(eqn, lower_loops(jax.make_jaxpr(loop)(*(atom.aval for atom in eqn.invars))))
        checked = lower_loops(jax.make_jaxpr(checked_condition)(*cond.in_avals))
    return eqn.replace(params={**eqn.params, "cond_jaxpr": checked}, effects={*eqn.effects, ordered})


def _evaluate_condition(cond: Any, args: Any) -> tuple[Any, list[Any]]:
    """Evaluate a loop's condition; return its result and the real scalars in its comparisons, [] if it has effects."""
    comparisons = [] if cond.effects else [eqn for eqn in cond.jaxpr.eqns if eqn.primitive.name in COMPARISONS]
    compared = dict.fromkeys(atom for eqn in comparisons for atom in eqn.invars if _is_a_real_variable(atom))
    jaxpr = cond.jaxpr.replace(outvars=[*cond.jaxpr.outvars, *compared])
    goes_on, *numbers = jax.core.eval_jaxpr(jaxpr, cond.consts, *args)
    return goes_on, numbers


def _is_a_real_variable(atom: Any) -> bool:
    is_constant = is_literal(atom)
    return not is_constant and atom.aval.shape == () and jnp.issubdtype(atom.aval.dtype, jnp.floating)
