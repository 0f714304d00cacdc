"""What several ranks of a host have to say alike is said once. They settle it without MPI, which may be what failed.

They share a file that has no name any more, so that nothing is left of it. Each adds a line to it. The first one with
a thing to say waits a moment for the others, and speaks for all that have come with the same. Who comes later, or waits
for it in vain, speaks for itself.
"""

import hashlib
import os
import re
import secrets
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import groupby
from typing import NamedTuple

from ..base import speaker
from ..mpi.comm import get_default_comm
from ..mpi.mpi import MPI

# Seconds that the first rank waits for others, and those for it: not longer, as it may be stopped.
_MOMENT = 0.5
_PAUSE = 0.01

file = -1  # that all ranks of this host have open, or -1


class Told(NamedTuple):
    """How it came out."""

    here: bool  # this rank has spoken
    by_all: bool  # all ranks of the job have something to say, so none of them waits for another


class _Note(NamedTuple):
    """A line of the file: a rank has come to say something, or has said it."""

    what: str  # the same for what is the same
    rank: int
    when: float
    is_said: bool


def install() -> None:
    """Opens the file. All ranks must call it."""
    global file
    comm = get_default_comm()
    if comm.Get_size() == 1:
        return
    name = f"mpixla-{comm.bcast(secrets.token_hex(8))}"
    with suppress(OSError):  # such as that there is no place for files
        name = os.path.join(tempfile.gettempdir(), name)
        file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    comm.Barrier()
    with suppress(OSError):
        os.unlink(name)


def tell(did: str, then: str, more: str = "", then_by_all: str | None = None) -> Told:
    """Prints on standard error what has happened to this rank, or leaves it to another one.

    Args:
        did: what is said of "rank 3", or of "ranks 0 to 7".
        then: the rest of that sentence.
        more: further lines. Ranks may say the same but for their own number, where mpixla's errors have it, and for
            addresses of memory.
        then_by_all: what stands in the place of ``then`` where all ranks of the job have something to say.
    """
    rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
    own = re.sub(rf"\br{rank} \||\bon rank {rank} of\b|\b0x[0-9a-fA-F]+\b", "*", f"{did}\n{more}")
    what = hashlib.sha256(own.encode(errors="replace")).hexdigest()

    def say(ranks: list[int], again: bool, by_all: bool) -> None:
        rest = then_by_all if by_all and then_by_all is not None else then
        text = " (the same as above)." if again else f"{rest}\n{more}".removesuffix("\n")
        speaker.say(f"mpixla: {_in_words(ranks)} {did}{text}\n")

    try:
        return _settle(what, rank, size, say)
    except (OSError, ValueError):
        say([rank], False, False)
        return Told(True, False)


def _settle(what: str, rank: int, size: int, say: Callable[[list[int], bool, bool], None]) -> Told:
    now = time.monotonic()
    _note(what, rank, now, False)
    notes = _read()
    first = next(note.rank for note in notes if note.what == what)
    if is_first := first == rank:
        # Whatever comes when the moment is over is said at once: the job is about to end.
        start = min(note.when for note in notes)
        notes = _wait_until(lambda notes: len({note.rank for note in notes}) == size, start + _MOMENT)
    else:  # the first one speaks
        notes = _wait_until(
            lambda notes: any(note[:2] == (what, first) and note.is_said for note in notes), now + 2 * _MOMENT
        )
    alike = [note for note in notes if note.what == what]
    said = {note.rank for note in alike if note.is_said}
    left = sorted(({note.rank for note in alike} if is_first else {rank}) - said)
    by_all = len({note.rank for note in notes}) == size
    if left:
        say(left, bool(said), by_all)
    for other in sorted(left, key=lambda other: other == rank):  # its own last, for which the others wait
        _note(what, other, now, True)
    return Told(bool(left), by_all)


def _wait_until(is_so: Callable[[list[_Note]], bool], deadline: float) -> list[_Note]:
    while not is_so(notes := _read()) and time.monotonic() < deadline:
        time.sleep(_PAUSE)
    return notes


def _read() -> list[_Note]:
    lines = os.pread(file, os.fstat(file).st_size, 0).decode().rpartition("\n")[0].splitlines()
    return [_Note(what, int(rank), float(when), said == "said") for what, rank, when, said in map(str.split, lines)]


def _note(what: str, rank: int, when: float, is_said: bool) -> None:
    os.write(file, f"{what} {rank} {when} {'said' if is_said else 'comes'}\n".encode())


def _in_words(ranks: list[int]) -> str:
    runs = [[rank for _, rank in run] for _, run in groupby(enumerate(ranks), lambda pair: pair[1] - pair[0])]
    *words, last = [word for run in runs for word in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run))]
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(words)}{' and ' if words else ''}{last}"
