"""Ranks of a host that have to say the same say it once. They settle it without MPI, which may be what failed.

They share a file, which has a name only until each has opened it. Each adds a line to it. The first one with
a thing to say waits a moment for the others, and speaks for all that have come with the same. Who comes later, or waits
for it in vain, speaks for itself.

base/program.py loads this file alone, before the program has imported mpixla. So it imports nothing of mpixla's.
"""

import hashlib
import os
import re
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import groupby, takewhile
from typing import NamedTuple

# Seconds that the first rank waits for others, by default. They wait twice as long for it, which may be stopped.
_MOMENT = 0.5
_PAUSE = 0.01

file = -1  # that all ranks of this host have open, or -1


class Told(NamedTuple):
    """How it came out."""

    here: bool  # this rank has spoken
    by_all: bool  # all ranks of the job had something to say before any spoke, so none of them waits for another


class _Note(NamedTuple):
    """A line of the file: a rank has come to say something, is about to say it, or has said it."""

    what: str  # the same for what is the same
    rank: int
    when: float
    step: str


_COMES, _SPEAKS, _SAID = "comes", "speaks", "said"


def open_file(job: str) -> None:
    """Open the file of a job's ranks on this host, where there is a place for files."""
    global file
    with suppress(OSError):
        file = os.open(_path(job), os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)


def remove_name(job: str) -> None:
    """Remove the name of the file. Ranks that have opened it go on to share it."""
    with suppress(OSError):
        os.unlink(_path(job))


def _path(job: str) -> str:
    return os.path.join(tempfile.gettempdir(), f"mpixla-{os.getuid()}-{job}")


def tell(
    rank: int,
    size: int,
    write: Callable[[str], None],
    did: str,
    then: str,
    more: str = "",
    then_by_all: str | None = None,
    moment: float = _MOMENT,
) -> Told:
    """Write what has happened to this rank, or leave that to another one.

    Args:
        rank: this rank.
        size: how many ranks the job has.
        write: writes a text, for people.
        did: what is said of "rank 3", or of "ranks 0 to 7": "ended ...", or ": uncaught KeyError ...".
        then: the rest of that sentence.
        more: further lines. Ranks may say the same but for their own number, where mpixla's errors have it, and for
            addresses of memory.
        then_by_all: what stands in the place of ``then`` where all ranks of the job have something to say.
        moment: seconds in which others may come.
    """
    own = re.sub(rf"\br{rank} \||\bon rank {rank} of\b|\b0x[0-9a-fA-F]+\b", "*", f"{did}\n{more}")
    what = hashlib.sha256(own.encode(errors="replace")).hexdigest()

    def say(ranks: list[int], again: bool, by_all: bool) -> None:
        rest = then_by_all if by_all and then_by_all is not None else then
        text = " (the same as above)." if again else f"{rest}\n{more}".removesuffix("\n")
        write(f"mpixla: {_in_words(ranks)}{'' if did.startswith(':') else ' '}{did}{text}\n")

    try:
        return _settle(what, rank, size, say, moment)
    except (OSError, ValueError):
        say([rank], False, False)
        return Told(True, False)


def _settle(what: str, rank: int, size: int, say: Callable[[list[int], bool, bool], None], moment: float) -> Told:
    now = time.monotonic()
    _note(what, rank, now, _COMES)
    notes = _read()
    first = next(note.rank for note in notes if note.what == what)
    if is_first := first == rank:
        # Whatever comes when the moment is over is said at once: the job is about to end.
        start = min(note.when for note in notes)
        _wait_until(lambda notes: len({note.rank for note in notes}) == size, start + moment)
    else:  # the first one speaks
        _wait_until(
            lambda notes: any(note[:2] == (what, first) and note.step == _SAID for note in notes), now + 2 * moment
        )
    _note(what, rank, now, _SPEAKS)
    notes = _read()
    alike = [note for note in notes if note.what == what]
    said = {note.rank for note in alike if note.step == _SAID}
    left = sorted(({note.rank for note in alike} if is_first else {rank}) - said)
    # All ranks find the same, as each line of the file stands behind those that were written before.
    by_all = len({note.rank for note in takewhile(lambda note: note.step == _COMES, notes)}) == size
    if left:
        say(left, bool(said), by_all)
    for other in sorted(left, key=lambda other: other == rank):  # its own last, for which the others wait
        _note(what, other, now, _SAID)
    return Told(bool(left), by_all)


def _wait_until(is_so: Callable[[list[_Note]], bool], deadline: float) -> None:
    while not is_so(_read()) and time.monotonic() < deadline:
        time.sleep(_PAUSE)


def _read() -> list[_Note]:
    lines = os.pread(file, os.fstat(file).st_size, 0).decode().rpartition("\n")[0].splitlines()
    return [_Note(what, int(rank), float(when), step) for what, rank, when, step in map(str.split, lines)]


def _note(what: str, rank: int, when: float, step: str) -> None:
    os.write(file, f"{what} {rank} {when} {step}\n".encode())


def _in_words(ranks: list[int]) -> str:
    runs = [[rank for _, rank in run] for _, run in groupby(enumerate(ranks), lambda pair: pair[1] - pair[0])]
    *words, last = [word for run in runs for word in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run))]
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(words)}{' and ' if words else ''}{last}"
