"""Communicators, reductions and status objects as programs carry them: by a small number.

Each instance stands for one MPI object. Instances are hashable, and equal if they stand for the same object, so JAX
finds the program that it compiled for them before.
"""

import ctypes
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, NamedTuple, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np

from ..base.state import state
from ..base.tracebacks import PACKAGE, public
from ..base.words import kind_of
from . import arrival, native
from .mpi import MPI


@dataclass(frozen=True)
class Comm:
    """A communicator, by its number in the C library."""

    id: int
    rank: int = field(compare=False)
    size: int = field(compare=False)
    name: str = field(compare=False)

    def __repr__(self) -> str:
        return self.name


class Shift(NamedTuple):
    """A rank relative to this one, which ``dest`` and ``source`` of a message may be in place of a number.

    ``sendrecv(x, x, source=Shift(0, -1), dest=Shift(0, 1))`` sends ``x`` one rank up along the first dimension. The
    program does not contain the ranks' numbers: it is the same on all ranks, so all find it in one compilation cache.

    Args:
        direction: the dimension of a Cartesian communicator, from 0. Of any other communicator the ranks are a ring,
            and the direction is 0. Or several dimensions: ``Shift((0, 1), (1, -1))`` is a diagonal neighbour.
        disp: by how many ranks: upwards, or downwards if it is negative; for several directions, one for each. As
            ``comm.Shift(direction, disp)`` says, beyond the end of a dimension is ``MPI.PROC_NULL``, or its other end
            if it is periodic.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> comm = mpixla.get_default_comm()
        >>> rank, size = comm.Get_rank(), comm.Get_size()
        >>> x = jnp.float32(rank)
        >>> y = mpixla.sendrecv(x, x, source=mpixla.Shift(0, -1), dest=mpixla.Shift(0, 1))
        >>> float(y) == (rank - 1) % size
        True
    """

    direction: int | tuple[int, ...]
    disp: int | tuple[int, ...]

    @property
    def steps(self) -> list[int]:
        """Return directions and displacements interleaved, as the C library takes them."""
        return np.ravel(np.transpose([np.ravel(self.direction), np.ravel(self.disp)])).tolist()


Shift.__module__ = PACKAGE


@dataclass(frozen=True)
class Reduction:
    """A reduction: a predefined one by its number in the C library's table, or a user-made one."""

    id: int
    name: str = field(compare=False)
    kinds: tuple[str, ...] | None = field(compare=False)  # None: the user's function decides

    @property
    def is_user_made(self) -> bool:
        """Return whether it was made with ``MPI.Op.Create``, and can be freed."""
        return self.id >= len(native.reductions)

    def neutral_element(self, dtype: Any) -> Any:
        """Return the neutral element of the reduction in a dtype; 0 for a user-made reduction."""
        if self.name in ("MAX", "MIN"):
            floating = jnp.issubdtype(dtype, jnp.floating)
            bounds = jnp.finfo(dtype) if floating else jnp.iinfo(dtype)
            infinity = np.asarray(np.inf if floating else 0).astype(dtype)
            if np.isinf(infinity):
                return -infinity if self.name == "MAX" else infinity
            return bounds.min if self.name == "MAX" else bounds.max
        if self.name == "BAND":
            return np.array(-1).astype(dtype)
        return 1 if self.name in ("PROD", "LAND") else 0

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class PairOp:
    """A reduction of pairs, for operands that are encoded already (pairs.py)."""

    op: MPI.Op


@dataclass(frozen=True)
class Status:
    """A status object that a receive fills; or none; or a result with the status's bytes, or with its numbers."""

    address: int  # of the object
    object: MPI.Status | None = field(compare=False, repr=False)

    @cached_property
    def id(self) -> int:
        """Return the C library's number of the status object; register the object first, which each run then fills."""
        if self.object is None:
            return self.address
        number = native.check_result(native.lib.mpixla_status_register(self.address))
        _kept[self.address] = self.object
        return number

    def fill_object(self, content: bytes) -> None:
        """Copy the bytes of a receive's status into the object."""
        ctypes.memmove(self.address, content, STATUS_BYTES)

    def __repr__(self) -> str:
        special = {native.NO_STATUS: "none", native.STATUS_RESULT: "result", native.STATUS_NUMBERS: "numbers"}
        return special.get(self.address, "given")


NO_STATUS, STATUS_RESULT = Status(native.NO_STATUS, None), Status(native.STATUS_RESULT, None)
STATUS_NUMBERS = Status(native.STATUS_NUMBERS, None)
STATUS_BYTES = MPI._sizeof(MPI.Status)

