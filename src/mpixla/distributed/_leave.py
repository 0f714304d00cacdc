"""Ranks that come to their end while others count on them: the job ends, with a sentence, and nobody hangs.

A rank that ends tells all others how many calls it has made in each clique, and stays until all have come to their end.
Meanwhile each rank looks from time to time whether a call of its own waits for one that will not be made.
"""

import ctypes
import threading
import time
from typing import NoReturn

from ..mpi import native
from ..mpi.abort import abort
from ..mpi.mpi import MPI
from ..watch.exit import when_done

_TAG = 32767  # the greatest that every MPI has
_PAUSE = 0.2  # seconds between two looks
_SHORT = 0.002  # the same where this rank has nothing else to do

# By the ids of the devices: the clique's number in the C library, and its ranks.
Cliques = dict[tuple[int, ...], tuple[int, list[int]]]

left: set[int] = set()  # ranks that have come to their end


def watch(channel: MPI.Intracomm, cliques: Cliques) -> None:
    """Begins to look, until all ranks have come to their end. All of them must call it.

    Args:
        channel: on which nobody else sends with the tag of this module.
        cliques: those that are open, which others may add to.
    """
    if channel.Get_size() == 1:
        return
    leaving = threading.Event()
    thread = threading.Thread(target=_look, args=(channel, cliques, leaving), name="mpixla leave", daemon=True)
    thread.start()

    def leave(*_: object) -> None:
        if leaving.is_set():
            return
        native.lib.mpixla_timeout_left()
        sent = _tell(channel, cliques)
        leaving.set()
        thread.join()
        MPI.Request.waitall(sent)

    when_done.append(leave)
    # A program may call MPI.Finalize, which deletes this attribute first of all.
    MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=leave), None)


def _tell(channel: MPI.Intracomm, cliques: Cliques) -> list[MPI.Request]:
    rank, counts = channel.Get_rank(), (ctypes.c_int64 * 3)()
    notes: list[Cliques] = [{} for _ in range(channel.Get_size())]  # for each rank: this one's place, and its calls
    for key, (number, ranks) in list(cliques.items()):
        for place, other in enumerate(ranks):
            native.check(native.lib.mpixla_trampoline_count(number, place, counts))
            notes[other][key] = (ranks.index(rank), list(counts))
    return [channel.isend(note, other, _TAG) for other, note in enumerate(notes) if other != rank]


def _look(channel: MPI.Intracomm, cliques: Cliques, leaving: threading.Event) -> None:
    stuck = None
    while not leaving.is_set() or len(left) < channel.Get_size() - 1:
        status = MPI.Status()
        while channel.Iprobe(MPI.ANY_SOURCE, _TAG, status):
            for key, (place, counts) in channel.recv(None, status.Get_source(), _TAG).items():
                if key in cliques:
                    native.lib.mpixla_trampoline_left(cliques[key][0], place, (ctypes.c_int64 * 3)(*counts))
            left.add(status.Get_source())
        before, stuck = stuck, _stuck(cliques) if left else None
        if stuck and stuck == before:  # twice: a call may end just now
            missing, ranks = stuck
            end_job(
                f"waits in a program that is sharded over the ranks {', '.join(map(str, ranks))}, but rank {missing} "
                "has come to the end of its script and will not run it, so the whole job ends. All these ranks must "
                "run it"
            )
        time.sleep(_SHORT if leaving.is_set() else _PAUSE)


def _stuck(cliques: Cliques) -> tuple[int, list[int]] | None:
    """A rank that will not make a call in which this one waits, and the ranks of the clique."""
    for number, ranks in list(cliques.values()):
        place = native.lib.mpixla_trampoline_stuck(number)
        if place >= 0:
            return ranks[place], ranks
    return None


def end_job(sentence: str) -> NoReturn:
    """Ends all ranks, saying what this one does, and why that is the end."""
    abort(f"mpixla: rank {MPI.COMM_WORLD.Get_rank()} {sentence}.")
