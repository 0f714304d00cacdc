"""The state of mpixla in this process: facts and functions that one module sets and others read."""

from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, TracebackType
from typing import Any


@dataclass(slots=True)
class State:
    """Facts on this process, and functions of hooks in JAX; the defaults hold until a module sets them."""

    # Of all ranks, from their agreement at the import of mpixla (checks/agreement.py).
    reports: bool = False  # True if any rank asks for reports about calls of several ranks
    compares_all: bool = False  # True if ranks compare all calls, with their shapes and leaves

    is_forked: bool = False  # True in a process that was forked from one that runs MPI (checks/exit.py)

    windows: Callable[[Any], Any] | None = None  # rewrites a program for the host (core/windows.py)

    # Of the hooks of these names (patches/).
    sealing: bool = False  # True if JAX makes sealed programs of its own
    nan: CodeType | None = None  # the code object of JAX's function that searches for a NaN
    frames: Callable[[TracebackType | None], TracebackType | None] | None = None  # removes mpixla's frames
    tokens: Callable[[], None] | None = None  # drops JAX's tokens of failed programs
    cache: Callable[[], None] | None = None  # keeps sharded programs out of the compilation cache
    refusals: Callable[[], None] | None = None  # has JAX's refusal of an export give advice


state = State()
