"""Omission of sharded programs with tokens from the compilation cache: jaxlib crashes when it serializes one.

JAX itself has no such programs: it refuses ordered effects on several devices.
"""

import functools
from typing import Any

from ..base.patching import need, replace
from ..base.state import state

LOST = "Sharded programs that communicate are refused where JAX keeps compiled programs (JAX_COMPILATION_CACHE_DIR)."
_WRITE = "jax._src.compiler:_cache_write", "cache_key", "compile_time_secs", "module_name", "backend", "executable"


def install() -> None:
    """Let sharded programs that take tokens be compiled, and keep them from being written to the cache."""
    need(*_WRITE)
    state.cache = _replace


@functools.cache
def _replace() -> None:
    """Replace JAX's writing of its cache, to leave out programs with tokens for several devices."""

    @replace(*_WRITE)
    def write_rest(write: Any, key: str, seconds: float, name: str, backend: Any, executable: Any, *rest: Any) -> None:
        head = executable.hlo_modules()[0].to_string().partition("\n")[0]
        if "token[]" not in head or "num_partitions=" not in head:
            write(key, seconds, name, backend, executable, *rest)
