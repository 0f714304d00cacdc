"""``mpixla.jit``: dispatch in C++ of functions that communicate, also of functions without a result.

JAX's own programs are sealed where JAX makes modules of them (patches/sealing.py), except programs without a result,
since nothing could wait for one or raise its error. ``mpixla.jit`` gives them a result.
"""

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar, overload

import jax

from ..base.required import trace_state_clean
from ..base.state import state
from ..base.tracebacks import hide_own_frames, public
from ..jaxprs.effect import ordered
from ..jaxprs.rewrite import evaluate_jaxpr
from .seal import computes_results, sealed_p

P = ParamSpec("P")
R = TypeVar("R", covariant=True)


class Compiled(Generic[P, R]):
    """A function compiled by ``jit``, with the methods of a function compiled by ``jax.jit``."""

    def __init__(self, fun: Callable[P, R], options: dict[str, Any]) -> None:
        @functools.wraps(fun)
        def sealed_function(*args: Any, **kwargs: Any) -> Any:
            if trace_state_clean():  # jit is disabled, or JAX looks for a NaN
                return fun(*args, **kwargs)
            return _seal_call(self._plain, args, kwargs)

        functools.update_wrapper(self, fun)  # first, since it copies _plain and _sealed if fun has them
        self._plain: Any = jax.jit(fun, **options)
        self._sealed: Any = jax.jit(sealed_function, **options)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the function's result; if it computes none, wait first until its communication is done."""
        try:
            if not trace_state_clean():
                return self._plain(*args, **kwargs)
            result = self._sealed(*args, **kwargs)
            if type(result) is _NoResult:
                jax.block_until_ready(result.done)
                return result.tree
            return result
        except Exception as e:
            hide_own_frames(e)
            raise

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    # Methods, since functools.wraps copies attributes to functions made of this one, such as its gradient.

    def lower(self, /, *args: P.args, **kwargs: P.kwargs) -> jax.stages.Lowered:
        """Return the function lowered for arguments of these shapes and dtypes, as ``jax.jit`` does."""
        return self._plain.lower(*args, **kwargs)

    def trace(self, /, *args: P.args, **kwargs: P.kwargs) -> jax.stages.Traced:
        """Return the function traced for arguments of these shapes and dtypes, as ``jax.jit`` does."""
        return self._plain.trace(*args, **kwargs)

    def eval_shape(self, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Return the shapes and dtypes of the function's results."""
        return self._plain.eval_shape(*args, **kwargs)

    def clear_cache(self) -> None:
        """Drop the function's traced and compiled programs; its next call compiles it again."""
        self._plain.clear_cache()
        self._sealed.clear_cache()


class _NoResult(NamedTuple):
    """The output of a function without computed results (None or its own arguments), and an array to wait for."""

    tree: Any
    done: Any


def _seal_call(plain: Any, args: Any, kwargs: Any) -> Any:
    """Return ``plain``'s result in a trace, sealed if it communicates and JAX will not seal it; or a _NoResult."""
    traced = plain.trace(*args, **kwargs)
    jaxpr, tree = traced.jaxpr, jax.tree.structure(traced.out_info)
    operands = [x for x in jax.tree.leaves((args, kwargs)) if isinstance(x, jax.core.Tracer)]
    has_result = computes_results(jaxpr)
    has_refs = any(hasattr(e, "input") or hasattr(e, "input_index") for e in jaxpr.effects)  # jax.Ref's effects
    if ordered not in jaxpr.effects or (has_result and state.sealing) or has_refs:
        return jax.tree.unflatten(tree, evaluate_jaxpr(jaxpr, *operands))
    given = {id(v): x for v, x in zip(jaxpr.jaxpr.invars, operands, strict=True)}
    *results, done = sealed_p.bind(*operands, jaxpr=jaxpr, is_eager=False)
    if has_result:
        return jax.tree.unflatten(tree, results)
    results = [given.get(id(v), y) for v, y in zip(jaxpr.jaxpr.outvars, results, strict=True)]
    return _NoResult(jax.tree.unflatten(tree, results), done)


@overload
def jit(fun: Callable[P, R], /, **options: Any) -> Compiled[P, R]: ...


@overload
def jit(fun: None = None, /, **options: Any) -> Callable[[Callable[P, R]], Compiled[P, R]]: ...


@public
def jit(fun: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Compile a function as ``jax.jit`` does, with dispatch in C++ even if it communicates and has no result.

    Functions compiled by ``jax.jit`` are dispatched in C++, whether they communicate or not, except a function that
    communicates and has no result: it returns None, or its own arguments. ``jax.jit`` dispatches such a function in
    Python, and nothing can wait for it. ``mpixla.jit`` dispatches it in C++, too, and it returns when its communication
    is done. Where JAX transforms or traces the function (under ``jax.grad``, ``jax.vmap``, or inside another jitted
    function) it is ``jax.jit``, and so are its methods ``lower`` and ``trace``.

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
