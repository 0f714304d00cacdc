"""Flushes what the program has printed, so that it is not lost when another rank ends the job.

MPICH gives a rank a pipe for its standard output, where Python keeps what is printed in a buffer of 8 KiB. The C
library says when (native/watch/deadline.c, native/mpi/job.c).
"""

import atexit
import io
import os
import sys
import threading
from contextlib import suppress

from . import native

_is_asked = False
_flushing = (
    threading.Lock()
)  # held while a thread of the C library flushes, and around a fork: a child gets buffers as they are


def flush() -> None:
    """Flushes standard output and error, as far as that goes: a program may have put anything there, or None."""
    for name in ("stdout", "stderr"):
        with suppress(Exception):
            getattr(sys, name).flush()


@native.GRANT
def _flush_all() -> None:
    with _flushing:
        flush()


@native.GRANT
def _flush_own() -> None:
    """Flushes streams of Python's own kind alone, which may be flushed in any thread."""
    with _flushing:
        for name in ("stdout", "__stdout__"):
            if type(stream := getattr(sys, name, None)) is io.TextIOWrapper:
                with suppress(Exception):
                    stream.flush()


def start() -> None:
    """Has the C library have it flushed now and then, and before this rank ends the job."""
    global _is_asked
    native.lib.mpixla_front_end_set(native.WISH_FLUSH, _flush_all)
    native.lib.mpixla_front_end_set(native.WISH_FLUSH_OWN, _flush_own)
    _is_asked = True
    os.register_at_fork(before=_flushing.acquire, after_in_parent=_flushing.release, after_in_child=_end_in_child)


def _end_in_child() -> None:
    global _is_asked
    _is_asked = False  # the C library's thread is not there
    _flushing.release()


def is_running() -> bool:
    """Whether the C library has it flushed."""
    return _is_asked


def end() -> None:
    """Has the C library call nothing of Python any more, as the program has ended. Python itself flushes last."""
    global _is_asked
    _is_asked = False
    native.lib.mpixla_front_end_end()


atexit.register(end)  # runs after exit.py's, which calls it unless it fails
