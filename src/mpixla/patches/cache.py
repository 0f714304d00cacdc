"""Omission of sharded programs with tokens from the compilation cache: jaxlib crashes when it serializes one.

JAX itself has no such programs: it refuses ordered effects on several devices.
"""

import functools
from typing import Any

from ..base.patching import find_in_jax, replace_function
from ..base.state import state

LOST = "Sharded programs that communicate are refused where JAX keeps compiled programs (JAX_COMPILATION_CACHE_DIR)."
_WRITE = "jax._src.compiler:_cache_write", "cache_key", "compile_time_secs", "module_name", "backend", "executable"


def install() -> None:
    """Set ``state.cache``, which keeps sharded programs with tokens out of the compilation cache once it is called."""
    find_in_jax(*_WRITE)
    state.cache = _replace_cache_write


@functools.cache
def _replace_cache_write() -> None:
    """Replace JAX's function that writes the cache, once: it leaves out programs with tokens for several devices."""

    @replace_function(*_WRITE)
    def write_rest(write: Any, key: str, seconds: float, name: str, backend: Any, executable: Any, *rest: Any) -> None:
        head = executable.hlo_modules()[0].to_string().partition("\n")[0]
        if "token[]" not in head or "num_partitions=" not in head:
            write(key, seconds, name, backend, executable, *rest)
