"""Timelines from files, as far as they are whole: a file of an aborted job, or a damaged one, tells what it can."""

import heapq
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
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
    number: int  # in the process
    neighbours: dict[int, tuple[int, ...]]  # lists of ranks, by their kinds


@dataclass(slots=True, eq=False)
class Call:
    """One call of one rank. Times are nanoseconds from the first call of all, ranks those of MPI_COMM_WORLD."""

    rank: int
    comm: Membership
    begin: int
    end: int  # of what is known, if it did not end
    is_over: bool
    has_failed: bool
    category: str  # "collective", "message", "start" of a request, or "wait" for one
    meeting: str  # of a collective call: who waits for whom
    sequence: int | None  # of a collective call in its group
    is_reverse: bool  # ranks count from the last one
    root: int | None
    to: int | None
    sendtag: int | None  # of a call that sends a message, also to nobody
    source: int | None  # or ANY
    recvtag: int | None  # or ANY; of a call that receives a message
    sources: tuple[int, ...]
    sends: int  # bytes
    receives: int
    items: int | None
    request: str
    gpu: int  # it first waited so long for the GPU
    thread: int
    # Texts, "" for none:
    op: str
    mpi: str  # MPI's function
    site: str
    dtype: str
    reduction: str
    waits_for: str  # the operation that it waits for
    started_at: str
    transport: str  # of arrays of a GPU
    # What is found when all have been read:
    lane: int = 0
    wait: "Call | None" = None  # for the request that it starts
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
    def name(self) -> str:
        """The operation."""
        return "wait" if self.op.startswith("wait_") else self.op

    @property
    def title(self) -> str:
        """The operation, as its user calls it."""
        return f"wait for {self.waits_for}" if self.waits_for else self.name

    @property
    def line(self) -> str:
        """The user's."""
        return self.site or "an unknown line"


@dataclass(slots=True)
class Timeline:
    """What a file says."""

    file: Path
    rank: int
    ranks: int
    host: str
    job: str
    clock: str
    stopped: str  # why it is not complete
    readings: list[tuple[int, int, int]] = field(default_factory=list)  # when, ahead, round trip
    calls: list[Call] = field(default_factory=list)
    damaged: int = 0  # records that say what cannot be


@dataclass(slots=True)
class Job:
    """The timelines of a run."""

    timelines: dict[int, Timeline]  # by rank
    ranks: int
    time: int  # from its first call to the last moment that is known
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


def _known(value: int) -> int | None:
    """What stands for nothing is negative."""
    return value if value >= 0 else None


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


def _rows(records: Any) -> Iterator[dict[str, Any]]:
    """Some after the other: all at once would take much memory."""
    for first in range(0, len(records), _BLOCK):
        for values in records[first : first + _BLOCK].tolist():
            yield dict(zip(records.dtype.names, values, strict=True))


