"""Eager calls: a compiled program for each primitive and its parameters, sealed (seal.py).

Ranks and tags of messages are operands of the program. A program is dropped when its communicator or reduction is
freed.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ..base.required import trace_state_clean
from ..base.state import state
from ..base.words import refuse_without_hook
from ..checks import sites
from ..jaxprs.spmd import Primitive
from ..mpi.comm import STATUS_RESULT, Comm, Reduction, Status, is_alive, refuse_in_fork, when_freed
from . import nan
from .repeat import Program, Recent, recorder
from .seal import sealed_p
from .values import as_operand, details

Params = tuple[tuple[str, Any], ...]


def _compiled(primitive: Primitive, params: Params) -> Callable[..., Any]:
    """Return the jitted program that binds one primitive with its parameters.

    The program returns the list of results; for a primitive without results an array that is ready once the call is
    done.
    """

    def call(*operands: Any) -> Any:
        if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
            with jax.disable_jit(False):
                return program(*operands)
        if trace_state_clean():  # JAX reruns the function itself, since the program gave a NaN
            raise FloatingPointError(
                f"the result of {primitive.name} has a NaN or an infinity (jax_debug_nans, jax_debug_infs)."
            )
        jaxpr = jax.make_jaxpr(functools.partial(primitive.bind, **dict(params)))(*operands)
        *results, done = sealed_p.bind(*operands, jaxpr=jaxpr, is_eager=True)
        return results or done

    call.__name__ = call.__qualname__ = primitive.name
    program = jax.jit(call)
    return program


_programs = Recent[Callable[..., Any]]()


def _program(primitive: Primitive, params: Params) -> Callable[..., Any]:
    # A program contains the call site that compiled it and the description of packed leaves. So with reports each call
    # site has programs of its own.
    key = primitive, params, sites.of_caller() if state.reports else sites.packed_of_caller()
    return _programs.use(key) or _programs.add(key, _compiled(primitive, params))


def _owners(params: dict[str, Any]) -> list[Comm | Reduction]:
    """Return the communicators and user-made reductions among a primitive's parameters."""
    return [x for x in details(params).values() if isinstance(x, Comm) or (isinstance(x, Reduction) and x.is_user_made)]


def _forget_freed() -> None:
    for key in list(_programs):
        if not all(map(is_alive, _owners(dict(key[1])))):
            _programs.pop(key, None)


when_freed.append(_forget_freed)


def call_eagerly(primitive: Primitive, *operands: Any, **params: Any) -> list[Any]:
    """Run a primitive on arrays and return the list of its results.

    Its program is compiled at the first call for these parameters and shapes.
    """
    status = params.get("status")
    if isinstance(status, Status) and status.object is not None:
        # A status object is no part of the program: its content is one more result.
        *results, content = call_eagerly(primitive, *operands, **{**params, "status": STATUS_RESULT})
        status.fill(np.asarray(content).tobytes())
        return results
    if nan.refuses_calls():
        if state.nan is None:
            refused = (
                f"{primitive.name} is called outside of a compiled program while jax_debug_nans or jax_debug_infs is "
                "set. JAX makes such calls again on one rank to find a NaN, and mpixla cannot tell which"
            )
            advice = "Call it inside jax.jit, or turn the search off."
            raise FloatingPointError(refuse_without_hook("nan", refused, advice))
        raise FloatingPointError(
            "a result has a NaN or an infinity. Because jax_debug_nans or jax_debug_infs is set, JAX runs the function "
            f"again on this rank alone, operation by operation, to find it. {primitive.name} is not made again: the "
            "other ranks would take it for their next call. What the function computes before it has no fault; look at "
            "its result, and at what comes after it, with jax.debug.print."
        )
    refuse_in_fork()
    params, numbers = as_operand(params)
    program = _program(primitive, tuple(params.items()))
    sites.tell_caller(operands)
    if numbers is None:
        results = program(*operands)
    else:
        with jax.transfer_guard_host_to_device("allow"):
            results = program(*operands, numbers)
    if not isinstance(results, list):
        # Without results no later use of one would wait for the call or raise its error.
        jax.block_until_ready(results)
        results = []
    if recorder.programs is not None:
        recorder.programs.append(Program(program, operands, numbers, results, tuple(_owners(params))))
    return results
