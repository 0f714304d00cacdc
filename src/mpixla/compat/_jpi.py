"""JPI: its functions in terms of mpixla's. Each takes a token and returns one."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
from mpi4py import MPI

import mpixla

from ..extend import comm_of, leave_ranks_to_calls
from ._modules import make_module
from ._tokens import match_batches, take_token, tie_tangents

_Result = tuple[jax.Array, Any]


def gen_token() -> jax.Array:
    """Return a new token."""
    return jnp.zeros((), jnp.float32)


def _call_after_token(token: Any, name: str, call: Callable[[Any], Any], x: Any) -> Any:
    """Return ``call(x)`` and the next token, tied to the token in batches and tangents; TypeError for no token."""
    if token is None:
        raise TypeError(f"token of {name} is None. Start with jpi.gen_token().")
    # As in JPI, a call is differentiated if its token is. An allreduce passes the token's tangent on, and is itself
    # differentiated with respect to its operand alone: its reverse mode is local, and not every op has a derivative.
    x, token = match_batches(x, take_token(token, name))
    tied, token = tie_tangents(x, token)
    with leave_ranks_to_calls():
        result = call(x if name == "allreduce" else tied)
    result, token = match_batches(result, token)
    return (result, token) if name == "allreduce" else tie_tangents(result, token)


def allgather(x: Any, token: Any, comm: MPI.Comm | None = None) -> _Result:
    """Return the arrays of all ranks, stacked, and a token."""
    return _call_after_token(token, "allgather", lambda x: mpixla.allgather(x, comm=comm), x)


def allreduce(x: Any, token: Any, op: MPI.Op, comm: MPI.Comm | None = None) -> _Result:
    """Return the reduction over all ranks, and a token."""
    return _call_after_token(token, "allreduce", lambda x: mpixla.allreduce(x, op=op, comm=comm), x)


def barrier(token: Any, comm: MPI.Comm | None = None) -> Any:
    """Return a token once all ranks have called it."""
    return _call_after_token(token, "barrier", lambda _: mpixla.barrier(comm=comm), None)[1]


def bcast(x: Any, token: Any, root: int, comm: MPI.Comm | None = None) -> _Result:
    """Return the root's array, and a token."""
    return _call_after_token(token, "bcast", lambda x: mpixla.bcast(x, root=root, comm=comm), x)


def gather(x: Any, token: Any, root: int, comm: MPI.Comm | None = None) -> _Result:
    """Return the arrays of all ranks, stacked, on the root, zeros of that shape elsewhere; and a token."""

    def gather_stack(x: Any) -> jax.Array:
        result, c = mpixla.gather(x, root=root, comm=comm), comm_of(comm)
        return result if c.rank == root else jnp.zeros((c.size, *result.shape), result.dtype)

    return _call_after_token(token, "gather", gather_stack, x)


def scatter(x: Any, token: Any, root: int, comm: MPI.Comm | None = None) -> _Result:
    """Return this rank's part of the root's array, split along its first axis into one part for each rank; and a token.

    A part of length 1 comes without the first axis.
    """

    def scatter_part(x: Any) -> jax.Array:
        """Return this rank's part of the root's first axis, without a first axis of 1; raise ValueError if uneven."""
        x, c = jnp.asarray(x), comm_of(comm)
        if x.ndim == 0 or x.shape[0] % c.size != 0:
            raise ValueError(
                f"scatter cuts the first axis into {c.size} equal parts, one for each rank of communicator '{c.name}', "
                f"but x has shape {x.shape}."
            )
        parts = x.reshape(c.size, x.shape[0] // c.size, *x.shape[1:])
        part = mpixla.scatter(parts if c.rank == root else parts[0], root=root, comm=comm)
        return part[0] if part.shape[0] == 1 else part

    return _call_after_token(token, "scatter", scatter_part, x)


def recv(x: Any, token: Any, source: int, tag: int = 0, comm: MPI.Comm | None = None) -> _Result:
    """Return the array that ``source`` sends, of the shape and dtype of the template ``x``, and a token."""
    return _call_after_token(token, "recv", lambda x: mpixla.recv(x, source=source, tag=tag, comm=comm), x)


def send(x: Any, token: Any, dest: int, tag: int = 0, comm: MPI.Comm | None = None) -> _Result:
    """Send ``x``, and return it with a token."""
    return _call_after_token(token, "send", lambda x: mpixla.wait(mpixla.isend(x, dest=dest, tag=tag, comm=comm)), x)


def make_modules() -> dict[str, ModuleType]:
    """Make and return modules with JPI's names for mpixla's functions, and turn on JAX's 64-bit types, as JPI does."""
    jax.config.update("jax_enable_x64", True)
    ops = {f.__name__: f for f in (allgather, allreduce, barrier, bcast, gather, recv, scatter, send)}
    # As an attribute, jpi.allreduce is the function; in an import statement, it is the module with the function.
    modules = {f"jpi.{name}": make_module(f"jpi.{name}", {name: f}) for name, f in ops.items()}
    return modules | {
        "jpi": make_module("jpi", {**ops, "gen_token": gen_token, "__all__": [*ops, "gen_token"]}),
        "jpi.comm": make_module("jpi.comm", {"Comm": MPI.Comm, "get_default_comm": mpixla.get_default_comm}),
        "jpi.op": make_module("jpi.op", {"Op": MPI.Op}),
        "jpi.token": make_module("jpi.token", {"Token": jax.Array, "gen_token": gen_token}),
    }
