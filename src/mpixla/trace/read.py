"""Timelines from files, as far as they are whole: a file of an aborted job, or a damaged one, tells what it can."""

import json
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from sys import intern
from typing import Any

# More than any job has: what says more is damaged.
_MOST_RANKS = 10**7
_LONGEST_LINE = 2**20


@dataclass(frozen=True, slots=True)
class Group:
    """A communicator, the same for all of its ranks."""

    name: str
    size: int
    members: tuple[int, ...]  # ranks of MPI_COMM_WORLD in its order; () if the files do not say
    number: int  # tells those apart that have the same name and members


@dataclass(slots=True, eq=False)
class Call:
    """One call of one rank. Times are nanoseconds of rank 0's clock, ranks those of MPI_COMM_WORLD."""

    rank: int
    begin: int
    end: int  # of what is known, if it did not end
    name: str
    category: str  # "collective", "message", "start" of a request, or "wait" for one
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
    sendtag: int = 0
    source: int | str | None = None  # "any"
    recvtag: int | str = 0  # "any"
    sources: tuple[int, ...] = ()
    sends: int = 0  # bytes
    receives: int = 0
    request: str = ""
    waits_for: str = ""  # the operation that it waits for
    started_at: str = ""
    transport: str = ""  # of arrays of a GPU
    gpu: int = 0  # it first waited so long for the GPU
    place: int = 0  # of its line in the file, bytes
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
    groups: dict[int, tuple[Group, int]] = field(default_factory=dict)  # by the number here, with the rank in it
    calls: list[Call] = field(default_factory=list)
    stopped: str = ""  # why it is not complete
    damaged: int = 0  # lines that are no events


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
    """A line is no event of ours."""


def _integer(values: dict[str, Any], name: str, default: int | None = None, least: int = 0) -> int:
    value = values.get(name, default)
    if type(value) is not int or not least <= value < 2**63:
        raise _DamageError
    return value


def _text(values: dict[str, Any], name: str) -> str:
    value = values.get(name, "")
    if type(value) is not str:
        raise _DamageError
    return intern(value)


def _nanoseconds(values: dict[str, Any], name: str) -> int:
    value: Any = values.get(name)
    if type(value) not in (int, float) or not 0 <= value < 2**53:
        raise _DamageError
    return round(value * 1000)


