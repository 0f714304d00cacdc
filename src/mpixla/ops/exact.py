"""Exact sums over all ranks, which have the same bits on any number of ranks."""

import math
from collections.abc import Sequence
from typing import Any, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.experimental.jet import jet_rules
from jax.typing import ArrayLike

from ..checks import sites
from ..core.eager import eager
from ..core.exact import round_accumulators, sum_lines
from ..core.primitive import REPLICATED, Cotangent, accumulation_dtype, compose_primitive
from ..core.tree import Tree, as_leaves, flatten_tree, is_key
from ..jaxprs.spmd import Primitive, with_shape
from ..mpi.comm import Comm, comm_of
from ..mpi.mpi import MPI
from .arguments import as_axes, as_convention, as_integer
from .collective import SUM, allreduce_p, replicated_cotangent
from .shapes import BATCH_FIRST

# fsum: the sum of each line of the arrays over all ranks. One MPI call for all arrays.


def _fsum_abstract_eval(*arrays: ShapedArray, **params: Any) -> list[ShapedArray]:
    return [with_shape(x, x.shape[:-1]) for x in arrays]


def _sum_accumulators(words: Sequence[Any], comm: Comm, cotangent: str) -> list[Any]:
    """Return the totals over all ranks of exact sums' accumulators, arrays with words in the last axis; collective."""
    flat = [x.reshape(-1, x.shape[-1]) for x in words]
    (total,) = allreduce_p.bind(jnp.concatenate(flat), comm=comm, op=SUM, cotangent=cotangent)
    parts = jnp.split(total, np.cumsum([len(x) for x in flat])[:-1].tolist())
    return [part.reshape(x.shape) for part, x in zip(parts, words, strict=True)]


def _fsum_fun(*arrays: Any, comm: Comm, cotangent: str) -> list[Any]:
    total = _sum_accumulators([sum_lines(x.astype(accumulation_dtype(x.dtype))) for x in arrays], comm, cotangent)
    return [round_accumulators(words, x.dtype) for words, x in zip(total, arrays, strict=True)]


def _fsum_transpose(*cts: Any, types: Any, comm: Comm, cotangent: str) -> list[Any]:
    """Return the operands' cotangents: the sum's cotangent for each entry."""
    return [
        jnp.broadcast_to(replicated_cotangent(ct, comm, cotangent)[..., None], aval.shape)
        for ct, aval in zip(cts, types, strict=True)
    ]


_fsum_p: Primitive = compose_primitive(
    "fsum", _fsum_abstract_eval, _fsum_fun, batch=BATCH_FIRST, transpose=_fsum_transpose
)


# exact_dot: the sum of products of the lines of two real arrays.


def _exact_dot_impl(x: Any, y: Any, *, comm: Comm, cotangent: str, dtype: Any) -> list[Any]:
    (total,) = _sum_accumulators([sum_lines(x, y)], comm, cotangent)
    return [round_accumulators(total, dtype)]


def _exact_dot_abstract_eval(x: ShapedArray, y: ShapedArray, *, dtype: Any, **params: Any) -> list[ShapedArray]:
    return [with_shape(x, x.shape[:-1], dtype=np.dtype(dtype))]


def _exact_dot_jvp_rule(primals: Any, tangents: Any, *, comm: Comm, cotangent: str, dtype: Any) -> list[Any]:
    (x, y), (s, t) = primals, tangents
    return _dot_of_products(s * y + x * t, comm, cotangent, dtype)


def _dot_of_products(products: Any, comm: Comm, cotangent: str, dtype: Any) -> list[Any]:
    """Return [the sums of products over the last axis and all ranks], rounded at each addition; collective."""
    return allreduce_p.bind(jnp.sum(products, axis=-1).astype(dtype), comm=comm, op=SUM, cotangent=cotangent)


_dot_p: Primitive = compose_primitive(
    "exact_dot",
    _exact_dot_abstract_eval,
    _exact_dot_impl,
    batch=BATCH_FIRST,
    jvp=_exact_dot_jvp_rule,
)


def _exact_dot_series_rule(primals: Any, series: Any, *, comm: Comm, cotangent: str, dtype: Any) -> tuple[Any, Any]:
    """Return results and Taylor series (jax.experimental.jet) of exact_dot."""
    _, terms = jet_rules[jax.lax.mul_p](primals, series)
    results = _dot_p.bind(*primals, comm=comm, cotangent=cotangent, dtype=dtype)
    return results, [[_dot_of_products(term, comm, cotangent, dtype)[0] for term in terms]]


jet_rules[_dot_p] = _exact_dot_series_rule  # type: ignore[assignment]


def exact_dot(x: jax.Array, y: jax.Array, dtype: Any, comm: Comm, cotangent: str) -> jax.Array:
    """Return the inner product over all ranks of two arrays with one axis, ``x`` conjugated, rounded to ``dtype``.

    Both are float32 or float64, or both complex; ``x`` may be ``y``.
    """
    params: dict[str, Any] = {"comm": comm, "cotangent": cotangent, "dtype": jnp.finfo(dtype).dtype}
    with sites.annotate_calls(sites.format_packed("exact product", [params["dtype"].name])):
        return _bind_exact_dot(x, y, params)


