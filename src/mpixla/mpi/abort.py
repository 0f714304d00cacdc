"""Ending all ranks with a sentence."""

import os
import sys
import threading
import time
from contextlib import suppress
from typing import NoReturn

from ..base.speaker import say
from .mpi import MPI

# Seconds for mpirun to forward what was printed: it drops the rest when a job aborts.
_FORWARDING = 0.3

exit_at_once = os._exit  # before exit.py puts its own there


def flush() -> None:
    """Flushes what this process prints, as far as that goes: a program may have put anything there, or None."""
    for name in ("stdout", "stderr"):
        with suppress(Exception):
            getattr(sys, name).flush()


def abort(sentence: str, status: int = 1) -> NoReturn:
    """Says on this rank why the job ends, and ends it."""
    say(f"{sentence}\n")
    end(status)


def end(status: int, seconds: float = 0.0) -> NoReturn:
    """Ends all ranks, after so many seconds more than what they have printed takes."""
    flush()
    time.sleep(_FORWARDING + seconds)
    if threading.current_thread() is threading.main_thread() or MPI.Query_thread() == MPI.THREAD_MULTIPLE:
        MPI.COMM_WORLD.Abort(status)
    exit_at_once(status)
