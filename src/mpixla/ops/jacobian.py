"""Jacobians of functions whose arguments and results are spread over all ranks."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ..core.rank import own_rank
from ..runtime.comm import Comm, comm_of
from ..runtime.mpi import MPI


def _of_each_rank(apply: Callable[[Any], Any], number: int, dtype: Any, comm: Comm) -> Any:
    """Applies a linear function to the basis of one rank after the other, with zeros on the others meanwhile.

    Args:
        apply: from a vector to a pytree.
        number: the vector's entries.
        dtype: the vector's.
        comm: whose ranks take turns.

    Returns:
        A pytree of arrays with axes for the rank and the vector's entries in front.
    """

    def of_rank(rank: Any) -> Any:
        is_own = own_rank(comm) == rank
        return jax.vmap(apply)(jnp.where(is_own, jnp.eye(number, dtype=dtype), 0))

    return jax.lax.map(of_rank, jnp.arange(comm.size))


def _split(array: jax.Array, axis: int, tree: Any) -> Any:
    """Cuts an axis that has the entries of a pytree into a pytree, with the axes of each leaf in the place of it."""
    leaves, structure = jax.tree.flatten(tree)
    before, after = array.shape[:axis], array.shape[axis + 1 :]
    parts = jnp.split(array, np.cumsum([leaf.size for leaf in leaves])[:-1], axis)
    return jax.tree.unflatten(
        structure, [part.reshape(*before, *leaf.shape, *after) for part, leaf in zip(parts, leaves, strict=True)]
    )


def _as_floats(tree: Any, what: str, name: str) -> Any:
    """The pytree with arrays for its leaves, which must be of real floats."""
    tree = jax.tree.map(jnp.asarray, tree)
    for leaf in jax.tree.leaves(tree):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise TypeError(f"{name} needs {what} of real floats, but one has dtype {leaf.dtype.name}.")
    return tree


def _only(fun: Callable[..., Any], argnums: int | Sequence[int], args: Sequence[Any], kwargs: Any, name: str) -> Any:
    """The function of those arguments alone, and the arguments: a tuple for a sequence of numbers."""
    places = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    def of_picked(picked: Any) -> Any:
        whole = list(args)
        for place, value in zip(places, (picked,) if isinstance(argnums, int) else picked, strict=True):
            whole[place] = value
        return fun(*whole, **kwargs)

    picked = _as_floats(tuple(args[place] for place in places), "arguments", name)
    return of_picked, picked[0] if isinstance(argnums, int) else picked


def jacfwd(
    fun: Callable[..., Any], argnums: int | Sequence[int] = 0, *, comm: MPI.Comm | None = None
) -> Callable[..., Any]:
    """Makes a function that gives the Jacobian of ``fun``, of whose arguments and results each rank has a part.

    ``jax.jacfwd`` seeds the basis of all ranks at once, so where ``fun`` communicates the derivatives by different
    ranks' entries are added up. This one lets the ranks take turns: ``fun``'s forward mode runs once for each entry of
    the whole argument, in ``comm.size`` batches. For small systems, and to test others.

    Args:
        fun: the function; it may communicate. Arguments and results are arrays or pytrees of real floats.
        argnums: by which of its arguments, as in ``jax.jacfwd``. Their shapes must be the same on every rank.
        comm: the communicator whose ranks have the parts; by default a clone of ``MPI.COMM_WORLD``. All of its ranks
            must call what is made.

    Returns:
        A function of ``fun``'s arguments. For a result of shape ``s`` and an argument of shape ``t`` it gives an array
        of shape ``(*s, comm.size, *t)``: the derivatives of this rank's result by each rank's argument, which are rows
        of the whole Jacobian. For pytrees it gives pytrees like the result, of pytrees like the argument.

    Derivative:
        As of ``fun``'s forward mode. An argument that is the same on every rank is varied on one rank at a time; the
        sum over the axis of ranks is what ``jax.jacfwd`` gives.

    Raises:
        TypeError: for arguments or results that are not real floats, or a ``comm`` that is no intra-communicator.
        ValueError: for a communicator that was freed.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> comm = mpixla.get_default_comm()
        >>> x = jnp.arange(3.0)
        >>> rows = mpixla.jacfwd(lambda x: x * mpixla.vdot(x, x))(x)
        >>> rows.shape == (3, comm.Get_size(), 3)
        True
    """

    @functools.wraps(fun)
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        c = comm_of(comm)
        of_picked, picked = _only(fun, argnums, args, kwargs, "jacfwd")
        flat, unravel = ravel_pytree(picked)
        result, push = jax.linearize(lambda flat: of_picked(unravel(flat)), flat)
        _as_floats(result, "results", "jacfwd")
        columns = _of_each_rank(push, flat.size, flat.dtype, c)
        return jax.tree.map(lambda y: _split(jnp.moveaxis(y, (0, 1), (-2, -1)), y.ndim - 1, picked), columns)

    return jacobian


def jacrev(
    fun: Callable[..., Any], argnums: int | Sequence[int] = 0, *, comm: MPI.Comm | None = None
) -> Callable[..., Any]:
    """Makes a function that gives the Jacobian of ``fun``, of whose arguments and results each rank has a part.

    ``jax.jacrev`` seeds the basis of all ranks at once, so where ``fun`` communicates the derivatives of different
    ranks' results are added up. This one lets the ranks take turns: ``fun``'s reverse mode runs once for each entry of
    the whole result, in ``comm.size`` batches. For small systems, and to test others.

    Args:
        fun: the function; it may communicate. Arguments and results are arrays or pytrees of real floats.
        argnums: by which of its arguments, as in ``jax.jacrev``.
        comm: the communicator whose ranks have the parts; by default a clone of ``MPI.COMM_WORLD``. All of its ranks
            must call what is made, and the shapes of the result must be the same on all.

    Returns:
        A function of ``fun``'s arguments. For a result of shape ``s`` and an argument of shape ``t`` it gives an array
        of shape ``(comm.size, *s, *t)``: the derivatives of each rank's result by this rank's argument, which are
        columns of the whole Jacobian. For pytrees it gives pytrees like the result, of pytrees like the argument.

    Derivative:
        As of ``fun``'s reverse mode. Of a result that is the same on every rank, which counts once, ``jax.jacrev``
        gives what is right.

    Raises:
        TypeError: for arguments or results that are not real floats, or a ``comm`` that is no intra-communicator.
        ValueError: for a communicator that was freed.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> comm = mpixla.get_default_comm()
        >>> x = jnp.arange(3.0)
        >>> columns = mpixla.jacrev(lambda x: x * mpixla.vdot(x, x, cotangent="varying"))(x)
        >>> columns.shape == (comm.Get_size(), 3, 3)
        True
    """

    @functools.wraps(fun)
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        c = comm_of(comm)
        of_picked, picked = _only(fun, argnums, args, kwargs, "jacrev")
        result, pull = jax.vjp(of_picked, picked)
        flat, unravel = ravel_pytree(_as_floats(result, "results", "jacrev"))
        rows = _of_each_rank(lambda ct: pull(unravel(ct))[0], flat.size, flat.dtype, c)
        cut = jax.tree.map(lambda x: _split(x, 1, result), rows)
        return jax.tree.transpose(jax.tree.structure(picked), jax.tree.structure(result), cut)

    return jacobian
