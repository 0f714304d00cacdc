"""Messages that nobody received. Some MPIs end the job for one, or hang in MPI_Finalize, and do not say why."""

import sys
from collections import Counter
from contextlib import suppress

from .comm import get_default_comm
from .mpi import MPI

_TOLD = 8


def tell() -> None:
    """Takes what has come for this process and was never received, and says on stderr what it was."""
    # MPI_Finalize frees MPI_COMM_WORLD, and MPICH 5 fails there. Of other communicators only ours surely exists still.
    for comm in (MPI.COMM_WORLD, get_default_comm()):
        lines = [
            f"mpixla: rank {comm.Get_rank()} ends and has not received {count} message{'s' if count > 1 else ''} of "
            f"{size} bytes that rank {source} sent with tag {tag} on communicator '{comm.Get_name()}': each send needs "
            "a recv.\n"
            for (source, tag, size), count in _take(comm).items()
        ]
        if len(lines) > _TOLD:
            lines[_TOLD:] = [f"mpixla: and {len(lines) - _TOLD} more like these.\n"]
        sys.stderr.write("".join(lines))


def _take(comm: MPI.Comm) -> Counter[tuple[int, int, int]]:
    """How many messages there were of each source, tag and size."""
    taken, status = Counter[tuple[int, int, int]](), MPI.Status()
    with suppress(MPI.Exception, MemoryError):  # a process is lost, or the message is too large to be taken
        while message := comm.Improbe(MPI.ANY_SOURCE, MPI.ANY_TAG, status):
            size = status.Get_count(MPI.BYTE)
            if status.Get_source() != comm.Get_rank():  # those to oneself the C library has named, with their line
                taken[status.Get_source(), status.Get_tag(), size] += 1
            message.Recv([bytearray(size), MPI.BYTE])
    return taken
