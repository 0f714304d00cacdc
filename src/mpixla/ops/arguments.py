"""Checks of arguments when tracing. Each returns the value that the program carries."""

import contextlib
import contextvars
from collections.abc import Iterator, Sequence
from typing import Any, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ..base.words import as_flag
from ..core.primitive import REPLICATED, VARYING, counts_once
from ..core.rank import known_rank_at
from ..core.values import as_scalar, is_traced
from ..jaxprs.spmd import is_in_shard_map
from ..mpi import native
from ..mpi.comm import Comm, Reduction, Shift, reduction_of
from ..mpi.mpi import MPI

# The types of the rank at the other end of a message, and of its tag; traced integers among them.
Rank = int | jax.Array | Shift
Tag = int | jax.Array
# The type of a template that is one array, or says its shape and dtype.
Template = ArrayLike | jax.ShapeDtypeStruct


# The defaults of source and tag, which help() shows by these names.
ANY_SOURCE, ANY_TAG = native.NamedInt(MPI.ANY_SOURCE, "MPI.ANY_SOURCE"), native.NamedInt(MPI.ANY_TAG, "MPI.ANY_TAG")


class TagArguments(TypedDict, total=False):
    """The other keyword arguments of sendrecv and isendrecv, for type checkers."""

    sendtag: Tag
    recvtag: Tag
    comm: MPI.Comm | None


_STATIC = "under jit, mark the argument as static (static_argnums or static_argnames), or close over it."


def as_static(value: Any, what: str, name: str, kind: str) -> Any:
    """Return ``value`` unchanged; raise TypeError, which asks for a Python ``kind``, such as int, if it is traced."""
    if is_traced(value):
        raise TypeError(
            f"{what} of {name} is a traced value ({value.aval}), but must be known when tracing, because it decides "
            f"which program this rank runs. Pass a Python {kind}; {_STATIC}"
        )
    return value


def as_integer(value: Any, what: str, name: str) -> int:
    """Return an integer of Python, NumPy or JAX as an int; raise TypeError for a traced value or another type."""
    as_static(value, what, name, "integer")
    try:
        return int(value.__index__())
    except (AttributeError, TypeError):
        raise TypeError(f"{what} of {name} must be an integer, but is {value!r}.") from None


def as_static_flag(value: Any, what: str, name: str) -> bool:
    """Return a static bool; raise TypeError for a traced value or another type."""
    return as_flag(as_static(value, what, name, "bool"), what, name)


_left_to_calls = contextvars.ContextVar("mpixla: calls refuse wrong ranks", default=False)


@contextlib.contextmanager
def leave_ranks_to_calls() -> Iterator[None]:
    """Let ``as_rank`` take any integer in the with body of this context: the call checks its ranks when it runs.

    So a branch that is traced on all ranks, and taken only where its rank exists, can contain such a rank.
    """
    before = _left_to_calls.set(True)
    try:
        yield
    finally:
        _left_to_calls.reset(before)


def as_rank(value: Any, what: str, name: str, comm: Comm) -> int:
    """Return a static rank from 0 to size - 1, no ``PROC_NULL``; in ``leave_ranks_to_calls`` any static integer.

    Args:
        value: the argument of the user.
        what: the argument's name, for messages.
        name: the operation's name, for messages.
        comm: the communicator of the rank.

    Raises:
        TypeError: for a traced value or no integer.
        ValueError: for an integer that is no rank of ``comm``.
    """
    rank = as_integer(value, what, name)
    if not 0 <= rank < comm.size and not _left_to_calls.get():
        alone = MPI.COMM_WORLD.Get_size() == 1
        more = " There is one process: python -m mpixla run -n 2 script.py starts two." if alone else ""
        raise ValueError(
            f"{what} of {name} is {rank}, but the ranks of communicator '{comm.name}' are 0 to {comm.size - 1}.{more}"
        )
    return rank


def refuse_where_sharded(name: str, comm: Comm, instead: str) -> None:
    """Raise NotImplementedError inside ``jax.shard_map`` for an operation whose array has another shape on the root."""
    if comm.size > 1 and is_in_shard_map():
        raise NotImplementedError(
            f"{name} has an array of another shape on the root than elsewhere, but inside jax.shard_map all processes "
            f"run one program, where it has one shape. Use {instead}."
        )


