"""Compiling in turns (watch/turns.py): what is to be done before a program is looked for in the compilation cache."""

import functools
import threading
from collections.abc import Callable
from typing import Any

LOST = "MPIXLA_COMPILE_ONCE is refused."
NEEDS = {
    "jax._src.compiler:compile_or_get_cached": (),
    "jax._src.compiler:_cache_read": ("module_name", "cache_key"),
}

_turn = threading.local()


def install(take: Callable[[str], Callable[[], None] | None]) -> None:
    """Calls ``take``, with its key, before a program is looked for in the compilation cache, if there is one or not.

    What it returns is called when the program is there: found, or compiled and written. JAX has no place for that.
    """
    from jax._src import compiler

    compile_or_get, read = compiler.compile_or_get_cached, compiler._cache_read

    @functools.wraps(compile_or_get)
    def compile_in_turn(*args: Any, **options: Any) -> Any:
        outer = getattr(_turn, "end", None)
        _turn.end = None
        try:
            return compile_or_get(*args, **options)
        finally:
            if _turn.end is not None:
                _turn.end()
            _turn.end = outer

    @functools.wraps(read)
    def read_in_turn(module_name: str, key: str, *args: Any, **options: Any) -> Any:
        _turn.end = take(key)
        return read(module_name, key, *args, **options)

    compiler.compile_or_get_cached = compile_in_turn
    compiler._cache_read = read_in_turn  # type: ignore[assignment]
