"""Ranks as values of a program, from the C library (native/ops/rank.c): so that its text is the same on every rank."""

import ctypes
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..runtime import native
from ..runtime.comm import Comm, Shift
from ..runtime.private_jax import Primitive, ShapedArray, mlir

_rank = Primitive("mpi_rank")
_rank.def_abstract_eval(lambda *, comm, shift: ShapedArray((), np.dtype(np.int32)))
_rank.def_impl(lambda *, comm, shift: jnp.int32(known_rank_at(comm, shift) if shift else comm.rank))


def _lower(ctx: Any, *, comm: Comm, shift: Shift | tuple[()]) -> Any:
    rule = jax.ffi.ffi_lowering(
        native.RANK_TARGET, backend_config={"shift": mlir.dense_int_array(shift.steps if shift else [])}
    )
    return rule(ctx, comm=np.int64(comm.id))


mlir.register_lowering(_rank, _lower)


def own_rank(comm: Comm) -> Any:
    """This process's rank, as a traced int32."""
    return _rank.bind(comm=comm, shift=())


def rank_at(comm: Comm, shift: Shift) -> Any:
    """The rank that a shift leads to, or ``native.PROC_NULL``, as a traced int32."""
    return _rank.bind(comm=comm, shift=shift)


def known_rank_at(comm: Comm, shift: Shift) -> int:
    """The same, as a number that is known here.

    Raises:
        ValueError: if the communicator has no such direction.
    """
    rank = ctypes.c_int64()
    steps = shift.steps
    array = (ctypes.c_int64 * len(steps))(*steps)
    native.check(native.lib.mpixla_comm_shift(comm.id, array, len(steps), ctypes.byref(rank)))
    return rank.value
