"""Flushing of the program's output, so that it is not lost when another rank ends the job.

Under MPICH a rank's standard output is a pipe, for which Python has a buffer of 8 KiB. The C library calls for each
flush (native/watch/deadline.c, native/mpi/job.c).
"""

import atexit
import io
import os
import sys
import threading
from contextlib import suppress

from . import native

_is_asked = False
# Held while a thread of the C library flushes, and around a fork, so that a child does not copy a buffer in between.
_flushing = threading.Lock()


def flush_output() -> None:
    """Flush standard output and error; suppress exceptions: a program may have put anything there, or None."""
    for name in ("stdout", "stderr"):
        with suppress(Exception):
            getattr(sys, name).flush()


@native.make_callback
def _flush_all() -> None:
    with _flushing:
        flush_output()


@native.make_callback
def _flush_own() -> None:
    """Flush standard output if it is of Python's own class, which may be flushed in any thread."""
    with _flushing:
        for name in ("stdout", "__stdout__"):
            if type(stream := getattr(sys, name, None)) is io.TextIOWrapper:
                with suppress(Exception):
                    stream.flush()


def start_flushing() -> None:
    """Let the C library flush the program's output, several times a second and before this rank ends the job."""
    global _is_asked
    native.lib.mpixla_front_end_set(native.WISH_FLUSH, _flush_all)
    native.lib.mpixla_front_end_set(native.WISH_FLUSH_OWN, _flush_own)
    _is_asked = True
    os.register_at_fork(before=_flushing.acquire, after_in_parent=_flushing.release, after_in_child=_end_in_child)


def _end_in_child() -> None:
    global _is_asked
    _is_asked = False  # the C library's thread does not exist in the child
    _flushing.release()


def is_running() -> bool:
    """Return whether the C library flushes the program's output."""
    return _is_asked


def stop_flushing() -> None:
    """Stop the C library's calls of Python at the end of the program. Python itself flushes last."""
    global _is_asked
    _is_asked = False
    native.lib.mpixla_front_end_end()


atexit.register(stop_flushing)  # runs after exit.py's, which calls it unless it fails