def _object(value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise _DamageError
    return value


def _members(arguments: dict[str, Any], size: int) -> tuple[int, ...]:
    """From [first, how many, distance] of each part; () if there is no saying."""
    parts = arguments.get("members")
    if parts is None or "has_more" in arguments:
        return ()
    found: list[int] = []
    if type(parts) is not list:
        raise _DamageError
    for part in parts:
        if type(part) is not list or len(part) != 3 or any(type(item) is not int for item in part):
            raise _DamageError
        first, count, step = part
        if not 0 < count <= size - len(found) or not -_MOST_RANKS < step < _MOST_RANKS:
            raise _DamageError
        found.extend(range(first, first + count * step, step) if step else [first] * count)
    if len(found) != size or min(found) < 0 or max(found) >= _MOST_RANKS:
        raise _DamageError
    return tuple(found)


def _read_communicator(timeline: Timeline, arguments: dict[str, Any], seen: dict[Any, int]) -> None:
    size = _integer(arguments, "size", least=1)
    if size > _MOST_RANKS:
        raise _DamageError
    name, members, number = _text(arguments, "name"), _members(arguments, size), _integer(arguments, "number")
    rank = _integer(arguments, "rank")
    if number in timeline.groups:
        raise _DamageError
    alike = seen[name, members, size] = seen.get((name, members, size), -1) + 1
    timeline.groups[number] = (Group(name, size, members, alike), rank)


def _peer(arguments: dict[str, Any], name: str) -> int | str | None:
    value = arguments.get(name)
    return value if value is None or value == "any" else _integer(arguments, name)


def _read_call(timeline: Timeline, event: dict[str, Any], arguments: dict[str, Any], place: int) -> None:
    is_over = event["ph"] == "X"
    begin = _nanoseconds(event, "ts")
    name = _text(event, "name")
    to, root, sources = _peer(arguments, "to"), _peer(arguments, "root"), arguments.get("sources", ())
    known = timeline.groups.get(_integer(arguments, "number"))
    if not name or known is None or "any" in (to, root) or type(sources) not in (list, tuple):
        raise _DamageError
    if any(type(item) is not int for item in sources):
        raise _DamageError
    tag = arguments.get("recvtag", 0)
    timeline.calls.append(
        Call(
            rank=timeline.rank,
            begin=begin,
            end=begin + _nanoseconds(event, "dur") if is_over else -1,
            name="wait" if name.startswith("wait_") else name,
            category=_text(event, "cat"),
            lane=_integer(event, "tid"),
            is_over=is_over,
            has_failed=bool(arguments.get("failed")),
            site=_text(arguments, "site"),
            group=known[0],
            position=known[1],
            sequence=_integer(arguments, "sequence", -1, -1),
            is_reverse="reverse" in arguments,
            root=root if type(root) is int else None,
            to=to if type(to) is int else None,
            sendtag=_integer(arguments, "sendtag", 0),
            source=_peer(arguments, "from"),
            recvtag=tag if tag == "any" else _integer(arguments, "recvtag", 0),
            sources=tuple(sources),
            sends=_integer(arguments, "sends", 0),
            receives=_integer(arguments, "receives", 0),
            request=_text(arguments, "request"),
            waits_for=_text(arguments, "waits_for"),
            started_at=_text(arguments, "started_at"),
            transport=_text(arguments, "transport") if arguments.get("transport") else "",
            gpu=_nanoseconds(arguments, "gpu") if is_over and "gpu" in arguments else 0,
            place=place,
        )
    )


def _read_event(timeline: Timeline, event: dict[str, Any], seen: dict[Any, int], place: int) -> None:
    arguments, name = _object(event.get("args")), event.get("name")
    if event.get("ph") in ("X", "B"):
        _read_call(timeline, event, arguments, place)
    elif event.get("ph") != "M":
        raise _DamageError
    elif name == "mpixla_trace":
        timeline.rank, timeline.ranks = _integer(arguments, "rank"), _integer(arguments, "ranks", least=1)
        timeline.host, timeline.job = _text(arguments, "host"), _text(arguments, "job")
        timeline.clock = _text(arguments, "clock")
        if not timeline.rank < timeline.ranks <= _MOST_RANKS:
            raise _DamageError
    elif name == "mpixla_communicator":
        _read_communicator(timeline, arguments, seen)
    elif name == "mpixla_clock":
        when, ahead = _integer(arguments, "when"), _integer(arguments, "ahead", least=-(2**62))
        timeline.readings.append((when, ahead, _integer(arguments, "round_trip")))
    elif name == "mpixla_stopped":
        timeline.stopped = _text(arguments, "why")


def event_of(line: bytes) -> Any:
    """The JSON of a line: None if it is blank or a bracket, and an ellipsis if it is no JSON."""
    text = line.strip(b" ,\n")
    if text in (b"", b"[", b"]"):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return ...


def read_file(file: Path) -> Timeline:
    """The timeline of a file, line by line: each event has its own, so a torn one is left out alone.

    Raises:
        OSError: if the file cannot be read.
    """
    timeline, seen = Timeline(file), dict[Any, int]()
    with file.open("rb") as lines:
        place = 0
        while line := lines.readline(_LONGEST_LINE):
            event = event_of(line)
            if event is not None:
                try:
                    _read_event(timeline, _object(event), seen, place)
                except _DamageError:
                    timeline.damaged += 1
            place += len(line)
    timeline.calls.sort(key=lambda call: call.begin)
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
    for file in sorted(directory.glob("rank-*.json")):
        try:
            timeline = read_file(file)
        except OSError as e:
            notes.append(f"{file.name} cannot be read: {e.strerror}.")
            continue
        if timeline.rank < 0:
            notes.append(f"{file.name} is no timeline, or its beginning is damaged: it does not say whose it is.")
        else:
            found.append(timeline)
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
            what = "1 event is" if timeline.damaged == 1 else f"{timeline.damaged} events are"
            notes.append(f"{timeline.file.name}: {what} damaged and left out.")
        if timeline.stopped:
            notes.append(f"{timeline.file.name} ends before the program did: {timeline.stopped}.")
    _align(timelines, notes)
    begin, end = _end(timelines)
    return Job(timelines, ranks, begin, end, notes)
