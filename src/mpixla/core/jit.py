"""``mpixla.jit``: whatever communicates is dispatched in C++, also what has no result.

JAX's own programs are sealed where JAX makes modules of them (hooks/sealing.py), except those without a result, since
nobody could wait for one or see it fail. This gives it one.
"""

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar, overload

import jax

from ..base.required import trace_state_clean
from .effect import ordered
from .rewrite import evaluate
from .seal import computes, sealed_p
from .tracebacks import hide_own_frames

P = ParamSpec("P")
R = TypeVar("R", covariant=True)


class Compiled(Generic[P, R]):
    """What ``jit`` makes: the function, and methods as those of ``jax.jit``'s."""

    def __init__(self, fun: Callable[P, R], options: dict[str, Any]) -> None:
        @functools.wraps(fun)
        def program(*args: Any, **kwargs: Any) -> Any:
            if trace_state_clean():  # jit is disabled, or JAX looks for a NaN
                return fun(*args, **kwargs)
            return _seal(self._plain, args, kwargs)

        functools.update_wrapper(self, fun)  # first, since it copies what another one has below
        self._plain: Any = jax.jit(fun, **options)
        self._sealed: Any = jax.jit(program, **options)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """The function's result."""
        try:
            if not trace_state_clean():
                return self._plain(*args, **kwargs)
            result = self._sealed(*args, **kwargs)
            if type(result) is _Silent:
                jax.block_until_ready(result.done)
                return result.tree
            return result
        except Exception as e:
            hide_own_frames(e)
            raise

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    # Not attributes: functools.wraps copies those to functions made of this one, such as its gradient.

    def lower(self, /, *args: P.args, **kwargs: P.kwargs) -> jax.stages.Lowered:
        """The function for such arguments, lowered."""
        return self._plain.lower(*args, **kwargs)

    def trace(self, /, *args: P.args, **kwargs: P.kwargs) -> jax.stages.Traced:
        """The function for such arguments, traced."""
        return self._plain.trace(*args, **kwargs)

    def eval_shape(self, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """The shapes and dtypes of its results."""
        return self._plain.eval_shape(*args, **kwargs)

    def clear_cache(self) -> None:
        """Forgets what was compiled."""
        self._plain.clear_cache()
        self._sealed.clear_cache()


class _Silent(NamedTuple):
    """What a function returns that has no result, but None or its arguments; and what there is when it is done."""

    tree: Any
    done: Any


seals_itself = True  # but where hooks/sealing.py does it


def _seal(plain: Any, args: Any, kwargs: Any) -> Any:
    """Calls what ``jax.jit`` made within a jit, with something to wait for if it has no result."""
    traced = plain.trace(*args, **kwargs)
    jaxpr, tree = traced.jaxpr, jax.tree.structure(traced.out_info)
    operands = [x for x in jax.tree.leaves((args, kwargs)) if isinstance(x, jax.core.Tracer)]
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
    return functools.partial(jit, **options) if fun is None else Compiled(fun, options)
