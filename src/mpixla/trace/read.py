"""Timelines from files. All undamaged records are read, also from the file of an aborted job or a damaged file."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from operator import attrgetter
from pathlib import Path
from sys import intern
from typing import Any

import numpy as np

from . import layout
from .layout import Kind

# More ranks than any job has: a record with a greater number is damaged.
_MOST_RANKS = 10**7
_BLOCK = 4096

_KINDS_OF_PARTS = (Kind.TEXT, Kind.MEMBERS, Kind.SOURCES, Kind.DESTS)


@dataclass(frozen=True, slots=True)
class Comm:
    """A communicator, from the timeline of one of its ranks."""

    name: str
    members: tuple[int, ...]  # by rank: ranks of MPI_COMM_WORLD, or NOBODY; () if the file has no members
    group: tuple[Any, ...]  # a key of the communicator, equal on all its ranks
    position: int  # the rank in this communicator
    number: int  # the communicator's number in the process
    neighbours: dict[int, tuple[int, ...]]  # lists of ranks, by their kinds


@dataclass(slots=True, eq=False)
class Call:
    """A call of a rank. Times are nanoseconds from the first call of the job; ranks are ranks of MPI_COMM_WORLD."""

    rank: int
    comm: Comm
    begin: int
    end: int  # the end of the timelines, if the call did not end
    is_over: bool
    has_failed: bool
    category: str  # "collective", "message", "start" of a request, or "wait" for one
    meeting: str  # the dependences between the ranks of a collective call
    sequence: int | None  # the number of a collective call on its communicator
    is_reverse: bool  # ranks count from the last one
    windows: str  # "sent", "received" or both: messages that are boxes of arrays, read or written where they lie
    root: int | None
    to: int | None
    sendtag: int | None  # for a call that sends a message, also to MPI.PROC_NULL
    source: int | None  # or ANY
    recvtag: int | None  # or ANY; for a call that receives a message
    sources: tuple[int, ...]
    sends: int  # bytes
    receives: int
    items: int | None
    request: str
    gpu: int  # the time of the initial wait for the GPU
    thread: int
    # Texts, "" for none:
    op: str
    mpi: str  # MPI's function
    site: str
    dtype: str
    reduction: str
    waits_for: str  # the operation that it waits for
    started_at: str
    transport: str  # the transport of GPU arrays
    # Set when the file has been read:
    lane: int = 0
    wait: "Call | None" = None  # the wait for the request that this call starts
    # Set by match.py:
    waiting: int = 0  # the part of its time, from `ready` on, in which it waits for another rank
    late: int | None = None  # the rank that it waited for
    late_call: "Call | None" = None  # that rank's call

    @property
    def ready(self) -> int:
        """The time when it began to communicate, after the wait for the GPU."""
        return min(self.begin + self.gpu, self.end)

    @property
    def time(self) -> int:
        """The duration."""
        return self.end - self.begin

    @property
    def moving(self) -> int:
        """The time without the waits for the GPU and for other ranks: MPI moves data, or works."""
        return max(0, self.end - self.ready - self.waiting)

    @property
    def name(self) -> str:
        """The operation's name."""
        return "wait" if self.op.startswith("wait_") else self.op

    @property
    def title(self) -> str:
        """The operation in the user's words."""
        return f"wait for {self.waits_for}" if self.waits_for else self.name

    @property
    def line(self) -> str:
        """The user's line of source."""
        return self.site or "an unknown line"


@dataclass(slots=True)
class Timeline:
    """The content of a file: the calls of one rank."""

    file: Path
    rank: int
    ranks: int
    host: str
    job: str
    clock: str
    stopped: str  # the reason why it is incomplete, or ""
    readings: list[tuple[int, int, int]]  # when, ahead, round trip
    calls: list[Call]
    damaged: int  # the number of damaged records


@dataclass(slots=True)
class Job:
    """The timelines of a run."""

    timelines: dict[int, Timeline]  # by rank
    ranks: int
    time: int  # from its first call to the last time in the timelines
    notes: list[str]  # problems, a sentence each

    def all_calls(self) -> Iterator[Call]:
        """Yield all calls, rank by rank, in the order of their beginnings."""
        for rank in sorted(self.timelines):
            yield from self.timelines[rank].calls


