"""Inner products and norms of vectors that are spread over all ranks, as solvers need them, in one MPI call."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..core.eager import eager
from ..core.primitive import REPLICATED, Cotangent, accumulation_dtype, as_array
from ..core.tree import as_leaves, flatten_tree
from ..mpi.comm import comm_of
from ..mpi.mpi import MPI
from .arguments import as_convention, as_static, as_static_flag
from .collective import allreduce
from .exact import check_floats, fsum
from .exact import exact_dot as exact_dot

_ORDS = (1, 2, jnp.inf, "rms")


def _flatten_vector(tree: Any, what: str, name: str) -> tuple[list[jax.Array], Any]:
    """Return the leaves of the vector ``what`` as arrays, and its structure; raise ValueError if it has no leaves."""
    leaves, structure = flatten_tree(tree)
    if not leaves:
        raise ValueError(
            f"{what} of {name} is {tree!r}, which has no arrays. A rank without entries passes empty arrays."
        )
    # as_array refuses PRNG keys, which as_leaves leaves as they are.
    return [as_array(leaf, what, name) for leaf in as_leaves(tree, leaves, what, name)], structure


def _as_masks(mask: Any, leaves: list[jax.Array], structure: Any, name: str) -> list[jax.Array | None]:
    """Return a mask of entries that count for each leaf, None for all entries; ValueError if structures differ."""
    if mask is None:
        return [None] * len(leaves)
    given, given_structure = flatten_tree(mask)
    if given_structure != structure:
        if not jax.tree_util.all_leaves([mask]):
            raise ValueError(
                f"mask of {name} is the pytree {given_structure}, but must be one array, or a pytree like the vector, "
                f"which is {structure}."
            )
        given = [mask] * len(leaves)
    return [_as_mask(m, leaf, name) for m, leaf in zip(given, leaves, strict=True)]


def _as_mask(mask: Any, leaf: jax.Array, name: str) -> jax.Array:
    """Return a mask as an array; raise TypeError if it is not of bools, ValueError if it does not broadcast."""
    taken = as_array(mask, "mask", name)
    if taken.dtype != bool:
        raise TypeError(f"mask of {name} must be of bools, which say what counts, but is of dtype {taken.dtype}.")
    sizes = zip(taken.shape[::-1], leaf.shape[::-1], strict=False)
    if taken.ndim > leaf.ndim or any(size not in (1, n) for size, n in sizes):
        raise ValueError(f"mask of {name} has shape {taken.shape}, which does not broadcast to x's, {leaf.shape}.")
    return taken


def _apply_masks(leaves: list[jax.Array], masks: list[jax.Array | None], dtype: Any) -> list[jax.Array]:
    """Return the leaves as this dtype, with zeros where their masks are False."""
    typed = [leaf.astype(dtype) for leaf in leaves]
    # Not a product: a ghost cell may hold NaN.
    return [x if m is None else jnp.where(m, x, jnp.zeros_like(x)) for x, m in zip(typed, masks, strict=True)]


def _local_vdot(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.vdot(x, y, precision=jax.lax.Precision.HIGHEST)


def _concatenate_leaves(leaves: list[jax.Array], masks: list[jax.Array | None], work: Any, what: str) -> jax.Array:
    """Return the masked leaves in one flat array of dtype ``work``; raise TypeError if not floats or complex."""
    for leaf in leaves:
        check_floats(leaf, what, "but exact is for floats and complex numbers. Convert it, or leave out exact.")
    return jnp.concatenate([leaf.reshape(-1) for leaf in _apply_masks(leaves, masks, work)])


def _is_exact(exact: Any, name: str) -> bool:
    return as_static_flag(exact, "exact", name)


@eager(2)
def vdot(
    x: Any,
    y: Any,
    *,
    mask: Any | None = None,
    exact: bool = False,
    comm: MPI.Comm | None = None,
    cotangent: Cotangent = REPLICATED,
) -> jax.Array:
    """Return the inner product of two vectors whose parts are on all ranks.

    Of a vector that is spread over ranks, ``jnp.vdot`` gives each rank the product of its own part.

    Args:
        x: this rank's part of a vector, an array or a pytree of arrays of any shape, which is conjugated. Parts may
            differ in size, and be empty; their dtypes are the same on all ranks.
        y: the same of the other vector, of the same structure and shapes.
        mask: which entries count, for example all but copies of another rank's entries: an array of bools that
            broadcasts to each leaf's shape, or a pytree of them. By default all do.
        exact: whether products and their sum are exact, and the result is rounded once: then it has the same bits on
            any number of ranks (docs/exact.md). Of floats and complex numbers.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.
        cotangent: how reverse mode counts the cotangents of the result, as of ``allreduce``: "replicated" where the
            result is a loss, "varying" where it enters each rank's own computation, as in the steps of a solver.

    Returns:
        A scalar of the dtype that ``x`` and ``y`` promote to, the same on every rank. Floats of less than 32 bits are
        summed up as float32.

    Derivative:
        Linear in ``y``, and in the conjugate of ``x``; one call of MPI in each mode, none in reverse mode unless
        ``cotangent`` is "varying". Entries that do not count have derivative zero.

    Raises:
        TypeError: for a ``comm`` that is no intra-communicator, a dtype that cannot be summed up, or a mask that is
            not of bools.
        ValueError: for vectors or masks that do not fit each other, a vector without arrays, an invalid ``cotangent``,
            or a communicator that was freed.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> size = mpixla.get_default_comm().Get_size()
        >>> float(mpixla.vdot(jnp.ones(3), jnp.full(3, 2.0))) == 6 * size
        True
    """
    xs, structure = _flatten_vector(x, "x", "vdot")
    ys, structure_of_y = _flatten_vector(y, "y", "vdot")
    if structure != structure_of_y:
        raise ValueError(f"x and y of vdot differ in structure: {structure} and {structure_of_y}.")
    for i, (a, b) in enumerate(zip(xs, ys, strict=True)):
        if a.shape != b.shape:
            where = f"leaf {i + 1} of " if len(xs) > 1 else ""
            raise ValueError(f"{where}x and y of vdot differ in shape: {a.shape} and {b.shape}.")
    c = comm_of(comm)
    convention = as_convention(cotangent, "vdot", c)
    dtype = jnp.result_type(*xs, *ys)
    work = accumulation_dtype(dtype)
    masks = _as_masks(mask, xs, structure, "vdot")
    if _is_exact(exact, "vdot"):
        one = _concatenate_leaves(xs, masks, work, "x of vdot")
        other = (
            one
            if all(a is b for a, b in zip(xs, ys, strict=True))
            else _concatenate_leaves(ys, masks, work, "y of vdot")
        )
        return exact_dot(one, other, dtype, c, convention).astype(dtype)
    parts = list(map(_local_vdot, _apply_masks(xs, masks, work), _apply_masks(ys, masks, work)))
    own = sum(parts[1:], parts[0])
    if own.dtype == bool:
        raise TypeError("vdot cannot sum up bools. Convert them, to int32 for their number.")
    total: jax.Array = allreduce(own, op=MPI.SUM, comm=comm, cotangent=cotangent)
    return total.astype(dtype)


@eager(1)
def norm(
    x: Any,
    ord: float | str = 2,
    *,
    mask: Any | None = None,
    exact: bool = False,
    comm: MPI.Comm | None = None,
    cotangent: Cotangent = REPLICATED,
) -> jax.Array:
    """Return the norm of a vector whose parts are on all ranks.

    It can be given to libraries that ask for a norm: ``functools.partial(mpixla.norm, ord="rms",
    cotangent="varying")`` (docs/solvers.md).

    Args:
        x: this rank's part of the vector, an array or a pytree of arrays, as of ``vdot``.
        ord: 2, the root of the sum of squares; 1, the sum of absolute values; ``jnp.inf``, their maximum; or "rms",
            the root of the mean of squares.
        mask: which entries count, as of ``vdot``.
        exact: whether the terms of the sum are exact, and the sum is rounded once, as of ``vdot``. "rms" then takes two
            calls.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.
        cotangent: how reverse mode counts the cotangents of the result, as of ``vdot``.

    Returns:
        A real scalar, the same on every rank; 0 if nothing counts. NaN if an entry that counts is NaN. Floats of less
        than 32 bits are summed up as float32.

    Derivative:
        That of the whole vector's norm, and zero where it is zero. One call of MPI in each mode, none in reverse mode
        unless ``cotangent`` is "varying". The maximum gives it to the ranks that have it, in equal shares, and these
        to their entries that do; to find these ranks takes two calls more.

    Raises:
        TypeError, ValueError: as ``vdot``, and for another ``ord``.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> size = mpixla.get_default_comm().Get_size()
        >>> abs(float(mpixla.norm(jnp.ones(4))) ** 2 - 4 * size) < 1e-4
        True
        >>> float(mpixla.norm(jnp.full(4, -3.0), ord="rms"))
        3.0
    """
    as_static(ord, "ord", "norm", "number")
    if not isinstance(ord, (int, float, str, np.number)) or ord not in _ORDS:
        raise ValueError(f"ord of norm is {ord!r}, but must be 1, 2, jnp.inf or 'rms'.")
    leaves, structure = _flatten_vector(x, "x", "norm")
    c = comm_of(comm)
    convention = as_convention(cotangent, "norm", c)
    dtype = jnp.result_type(*leaves, 1.0)
    masks, work = _as_masks(mask, leaves, structure, "norm"), accumulation_dtype(dtype)
    if not _is_exact(exact, "norm") or ord == jnp.inf:  # the maximum is exact
        own = _part_of_norm(leaves, masks, ord=ord, work=work)
        total = allreduce(own, op=MPI.MAX if ord == jnp.inf else MPI.SUM, comm=comm, cotangent=cotangent)
    elif ord == 1:
        total = fsum(
            _absolute_values(_concatenate_leaves(leaves, masks, work, "x of norm")), comm=comm, cotangent=cotangent
        )
    else:
        one = _concatenate_leaves(leaves, masks, work, "x of norm")
        total = exact_dot(one, one, work, c, convention).real
        if ord == "rms":
            count = _count_entries(leaves, masks)  # in two numbers that float32 represents
            parts = jnp.stack([jnp.asarray(n, total.dtype) for n in (count // _MANY * _MANY, count % _MANY)])
            total = jnp.stack([total, fsum(parts, comm=comm, cotangent=cotangent)])
    return _norm_of(total, ord=ord, real=jnp.finfo(dtype).dtype)


# Jitted, so that each is one program in eager calls, too: its constants would otherwise be transfers to the device.


@functools.partial(jax.jit, static_argnames=("ord", "work"))
def _part_of_norm(leaves: list[jax.Array], masks: list[jax.Array | None], *, ord: float | str, work: Any) -> jax.Array:
    """Return this rank's operand of a norm's reduction: a sum, or the maximum for inf; for "rms" with a count, too."""
    parts = _apply_masks(leaves, masks, work)
    if ord in (1, jnp.inf):
        sizes = list(map(_absolute_values, parts))
        if ord == 1:
            return jnp.stack(list(map(jnp.sum, sizes))).sum()
        return jnp.stack([y.max() if y.size else y.sum() for y in sizes]).max()
    squares = jnp.stack([_local_vdot(part, part).real for part in parts]).sum()
    if ord == 2:
        return squares
    return jnp.stack([squares, jnp.asarray(_count_entries(leaves, masks), squares.dtype)])


@functools.partial(jax.jit, static_argnames=("ord", "real"))
def _norm_of(total: jax.Array, *, ord: float | str, real: Any) -> jax.Array:
    if ord == "rms":
        total = total[0] / jnp.maximum(total[1], 1)
    return (_square_root(total) if ord in (2, "rms") else total).astype(real)


def _absolute_values(part: jax.Array) -> jax.Array:
    """Return absolute values, without JAX's derivative of 1 at zero, which for XLA all subnormals are."""
    sizes = jnp.abs(part)
    return jnp.where(part != 0, sizes, jax.lax.stop_gradient(sizes))


_MANY = 1 << 20


def _count_entries(leaves: list[jax.Array], masks: list[jax.Array | None]) -> Any:
    return sum(
        leaf.size if m is None else jnp.broadcast_to(m, leaf.shape).sum() for leaf, m in zip(leaves, masks, strict=True)
    )


def _square_root(square: Any) -> Any:
    """Return the square root, with derivative zero at zero: JAX's is infinite, which times zero is NaN."""
    is_zero = square == 0
    return jnp.where(is_zero, 0, jnp.sqrt(jnp.where(is_zero, 1, square)))
