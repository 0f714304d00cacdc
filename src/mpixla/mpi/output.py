"""Flushes what the program has printed, so that it is not lost when another rank ends the job.

MPICH gives a rank a pipe for its standard output, where Python keeps what is printed in a buffer of 8 KiB.
"""

import io
import os
import sys
import threading
from contextlib import suppress

from . import native
from .mpi import MPI

# Milliseconds between two flushes: fewer than a rank that ends the job leaves the others (native/mpi/job.c).
_PERIOD = 200

_thread: threading.Thread | None = None
_flushing = threading.Lock()  # held while the thread flushes, and around a fork: a child gets buffers as they are


def flush() -> None:
    """Flushes standard output and error, as far as that goes: a program may have put anything there, or None."""
    for name in ("stdout", "stderr"):
        with suppress(Exception):
            getattr(sys, name).flush()


def _flush_plain() -> None:
    """Flushes those of Python's own kind alone, which may be flushed in any thread."""
    for name in ("stdout", "__stdout__"):
        if type(stream := getattr(sys, name, None)) is io.TextIOWrapper:
            with suppress(Exception):
                stream.flush()


def _flush_as_wanted(period: int) -> None:
    while (wish := native.lib.mpixla_output_wanted(period)) != native.OUTPUT_OVER:
        with _flushing:
            flush() if wish == native.OUTPUT_ASKED else _flush_plain()


def start() -> None:
    """Starts the thread that flushes: now and then, where another rank may end the job, and before this one does."""
    global _thread
    if native.lib.mpixla_output_open() != 0:
        return
    period = _PERIOD if MPI.COMM_WORLD.Get_size() > 1 else 0
    _thread = threading.Thread(target=_flush_as_wanted, args=(period,), name="mpixla output", daemon=True)
    _thread.start()
    os.register_at_fork(before=_flushing.acquire, after_in_parent=_flushing.release, after_in_child=_end_in_child)


def _end_in_child() -> None:
    global _thread
    _thread = None
    _flushing.release()


def is_running() -> bool:
    """Whether the C library can have it flushed."""
    return _thread is not None


def thread_ident() -> int | None:
    """Return the number of the thread that flushes, or None: it makes no call of the program's."""
    thread = _thread
    return thread.ident if thread else None


def end() -> None:
    """Ends the thread, when the program has ended. Python itself flushes last."""
    global _thread
    native.lib.mpixla_output_close()
    if _thread is not None:
        _thread.join()  # a thread that holds a buffer when Python ends would make it abort
    _thread = None