def _as_shift(shift: Shift, what: str, name: str, comm: Comm) -> Shift:
    """Check a ``Shift``, and return it with integers; raise ValueError for a direction that the communicator lacks."""
    given = [values if isinstance(values, (tuple, list)) else (values,) for values in shift]
    directions = tuple(as_integer(value, f"direction of {what}", name) for value in given[0])
    disps = tuple(as_integer(value, f"disp of {what}", name) for value in given[1])
    if not directions or len(directions) != len(disps):
        raise ValueError(f"{what} of {name} is {shift}. Give as many displacements as directions, and at least one.")
    if max(map(abs, directions + disps)) >= 2**31:
        raise ValueError(f"{what} of {name} is {shift}, but the numbers of a shift have 32 bits.")
    taken = Shift(directions, disps)
    try:
        known_rank_at(comm, taken)
    except ValueError as e:
        raise ValueError(f"{what} of {name} is {shift}: {e}.") from None
    return taken


def _as_peer(value: Any, what: str, name: str, comm: Comm) -> Rank:
    """Return a rank, ``Shift``, ``native.PROC_NULL``, or if a source ``native.ANY_SOURCE``; ValueError for no rank."""
    if isinstance(value, Shift):
        return _as_shift(value, what, name, comm)
    rank = as_integer(value, what, name)
    if rank == MPI.PROC_NULL:
        return native.PROC_NULL
    if rank == MPI.ANY_SOURCE and what == "source":
        return native.ANY_SOURCE
    rank = as_rank(rank, what, name, comm)
    # A rank that does not exist may equal native.PROC_NULL or ANY_SOURCE; as a number at run time it cannot.
    return rank if 0 <= rank < comm.size else jnp.int32(rank)


def _as_tag(value: Any, what: str, name: str, *, or_any: bool) -> Tag:
    """Return a static tag, 0 to MPI's ``TAG_UB``, or if ``or_any`` ``native.ANY_TAG``; ValueError for any other."""
    tag = as_integer(value, what, name)
    if or_any and tag == MPI.ANY_TAG:
        return native.ANY_TAG
    bound: int = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB)  # type: ignore[assignment]
    if not 0 <= tag <= bound:
        raise ValueError(f"{what} of {name} is {tag}, but this MPI's tags are 0 to {bound}.")
    return tag


def as_message(name: str, comm: Comm, **given: Any) -> dict[str, Any]:
    """Check a message's ranks and tags, and return them by name; for one direction, errors call the tag ``tag``."""
    message: dict[str, Any] = {}
    for part, value in given.items():
        what = "tag" if len(given) == 2 and "tag" in part else part
        if is_traced(value):  # the C library checks its value
            message[part] = as_scalar(value, what, name)
        elif "tag" in part:
            message[part] = _as_tag(value, what, name, or_any=part == "recvtag")
        else:
            message[part] = _as_peer(value, what, name, comm)
    return message


def as_axes(axes: Sequence[int], x: jax.Array, said: str, rule: str = "") -> tuple[int, ...]:
    """Return an array's axes counted from the front; raise ValueError if it lacks one, or one is named twice.

    A refusal begins with ``said`` and ends with ``rule``, which has a space before it.
    """
    given = axes[0] if len(axes) == 1 else tuple(axes)
    if any(not -x.ndim <= axis < x.ndim for axis in axes):
        raise ValueError(f"{said} {given}, but an array of shape {x.shape} has {x.ndim} axes.{rule}")
    own = tuple(axis % x.ndim for axis in axes)
    if len(set(own)) < len(own):
        raise ValueError(f"{said} {given}, which names an axis twice for an array of shape {x.shape}.{rule}")
    return own


def as_capacity(capacity: Any, template: Any, name: str) -> int | None:
    """Return a capacity in rows, 0 or more, or None (static counts); TypeError for a template without a capacity."""
    if capacity is None:
        if template is not None:
            raise TypeError(
                f"{name} takes a template only with a capacity: without it the result has no rows but those that come."
            )
        return None
    capacity = as_integer(capacity, "capacity", name)
    if not 0 <= capacity < 2**63:
        raise ValueError(f"capacity of {name} is {capacity}, but must be a number of rows, 0 or more.")
    return capacity


