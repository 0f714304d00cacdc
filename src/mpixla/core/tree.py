"""Pytrees and arrays of PRNG keys as data arguments: decorators that extend a function of one array to them.

A reduction or broadcast of a pytree is one call of MPI for each data type: the leaves are packed into one array, and
the result is split again (pack.py). Everything else is one call for each leaf, in their order.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ..base.state import state
from ..checks import sites
from ..mpi.comm import Comm, comm_of
from .eager import Finish, eager
from .pack import pack, unpack
from .pairs import is_of_pairs, reduce_pair
from .primitive import as_array

_join = jax.jit(pack, static_argnums=1)
_cut = jax.jit(unpack, static_argnums=1)

F = TypeVar("F", bound=Callable[..., Any])
# The type of a pytree, which an operation's result has, too.
Tree = TypeVar("Tree")


class RequestBase:
    """Base class of requests: a pytree, but no data."""

    __slots__ = ()


def started_in(data: Any) -> list[Any]:
    """Return all requests in a pytree, which may be a request itself; [] for none."""
    leaves = jax.tree.leaves(data, is_leaf=lambda x: isinstance(x, RequestBase))
    return [x for x in leaves if isinstance(x, RequestBase)]


def refuse_started(data: Any, *_: Any) -> None:
    """Raise TypeError for a request, and for a pytree that has one."""
    for x in started_in(data):
        raise TypeError(f"{x} was started, and is no array. wait(request) gives the result.")


def flatten_tree(data: Any) -> tuple[list[Any], Any]:
    """Return the leaves and the structure of a pytree; raise TypeError for a request in it.

    None as a whole is a leaf, for the operation to refuse; within a pytree it is none.
    """
    refuse_started(data)
    return jax.tree.flatten(data, is_leaf=lambda _: data is None)


def as_template(x: Any) -> Any:
    """Return a pytree with zeros in the place of each ``jax.ShapeDtypeStruct``, which is a template by its type."""

    def zeros_of(leaf: Any) -> Any:
        return jax.lax.full(leaf.shape, 0, leaf.dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf

    return x if isinstance(x, jax.Array) else jax.tree.map(zeros_of, x)


def is_key(x: Any) -> bool:
    """Return True if ``x`` is a JAX array of typed PRNG keys, as ``jax.random.key`` makes."""
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _is_array(x: Any) -> bool:
    """Return True if ``x`` is a single leaf, or None, which ``as_array`` refuses; False for PRNG keys and pytrees.

    It gets None, too, and refuses it: to JAX None is a pytree without arrays, for which there is nothing to do.
    """
    return x is None or ((isinstance(x, jax.Array) or jax.tree_util.all_leaves([x])) and not is_key(x))


def unwrap_keys(x: Any) -> Any:
    """Return the data of PRNG keys, which has further axes behind the keys' own; other arrays as they are."""
    return jax.random.key_data(x) if is_key(x) else x


def as_leaf(x: Any, what: str, name: str) -> jax.Array:
    """Return the data argument ``what`` of the operation ``name`` as a JAX array; PRNG keys as they are."""
    return x if is_key(x) else as_array(x, what, name)


def as_leaves(data: Any, leaves: Sequence[Any], what: str, name: str) -> list[jax.Array]:
    """Return the leaves of the data argument ``what``, each as ``as_leaf`` returns it.

    Raises:
        TypeError, ValueError: as ``as_leaf``, with the leaf's name: ``x['name']``.
    """
    arrays = list[jax.Array]()
    for x in leaves:
        try:
            arrays.append(as_leaf(x, what, name))
        except (TypeError, ValueError):
            break
    else:
        return arrays
    # Again, now outside of the handler, for the exception to stand alone.
    path, x = jax.tree_util.tree_flatten_with_path(data, is_leaf=lambda _: data is None)[0][len(arrays)]
    return [as_leaf(x, what + jax.tree_util.keystr(path), name)]


