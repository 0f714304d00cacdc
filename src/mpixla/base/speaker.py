"""Which one of a host's processes says what all of them would say, where they can agree on nothing by MPI."""

import contextlib
import socket
import sys

_names: list[socket.socket] = []


def is_first(name: str) -> bool:
    """Whether no other process of this host has asked with this name that still runs; True where that is not known."""
    if sys.platform != "linux":
        return True
    mine = socket.socket(socket.AF_UNIX)
    with contextlib.suppress(OSError):
        mine.bind(f"\0mpixla {name}")  # in no directory: it goes with the process
        _names.append(mine)
        return True
    mine.close()
    return False