def _decode_text(raw: bytes | bytearray) -> str:
    text = raw.split(b"\0", 1)[0].decode(errors="replace")
    return intern("".join(c if c.isprintable() else "?" for c in text))


def _decode_numbers(raw: bytearray) -> tuple[int, ...]:
    return tuple(np.frombuffer(raw, "i4", len(raw) // 4).tolist())


def _expand_runs(parts: tuple[int, ...], size: int) -> tuple[int, ...] | None:
    """Return the ranks in runs (first, count, step), ``size`` of them or none; None if the runs are invalid."""
    found: list[int] = []
    for first, count, step in zip(parts[::3], parts[1::3], parts[2::3], strict=False):
        if not 0 < count <= size - len(found):
            return None
        found += [first + i * step for i in range(count)]
    is_right = not found or (len(found) == size and layout.NOBODY <= min(found) <= max(found) < _MOST_RANKS)
    return tuple(found) if is_right else None


def _record_dicts(records: Any) -> Iterator[dict[str, Any]]:
    """Yield records as dicts, converted in blocks, since all at once would take much memory."""
    for first in range(0, len(records), _BLOCK):
        for values in records[first : first + _BLOCK].tolist():
            yield dict(zip(records.dtype.names, values, strict=True))


# By kind and number: the bytes of texts and of lists.
_Parts = dict[tuple[int, int], bytearray]


def _convert_communicators(records: Any, parts: _Parts, agreed: dict[int, int]) -> dict[int, Comm]:
    """Return a file's communicators by their numbers, without those whose records are damaged.

    The group of a communicator is its agreed number, or else its name, members and size; in either case with a counter
    of the communicators with the same key.
    """
    made: dict[int, Comm] = {}
    alike: Counter[Any] = Counter()
    for r in _record_dicts(records):
        number, name, size = r["number"], _decode_text(r["name"]), r["size"]
        members = _expand_runs(_decode_numbers(parts[Kind.MEMBERS, number]), size)
        if members is None or not 0 <= r["rank"] < size <= _MOST_RANKS or number in made:
            continue
        group = agreed.get(r["in_process"], (name, members, size))
        neighbours = {int(kind): _decode_numbers(parts[kind, number]) for kind in (Kind.SOURCES, Kind.DESTS)} | {0: ()}
        made[number] = Comm(name, members, (group, alike[group]), r["rank"], r["in_process"], neighbours)
        alike[group] += 1
    return made


def _convert_record(rank: int, r: dict[str, Any], comms: dict[int, Comm], texts: dict[int, str]) -> Call:
    """Convert a record of a file into a ``Call``, negative numbers to None; raise LookupError if it is damaged."""
    comm, is_over, to, source = comms[r["number"]], r["state"] != layout.OPEN, r["to"], r["from"]
    # Negative numbers stand for None.
    known: dict[str, Any] = {n: r[n] if r[n] >= 0 else None for n in ("sequence", "root", "to", "items")}
    said: dict[str, Any] = {name: texts[r[name]] for name in layout.TEXTS}
    return Call(
        rank=rank,
        comm=comm,
        begin=r["began"],
        end=r["began"] + r["took"] if is_over else -1,
        is_over=is_over,
        has_failed=r["state"] == layout.FAILED,
        category=layout.CATEGORIES[r["category"]],
        meeting=layout.MEETINGS[r["meeting"]],
        is_reverse=bool(r["is_reverse"]),
        windows=layout.WINDOWS[r["windows"]],
        sendtag=None if to == layout.NONE else r["sendtag"],
        source=source if source >= layout.ANY else None,
        recvtag=None if source == layout.NONE else r["recvtag"],
        sources=comm.neighbours[r["neighbours"]],
        request="" if r["request"] < 0 else f"{r['request']}.{r['generation']}",
        gpu=max(0, r["gpu"]) if is_over else 0,
        sends=r["sends"],
        receives=r["receives"],
        thread=r["thread"],
        **known,
        **said,
    )


def _convert_records(rank: int, records: Any, comms: dict[int, Comm], parts: _Parts) -> Iterator[Call]:
    """Yield the calls of a timeline's records, without the damaged ones."""
    texts = {number: _decode_text(raw) for (kind, number), raw in parts.items() if kind == Kind.TEXT} | {0: ""}
    for row in _record_dicts(records):
        with suppress(LookupError, ValueError):  # a damaged record
            yield _convert_record(rank, row, comms, texts)


def _assign_lanes(calls: list[Call]) -> None:
    """Set each call's ``lane``, the first row of its rank's timeline that no other call occupies at that time.

    Threads would not do as lanes, since XLA moves programs from thread to thread.
    """
    taken: list[float] = []  # by lane: the end of its last call
    for call in calls:
        call.lane = next((lane for lane, end in enumerate(taken) if end <= call.begin), len(taken))
        taken[call.lane : call.lane + 1] = [call.end if call.is_over else inf]


def _pair_requests(calls: list[Call]) -> None:
    """Set ``wait`` of each call that starts a request to the call that waits for that request."""
    started: dict[str, Call] = {}
    for call in calls:
        if call.request and call.category == "start":
            started[call.request] = call
        elif call.request in started:
            started.pop(call.request).wait = call


def read_file(file: Path) -> Timeline:
    """Read a timeline's file; raise OSError, or ValueError with a sentence if it is none or of another version.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it is no timeline, or one of another version; the message is a sentence.
    """
    data = file.read_bytes()
    if len(data) < layout.HEADER.itemsize or not data.startswith(layout.MAGIC + b"\0"):
        raise ValueError(f"{file.name} is no timeline, or its beginning is damaged: it does not say whose it is.")
    header = next(_record_dicts(np.frombuffer(data, layout.HEADER, 1)))
    if (header["version"], header["record_bytes"]) != (layout.VERSION, layout.BYTES):
        raise ValueError(
            f"{file.name} was written by another version of mpixla, whose timelines have layout {header['version']} "
            f"where this one reads layout {layout.VERSION}: read it with python -m mpixla.trace of that version."
        )
    rank, ranks = header["rank"], header["ranks"]
    if not 0 <= rank < ranks <= _MOST_RANKS:
        raise ValueError(f"{file.name} is damaged: it says that it is of rank {rank} of {ranks}.")
    start, count = layout.HEADER.itemsize, (len(data) - layout.HEADER.itemsize) // layout.BYTES
    records = np.frombuffer(data, layout.CALL, count, start)
    kinds = records["kind"]
    parts: _Parts = defaultdict(bytearray)
    for part in _record_dicts(records[np.isin(kinds, _KINDS_OF_PARTS)].view(layout.PART)):
        parts[part["kind"], part["number"]] += part["bytes"][: part["used"]]
    agreed = {r["in_process"]: r["agreed"] for r in _record_dicts(records[kinds == Kind.AGREED].view(layout.AGREED))}
    comms = _convert_communicators(records[kinds == Kind.COMMUNICATOR].view(layout.COMMUNICATOR), parts, agreed)
    readings = records[kinds == Kind.CLOCK].view(layout.CLOCK)[["when", "ahead", "round_trip"]].tolist()
    calls = sorted(_convert_records(rank, records[kinds == Kind.CALL], comms, parts), key=attrgetter("begin"))
    _assign_lanes(calls)
    _pair_requests(calls)
    # All other records have become communicators, readings or calls, or are damaged.
    others = int(np.isin(kinds, (Kind.NOTHING, Kind.AGREED, *_KINDS_OF_PARTS), invert=True).sum())
    damaged = others - len(comms) - len(readings) - len(calls) + any(data[start + count * layout.BYTES :])
    texts = {name: _decode_text(header[name]) for name in ("host", "job", "clock", "stopped")}
    return Timeline(file, rank, ranks, **texts, readings=readings, calls=calls, damaged=damaged)


def shorten_list(words: list[Any]) -> str:
    """Return the first eight words, and the number of further ones, as a text."""
    return ", ".join(map(str, words[:8])) + (f" and {len(words) - 8} more" if len(words) > 8 else "")


def _choose_run(timelines: list[Timeline], notes: list[str]) -> dict[int, Timeline]:
    """Return the timelines of the newest run in the directory by rank; add a note about other runs."""
    newest = max(timelines, key=lambda timeline: (timeline.file.stat().st_mtime, timeline.file)).job
    others = [timeline.file.name for timeline in timelines if timeline.job != newest]
    if others:
        notes.append(f"{shorten_list(others)}: of an earlier run, and left out.")
    return {timeline.rank: timeline for timeline in timelines if timeline.job == newest}


def _clock_offset(readings: list[tuple[int, int, int]], when: int) -> int:
    """Return by how much rank 0's clock is ahead at a time, inter- or extrapolated linearly from two readings."""
    i = min(max(bisect_right(readings, (when, 0, 0)), 1), len(readings) - 1)
    (first, low, _), (second, high, _) = readings[i - 1], readings[i]
    return low if first == second else low + (high - low) * (when - first) // (second - first)


def _align_clocks(timelines: dict[int, Timeline], notes: list[str]) -> None:
    """Shift all calls' times to rank 0's clock by the readings; note if clocks of several hosts were not compared."""
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
                ahead = _clock_offset(readings, call.begin)
                call.begin += ahead
                call.end += ahead
    if len(unknown) > 1:
        hosts = sorted({timeline.host for alike in unknown for timeline in alike})
        notes.append(
            f"The clocks of {shorten_list(hosts)} were not compared: times of ranks on different ones do not fit "
            "together."
        )


def _begin_at_zero(calls: list[Call]) -> int:
    """Shift times so that the first call begins at 0, and return the last time, at which unfinished calls end."""
    first = min((call.begin for call in calls), default=0)
    last = max((call.end if call.is_over else call.begin for call in calls), default=first)
    for call in calls:
        call.end = (call.end if call.is_over else last) - first
        call.begin -= first
    return last - first


def read_timelines(directory: Path) -> Job:
    """Return the newest run's timelines in a directory as a Job, on rank 0's clock from 0 on, with notes on problems.

    Args:
        directory: the directory that ``MPIXLA_TRACE`` named.

    Raises:
        FileNotFoundError: if there is no timeline in it; the message is a sentence.
    """
    notes: list[str] = []
    found: list[Timeline] = []
    if directory.is_file():
        raise FileNotFoundError(
            f"{directory} is a file. Name the directory of all ranks' timelines: {directory.parent}."
        )
    for file in sorted(directory.glob(layout.GLOB)):
        try:
            found.append(read_file(file))
        except OSError as e:
            notes.append(f"{file.name} cannot be read: {e.strerror}.")
        except ValueError as e:
            notes.append(str(e))
    if spawned := sorted({str(file.parent) for file in directory.glob(f"spawned-*/{layout.GLOB}")}):
        notes.append(f"Processes that were spawned have timelines of their own: in {shorten_list(spawned)}.")
    if not found:
        raise FileNotFoundError(
            f"There is no timeline in {directory}. Run the program with MPIXLA_TRACE={directory} first."
            + "".join(f" {note}" for note in notes)
        )
    timelines = _choose_run(found, notes)
    ranks = max(timeline.ranks for timeline in timelines.values())
    missing = [rank for rank in range(min(ranks, max(timelines) + 10**4)) if rank not in timelines]
    if missing:
        notes.append(
            f"No timeline of rank {shorten_list(missing)}: it made no call, wrote elsewhere, or its file is damaged. "
            "Waits for it count as moving."
        )
    for timeline in timelines.values():
        if timeline.damaged:
            what = "1 record is" if timeline.damaged == 1 else f"{timeline.damaged} records are"
            notes.append(f"{timeline.file.name}: {what} damaged and left out.")
        if timeline.stopped:
            notes.append(f"{timeline.file.name} ends before the program did: {timeline.stopped}.")
    _align_clocks(timelines, notes)
    job = Job(timelines, ranks, 0, notes)
    job.time = _begin_at_zero(list(job.all_calls()))
    return job
