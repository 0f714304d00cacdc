"""Ranks as values that a program looks up when it runs (native/helpers/rank.c), so its text is equal on all ranks."""

import ctypes
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray

from ..base.tracebacks import public
from ..jaxprs.spmd import device_count, is_outside_shard_map
from ..mpi import native
from ..mpi.comm import Comm, Shift, comm_of
from ..mpi.mpi import MPI
from .helper import make_helper


def _refuse_outside_shard_map(module: Any) -> None:
    """Raise NotImplementedError in a sharded program outside of jax.shard_map, where values are equal on all ranks."""
    if is_outside_shard_map(module):
        raise NotImplementedError(
            f"rank was used in a program that is sharded over {device_count(module)} processes, outside of "
            "jax.shard_map, where a value is the same in each process. Use it inside jax.shard_map over all axes of "
            "the mesh."
        )


def _rank_abstract_eval(*, comm: Comm, shift: Any) -> list[ShapedArray]:
    return [ShapedArray((), np.dtype(np.int32))]


_rank = make_helper("rank", _rank_abstract_eval, ("comm", "shift"))
_users_rank = make_helper("rank", _rank_abstract_eval, ("comm", "shift"), _refuse_outside_shard_map)


def own_rank(comm: Comm) -> Any:
    """Return this process's rank as a traced int32."""
    return _rank.bind(comm=comm, shift=())[0]


@public
def rank(comm: MPI.Comm | None = None) -> jax.Array:
    """Return this process's rank as a value of the program, like ``jax.lax.axis_index``.

    The program looks the rank up when it runs, and does not contain it. So all ranks compile the same program, and find
    it in one compilation cache. It is not communication: a rank may leave the call out.

    Args:
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        The rank, an int32 scalar. A root, a shape or Python's ``if`` needs a number that is known when tracing:
        ``comm.Get_rank()``.

    Raises:
        TypeError: for a ``comm`` that is no intra-communicator.
        ValueError: for a communicator that was freed.
        NotImplementedError: in a program that is sharded over processes, outside of ``jax.shard_map``.

    Example:
        >>> import jax, jax.numpy as jnp, mpixla
        >>> first_only = jax.jit(lambda x: jnp.where(mpixla.rank() == 0, x, 0))
        >>> float(first_only(1.0)) == (mpixla.get_default_comm().Get_rank() == 0)
        True
    """
    return _users_rank.bind(comm=comm_of(comm), shift=())[0]


def rank_at(comm: Comm, shift: Shift) -> Any:
    """Return the rank that a shift leads to, or ``native.PROC_NULL``, as a traced int32."""
    return _rank.bind(comm=comm, shift=shift)[0]


def known_rank_at(comm: Comm, shift: Shift) -> int:
    """Return the rank that a shift leads to as an int; raise ValueError for a direction that the communicator lacks."""
    rank = ctypes.c_int64()
    steps = shift.steps
    array = (ctypes.c_int64 * len(steps))(*steps)
    native.check_result(native.lib.mpixla_comm_shift(comm.id, array, len(steps), ctypes.byref(rank)))
    return rank.value


def select_by_root(comm: Comm, root: int | None, there: Any, elsewhere: Any = None) -> Any:
    """Return ``there`` on the root, else ``elsewhere`` (by default zeros), selected when the program runs."""
    return _select_by_rank(own_rank(comm), root, there, elsewhere)


@functools.partial(jax.jit, static_argnums=1, inline=True)  # one program, also eagerly
def _select_by_rank(rank: Any, root: Any, there: Any, elsewhere: Any) -> Any:
    return jnp.where(rank == root, there, jnp.zeros_like(there) if elsewhere is None else elsewhere)
