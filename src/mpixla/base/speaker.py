"""Sentences for people: where they go, and which one of a host's processes says what all of them would say."""

import contextlib
import errno
import os
import socket
import sys
from typing import TextIO

from . import started

_names: dict[str, int] = {}  # those that this process has, with file descriptors that it keeps to its very end


def _find() -> TextIO | None:
    """Return the standard error that people read."""
    descriptor = started.standard_error()
    if descriptor == 2:
        return sys.__stderr__
    with contextlib.suppress(OSError):  # the program has closed it
        return open(descriptor, "w", errors="backslashreplace", closefd=False)
    return sys.__stderr__


_people = _find()


def file() -> int:
    """Its file descriptor."""
    with contextlib.suppress(AttributeError, ValueError):  # there is none, or it was closed or detached
        return _people.fileno()  # type: ignore[union-attr]
    return 2


def say(text: str) -> None:
    """Writes why the job ends, or why it waits: there, and in ``sys.stderr`` if a program has put that elsewhere."""
    heard = False
    with contextlib.suppress(Exception):  # a program may have put anything there, or None
        sys.stderr.write(text)
        sys.stderr.flush()
        heard = os.path.sameopenfile(sys.stderr.fileno(), file())
    if not heard and _people:
        with contextlib.suppress(OSError, ValueError):  # nobody reads it, or it was closed
            _people.write(text)
            _people.flush()


def is_first(name: str) -> bool:
    """Whether no other process of this host has asked with this name that still runs; True where that is not known.

    For those that can agree on nothing by MPI.
    """
    if sys.platform != "linux":
        return True
    mine = socket.socket(socket.AF_UNIX)
    with contextlib.suppress(OSError):
        mine.bind(_address(name))
        mine.listen()
        _names[name] = mine.detach()
        return True
    mine.close()
    return False


def forget(name: str) -> None:
    """Give a name back, for which ``is_first`` was True here."""
    if name in _names:
        os.close(_names.pop(name))


def is_taken(name: str) -> bool:
    """Return whether a process of this host that still runs is first by this name; False where that is not known."""
    if sys.platform != "linux":
        return False
    with socket.socket(socket.AF_UNIX) as other:
        other.setblocking(False)
        return other.connect_ex(_address(name)) != errno.ECONNREFUSED


def _address(name: str) -> str:
    return f"\0mpixla {name}"  # in no directory: it goes with the process (base/program.py has the same)
