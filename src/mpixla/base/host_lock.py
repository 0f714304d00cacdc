"""Locks by name, which one process of a host holds to its end: for processes that can agree on nothing by MPI.

base/program.py loads this file alone, before the program has imported mpixla. So it imports nothing of mpixla's.
"""

import contextlib
import errno
import os
import socket
import sys

_held: dict[str, int] = {}  # the locks of this process, with file descriptors that it keeps to its very end


def acquire(name: str) -> bool:
    """Take a lock; return False if a process of this host that still runs has it, True where that is not known."""
    if sys.platform != "linux":
        return True
    mine = socket.socket(socket.AF_UNIX)
    with contextlib.suppress(OSError):
        mine.bind(_make_address(name))
        mine.listen()
        _held[name] = mine.detach()
        return True
    mine.close()
    return False


def release(name: str) -> None:
    """Give a lock back that this process has acquired."""
    if name in _held:
        os.close(_held.pop(name))


def is_held(name: str) -> bool:
    """Return whether a process of this host that still runs has a lock; False where that is not known."""
    if sys.platform != "linux":
        return False
    with socket.socket(socket.AF_UNIX) as other:
        other.setblocking(False)
        return other.connect_ex(_make_address(name)) != errno.ECONNREFUSED


def _make_address(name: str) -> str:
    return f"\0mpixla {name}"  # in no directory: it goes with the process