def as_counts(value: Any, what: str, name: str, number: int, each: str, capacity: int | None) -> Any:
    """Return ``number`` row counts, one for ``each``: a static tuple, or with a capacity an array; else ValueError."""
    if capacity is None:
        return _static_counts(value, what, name, number, each)
    counts = as_integers(value, what, name)
    if counts.shape != (number,):
        raise ValueError(
            f"{what} of {name} must be {number} integers, one for {each}, but is an array of shape {counts.shape}."
        )
    return counts


def _static_counts(value: Any, what: str, name: str, number: int, each: str) -> tuple[int, ...]:
    """Return static row counts as a tuple; raise TypeError or ValueError unless they are ``number``, all >= 0."""
    is_sequence = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
    blocking = name == name.removeprefix("i")
    way_out = f"{'Pass' if blocking else f'Use {name[1:]} with'} capacity, a static number of rows that the result has"
    way_out += " room for; or"
    for x in (value, *(value if is_sequence else ())):
        if is_traced(x):
            raise TypeError(
                f"{what} of {name} is a traced value ({x.aval}), but must be known when tracing, because it decides "
                f"the shapes. {way_out} pass a list of Python integers: {_STATIC}"
            )
    if not is_sequence and not (isinstance(value, (np.ndarray, jax.Array)) and value.ndim == 1):
        raise TypeError(f"{what} of {name} must be a sequence of integers, one for {each}, but is {value!r}.")
    counts = tuple(as_integer(count, f"{what}[{i}]", name) for i, count in enumerate(value))
    if len(counts) != number:
        raise ValueError(f"{what} of {name} must have one entry for {each}, but has {len(counts)}: {counts}.")
    for i, count in enumerate(counts):
        if count < 0:
            raise ValueError(f"{what}[{i}] of {name} is {count}, but a number of rows is not negative.")
    if sum(counts) >= 2**63:
        raise ValueError(f"{what} of {name} are {sum(counts)} rows, but an array has fewer than 2**63.")
    return counts


def as_integers(value: Any, what: str, name: str) -> jax.Array:
    """Convert counts or sizes to an array of int64, or int32 without x64, clipped; raise TypeError for other values."""
    # JAX would truncate NumPy's integers to the lower bits.
    given = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    try:
        counts = jnp.asarray(given, int if isinstance(given, list | tuple) and not given else None)  # not floats
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{what} of {name} must be integers that JAX has a type for, but is {value!r}.") from None
    if not jnp.issubdtype(counts.dtype, jnp.integer):
        raise TypeError(f"{what} of {name} must be integers, but is of dtype {counts.dtype}.")
    taken = jax.dtypes.canonicalize_dtype(np.int64)
    most = np.iinfo(taken).max
    if np.iinfo(counts.dtype).max > most:
        counts = jnp.minimum(counts, most)  # too many stays too many
    return counts.astype(taken)


def as_reduction(op: Any, x: jax.Array, name: str) -> Reduction:
    """Return the ``Reduction`` of the mpi4py op ``op``; raise TypeError if it does not apply to the dtype of ``x``."""
    reduction = reduction_of(op)
    kind = native.dtypes[x.dtype.name].kind
    if reduction.kinds is not None and kind not in reduction.kinds:
        if reduction.kinds == ("pair",):
            raise TypeError(
                f"{name} cannot reduce with op {reduction.name}, which is for pairs of values and places; allreduce, "
                "reduce, scan, exscan and reduce_scatter take these."
            )
        allowed = [row.name.removeprefix("MPI_") for row in native.reductions if kind in row.kinds]
        way_out = f"It can be reduced with {', '.join(allowed)}." if allowed else "Convert it to float32 first."
        raise TypeError(f"{name} cannot reduce dtype {x.dtype.name} with op {reduction.name}. {way_out}")
    return reduction


def as_convention(cotangent: Any, name: str, comm: Comm) -> str:
    """Return ``cotangent`` (ValueError if neither word), or VARYING where types cannot mark results as replicated.

    With VARYING the cotangents of all ranks count in reverse mode, else each result's cotangent once.
    """
    as_static(cotangent, "cotangent", name, "string")
    if not isinstance(cotangent, str) or cotangent not in (REPLICATED, VARYING):
        raise ValueError(f"cotangent of {name} must be '{REPLICATED}' or '{VARYING}', but is {cotangent!r}.")
    return cotangent if counts_once(comm) else VARYING
