"""Compiling in turns, ``MPIXLA_COMPILE_ONCE``: of the ranks that need a program one compiles it, the others read it.

A program's text is the same on every rank, and so is its place in JAX's compilation cache, a directory that the ranks
share. Beside it lies a lock while a rank compiles it: a lock on a file (flock), which the system gives back when its
process ends, however that ends.

No rank can wait for ever. Who has a lock compiles, which takes no other rank; who waits for one has none itself, and
holds nothing that compiling needs. So it does not matter which programs ranks compile, in which order, or whether a
rank is inside a communication meanwhile. Where locks do not work, or there is nothing to read in the end, a rank
compiles for itself.
"""

import fcntl
import functools
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax

from ..base import settings
from . import replace

LOST = f"{settings.COMPILE_ONCE} is refused."

_LIMIT = 600.0  # seconds after which the process that compiles is taken for stopped
# What is not kept, nobody can read. JAX leaves out what was compiled fast, unless it is told.
_KEEP_ALL = {"jax_persistent_cache_min_compile_time_secs": 0, "jax_persistent_cache_min_entry_size_bytes": -1}

_turn = threading.local()


def install() -> None:
    """Has JAX keep all that is compiled, and take turns. JAX has no place for what is done when a program is there."""

    compiling = replace("jax._src.compiler:compile_or_get_cached")
    reading = replace("jax._src.compiler:_cache_read", "module_name", "cache_key")

    @compiling
    def compile_in_turn(compile_or_get: Any, *args: Any, **options: Any) -> Any:
        outer = getattr(_turn, "end", None)
        _turn.end = None
        try:
            return compile_or_get(*args, **options)
        finally:
            if _turn.end is not None:
                _turn.end()
            _turn.end = outer

    @reading
    def read_in_turn(read: Any, module_name: str, key: str, *args: Any, **options: Any) -> Any:
        _turn.end = take(key)
        return read(module_name, key, *args, **options)

    for name, everything in _KEEP_ALL.items():
        if name.upper() not in os.environ:
            jax.config.update(name, everything)


def take(key: str) -> Callable[[], None] | None:
    """Waits for this process's turn to look for a program in the cache. Returns what ends the turn, if it has one."""
    directory = _directory()
    if not directory:
        _tell()
        return None
    # Locks are for files. And of JAX's distributed processes only the first one writes.
    if "://" in directory or jax.process_count() > 1:
        return None
    lock = Path(directory) / f"{key}-turn"
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError:
        return None
    if _locked(file, fcntl.LOCK_EX):
        return lambda: _end(file, lock)
    # Another process compiles it. What it has compiled is there once it lets go.
    patience, end = 0.001, time.monotonic() + _LIMIT
    while not _locked(file, fcntl.LOCK_SH) and time.monotonic() < end:
        time.sleep(patience)
        patience = min(2 * patience, 0.05)
    os.close(file)
    return None


def _directory() -> str:
    return jax.config.jax_compilation_cache_dir or ""  # type: ignore[attr-defined]


def _locked(file: int, kind: int) -> bool:
    """Whether there is the lock, or none can be had at all."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError as e:
        return not isinstance(e, BlockingIOError)
    return True


def _end(file: int, lock: Path) -> None:
    with suppress(OSError):
        lock.unlink()
    os.close(file)


@functools.cache
def _tell() -> None:
    """Once."""
    sys.stderr.write(
        f"mpixla: {settings.COMPILE_ONCE} has no effect, because JAX keeps no compiled programs. Set "
        "JAX_COMPILATION_CACHE_DIR to a directory that the ranks share.\n"
    )