# Objects by their addresses, which the C library uses: kept alive, so that no other object gets the address.
_kept: dict[int, MPI.Status | MPI.Op] = {}
_comms: dict[int, Comm] = {}

# Callbacks that drop cached data of freed communicators and reductions (``is_alive`` tells which are); called now and
# then after one was freed.
when_freed: list[Callable[[], None]] = []


def is_alive(thing: Comm | Reduction) -> bool:
    """Return whether a communicator or reduction is not freed; always True for a predefined reduction."""
    if isinstance(thing, Comm):
        return bool(native.lib.mpixla_comm_is_alive(thing.id))
    return not thing.is_user_made or bool(native.lib.mpixla_reduction_is_alive(thing.id))


def _forget_freed() -> None:
    """Drop freed communicators from the table, and call the functions of ``when_freed``."""
    freed = [number for number, comm in list(_comms.items()) if not is_alive(comm)]  # a copy: other threads add items
    for number in freed:
        _comms.pop(number, None)
    for forget in when_freed:
        forget()


def others_may_wait() -> bool:
    """Return whether other processes may wait for this one: in its MPI.COMM_WORLD, or connected by Spawn."""
    if MPI.COMM_WORLD.Get_size() > 1 or MPI.Comm.Get_parent() != MPI.COMM_NULL:
        return True
    return any(comm.size > 1 for comm in list(_comms.values()))


_NAME = "mpixla default"

# Two clones of MPI.COMM_WORLD: the operations' own, and the users', on which mpi4py's calls cannot match operations
# that XLA still runs. An operation takes the users' clone for its own one, like None: one rank may pass None, and
# another the clone.
_own: MPI.Intracomm | None = None
_users: MPI.Intracomm | None = None
_users_is_alive = False  # once it is freed, another communicator may have its handle


def own_comm() -> MPI.Intracomm:
    """Return the default communicator, a clone of MPI.COMM_WORLD; the first call, which makes it, is collective.

    The first call also makes the users' clone (``get_default_comm``). All processes must make that call.
    """
    global _own, _users, _users_is_alive
    if _own is None:
        with arrival.limit_wait():
            _own = MPI.COMM_WORLD.Clone()
        _users, _users_is_alive = MPI.COMM_WORLD.Clone(), True
        for comm in (_own, _users):
            comm.Set_name(_NAME)
        _users.Set_attr(MPI.Comm.Create_keyval(delete_fn=_forget_users), True)
    return _own


def _forget_users(*_: Any) -> None:
    """Note that the users' clone is freed; MPI calls this, whichever mpi4py object is used to free it."""
    global _users_is_alive
    _users_is_alive = False


# The communicator of this thread's ``default_comm`` block, a HashableComm; None outside of one. It is part of the keys
# by which JAX finds traced and compiled functions.
default_of_block: Any = jax.make_user_context(None)


@public
def get_default_comm() -> MPI.Intracomm:
    """Return the communicator that stands for the operations' default one.

    It is a clone of ``MPI.COMM_WORLD`` for your calls of mpi4py. Operations take it for their default, ``comm=None``,
    which is another clone: so calls of mpi4py on it never match operations that still run, and need not wait for them.
    (For a message from mpi4py to ``recv`` take another communicator, such as ``MPI.COMM_WORLD``.) Both are made when
    mpixla is imported, which is therefore collective: every process must import mpixla.

    Returns:
        An ``mpi4py.MPI.Intracomm`` of all processes; in a block of ``default_comm`` that block's communicator itself.

    Example:
        >>> import mpixla
        >>> comm = mpixla.get_default_comm()
        >>> comm.allgather(comm.Get_rank()) == list(range(comm.Get_size()))
        True
    """
    own_comm()
    assert _users is not None
    return _users if default_of_block.value is None else default_of_block.value


def is_default(comm: MPI.Comm) -> bool:
    """Return whether a communicator is ``get_default_comm``'s, which operations take for None, and is not freed."""
    return _users_is_alive and comm == _users


@cache
def channel_of_reports() -> int:
    """Return the handle of a duplicate of MPI.COMM_WORLD for error reports; the first call, collective, makes it.

    The duplicate is never freed, since other ranks may have ended.
    """
    channel = MPI.COMM_WORLD.Dup()
    channel.Set_name("mpixla reports")
    return native.handle_of(channel)