def check_leading_size(x: Any, name: str, comm: Comm) -> None:
    """Raise ValueError unless the first axis of an array, or of each leaf, has one entry for each rank."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(x)[0]:
        shape = leaf.shape if hasattr(leaf, "shape") else as_array(leaf, f"x{jax.tree_util.keystr(path)}", name).shape
        if shape[:1] != (comm.size,):
            what = f"x{jax.tree_util.keystr(path)}"
            way_out = ""
            if shape and shape[0] % comm.size == 0:
                sizes = ", ".join(map(str, (comm.size, -1, *shape[1:])))
                way_out = f" {what}.reshape({sizes}) has an equal part of it for each rank."
            raise ValueError(
                f"{name} needs an array whose first axis has one entry for each of the {comm.size} ranks of "
                f"communicator '{comm.name}', but {what} has shape {shape}.{way_out}"
            )


@dataclass(frozen=True)
class Plan:
    """The grouping of a pytree's leaves into calls, and the pytree of the results. Equal plans do the same."""

    structure: Any
    key_impls: tuple[Any, ...]  # of each leaf; None where it is no array of keys
    groups: tuple[tuple[int, ...], ...]  # the places of the leaves that travel together
    shapes: tuple[tuple[int, ...], ...] | None = None  # of each leaf's part of its group's result; None: all of it

    def tree_of(self, results: Sequence[Any]) -> Any:
        """Return the pytree of the groups' results, split into leaves, keys as keys; None if every result is None."""
        if results and all(y is None for y in results):
            return None
        leaves: list[Any] = [None] * len(self.key_impls)
        for places, result in zip(self.groups, results, strict=True):
            parts = _cut(result, tuple(self.shapes[i] for i in places)) if self.shapes is not None else [result]
            for i, part in zip(places, parts, strict=True):
                impl = self.key_impls[i]
                leaves[i] = part if impl is None else jax.random.wrap_key_data(part, impl=impl)
        return jax.tree.unflatten(self.structure, leaves)


def last_status(results: Sequence[tuple[Any, Any]], name: str) -> Any:
    """Return the status of the last of a pytree's messages; raise ValueError if there is none."""
    if not results:
        raise ValueError(f"{name} cannot return a status for a pytree without arrays, for which no message comes.")
    return results[-1][1]


def _key_impls(leaves: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(jax.random.key_impl(x) if is_key(x) else None for x in leaves)


def plan_of_each(structure: Any, leaves: Sequence[Any]) -> Plan:
    """Return a plan by which each leaf is communicated alone."""
    return Plan(structure, _key_impls(leaves), tuple((i,) for i in range(len(leaves))))


# From a plan and the results of its groups to a function's result for a pytree.
Collect = Callable[[Plan, Sequence[Any]], Any]


def call_per_leaf(
    arguments: int = 1,
    *,
    keys: bool = False,
    template: bool = False,
    collect: Collect = Plan.tree_of,
    arrays: int | None = None,
    finish: Finish | None = None,
) -> Callable[[F], F]:
    """Return a decorator by which a function of arrays takes pytrees, with PRNG keys, and is called for each leaf.

    Args:
        arguments: how many; they have one structure. The result has the structure of the last one, and keys where that
            has keys.
        keys: whether the function gets keys as they are, because their shape matters, and makes data of them itself.
        template: whether the last one is a template, of which a ``jax.ShapeDtypeStruct`` says enough.
        collect: makes the result.
        arrays: how many of the first arguments an eager call takes as operands (eager.py); by default as many.
        finish: of an eager call.
    """

    def decorate(function: F) -> F:
        """Return the function for pytrees: it calls ``function`` for each leaf; eager calls run compiled programs."""
        parameters = function.__code__.co_varnames  # inspect.signature would take a while
        names = parameters[:arguments]
        is_for_several = parameters[arguments : arguments + 1] == ("name",)  # a part that operations share

        @functools.wraps(function)
        def map_trees(*args: Any, **kwargs: Any) -> Any:
            """Call the function for each leaf, and return ``collect``'s pytree; ValueError if structures differ."""
            trees = [*args[:arguments], *(kwargs.pop(name) for name in names[len(args) :] if name in kwargs)]
            rest = args[arguments:]
            if template and len(trees) == arguments:
                trees[-1] = as_template(trees[-1])
            if len(trees) < arguments or all(map(_is_array, trees)):
                return function(*trees, *rest, **kwargs)
            name = rest[0] if is_for_several else function.__name__
            flat, structures = zip(*map(flatten_tree, trees), strict=True)
            columns = [as_leaves(*given, name) for given in zip(trees, flat, names, strict=True)]
            leaves, structure = columns[-1], structures[-1]
            if any(other != structure for other in structures):
                raise ValueError(
                    f"{' and '.join(names)} of {name} must be pytrees of one structure, but are "
                    f"{' and '.join(map(str, structures))}."
                )
            plan = plan_of_each(structure, leaves)
            parts = [f"leaf {i + 1} of {len(leaves)}" for i in range(len(leaves))]
            if state.compares_all:
                names_of_leaves = _names_of(trees[-1])
                parts = [sites.format_packed(part, [name]) for part, name in zip(parts, names_of_leaves, strict=True)]
            results = []
            for x, part in zip(zip(*columns, strict=True), parts, strict=True):
                with sites.annotate_calls(part):
                    results.append(function(*(x if keys else map(unwrap_keys, x)), *rest, **kwargs))
            if kwargs.get("return_status"):
                return collect(plan, [y for y, _ in results]), last_status(results, name)
            return collect(plan, results)

        return eager(arrays or arguments, finish)(map_trees)  # type: ignore[return-value]

    return decorate


def _names_of(tree: Any) -> list[str]:
    """Return the names of the leaves, made of their keys in containers of any type."""
    paths = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda _: tree is None)[0]
    return [sites.as_name(".".join(map(_key_text, path))) for path, _ in paths]


