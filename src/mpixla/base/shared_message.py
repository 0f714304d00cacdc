"""Deduplicated messages: ranks of a host with the same message print it once, and agree on that without MPI.

MPI itself may have failed. The ranks share a file, which has a name only until each rank has opened it. Each rank
appends lines to it. The first rank with a message waits a moment for the others, and prints it for all ranks with the
same message. A rank that comes later, or waits for the first one in vain, prints its own.

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

# Seconds that the first rank waits for others, by default. Others wait for it twice as long, in case it has stopped.
_MOMENT = 0.5
_PAUSE = 0.01

file = -1  # the descriptor of the file that all ranks of this host have open, or -1


class PrintOutcome(NamedTuple):
    """The outcome of ``print_once`` on this rank."""

    here: bool  # this rank has printed the message
    by_all: bool  # all ranks of the job had a message before any rank printed one, so no rank waits for another


class _NoteLine(NamedTuple):
    """A line of the file: a rank has a message, is about to print it, or has printed it."""

    what: str  # the hash of the message
    rank: int
    when: float
    step: str


_COMES, _SPEAKS, _SAID = "comes", "speaks", "said"


def open_file(job: str) -> None:
    """Open the file shared by a job's ranks on this host, in the temporary folder; if that fails ``file`` stays -1."""
    global file
    with suppress(OSError):
        file = os.open(_file_path(job), os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)


def remove_name(job: str) -> None:
    """Remove the name of the file. Ranks that have opened it go on to share it."""
    with suppress(OSError):
        os.unlink(_file_path(job))


def _file_path(job: str) -> str:
    return os.path.join(tempfile.gettempdir(), f"mpixla-{os.getuid()}-{job}")


def print_once(
    rank: int,
    size: int,
    write: Callable[[str], None],
    did: str,
    then: str,
    more: str = "",
    then_by_all: str | None = None,
    moment: float = _MOMENT,
) -> PrintOutcome:
    """Print a message once for all ranks of this host that have the same one in a short time; return the outcome.

    Args:
        rank: this rank.
        size: the number of ranks of the job.
        write: prints a text.
        did: the sentence after its subject, "rank 3" or "ranks 0 to 7": "ended ...", or ": uncaught KeyError ...".
        then: the rest of that sentence.
        more: further lines. Messages are the same if they differ only in the rank that mpixla's errors name, and in
            addresses of memory.
        then_by_all: replaces ``then`` where all ranks of the job have a message.
        moment: seconds to wait for other ranks.
    """
    own = re.sub(rf"\br{rank} \||\bon rank {rank} of\b|\b0x[0-9a-fA-F]+\b", "*", f"{did}\n{more}")
    what = hashlib.sha256(own.encode(errors="replace")).hexdigest()

    def print_for(ranks: list[int], again: bool, by_all: bool) -> None:
        rest = then_by_all if by_all and then_by_all is not None else then
        text = " (the same as above)." if again else f"{rest}\n{more}".removesuffix("\n")
        write(f"mpixla: {_name_ranks(ranks)}{'' if did.startswith(':') else ' '}{did}{text}\n")

    try:
        return _agree_and_print(what, rank, size, print_for, moment)
    except (OSError, ValueError):
        print_for([rank], False, False)
        return PrintOutcome(True, False)


def _agree_and_print(
    what: str, rank: int, size: int, say: Callable[[list[int], bool, bool], None], moment: float
) -> PrintOutcome:
    """Call ``say`` (print_for) if this rank is the first with the message ``what``, or the first is late."""
    now = time.monotonic()
    _append_note(what, rank, now, _COMES)
    notes = _read_notes()
    first = next(note.rank for note in notes if note.what == what)
    if is_first := first == rank:
        # A message that comes after the moment is printed at once: the job is about to end.
        start = min(note.when for note in notes)
        _wait_until(lambda notes: len({note.rank for note in notes}) == size, start + moment)
    else:  # the first one prints it
        _wait_until(
            lambda notes: any(note[:2] == (what, first) and note.step == _SAID for note in notes), now + 2 * moment
        )
    _append_note(what, rank, now, _SPEAKS)
    notes = _read_notes()
    alike = [note for note in notes if note.what == what]
    said = {note.rank for note in alike if note.step == _SAID}
    left = sorted(({note.rank for note in alike} if is_first else {rank}) - said)
    # All ranks get the same result: the file is in append mode, so its lines have one order.
    by_all = len({note.rank for note in takewhile(lambda note: note.step == _COMES, notes)}) == size
    if left:
        say(left, bool(said), by_all)
    for other in sorted(left, key=lambda other: other == rank):  # its own line last: the others wait for it
        _append_note(what, other, now, _SAID)
    return PrintOutcome(bool(left), by_all)


def _wait_until(is_so: Callable[[list[_NoteLine]], bool], deadline: float) -> None:
    while not is_so(_read_notes()) and time.monotonic() < deadline:
        time.sleep(_PAUSE)


def _read_notes() -> list[_NoteLine]:
    lines = os.pread(file, os.fstat(file).st_size, 0).decode().rpartition("\n")[0].splitlines()
    return [_NoteLine(what, int(rank), float(when), step) for what, rank, when, step in map(str.split, lines)]


def _append_note(what: str, rank: int, when: float, step: str) -> None:
    os.write(file, f"{what} {rank} {when} {step}\n".encode())


def _name_ranks(ranks: list[int]) -> str:
    runs = [[rank for _, rank in run] for _, run in groupby(enumerate(ranks), lambda pair: pair[1] - pair[0])]
    *words, last = [word for run in runs for word in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run))]
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(words)}{' and ' if words else ''}{last}"