def _bind_exact_dot(x: jax.Array, y: jax.Array, params: dict[str, Any]) -> jax.Array:
    """Bind exact_dot for real arrays; for complex ones, for real and imaginary parts in one call."""
    if not jnp.iscomplexobj(x):
        return _dot_p.bind(x, y, **params)[0]
    own = jnp.concatenate([x.real, x.imag])
    if x is y:
        return jax.lax.complex(_dot_p.bind(own, own, **params)[0], jnp.zeros((), params["dtype"]))
    turned = jnp.concatenate([x.real, -x.imag])
    others = jnp.stack([jnp.concatenate([y.real, y.imag]), jnp.concatenate([y.imag, y.real])])
    (parts,) = _dot_p.bind(jnp.stack([own, turned]), others, **params)
    return jax.lax.complex(parts[0], parts[1])


def _join_axes(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """Return ``x`` with ``axes`` moved behind its other axes and joined into one last axis."""
    kept = [i for i in range(x.ndim) if i not in axes]
    sizes = [x.shape[i] for i in kept]
    return jnp.transpose(x, (*kept, *axes)).reshape(*sizes, math.prod(x.shape[i] for i in axes))


def _as_fsum_axes(axis: Any, x: jax.Array) -> tuple[int, ...]:
    """Return the axes that fsum sums over, counted from the front; None stands for all."""
    if axis is None:
        return tuple(range(x.ndim))
    given = [as_integer(i, "axis", "fsum") for i in (axis if isinstance(axis, (tuple, list)) else [axis])]
    return as_axes(given, x, "axis of fsum is")


def check_floats(x: jax.Array, what: str, refusal: str) -> None:
    """Raise TypeError for an array of integers or bools, whose message ends with ``refusal``, or of float8_e8m0fnu."""
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        raise TypeError(f"{what} has dtype {x.dtype.name}, {refusal}")
    if x.dtype.name == "float8_e8m0fnu":
        raise TypeError(f"{what} has dtype {x.dtype.name}, which has no zero. Convert it to float32.")


# An array for an array, and for a pytree one of the same structure.
@overload
def fsum(
    x: ArrayLike,
    axis: int | Sequence[int] | None = ...,
    *,
    comm: MPI.Comm | None = ...,
    cotangent: Cotangent = ...,
) -> jax.Array: ...
@overload
def fsum(
    x: Tree, axis: int | Sequence[int] | None = ..., *, comm: MPI.Comm | None = ..., cotangent: Cotangent = ...
) -> Tree: ...
@eager(1)
def fsum(
    x: Any,
    axis: int | Sequence[int] | None = None,
    *,
    comm: MPI.Comm | None = None,
    cotangent: Cotangent = REPLICATED,
) -> Any:
    """Return the exact sum of the entries of all ranks, rounded once: the same bits on any number of ranks.

    It equals ``math.fsum`` of all entries, in any order, in any split between ranks, and under any MPI. The entries
    themselves come from XLA, which may compute them otherwise for another shape (docs/exact.md).

    Args:
        x: this rank's array of floats or complex numbers, or a pytree of such arrays. Ranks may differ in the sizes of
            the axes that are summed over, which may be 0; other axes and dtypes are the same on every rank.
        axis: the axis to sum over, or several; by default all. Negative ones count from the last.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.
        cotangent: how reverse mode counts the cotangents of the result, as of ``allreduce``.

    Returns:
        An array of ``x``'s dtype without these axes, the same on every rank. NaN if any entry is NaN, or if there are
        infinities of both signs; an infinity if there is one, or if the sum is beyond the dtype's numbers (NaN if it
        has no infinity), however large sums of parts are; -0.0 if there are entries and all are -0.0. Of complex
        numbers each part is such a sum.

    Derivative:
        Linear. Forward mode: the exact sum of the tangents. Reverse mode: every entry gets the cotangent, or with
        ``cotangent="varying"`` the sum of all ranks' cotangents, by an ``allreduce`` for each array.

    Raises:
        TypeError: for integers and booleans, whose sums are exact, an axis that is no static integer, a ``comm`` that
            is no intra-communicator, or a dtype that MPI cannot move.
        ValueError: for an axis that ``x`` does not have or that is named twice, an invalid ``cotangent``, or a
            communicator that was freed.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> rank = mpixla.get_default_comm().Get_rank()
        >>> x = jnp.array([1e30, 1.0, -1e30]) if rank == 0 else jnp.zeros(0)
        >>> float(mpixla.fsum(x))
        1.0
    """
    c = comm_of(comm)
    convention = as_convention(cotangent, "fsum", c)
    leaves, structure = flatten_tree(x)
    arrays = as_leaves(x, leaves, "x", "fsum")
    for array in arrays:
        if is_key(array):
            raise TypeError("fsum cannot sum PRNG keys, which can only be moved: with bcast, for example.")
        check_floats(array, "x of fsum", "whose sums are exact already: use allreduce of jnp.sum.")
    lines = [_join_axes(array, _as_fsum_axes(axis, array)) for array in arrays]
    parts = [jnp.stack([line.real, line.imag]) if jnp.iscomplexobj(line) else line for line in lines]
    with sites.annotate_calls(
        sites.format_packed("exact sums", [f"{math.prod(x.shape[:-1])} {x.dtype.name}" for x in parts])
    ):
        sums = _fsum_p.bind(*parts, comm=c, cotangent=convention) if parts else []
    results = [jax.lax.complex(*y) if jnp.iscomplexobj(x) else y for x, y in zip(arrays, sums, strict=True)]
    return jax.tree.unflatten(structure, results)