def communicator_of(comm: Any) -> MPI.Intracomm:
    """Return the communicator to use: for None that of the ``default_comm`` block, or else mpixla's own.

    Raises:
        TypeError: if it is no intra-communicator.
        ValueError: if it is ``MPI.COMM_NULL``, or was freed.
        RuntimeError: if MPI is finalized.
    """
    if MPI.Is_finalized():
        raise RuntimeError("MPI is finalized (MPI.Finalize was called), so no communicator can be used any more.")
    if comm is None:
        comm = default_of_block.value
    if comm is None:
        return own_comm()
    if not isinstance(comm, MPI.Comm):
        raise TypeError(
            f"comm must be an mpi4py communicator (mpi4py.MPI.COMM_WORLD, say) or None, but is {kind_of(comm)}."
        )
    if isinstance(comm, MPI.Intercomm):
        raise TypeError(
            "comm is an inter-communicator, which mpixla does not support. Merge it with comm.Merge() and pass the "
            "result."
        )
    if comm == MPI.COMM_NULL:
        raise ValueError(
            "comm is MPI.COMM_NULL: the communicator was freed, or this rank is not a member of it. Call operations "
            "only on ranks that are members, with a communicator that still exists."
        )
    if isinstance(comm, HashableComm) and not native.lib.mpixla_comm_is_alive(comm.number):
        raise ValueError(
            f"comm is {kind_of(comm)} of a communicator that was freed. Call operations only with a communicator that "
            "still exists."
        )
    return own_comm() if is_default(comm) else comm  # type: ignore[return-value]


def comm_of(comm: Any) -> Comm:
    """Register an mpi4py communicator, the default one for ``None``, with the C library; return it with its number.

    Raises:
        TypeError, ValueError, RuntimeError: as ``communicator_of`` does.
    """
    comm = communicator_of(comm)
    name = comm.Get_name() or "unnamed"
    number = native.check_result(native.lib.mpixla_comm_register(native.handle_of(comm), name.encode(errors="replace")))
    known = _comms.get(number)
    if known is None:
        _forget_freed()
        known = _comms[number] = Comm(number, comm.Get_rank(), comm.Get_size(), name)
        group = comm.Get_group()
        members = group.Translate_ranks()  # in MPI.COMM_WORLD
        group.Free()
        native.check_result(native.lib.mpixla_comm_members_set(number, (ctypes.c_int * len(members))(*members)))
    elif known.name != name:
        known = _comms[number] = replace(known, name=name)
    return known


# Communicators that have a hash, and the default of a block.


class HashableComm:
    """Base of communicators with a hash. Two are equal if they have one number in the C library, which is never reused.

    So a program that JAX has compiled for a freed communicator is never taken for another one with the same handle.
    """

    @cached_property
    def number(self) -> int:
        """Return the number; first register the communicator, as ``hashable_comm`` does (mpi4py's Dup does not)."""
        return comm_of(MPI.Intracomm(self)).id  # type: ignore[arg-type]

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        if isinstance(other, HashableComm):
            return self.number == other.number
        return super().__eq__(other)  # mpi4py's

    def __ne__(self, other: object) -> bool:
        return not self == other


# From a class of mpi4py to the class of its communicators that have a hash; the class that the others extend is last.
HASHABLE: dict[type[MPI.Comm], Any] = {
    kind: type(f"Hashable{kind.__name__}", (HashableComm, kind), {"__module__": PACKAGE})
    for kind in (MPI.Cartcomm, MPI.Graphcomm, MPI.Distgraphcomm, MPI.Intracomm)
}

AnyComm = TypeVar("AnyComm", bound=MPI.Comm)


@overload
def hashable_comm(comm: None = None) -> MPI.Intracomm: ...
@overload
def hashable_comm(comm: AnyComm) -> AnyComm: ...
@public
def hashable_comm(comm: Any = None) -> Any:
    """Return a communicator that has a hash, so that it can be a static argument of ``jax.jit``.

    It is the same communicator in an object with a hash: operations take it as any other, it has mpi4py's methods, and
    freeing one frees both. Two such objects are equal if they are the same communicator.

    Args:
        comm: an mpi4py communicator; by default ``get_default_comm()``.

    Returns:
        A communicator of the same class, such as ``MPI.Intracomm`` or ``MPI.Cartcomm``, as a subclass with a hash. It
        can also be a key of a dictionary, and a static field of a dataclass that is a pytree.

    Raises:
        TypeError: for a ``comm`` that is no intra-communicator.
        ValueError: for a communicator that was freed.

    Example:
        >>> import jax, jax.numpy as jnp, mpixla
        >>> from mpi4py import MPI
        >>> mean = jax.jit(lambda x, comm: mpixla.allreduce(x, MPI.SUM, comm=comm) / comm.size, static_argnums=1)
        >>> float(mean(jnp.float32(3), mpixla.hashable_comm(MPI.COMM_WORLD)))
        3.0
    """
    given = get_default_comm() if comm is None else comm
    number = comm_of(given).id
    if isinstance(given, HashableComm):
        return given
    made = next(HASHABLE[kind] for kind in HASHABLE if isinstance(given, kind))(given)
    made.number = number
    return made


