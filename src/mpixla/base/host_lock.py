"""Locks by name that one process of a host holds until it ends, for processes that cannot communicate by MPI yet.

base/program.py loads this file alone, before the program has imported mpixla. So it imports nothing of mpixla's.
"""

import contextlib
import errno
import os
import socket
import sys

_held: dict[str, int] = {}  # the locks of this process, and their file descriptors, which stay open until it ends


def take_lock(name: str) -> bool:
    """Take a lock; return False if it is held, also by this process. Other systems than Linux have none: then True."""
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


def release_lock(name: str) -> None:
    """Release a lock if this process holds it."""
    if name in _held:
        os.close(_held.pop(name))


def is_held(name: str) -> bool:
    """Return whether a running process of this host holds a lock; False where the system cannot tell."""
    if sys.platform != "linux":
        return False
    with socket.socket(socket.AF_UNIX) as other:
        other.setblocking(False)
        return other.connect_ex(_make_address(name)) != errno.ECONNREFUSED


def _make_address(name: str) -> str:
    return f"\0mpixla {name}"  # an abstract address, in no directory: it vanishes with the process
