"""A rank that comes to its end says so, and stays until all others have come to theirs.

Who then waits for it in a collective, the time limit's thread finds out, as it does of mpixla's operations
(native/watch/deadline.c). Who waits for it before a program, finds out here.
"""

import time

import numpy as np

from ..mpi import native
from ..mpi.mpi import MPI
from ..watch.exit import when_done

_TAG = 32767  # the greatest that every MPI has
_NOTHING = np.zeros(0)


def stay(channel: MPI.Intracomm) -> None:
    """Has this rank stay at its end. All ranks must call it.

    Args:
        channel: on which nobody else sends with the tag of this module.
    """
    others = set(range(channel.Get_size())) - {channel.Get_rank()}
    sent: list[MPI.Request] = []

    def leave(*_: object) -> None:
        if sent or not others:
            return
        native.lib.mpixla_timeout_left()
        sent.extend(channel.Isend(_NOTHING, other, _TAG) for other in others)
        all_have_come = channel.Ibarrier()
        while not all_have_come.Test():
            time.sleep(0.002)
        for other in others:
            channel.Recv(_NOTHING, other, _TAG)
        MPI.Request.Waitall(sent)

    when_done.append(leave)
    # A program may call MPI.Finalize, which deletes this attribute first of all.
    MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=leave), None)


def has_left(channel: MPI.Intracomm, rank: int) -> bool:
    """Whether a rank has come to its end."""
    return channel.Iprobe(rank, _TAG)
