"""JPI: its functions in terms of mpixla's. Each takes a token and gives one."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp

import mpixla

from ..mpi.comm import comm_of, get_default_comm
from ..mpi.mpi import MPI
from ..ops.arguments import ranks_left_to_calls
from ._modules import make_module
from ._tokens import batch_with, take_token, tie

_Result = tuple[jax.Array, Any]


def gen_token() -> jax.Array:
    """A token to begin with."""
    return jnp.zeros((), jnp.float32)


def _after(token: Any, name: str, call: Callable[[Any], Any], x: Any) -> Any:
    if token is None:
        raise TypeError(f"token of {name} is None. Start with jpi.gen_token().")
    # As in JPI, a call is differentiated if its token is. An allreduce passes that on, and is differentiated for its
    # operand alone: reverse mode of it is each rank's own affair, and not every op has a derivative.
    x, token = batch_with(x, take_token(token, name))
    tied, token = tie(x, token)
    with ranks_left_to_calls():
        result = call(x if name == "allreduce" else tied)
    result, token = batch_with(result, token)
    return (result, token) if name == "allreduce" else tie(result, token)


def allgather(x: Any, token: Any, comm: MPI.Comm | None = None) -> _Result:
    """The arrays of all ranks, stacked."""
    return _after(token, "allgather", lambda x: mpixla.allgather(x, comm=comm), x)


def allreduce(x: Any, token: Any, op: MPI.Op, comm: MPI.Comm | None = None) -> _Result:
    """The reduction over all ranks."""
    return _after(token, "allreduce", lambda x: mpixla.allreduce(x, op=op, comm=comm), x)


def barrier(token: Any, comm: MPI.Comm | None = None) -> Any:
    """The token, after all ranks have come here."""
    return _after(token, "barrier", lambda _: mpixla.barrier(comm=comm), None)[1]


def bcast(x: Any, token: Any, root: int, comm: MPI.Comm | None = None) -> _Result:
    """The root's array."""
    return _after(token, "bcast", lambda x: mpixla.bcast(x, root=root, comm=comm), x)


def gather(x: Any, token: Any, root: int, comm: MPI.Comm | None = None) -> _Result:
    """On the root the arrays of all ranks, stacked; elsewhere zeros of that shape."""

    def stack(x: Any) -> jax.Array:
        result, c = mpixla.gather(x, root=root, comm=comm), comm_of(comm)
        return result if c.rank == root else jnp.zeros((c.size, *result.shape), result.dtype)

    return _after(token, "gather", stack, x)


def scatter(x: Any, token: Any, root: int, comm: MPI.Comm | None = None) -> _Result:
    """This rank's part of the root's array, whose first axis is cut into as many parts as there are ranks.

    A part of one entry comes without the first axis.
    """

    def cut(x: Any) -> jax.Array:
        x, c = jnp.asarray(x), comm_of(comm)
        if x.ndim == 0 or x.shape[0] % c.size != 0:
            raise ValueError(
                f"scatter cuts the first axis into {c.size} equal parts, one for each rank of communicator '{c.name}', "
                f"but x has shape {x.shape}."
            )
        parts = x.reshape(c.size, x.shape[0] // c.size, *x.shape[1:])
        part = mpixla.scatter(parts if c.rank == root else parts[0], root=root, comm=comm)
        return part[0] if part.shape[0] == 1 else part

    return _after(token, "scatter", cut, x)


def recv(x: Any, token: Any, source: int, tag: int = 0, comm: MPI.Comm | None = None) -> _Result:
    """The array that ``source`` sends, like the template ``x``."""
    return _after(token, "recv", lambda x: mpixla.recv(x, source=source, tag=tag, comm=comm), x)


def send(x: Any, token: Any, dest: int, tag: int = 0, comm: MPI.Comm | None = None) -> _Result:
    """``x``, after it was sent."""
    return _after(token, "send", lambda x: mpixla.wait(mpixla.isend(x, dest=dest, tag=tag, comm=comm)), x)


def make() -> dict[str, ModuleType]:
    """JPI's modules by name. As importing JPI does, this turns on JAX's 64-bit types."""
    jax.config.update("jax_enable_x64", True)
    ops = {f.__name__: f for f in (allgather, allreduce, barrier, bcast, gather, recv, scatter, send)}
    # jpi.allreduce is the function, and jpi.allreduce in an import statement the module that has it.
    modules = {f"jpi.{name}": make_module(f"jpi.{name}", {name: f}) for name, f in ops.items()}
    return modules | {
        "jpi": make_module("jpi", {**ops, "gen_token": gen_token, "__all__": [*ops, "gen_token"]}),
        "jpi.comm": make_module("jpi.comm", {"Comm": MPI.Comm, "get_default_comm": get_default_comm}),
        "jpi.op": make_module("jpi.op", {"Op": MPI.Op}),
        "jpi.token": make_module("jpi.token", {"Token": jax.Array, "gen_token": gen_token}),
    }
