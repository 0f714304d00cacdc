"""``MAXLOC`` and ``MINLOC``: reductions of pairs, an array of values and an array of places.

MPI has these for a few C types. Here a pair is encoded as bytes, of which the lexicographic maximum is the result
(native/mpi/pair_reduce.h), so that all types of values and places work, in one call.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from ..base.words import kind_of
from ..mpi import native
from ..mpi.comm import PairOp, reduction_of
from ..mpi.mpi import MPI
from .primitive import accumulation_dtype, as_array


def is_of_pairs(op: Any) -> TypeGuard[MPI.Op]:
    """Return True if ``op`` is ``MPI.MAXLOC`` or ``MPI.MINLOC``."""
    return isinstance(op, MPI.Op) and op in (MPI.MAXLOC, MPI.MINLOC)


def reduce_pair(function: Callable[..., Any], pair: Any, op: MPI.Op, *args: Any, **kwargs: Any) -> Any:
    """Reduce a pair (a tuple or list) by ``function(array, op, *args, **kwargs)``; return a pair of the same type."""
    results = _reduce(function, pair, op, *args, **kwargs)
    return jax.tree.unflatten(jax.tree.structure(pair, is_leaf=lambda x: x is not pair), results)


def _reduce(function: Callable[..., Any], pair: Any, op: MPI.Op, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Reduce a pair (values, places) by MAXLOC or MINLOC with the reduction ``function``; return the reduced pair."""
    values, places = _check_pair(pair, function.__name__, reduction_of(op).name)
    largest = op == MPI.MAXLOC

    def reduce(values: jax.Array, places: jax.Array) -> tuple[jax.Array, jax.Array]:
        encoded = _encode_pairs(values, places, largest)
        return _decode_pairs(function(encoded, PairOp(op), *args, **kwargs), values.dtype, places.dtype, largest)

    if not jnp.issubdtype(values.dtype, jnp.inexact):
        return reduce(values, places)
    differentiable = jax.custom_jvp(reduce)

    def jvp(primals: Any, tangents: Any) -> Any:
        """Return the reduced pair, and as the tangent of its values that of MAX or MIN; places are integers."""
        values_op = MPI.MAX if largest else MPI.MIN
        results = differentiable(*primals)  # which may be differentiated again
        _, tangent = jax.jvp(lambda v: function(v, values_op, *args, **kwargs), primals[:1], tangents[:1])
        return results, (tangent, np.zeros(results[1].shape, jax.dtypes.float0))

    differentiable.defjvp(jvp)
    return differentiable(values, places)


def _check_pair(pair: Any, name: str, op: str) -> tuple[jax.Array, jax.Array]:
    """Return the pair (values, places) of a MAXLOC or MINLOC as two arrays; raise TypeError if they do not fit."""
    rule = f"{name} with op {op} takes a pair of arrays of one shape, the values and their places"
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise TypeError(f"{rule}, but x is {kind_of(pair)}.")
    values, places = (as_array(x, f"x[{i}]", name) for i, x in enumerate(pair))
    if values.shape != places.shape:
        raise TypeError(f"{rule}, but the values have shape {values.shape} and the places {places.shape}.")
    if native.dtypes[values.dtype.name].kind not in ("integer", "float"):
        raise TypeError(f"{rule}. Values are integers or floats, but these are {values.dtype.name}.")
    if not jnp.issubdtype(places.dtype, jnp.integer):
        raise TypeError(f"{rule}. Places are integers, but these are {places.dtype.name}.")
    return values, places


# Keys: unsigned integers in the order of their values. NaN compares greater than all others in both reductions, as in
# NumPy.


def _unsigned_dtype(dtype: np.dtype) -> np.dtype:
    return np.dtype(f"uint{8 * dtype.itemsize}")


def _encode_order(x: jax.Array) -> jax.Array:
    """Map numbers to unsigned integers of the same order, where -0 equals 0; narrow floats become float32 first."""
    x = jax.lax.stop_gradient(x).astype(accumulation_dtype(x.dtype))
    unsigned = _unsigned_dtype(x.dtype)
    sign = unsigned.type(1 << (8 * x.dtype.itemsize - 1))
    if jnp.issubdtype(x.dtype, jnp.unsignedinteger):
        return x
    if jnp.issubdtype(x.dtype, jnp.signedinteger):
        return x.astype(unsigned) ^ sign
    bits = jax.lax.bitcast_convert_type(x, unsigned)
    bits = jnp.where(bits == sign, 0, bits)  # -0 and 0 are equal, though for XLA so are all subnormals
    return jnp.where(bits & sign != 0, ~bits, bits | sign)


def _decode_order(key: jax.Array, dtype: np.dtype) -> jax.Array:
    """Map unsigned integers back to the numbers of which ``_encode_order`` has made them."""
    compared = accumulation_dtype(dtype)
    sign = key.dtype.type(1 << (8 * compared.itemsize - 1))
    if jnp.issubdtype(compared, jnp.unsignedinteger):
        return key
    if jnp.issubdtype(compared, jnp.signedinteger):
        return (key ^ sign).astype(compared)
    return jax.lax.bitcast_convert_type(jnp.where(key & sign != 0, key ^ sign, ~key), compared).astype(dtype)


def _split_bytes(key: jax.Array) -> jax.Array:
    """Return the bytes of a key, the most significant first, along a new last axis."""
    octets = jax.lax.bitcast_convert_type(key, np.uint8)
    return octets[..., None] if key.dtype.itemsize == 1 else jnp.flip(octets, -1)


def _join_bytes(octets: jax.Array, dtype: np.dtype) -> jax.Array:
    return octets[..., 0] if dtype.itemsize == 1 else jax.lax.bitcast_convert_type(jnp.flip(octets, -1), dtype)


# Jitted, so that each is one program in eager calls, too: its constants would otherwise be transfers to the device.


@functools.partial(jax.jit, static_argnums=2)
def _encode_pairs(values: jax.Array, places: jax.Array, largest: bool) -> jax.Array:
    """Encode values and places as bytes whose lexicographic maximum is MAXLOC's or MINLOC's result; a NaN wins."""
    key = _encode_order(values)
    key = key if largest else ~key
    if jnp.issubdtype(values.dtype, jnp.floating):
        key = jnp.where(values != values, ~key.dtype.type(0), key)
    return jnp.concatenate(
        [_split_bytes(key), _split_bytes(~_encode_order(places))], -1
    )  # of equal values the least place is kept


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _decode_pairs(encoded: jax.Array, value: np.dtype, place: np.dtype, largest: bool) -> tuple[jax.Array, jax.Array]:
    """Decode bytes of ``_encode_pairs`` into values, NaN included, and places; zero bytes give the neutral value."""
    width = accumulation_dtype(value).itemsize
    key = _join_bytes(encoded[..., :width], _unsigned_dtype(accumulation_dtype(value)))
    places = _decode_order(~_join_bytes(encoded[..., width:], _unsigned_dtype(place)), place)
    is_nan = key == ~key.dtype.type(0)
    # The zeros that exscan gives on the first rank are less than every pair: they decode to the neutral value.
    low, high = (
        _encode_order(jnp.asarray(reduction_of(op).neutral_element(value), value)) for op in (MPI.MAX, MPI.MIN)
    )
    values = _decode_order(jnp.clip(key if largest else ~key, low, high), value)
    return jnp.where(is_nan, jnp.nan, values) if jnp.issubdtype(value, jnp.floating) else values, places
