"""Messages for people, on the standard error that they read."""

import contextlib
import os
import sys
from typing import TextIO

from . import started


def _open_standard_error() -> TextIO | None:
    """Return ``sys.__stderr__``, or where ``mpixla run`` has kept stderr's descriptor, a new file of that descriptor.

    ``sys.__stderr__`` if the program has closed the descriptor; it is None in a process without standard error.
    """
    descriptor = started.standard_error()
    if descriptor == 2:
        return sys.__stderr__
    with contextlib.suppress(OSError):  # the program has closed it
        return open(descriptor, "w", errors="backslashreplace", closefd=False)
    return sys.__stderr__


_people = _open_standard_error()


def error_descriptor() -> int:
    """Return the descriptor of the standard error that people read; 2 if that stream is closed or has none."""
    with contextlib.suppress(AttributeError, ValueError):  # there is none, or it was closed or detached
        return _people.fileno()  # type: ignore[union-attr]
    return 2


def print_message(text: str) -> None:
    """Print a text on the original standard error, and on a redirected ``sys.stderr``, too; ignore failures."""
    heard = False
    with contextlib.suppress(Exception):  # a program may have put anything there, or None
        sys.stderr.write(text)
        sys.stderr.flush()
        heard = os.path.sameopenfile(sys.stderr.fileno(), error_descriptor())
    if not heard and _people:
        with contextlib.suppress(OSError, ValueError):  # its reader has gone, or it was closed
            _people.write(text)
            _people.flush()
