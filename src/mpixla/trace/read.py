"""Timelines from files, as far as they are whole: a file of an aborted job, or a damaged one, tells what it can."""

import heapq
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from sys import intern
from typing import Any

import numpy as np

from . import layout
from .layout import Kind

# More than any job has: what says more is damaged.
_MOST_RANKS = 10**7
_MOST = 2**62
_BLOCK = 4096


@dataclass(frozen=True, slots=True)
class Group:
    """A communicator, the same for all of its ranks."""

    name: str
    size: int
    members: tuple[int, ...]  # ranks of MPI_COMM_WORLD in its order; () if the files do not say
    number: int  # tells those apart that have the same name and members


@dataclass(frozen=True, slots=True)
class Membership:
    """What a communicator is to one of its ranks."""

    group: Group
    position: int
    comm: int  # its number in the process
    neighbours: dict[int, tuple[int, ...]]  # lists of ranks, by their kinds


@dataclass(slots=True, eq=False)
class Call:
    """One call of one rank. Times are nanoseconds of rank 0's clock, ranks those of MPI_COMM_WORLD."""

    rank: int
    begin: int
    end: int  # of what is known, if it did not end
    name: str
    category: str  # "collective", "message", "start" of a request, or "wait" for one
    meeting: str = ""  # of a collective call: who waits for whom
    lane: int = 0
    is_over: bool = True
    has_failed: bool = False
    site: str = ""
    group: Group | None = None
    position: int = 0  # of the rank in the group
    sequence: int = -1  # of a collective call in its group
    is_reverse: bool = False  # ranks count from the last one
    root: int | None = None
    to: int | None = None
    sendtag: int | None = None  # of a call that sends a message, also to nobody
    source: int | str | None = None  # "any"
    recvtag: int | str | None = None  # "any"; of a call that receives one
    sources: tuple[int, ...] = ()
    sends: int = 0  # bytes
    receives: int = 0
    request: str = ""
    waits_for: str = ""  # the operation that it waits for
    started_at: str = ""
    transport: str = ""  # of arrays of a GPU
    gpu: int = 0  # it first waited so long for the GPU
    mpi: str = ""  # MPI's function
    comm: int = 0  # the number of its communicator in the process
    items: int | None = None
    dtype: str = ""
    reduction: str = ""
    thread: int = 0
    place: int = 0  # of its record in the file
    # What match.py finds:
    waiting: int = 0  # of its time, from `ready` on
    late: int | None = None  # the rank that it waited for
    late_call: "Call | None" = None  # what that one called then

    @property
    def ready(self) -> int:
        """When it had what the other ranks wait for."""
        return min(self.begin + self.gpu, self.end)

    @property
    def time(self) -> int:
        """How long it took."""
        return self.end - self.begin

    @property
    def moving(self) -> int:
        """What is left: MPI moves data, or does what it does."""
        return max(0, self.end - self.ready - self.waiting)

    @property
    def title(self) -> str:
        """The operation, as its user calls it."""
        return f"wait for {self.waits_for}" if self.waits_for else self.name


@dataclass(slots=True)
class Timeline:
    """What a file says."""

    file: Path
    rank: int = -1
    ranks: int = 0
    host: str = ""
    job: str = ""
    clock: str = ""
    readings: list[tuple[int, int, int]] = field(default_factory=list)  # when, ahead, round trip
    groups: dict[int, "Membership"] = field(default_factory=dict)  # by the number in the file
    calls: list[Call] = field(default_factory=list)
    stopped: str = ""  # why it is not complete
    damaged: int = 0  # records that say what cannot be


@dataclass(slots=True)
class Job:
    """The timelines of a run."""

    timelines: dict[int, Timeline]  # by rank
    ranks: int
    begin: int
    end: int
    notes: list[str]  # what was wrong, a sentence each

    def calls(self) -> Iterator[Call]:
        """All calls, rank by rank, in the order of their beginnings."""
        for rank in sorted(self.timelines):
            yield from self.timelines[rank].calls


class _DamageError(Exception):
    """A record says what cannot be."""


def _checked(value: int, least: int = 0, most: int = _MOST) -> int:
    if not least <= value <= most:
        raise _DamageError
    return value