def _key_text(key: Any) -> str:
    return str(next((getattr(key, name) for name in ("key", "name", "idx") if hasattr(key, name)), key))


def _describe_packed(x: Any, data: Sequence[jax.Array], places: Sequence[int]) -> str:
    """Return a report's text on packed leaves: number, dtype and sizes; names and shapes if all is compared."""
    said = f"{len(places)} of {len(data)} leaves, {data[places[0]].dtype.name}"
    if state.compares_all:
        names, shapes = _names_of(x), [tuple(n for n in y.shape if n != 1) for y in data]  # as the C library compares
        return sites.format_packed(said, [f"{names[i]} {shapes[i]}" for i in places])
    if len(places) == 1:
        return said if len(data) > 1 else ""
    return sites.format_packed(f"{said} of sizes", [data[i].size for i in places])


def _empty_array(comm: Any, kept_axes: int) -> jax.Array:
    """Return an array without entries, behind ``kept_axes`` axes of the communicator's size."""
    return jnp.zeros((*[comm_of(comm).size] * kept_axes, 0), np.int32)


def call_per_dtype(*, reduces: bool, kept_axes: int = 0, collect: Collect = Plan.tree_of) -> Callable[[F], F]:
    """Return a decorator by which an entrywise function of an array takes a pytree, and is called for each dtype.

    Args:
        reduces: whether it computes with the entries, which PRNG keys do not allow.
        kept_axes: how many leading axes of each leaf are not entries: 1 where it has one for each rank, which the
            function's result is without.
        collect: makes the result.
    """

    def decorate(function: F) -> F:
        """Return the function for a pytree: it calls ``function`` for each dtype; eager calls run compiled programs."""
        name = function.__name__

        @functools.wraps(function)
        def map_tree(x: Any, *args: Any, **kwargs: Any) -> Any:
            """Call the function for each dtype's joined leaves, and split its results; refuse to reduce PRNG keys."""
            op, rest = (args[0], args[1:]) if args else (kwargs.get("op"), ())
            leaves, structure = flatten_tree(x)
            if reduces and any(map(is_key, leaves)):
                raise TypeError(f"{name} cannot reduce PRNG keys, which can only be moved: with bcast, for example.")
            if kept_axes:
                check_leading_size(x, name, comm_of(kwargs.get("comm")))
            if reduces and collect is Plan.tree_of and is_of_pairs(op):
                return reduce_pair(function, x, op, *rest, **{k: v for k, v in kwargs.items() if k != "op"})
            if _is_array(x):
                return function(x, *args, **kwargs)
            if not leaves:  # no call checks the other arguments
                jax.eval_shape(lambda: function(_empty_array(kwargs.get("comm"), kept_axes), *args, **kwargs))
            data = list(map(unwrap_keys, as_leaves(x, leaves, "x", name)))
            dtypes = dict.fromkeys(y.dtype for y in data)
            groups = tuple(tuple(i for i, y in enumerate(data) if y.dtype == dtype) for dtype in dtypes)
            plan = Plan(structure, _key_impls(leaves), groups, tuple(y.shape[kept_axes:] for y in data))
            joined = [_join([data[i] for i in places], kept_axes) for places in groups]
            results = []
            for places, y in zip(groups, joined, strict=True):
                with sites.annotate_calls(_describe_packed(x, data, places)):
                    results.append(function(y, *args, **kwargs))
            return collect(plan, results)

        return eager(1)(map_tree)  # type: ignore[return-value]

    return decorate
