"""Data arguments that are pytrees, and arrays of PRNG keys: what makes a function of one array a function of many.

A reduction or broadcast of a pytree is one call of MPI for each data type: the leaves are joined into one array, and
the result is cut apart again, both compiled by XLA. Everything else is one call for each leaf, in their order.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ._pairs import is_of_pairs, reduce_pair
from ._primitive import as_array

F = TypeVar("F", bound=Callable[..., Any])


def _is_leaf(x: Any) -> bool:
    return isinstance(x, jax.Array) or jax.tree_util.all_leaves([x])


def _is_key(x: Any) -> bool:
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _data_of(x: Any) -> Any:
    return jax.random.key_data(x) if _is_key(x) else x


def _as_keys_like(data: Any, x: Any) -> Any:
    """Makes ``data`` keys again where ``x``, whose place it takes, is one."""
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x)) if _is_key(x) else data


def moves(arguments: int = 1) -> Callable[[F], F]:
    """Lets the first arguments of a function that moves arrays be pytrees of one structure, with PRNG keys as leaves.

    The result has the structure of the last of these arguments.
    """

    def decorate(function: F) -> F:
        names = list(inspect.signature(function).parameters)[:arguments]

        @functools.wraps(function)
        def on_trees(*args: Any, **kwargs: Any) -> Any:
            trees = [*args[:arguments], *(kwargs.pop(name) for name in names[len(args) :] if name in kwargs)]
            rest = args[arguments:]
            if len(trees) < arguments or all(_is_leaf(x) and not _is_key(x) for x in trees):
                return function(*trees, *rest, **kwargs)
            structure = jax.tree.structure(trees[-1])
            columns = [structure.flatten_up_to(x) for x in trees]  # type: ignore[attr-defined]
            results = [_move(function, leaf, *rest, **kwargs) for leaf in zip(*columns, strict=True)]
            # A function without a result (send) has none for a pytree either.
            return None if results and all(y is None for y in results) else jax.tree.unflatten(structure, results)

        return on_trees  # type: ignore[return-value]

    return decorate


def _move(function: Callable[..., Any], leaves: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
    result = function(*map(_data_of, leaves), *args, **kwargs)
    return None if result is None else _as_keys_like(result, leaves[-1])


def joins(*, reduces: bool, kept_axes: int = 0) -> Callable[[F], F]:
    """Lets the first argument of a function that works entry by entry be a pytree, with one call for each data type.

    Args:
        reduces: whether it computes with the entries, which PRNG keys do not allow.
        kept_axes: how many leading axes of each leaf are not entries; the function's result is without them.
    """

    def decorate(function: F) -> F:
        name = function.__name__

        @functools.wraps(function)
        def on_tree(x: Any, *args: Any, **kwargs: Any) -> Any:
            op, rest = (args[0], args[1:]) if args else (kwargs.get("op"), ())
            if reduces and is_of_pairs(op):
                return reduce_pair(function, x, op, *rest, **{k: v for k, v in kwargs.items() if k != "op"})
            if _is_leaf(x) and not _is_key(x):
                return function(x, *args, **kwargs)
            leaves, structure = jax.tree.flatten(x)
            if reduces and any(map(_is_key, leaves)):
                raise TypeError(f"{name} cannot reduce PRNG keys, which can only be moved: with bcast, for example.")
            results: list[Any] = [None] * len(leaves)
            data = [as_array(_data_of(y), "x", name) for y in leaves]
            for leaf in data:
                if leaf.shape[:kept_axes] != data[0].shape[:kept_axes] or leaf.ndim < kept_axes:
                    function(leaf, *args, **kwargs)  # says what is wrong with this leaf
            for dtype in dict.fromkeys(y.dtype for y in data):
                places = [i for i, y in enumerate(data) if y.dtype == dtype]
                group = [data[i] for i in places]
                joined = function(_join(group, kept_axes), *args, **kwargs)
                parts = _cut(joined, tuple(y.shape[kept_axes:] for y in group))
                for i, part in zip(places, parts, strict=True):
                    results[i] = _as_keys_like(part, leaves[i])
            return jax.tree.unflatten(structure, results)

        return on_tree  # type: ignore[return-value]

    return decorate


@functools.partial(jax.jit, static_argnums=1)
def _join(arrays: list[jax.Array], kept_axes: int) -> jax.Array:
    return jnp.concatenate([x.reshape(*x.shape[:kept_axes], -1) for x in arrays], axis=kept_axes)


@functools.partial(jax.jit, static_argnums=1)
def _cut(joined: jax.Array, shapes: tuple[tuple[int, ...], ...]) -> list[jax.Array]:
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
    return [part.reshape(shape) for part, shape in zip(jnp.split(joined, ends[:-1]), shapes, strict=True)]