@public
def default_comm(comm: MPI.Comm | None) -> AbstractContextManager[None]:
    """Return a context manager: in its block, operations that are given no ``comm`` use this communicator.

    So a library that uses the default communicator runs on some of the ranks. ``rank``, ``size`` and
    ``get_default_comm`` follow. The communicator is part of the keys of JAX's caches: a jitted function is compiled
    once for each default communicator, and a call in a block runs that block's program. An operation's own ``comm`` has
    precedence.

    Args:
        comm: the communicator. None leaves the default as it is, so that a function can pass on its own ``comm=None``.

    Returns:
        The context manager, for the thread that enters the block. An operation takes the communicator when it is called
        or traced, and so do its derivatives, wherever they are computed. Only the backward function of a
        ``jax.custom_vjp`` is traced where the derivative is computed.

    Raises:
        TypeError: for a ``comm`` that is no intra-communicator.
        ValueError: for a communicator that was freed.

    Example:
        >>> import jax, jax.numpy as jnp, mpixla
        >>> from mpi4py import MPI
        >>> total = jax.jit(lambda x: mpixla.allreduce(x, MPI.SUM))
        >>> with mpixla.default_comm(MPI.COMM_SELF):
        ...     own = float(total(jnp.float32(1)))
        >>> own, float(total(jnp.float32(1))) == mpixla.size()
        (1.0, True)
    """
    return default_of_block(default_of_block.value if comm is None else hashable_comm(comm))


@public
def size(comm: MPI.Comm | None = None) -> int:
    """Return the number of ranks of a communicator.

    Args:
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        A Python integer, also in a jitted function, so that shapes can depend on it.

    Raises:
        TypeError: for a ``comm`` that is no intra-communicator.
        ValueError: for a communicator that was freed.

    Example:
        >>> import mpixla
        >>> mpixla.size() == mpixla.get_default_comm().Get_size()
        True
    """
    return comm_of(comm).size


def refuse_in_fork() -> None:
    """Raise ValueError in a forked process, before a call of JAX waits for threads that the fork does not have."""
    if state.is_forked:
        comm_of(own_comm())


_predefined: dict[int, Reduction] = {
    native.handle_of(native.find_mpi(row.name)): Reduction(number, row.name.removeprefix("MPI_"), row.kinds)
    for number, row in enumerate(native.reductions)
}


def reduction_of(op: Any) -> Reduction:
    """Return an mpi4py op as a Reduction, registered if user-made; raise TypeError or ValueError if it is unusable.

    Raises:
        TypeError: if it is no ``MPI.Op``.
        ValueError: if it is ``MPI.OP_NULL``, or does not apply to arrays.
    """
    if isinstance(op, PairOp):
        return replace(reduction_of(op.op), kinds=None)
    if not isinstance(op, MPI.Op):
        raise TypeError(f"op must be an mpi4py reduction (mpi4py.MPI.SUM, say), but is {kind_of(op)}.")
    handle = native.handle_of(op)
    if handle in _predefined:
        return _predefined[handle]
    if op == MPI.OP_NULL:
        raise ValueError(
            "op is MPI.OP_NULL, which is no reduction: either it was freed (op.Free()), or it was never made. Pass one "
            "that exists, such as MPI.SUM."
        )
    if op.is_predefined:
        names = ", ".join("MPI." + row.name for row in _predefined.values())
        raise ValueError(f"op is a predefined reduction that does not apply to arrays. Use one of {names}.")
    number = native.check_result(native.lib.mpixla_reduction_register(handle))
    address = MPI._addressof(op)
    if address not in _kept:
        _forget_freed()
        if native.lib.mpixla_reduction_keep(number, address):
            _kept[address] = op
    return Reduction(number, f"{_function_of(op)} (user-made)", None)


def _function_of(op: MPI.Op) -> str:
    """Return the name of the function that ``MPI.Op.Create`` got, from mpi4py's pickling; "op" if it is unknown."""
    with suppress(Exception):  # a reduction that another library made
        made: Any = op.__reduce__()
        return str(made[1][0].__name__)
    return "op"


def status_of(status: Any) -> Status:
    """Return an mpi4py status object as programs carry it, ``NO_STATUS`` for ``None``; raise TypeError otherwise."""
    if status is None:
        return NO_STATUS
    if not isinstance(status, MPI.Status):
        raise TypeError(f"status must be an mpi4py.MPI.Status or None, but is {kind_of(status)}.")
    return Status(MPI._addressof(status), status)