def _text(raw: bytes) -> str:
    text = raw.split(b"\0", 1)[0].decode(errors="replace")
    return intern("".join(c if c.isprintable() else "?" for c in text))


def _members(parts: list[int], size: int) -> tuple[int, ...]:
    """From the first rank, how many, and their distance, of each part."""
    found: list[int] = []
    for first, count, step in zip(parts[::3], parts[1::3], parts[2::3], strict=False):
        if not 0 < count <= size - len(found) or not -_MOST_RANKS < step < _MOST_RANKS:
            raise _DamageError
        found.extend(range(first, first + count * step, step) if step else [first] * count)
    if found and (len(found) != size or min(found) < 0 or max(found) >= _MOST_RANKS):
        raise _DamageError
    return tuple(found)


class _Reader:
    """Reads the records of one file."""

    def __init__(self, timeline: Timeline, records: Any) -> None:
        self._timeline = timeline
        self._records = records
        self._parts: dict[tuple[int, int], bytearray] = {}  # by kind and number
        self._texts = {0: ""}
        self._alike: dict[Any, int] = {}

    def read(self) -> None:
        """All that others refer to comes first."""
        kinds = self._records["kind"]
        self._timeline.damaged += int((kinds > max(Kind)).sum())
        parts = np.isin(kinds, [Kind.TEXT, Kind.MEMBERS, Kind.SOURCES, Kind.DESTS])
        for kind, number, used, data in self._records[parts].view(layout.PART).tolist():
            self._parts.setdefault((kind, number), bytearray()).extend(data[:used])
        for (kind, number), raw in self._parts.items():
            if kind == Kind.TEXT:
                self._texts[number] = _text(bytes(raw))
        self._each(kinds == Kind.COMMUNICATOR, layout.COMMUNICATOR, self._communicator)
        self._each(kinds == Kind.CLOCK, layout.CLOCK, self._clock)
        self._each(kinds == Kind.CALL, layout.CALL, self._call)

    def _each(self, which: Any, kind: Any, read: Any) -> None:
        places = np.flatnonzero(which)
        for first in range(0, len(places), _BLOCK):
            block = places[first : first + _BLOCK]
            for place, values in zip(block.tolist(), self._records[block].view(kind).tolist(), strict=True):
                try:
                    read(dict(zip(kind.names, values, strict=True)), place)
                except (_DamageError, LookupError):  # the latter: it names what is not there
                    self._timeline.damaged += 1

    def _list(self, kind: int, number: int) -> list[int]:
        raw = bytes(self._parts.get((kind, number), b""))
        found: list[int] = np.frombuffer(raw[: len(raw) // 4 * 4], "i4").tolist()
        return found

    def _communicator(self, r: dict[str, Any], place: int) -> None:
        number, size = r["number"], _checked(r["size"], 1, _MOST_RANKS)
        if number in self._timeline.groups:
            raise _DamageError
        name, members = _text(r["name"]), _members(self._list(Kind.MEMBERS, number), size)
        alike = self._alike[name, members, size] = self._alike.get((name, members, size), -1) + 1
        neighbours: dict[int, tuple[int, ...]] = {0: ()}
        neighbours |= {kind: tuple(self._list(kind, number)) for kind in (Kind.SOURCES, Kind.DESTS)}
        self._timeline.groups[number] = Membership(
            Group(name, size, members, alike), _checked(r["rank"], 0, size - 1), r["in_process"], neighbours
        )

    def _clock(self, r: dict[str, Any], place: int) -> None:
        reading = _checked(r["when"]), _checked(r["ahead"], -_MOST), _checked(r["round_trip"])
        self._timeline.readings.append(reading)

    def _call(self, r: dict[str, Any], place: int) -> None:
        of, text = self._timeline.groups[r["number"]], self._texts
        op, begin, is_over = text[r["op"]], _checked(r["began"]), r["state"] != layout.OPEN
        root, to, source = r["root"], r["to"], r["from"]
        if not op or r["state"] > layout.FAILED or layout.ANY in (root, to):
            raise _DamageError
        if min(root, to, source) < layout.NONE or max(root, to, source) >= _MOST_RANKS:
            raise _DamageError
        self._timeline.calls.append(
            Call(
                rank=self._timeline.rank,
                begin=begin,
                end=begin + _checked(r["took"]) if is_over else -1,
                name="wait" if op.startswith("wait_") else op,
                category=layout.CATEGORIES[r["category"]],
                meeting=layout.MEETINGS[r["meeting"]],
                is_over=is_over,
                has_failed=r["state"] == layout.FAILED,
                site=text[r["site"]],
                group=of.group,
                position=of.position,
                sequence=_checked(r["sequence"], -1),
                is_reverse=bool(r["is_reverse"]),
                root=root if root >= 0 else None,
                to=to if to >= 0 else None,
                sendtag=None if to == layout.NONE else r["sendtag"],
                source="any" if source == layout.ANY else source if source >= 0 else None,
                recvtag=None if source == layout.NONE else "any" if r["recvtag"] == layout.ANY else r["recvtag"],
                sources=of.neighbours[r["neighbours"]],
                sends=_checked(r["sends"]),
                receives=_checked(r["receives"]),
                request="" if r["request"] < 0 else f"{r['request']}.{r['generation']}",
                waits_for=text[r["waits_for"]],
                started_at=text[r["started_at"]],
                transport=text[r["transport"]],
                gpu=max(0, _checked(r["gpu"], -1)) if is_over else 0,
                mpi=text[r["mpi"]],
                comm=of.comm,
                items=None if r["items"] < 0 else r["items"],
                dtype=text[r["dtype"]],
                reduction=text[r["reduction"]],
                thread=r["thread"],
                place=place,
            )
        )


def _give_lanes(calls: list[Call]) -> None:
    """Each call, in the order of their beginnings, gets the first row that no other is in: XLA moves programs from
    thread to thread."""
    free: list[int] = []
    taken: list[tuple[int, int]] = []  # until when, and which
    for call in calls:
        while taken and taken[0][0] <= call.begin:
            heapq.heappush(free, heapq.heappop(taken)[1])
        call.lane = heapq.heappop(free) if free else len(taken)
        heapq.heappush(taken, (call.end if call.is_over else 2 * _MOST, call.lane))


def read_file(file: Path) -> Timeline:
    """The timeline of a file.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it is no timeline that can be read here; the message is a sentence.
    """
    data = file.read_bytes()
    if len(data) < layout.HEADER.itemsize or not data.startswith(layout.MAGIC + b"\0"):
        raise ValueError(f"{file.name} is no timeline, or its beginning is damaged: it does not say whose it is.")
    header = np.frombuffer(data, layout.HEADER, 1)[0]
    if (int(header["version"]), int(header["record_bytes"])) != (layout.VERSION, layout.BYTES):
        raise ValueError(
            f"{file.name} was written by another version of mpixla, whose timelines have layout {header['version']} "
            f"where this one reads layout {layout.VERSION}: read it with python -m mpixla.trace of that version."
        )
    timeline = Timeline(
        file,
        rank=int(header["rank"]),
        ranks=int(header["ranks"]),
        host=_text(bytes(header["host"])),
        job=_text(bytes(header["job"])),
        clock=_text(bytes(header["clock"])),
        stopped=_text(bytes(header["stopped"])),
    )
    if not 0 <= timeline.rank < timeline.ranks <= _MOST_RANKS:
        raise ValueError(f"{file.name} is damaged: it says that it is of rank {timeline.rank} of {timeline.ranks}.")
    body = data[layout.HEADER.itemsize :]
    whole = len(body) // layout.BYTES * layout.BYTES
    timeline.damaged = int(any(body[whole:]))
    _Reader(timeline, np.frombuffer(body[:whole], layout.CALL)).read()
    timeline.calls.sort(key=lambda call: call.begin)
    _give_lanes(timeline.calls)
    return timeline


def _shorten(words: list[str], most: int = 8) -> str:
    shown = ", ".join(words[:most])
    return shown + (f" and {len(words) - most} more" if len(words) > most else "")


def _choose_run(timelines: list[Timeline], notes: list[str]) -> list[Timeline]:
    """A directory may have files of several runs: those of the newest."""
    newest = max(timelines, key=lambda timeline: (timeline.file.stat().st_mtime, timeline.file)).job
    others = [timeline.file.name for timeline in timelines if timeline.job != newest]
    if others:
        notes.append(f"{_shorten(others)}: of an earlier run, and left out.")
    return [timeline for timeline in timelines if timeline.job == newest]


def _ahead(readings: list[tuple[int, int, int]], when: int) -> int:
    """How far rank 0's clock is ahead: on a straight line between the readings."""
    i = min(max(bisect_right(readings, (when, 0, 0)), 1), len(readings) - 1)
    (first, low, _), (second, high, _) = readings[i - 1], readings[i]
    return low if first == second else low + (high - low) * (when - first) // (second - first)


def _align(timelines: dict[int, Timeline], notes: list[str]) -> None:
    """Times become those of rank 0's clock. Ranks with the same clock share what was found of it."""
    readings: dict[str, list[tuple[int, int, int]]] = {}
    for timeline in timelines.values():
        readings.setdefault(timeline.clock, []).extend(timeline.readings)
    unknown = sorted(clock for clock, found in readings.items() if not found)
    if len(unknown) > 1:
        hosts = sorted({timeline.host for timeline in timelines.values() if timeline.clock in unknown})
        notes.append(
            f"The clocks of {_shorten(hosts)} were not compared: times of ranks on different ones do not fit together."
        )
    for clock, found in readings.items():
        readings[clock] = sorted(set(found))
    for timeline in timelines.values():
        known = readings[timeline.clock]
        for call in timeline.calls if known else ():
            ahead = _ahead(known, call.begin)
            call.begin += ahead
            if call.is_over:
                call.end += ahead


def _end(timelines: dict[int, Timeline]) -> tuple[int, int]:
    """The first and the last moment that is known; calls that did not end last until the latter."""
    calls = [call for timeline in timelines.values() for call in timeline.calls]
    begin = min((call.begin for call in calls), default=0)
    end = max((max(call.begin, call.end) for call in calls), default=begin)
    for call in calls:
        if not call.is_over:
            call.end = end
    return begin, end


def read(directory: Path) -> Job:
    """The run whose timelines are in a directory.

    Args:
        directory: what ``MPIXLA_TRACE`` named.

    Raises:
        FileNotFoundError: if there is no timeline in it; the message is a sentence.
    """
    notes: list[str] = []
    found: list[Timeline] = []
    for file in sorted(directory.glob(layout.GLOB)):
        try:
            found.append(read_file(file))
        except OSError as e:
            notes.append(f"{file.name} cannot be read: {e.strerror}.")
        except ValueError as e:
            notes.append(str(e))
    old = [file.name for file in sorted(directory.glob("rank-*.json"))]
    if old:
        notes.append(
            f"{_shorten(old)}: of an earlier version of mpixla, and left out; python -m mpixla.trace of that version "
            "reads them."
        )
    if not found:
        raise FileNotFoundError(
            f"There is no timeline in {directory}. Run the program with MPIXLA_TRACE={directory} first."
            + "".join(f" {note}" for note in notes)
        )
    found = _choose_run(found, notes)
    timelines = dict[int, Timeline]()
    for timeline in found:
        if timelines.setdefault(timeline.rank, timeline) is not timeline:
            other = timelines[timeline.rank].file.name
            notes.append(f"{timeline.file.name} is of rank {timeline.rank}, as {other} is, and left out.")
    ranks = max(timeline.ranks for timeline in timelines.values())
    missing = [str(rank) for rank in range(min(ranks, max(timelines) + 10**4)) if rank not in timelines]
    if missing:
        notes.append(f"No timeline of rank {_shorten(missing)}: it made no call, or wrote elsewhere.")
    for timeline in timelines.values():
        if timeline.damaged:
            what = "1 record is" if timeline.damaged == 1 else f"{timeline.damaged} records are"
            notes.append(f"{timeline.file.name}: {what} damaged and left out.")
        if timeline.stopped:
            notes.append(f"{timeline.file.name} ends before the program did: {timeline.stopped}.")
    _align(timelines, notes)
    begin, end = _end(timelines)
    return Job(timelines, ranks, begin, end, notes)
