"""Ranks as values that a program looks up when it runs (native/helpers/rank.c), so its text is equal on all ranks."""

import ctypes
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray

from ..mpi import native
from ..mpi.comm import Comm, Shift
from .helper import make_helper

_rank = make_helper("rank", lambda *, comm, shift: [ShapedArray((), np.dtype(np.int32))], ("comm", "shift"))


def own_rank(comm: Comm) -> Any:
    """Return this process's rank as a traced int32."""
    return _rank.bind(comm=comm, shift=())[0]


def rank_at(comm: Comm, shift: Shift) -> Any:
    """Return the rank that a shift leads to, or ``native.PROC_NULL``, as a traced int32."""
    return _rank.bind(comm=comm, shift=shift)[0]


def known_rank_at(comm: Comm, shift: Shift) -> int:
    """Return the rank that a shift leads to as an int; raise ValueError for a direction that the communicator lacks."""
    rank = ctypes.c_int64()
    steps = shift.steps
    array = (ctypes.c_int64 * len(steps))(*steps)
    native.check(native.lib.mpixla_comm_shift(comm.id, array, len(steps), ctypes.byref(rank)))
    return rank.value


def by_root(comm: Comm, root: int | None, there: Any, elsewhere: Any = None) -> Any:
    """Return ``there`` on the root, else ``elsewhere`` (by default zeros), selected when the program runs."""
    return _by_rank(own_rank(comm), root, there, elsewhere)


@functools.partial(jax.jit, static_argnums=1, inline=True)  # one program, also eagerly
def _by_rank(rank: Any, root: Any, there: Any, elsewhere: Any) -> Any:
    return jnp.where(rank == root, there, jnp.zeros_like(there) if elsewhere is None else elsewhere)