class _Reader:
    """Reads the records of one file. All that others refer to comes first."""

    def __init__(self, timeline: Timeline, records: Any) -> None:
        self._timeline = timeline
        self._comms: dict[int, Membership] = {}  # by the number in the file
        self._alike: Counter[Any] = Counter()
        self._lists: dict[tuple[int, int], bytearray] = defaultdict(bytearray)  # by kind and number
        kinds = records["kind"]
        timeline.damaged += int((kinds > max(Kind)).sum())
        parts = np.isin(kinds, [Kind.TEXT, Kind.MEMBERS, Kind.SOURCES, Kind.DESTS])
        for part in _rows(records[parts].view(layout.PART)):
            self._lists[part["kind"], part["number"]] += part["bytes"][: part["used"]]
        self._texts = {number: _text(bytes(raw)) for (kind, number), raw in self._lists.items() if kind == Kind.TEXT}
        self._texts[0] = ""
        self._each(records[kinds == Kind.COMMUNICATOR].view(layout.COMMUNICATOR), self._communicator)
        self._each(records[kinds == Kind.CLOCK].view(layout.CLOCK), self._clock)
        self._each(records[kinds == Kind.CALL], self._call)

    def _each(self, records: Any, read: Callable[[dict[str, Any]], None]) -> None:
        for record in _rows(records):
            try:
                read(record)
            except (_DamageError, LookupError):  # the latter: it names what is not there
                self._timeline.damaged += 1

    def _list(self, kind: int, number: int) -> list[int]:
        raw = self._lists[kind, number]
        found: list[int] = np.frombuffer(raw[: len(raw) // 4 * 4], "i4").tolist()
        return found

    def _communicator(self, r: dict[str, Any]) -> None:
        number, size = r["number"], _checked(r["size"], 1, _MOST_RANKS)
        if number in self._comms:
            raise _DamageError
        name, members = _text(r["name"]), _members(self._list(Kind.MEMBERS, number), size)
        group = Group(name, size, members, self._alike[name, members, size])
        self._alike[name, members, size] += 1
        neighbours: dict[int, tuple[int, ...]] = {0: ()}
        neighbours |= {kind: tuple(self._list(kind, number)) for kind in (Kind.SOURCES, Kind.DESTS)}
        self._comms[number] = Membership(group, _checked(r["rank"], 0, size - 1), r["in_process"], neighbours)

    def _clock(self, r: dict[str, Any]) -> None:
        reading = _checked(r["when"]), _checked(r["ahead"], -_MOST), _checked(r["round_trip"])
        self._timeline.readings.append(reading)

    def _call(self, r: dict[str, Any]) -> None:
        comm, begin, is_over = self._comms[r["number"]], _checked(r["began"]), r["state"] != layout.OPEN
        texts: dict[str, Any] = {name: self._texts[r[name]] for name in layout.TEXTS}
        root, to, source = r["root"], r["to"], r["from"]
        if not texts["op"] or r["state"] > layout.FAILED or layout.ANY in (root, to):
            raise _DamageError
        if min(root, to, source) < layout.NONE or max(root, to, source) >= _MOST_RANKS:
            raise _DamageError
        self._timeline.calls.append(
            Call(
                rank=self._timeline.rank,
                comm=comm,
                begin=begin,
                end=begin + _checked(r["took"]) if is_over else -1,
                is_over=is_over,
                has_failed=r["state"] == layout.FAILED,
                category=layout.CATEGORIES[r["category"]],
                meeting=layout.MEETINGS[r["meeting"]],
                sequence=_known(_checked(r["sequence"], -1)),
                is_reverse=bool(r["is_reverse"]),
                root=_known(root),
                to=_known(to),
                sendtag=None if to == layout.NONE else r["sendtag"],
                source=source if source >= layout.ANY else None,
                recvtag=None if source == layout.NONE else r["recvtag"],
                sources=comm.neighbours[r["neighbours"]],
                sends=_checked(r["sends"]),
                receives=_checked(r["receives"]),
                items=_known(r["items"]),
                request="" if r["request"] < 0 else f"{r['request']}.{r['generation']}",
                gpu=max(0, _checked(r["gpu"], -1)) if is_over else 0,
                thread=r["thread"],
                **texts,
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


def _pair_requests(calls: list[Call]) -> None:
    started: dict[str, Call] = {}
    for call in calls:
        if call.request and call.category == "start":
            started[call.request] = call
        elif call.request in started:
            started.pop(call.request).wait = call


def read_file(file: Path) -> Timeline:
    """The timeline of a file.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it is no timeline that can be read here; the message is a sentence.
    """
    data = file.read_bytes()
    if len(data) < layout.HEADER.itemsize or not data.startswith(layout.MAGIC + b"\0"):
        raise ValueError(f"{file.name} is no timeline, or its beginning is damaged: it does not say whose it is.")
    header = next(_rows(np.frombuffer(data, layout.HEADER, 1)))
    if (header["version"], header["record_bytes"]) != (layout.VERSION, layout.BYTES):
        raise ValueError(
            f"{file.name} was written by another version of mpixla, whose timelines have layout {header['version']} "
            f"where this one reads layout {layout.VERSION}: read it with python -m mpixla.trace of that version."
        )
    rank, ranks = header["rank"], header["ranks"]
    if not 0 <= rank < ranks <= _MOST_RANKS:
        raise ValueError(f"{file.name} is damaged: it says that it is of rank {rank} of {ranks}.")
    host, job, clock, stopped = (_text(header[name]) for name in ("host", "job", "clock", "stopped"))
    timeline = Timeline(file, rank, ranks, host, job, clock, stopped)
    body = data[layout.HEADER.itemsize :]
    whole = len(body) // layout.BYTES * layout.BYTES
    timeline.damaged = int(any(body[whole:]))
    _Reader(timeline, np.frombuffer(body[:whole], layout.CALL))
    timeline.calls.sort(key=lambda call: call.begin)
    _give_lanes(timeline.calls)
    _pair_requests(timeline.calls)
    return timeline


def _shorten(words: list[str]) -> str:
    return ", ".join(words[:8]) + (f" and {len(words) - 8} more" if len(words) > 8 else "")


def _choose_run(timelines: list[Timeline], notes: list[str]) -> dict[int, Timeline]:
    """A directory may have files of several runs: those of the newest, by rank."""
    newest = max(timelines, key=lambda timeline: (timeline.file.stat().st_mtime, timeline.file)).job
    others = [timeline.file.name for timeline in timelines if timeline.job != newest]
    if others:
        notes.append(f"{_shorten(others)}: of an earlier run, and left out.")
    chosen: dict[int, Timeline] = {}
    for timeline in timelines:
        if timeline.job == newest and chosen.setdefault(timeline.rank, timeline) is not timeline:
            other = chosen[timeline.rank].file.name
            notes.append(f"{timeline.file.name} is of rank {timeline.rank}, as {other} is, and left out.")
    return chosen


def _ahead(readings: list[tuple[int, int, int]], when: int) -> int:
    """How far rank 0's clock is ahead: on a straight line between the readings."""
    i = min(max(bisect_right(readings, (when, 0, 0)), 1), len(readings) - 1)
    (first, low, _), (second, high, _) = readings[i - 1], readings[i]
    return low if first == second else low + (high - low) * (when - first) // (second - first)


def _align(timelines: dict[int, Timeline], notes: list[str]) -> None:
    """Times become those of rank 0's clock. Ranks with the same clock share what was found of it."""
    clocks: dict[str, list[Timeline]] = defaultdict(list)
    for timeline in timelines.values():
        clocks[timeline.clock].append(timeline)
    unknown = []
    for alike in clocks.values():
        readings = sorted({reading for timeline in alike for reading in timeline.readings})
        if not readings:
            unknown.append(alike)
            continue
        for timeline in alike:
            for call in timeline.calls:
                ahead = _ahead(readings, call.begin)
                call.begin += ahead
                call.end += ahead
    if len(unknown) > 1:
        hosts = sorted({timeline.host for alike in unknown for timeline in alike})
        notes.append(
            f"The clocks of {_shorten(hosts)} were not compared: times of ranks on different ones do not fit together."
        )


def _begin_at_zero(calls: list[Call]) -> int:
    """Times become those from the first call on. Returns the last one: calls that did not end last until then."""
    first = min((call.begin for call in calls), default=0)
    last = max((call.end if call.is_over else call.begin for call in calls), default=first)
    for call in calls:
        call.end = (call.end if call.is_over else last) - first
        call.begin -= first
    return last - first


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
    if not found:
        raise FileNotFoundError(
            f"There is no timeline in {directory}. Run the program with MPIXLA_TRACE={directory} first."
            + "".join(f" {note}" for note in notes)
        )
    timelines = _choose_run(found, notes)
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
    job = Job(timelines, ranks, 0, notes)
    job.time = _begin_at_zero(list(job.calls()))
    return job
