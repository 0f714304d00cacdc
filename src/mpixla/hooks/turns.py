"""Compiling in turns (watch/turns.py): what is to be done before a program is looked for in the compilation cache."""

import threading
from collections.abc import Callable
from typing import Any

from . import replace

LOST = "MPIXLA_COMPILE_ONCE is refused."
_COMPILE, _READ = "jax._src.compiler:compile_or_get_cached", "jax._src.compiler:_cache_read"
NEEDS = {_COMPILE: (), _READ: ("module_name", "cache_key")}

_turn = threading.local()


def install(take: Callable[[str], Callable[[], None] | None]) -> None:
    """Calls ``take``, with its key, before a program is looked for in the compilation cache, if there is one or not.

    What it returns is called when the program is there: found, or compiled and written. JAX has no place for that.
    """

    @replace(_COMPILE)
    def compile_in_turn(compile_or_get: Any, *args: Any, **options: Any) -> Any:
        outer = getattr(_turn, "end", None)
        _turn.end = None
        try:
            return compile_or_get(*args, **options)
        finally:
            if _turn.end is not None:
                _turn.end()
            _turn.end = outer

    @replace(_READ)
    def read_in_turn(read: Any, module_name: str, key: str, *args: Any, **options: Any) -> Any:
        _turn.end = take(key)
        return read(module_name, key, *args, **options)
