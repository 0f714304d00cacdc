"""Numbers that are known only at run time: traced ranks, tags and counts.

A static one is a parameter of the primitive and an attribute of the call. For a traced one the parameter is
``OPERAND``, and the numbers of all such parameters are one more operand, the last, in the parameters' alphabetical
order. They are this MPI's numbers, such as ``MPI.PROC_NULL``. The C library reads them
(native/call/values.h).
"""

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray

from ..jaxprs.spmd import with_shape
from ..mpi.comm import NO_STATUS, STATUS_BYTES, STATUS_NUMBERS, STATUS_RESULT, Status

OPERAND: Final = "operand"
CACHED_CALLS: Final = 1024  # entries of each cache of eager calls; the program of one has some 1.5 MB


def is_operand(param: Any) -> bool:
    """Return True for ``OPERAND``, the parameter of a rank, tag or counts that are in the last operand, at run time."""
    return isinstance(param, str) and param == OPERAND


def full_params(params: dict[str, Any]) -> dict[str, Any]:
    """Return a primitive's parameters; of a start or a wait also those of the started call, its parameter ``call``."""
    call = params.get("call")
    return {**params, **vars(call)} if hasattr(call, "comm") else params


def has_values(params: dict[str, Any]) -> bool:
    """Return True if a parameter is ``OPERAND``, so that the primitive's last operand holds the numbers at run time."""
    return any(map(is_operand, full_params(params).values()))


def is_traced(x: Any) -> bool:
    """Return True for a JAX tracer, a value that is known only when the program runs."""
    return isinstance(x, jax.core.Tracer)


def as_scalar(value: Any, what: str, name: str) -> Any:
    """Convert a traced integer to an int32 scalar, an int64 unchanged; raise TypeError for another type or shape."""
    if value.shape != () or not jnp.issubdtype(value.dtype, jnp.integer):
        raise TypeError(f"{what} of {name} must be an integer, but is a traced value of {value.aval}.")
    if value.dtype.itemsize == 8 and jnp.issubdtype(value.dtype, jnp.signedinteger):
        return value
    if jnp.issubdtype(value.dtype, jnp.unsignedinteger):
        value = jnp.minimum(value, 2**31 - 1)  # too many stays too many
    return value.astype(jnp.int32)


def split_numbers(numbers: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """Separate static numbers from traced ones: return the parameters by name, and a list of one operand or none."""
    traced = [jnp.ravel(numbers[name]) for name in sorted(numbers) if isinstance(numbers[name], jax.Array)]
    params = {name: OPERAND if isinstance(x, jax.Array) else x for name, x in numbers.items()}
    return params, [jnp.concatenate(traced)] if traced else []


def join_numbers(params: dict[str, Any], values: Sequence[Any]) -> dict[str, Any]:
    """Return the numbers by name from the results of ``split_numbers``, whose traced numbers were scalars."""
    names = sorted(name for name, x in params.items() if is_operand(x))
    return {**params, **{name: values[0][i] for i, name in enumerate(names)}}


# The status of a message as a result: its bytes, or its source, tag and length.


def status_types(array: ShapedArray, status: Status = NO_STATUS) -> list[ShapedArray]:
    """Return the type of the result that a receive gives behind its array for this status, or []."""
    if status == STATUS_RESULT:
        return [with_shape(array, (STATUS_BYTES,), dtype=np.dtype(np.uint8))]
    if status == STATUS_NUMBERS:
        return [with_shape(array, (3,), dtype=jax.dtypes.canonicalize_dtype(np.int64))]
    return []


def divide_length(numbers: Any, batch: int) -> Any:
    """Return (source, tag, length) with the length divided by ``batch``, the number of examples in the message."""
    return numbers if batch == 1 else numbers.at[2].set(numbers[2] // max(batch, 1))


# The numbers of a message in alphabetical order, and in which direction each is needed.
_MESSAGE = (("dest", "dest"), ("recvtag", "source"), ("sendtag", "dest"), ("source", "source"))


def as_operand(params: dict[str, Any]) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Return parameters with a message's static ranks and tags replaced by ``OPERAND``, and these numbers.

    ``native.PROC_NULL``, ``native.ANY_SOURCE``, ``native.ANY_TAG`` and a ``Shift`` remain parameters.
    """
    call = params.get("call")
    if call is not None:
        changed, values = _call_as_operand(call)
        return {**params, "call": changed}, values
    numbers = _static_numbers(params)
    return {**params, **dict.fromkeys(numbers, OPERAND)} if numbers else params, tuple(numbers.values())


@functools.lru_cache(CACHED_CALLS)
def _call_as_operand(call: Any) -> tuple[Any, tuple[int, ...]]:
    """Return what ``as_operand`` does for a started call, the same object for equal calls."""
    numbers = _static_numbers(vars(call))
    return replace(call, **dict.fromkeys(numbers, OPERAND)) if numbers else call, tuple(numbers.values())


def _static_numbers(params: dict[str, Any]) -> dict[str, int]:
    """Return the ranks and tags of a message that are parameters, by name; none if others are operands already."""
    known = [name for name, peer in _MESSAGE if params.get(peer) is not None and type(params[name]) is int]
    return {name: params[name] for name in known} if known and not has_values(params) else {}
