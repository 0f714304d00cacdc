"""``mpixla.jit``: whatever communicates is dispatched in C++, also what has no result.

JAX's own programs are sealed where JAX makes modules of them (hooks/sealing.py), except those without a result, since
nobody could wait for one or see it fail. This gives it one.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar, overload

import jax

from ..base.required import trace_state_clean
from .effect import ordered
from .rewrite import evaluate
from .seal import computes, sealed_p
from .signatures import hide_own_frames

P = ParamSpec("P")
R = TypeVar("R", covariant=True)


class Compiled(Protocol[P, R]):
    """What ``jit`` makes: the function, and methods as those of ``jax.jit``'s."""

    lower: Any
    trace: Any
    eval_shape: Any
    clear_cache: Callable[[], None]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The function's result."""
        ...


class _Silent(NamedTuple):
    """What a function returns that has no result, but None or its arguments; and what there is when it is done."""

    tree: Any
    done: Any


seals_itself = True  # but where hooks/sealing.py does it


def _seal(fun: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Calls ``fun`` within a jit, with something to wait for if it has no result. What is no tracer is static."""
    leaves, structure = jax.tree.flatten((args, kwargs))
    places = [i for i, x in enumerate(leaves) if isinstance(x, jax.core.Tracer)]

    def flat(*operands: Any) -> Any:
        filled = list(leaves)
        for i, x in zip(places, operands, strict=True):
            filled[i] = x
        args, kwargs = jax.tree.unflatten(structure, filled)
        return fun(*args, **kwargs)

    operands = [leaves[i] for i in places]
    jaxpr, shapes = jax.make_jaxpr(flat, return_shape=True)(*operands)
    tree = jax.tree.structure(shapes)
    has_result = computes(jaxpr)
    has_refs = any(hasattr(e, "input") or hasattr(e, "input_index") for e in jaxpr.effects)  # jax.Ref's effects
    if ordered not in jaxpr.effects or (has_result and not seals_itself) or has_refs:
        return jax.tree.unflatten(tree, evaluate(jaxpr, *operands))
    given = {id(v): x for v, x in zip(jaxpr.jaxpr.invars, operands, strict=True)}
    *results, done = sealed_p.bind(*operands, jaxpr=jaxpr, is_eager=False)
    if has_result:
        return jax.tree.unflatten(tree, results)
    results = [given.get(id(v), y) for v, y in zip(jaxpr.jaxpr.outvars, results, strict=True)]
    return _Silent(jax.tree.unflatten(tree, results), done)


@overload
def jit(fun: Callable[P, R], /, **options: Any) -> Compiled[P, R]: ...


@overload
def jit(fun: None = None, /, **options: Any) -> Callable[[Callable[P, R]], Compiled[P, R]]: ...


def jit(fun: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Compiles a function as ``jax.jit`` does, also one that communicates and has no result.

    Whatever JAX compiles is dispatched in C++, whether it communicates or not, except what has no result: None, or
    its own arguments. That is dispatched in Python, and nobody can wait for it. Compiled by this it is dispatched in
    C++, too, and returns when its communication is done. Where JAX transforms or traces the function (under
    ``jax.grad``, ``jax.vmap``, or inside another jitted function) it is ``jax.jit``, and so are its methods ``lower``
    and ``trace``.

    Args:
        fun: the function; left out, ``jit`` returns a decorator.
        options: those of ``jax.jit``: ``static_argnums``, ``donate_argnums`` and so on.

    Returns:
        The compiled function, with the methods ``lower``, ``trace``, ``eval_shape`` and ``clear_cache``.

    Raises:
        TypeError: as ``jax.jit``, for options or arguments that it does not take.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> from mpi4py import MPI
        >>> @mpixla.jit
        ... def mean(x):
        ...     return mpixla.allreduce(x, op=MPI.SUM) / mpixla.get_default_comm().Get_size()
        >>> mean(jnp.ones(3)).tolist()
        [1.0, 1.0, 1.0]
    """
    if fun is None:
        return functools.partial(jit, **options)
    plain = jax.jit(fun, **options)

    @functools.wraps(fun)
    def program(*args: Any, **kwargs: Any) -> Any:
        if trace_state_clean():  # jit is disabled, or JAX looks for a NaN
            return fun(*args, **kwargs)
        return _seal(fun, args, kwargs)

    sealed = jax.jit(program, **options)

    @functools.wraps(fun)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            if not trace_state_clean():
                return plain(*args, **kwargs)
            result = sealed(*args, **kwargs)
            if type(result) is _Silent:
                jax.block_until_ready(result.done)
                return result.tree
            return result
        except Exception as e:
            hide_own_frames(e)
            raise

    def clear_cache() -> None:
        plain.clear_cache()  # type: ignore[attr-defined]
        sealed.clear_cache()  # type: ignore[attr-defined]

    call.lower, call.trace, call.eval_shape = plain.lower, plain.trace, plain.eval_shape  # type: ignore[attr-defined]
    call.clear_cache = clear_cache  # type: ignore[attr-defined]
    return call
