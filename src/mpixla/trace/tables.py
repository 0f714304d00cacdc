"""Tables of a job's time: by operation, by line of the source, by rank, and by pair of waiting ranks."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from .read import Call, Job


@dataclass(slots=True)
class CallTotals:
    """The number, times and bytes of several calls; times in nanoseconds."""

    calls: int = 0
    time: int = 0
    gpu: int = 0
    waiting: int = 0
    moving: int = 0
    sends: int = 0
    receives: int = 0

    def add_call(self, call: Call) -> None:
        """Count a call, and add its times and bytes to the sums."""
        self.calls += 1
        self.time += call.time
        self.gpu += call.ready - call.begin
        self.waiting += call.waiting
        self.moving += call.moving
        self.sends += call.sends
        self.receives += call.receives

    def format_waiting_share(self) -> str:
        """Return the share of waiting in the time, as a text."""
        return f"{100 * self.waiting / self.time:.0f} %" if self.time else "none"


def sum_by_key(calls: Iterable[Call], key: Callable[[Call], Any]) -> dict[Any, CallTotals]:
    """Return the sum of the calls of each key."""
    sums: dict[Any, CallTotals] = defaultdict(CallTotals)
    for call in calls:
        sums[key(call)].add_call(call)
    return sums


def sum_all(calls: Iterable[Call]) -> CallTotals:
    """Return the sum of all calls."""
    return sum_by_key(calls, lambda _: None)[None]


def sum_waits(job: Job) -> dict[tuple[int, int], CallTotals]:
    """Return the sum of the waiting calls for each pair of a waiting rank and the rank waited for."""
    waits = (call for call in job.all_calls() if call.late is not None)
    return sum_by_key(waits, lambda call: (call.rank, call.late))


# Texts


class TimeUnit:
    """A unit for all times of a table: the largest one in which the greatest time is at least 1."""

    def __init__(self, greatest: float) -> None:
        units = {"s": 10**9, "ms": 10**6, "us": 10**3}
        self.name = next((name for name, nanoseconds in units.items() if greatest >= nanoseconds), "us")
        self.nanoseconds = units[self.name]

    def __call__(self, nanoseconds: int) -> str:
        """Return a time in this unit as a text, without the unit."""
        return f"{nanoseconds / self.nanoseconds:.3f}"


def format_bytes(count: int) -> str:
    """Return a number of bytes as a text with a binary unit."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def _format_table(title: str, heads: list[str], rows: list[list[str]], words: int, most: int) -> str:
    """Return a table as text, at most ``most`` rows and the number of others; ``words`` columns aligned left."""
    shown, left_out = rows[:most], len(rows) - most
    widths = [max(map(len, column)) for column in zip(heads, *shown, strict=True)]
    sides = [str.ljust] * words + [str.rjust] * (len(heads) - words)
    lines = [title]
    for row in (heads, *shown):
        cells = [to_side(cell, width) for to_side, cell, width in zip(sides, row, widths, strict=True)]
        lines.append("  " + "  ".join(cells).rstrip())
    if left_out > 0:
        lines.append(f"  ... and {left_out:,} more (--rows)")
    return "\n".join(lines) + "\n"


def _sum_table(
    title: str, heads: list[str], sums: dict[Any, CallTotals], unit: TimeUnit, most: int, has_gpu: bool
) -> str:
    """Return a table of sums of calls as text, by descending time."""
    times = ["time", "gpu", "waiting", "moving"] if has_gpu else ["time", "waiting", "moving"]
    rows = []
    for key, s in sorted(sums.items(), key=lambda item: (-item[1].time, item[0])):
        values = [unit(getattr(s, time)) for time in times]
        rows.append([*key, f"{s.calls:,}", *values, format_bytes(s.sends), format_bytes(s.receives)])
    return _format_table(title, [*heads, "calls", *times, "sends", "receives"], rows, len(heads), most)


def _rank_table(job: Job, unit: TimeUnit, most: int) -> str:
    """Return the table with a row for each rank as text: its time in and outside calls, waiting and moving data."""
    sums = sum_by_key(job.all_calls(), lambda call: call.rank)
    caused = sum_by_key(job.all_calls(), lambda call: call.late)
    rows = []
    # The rank for which the others waited longest comes first.
    for rank in sorted(job.timelines, key=lambda rank: (-caused[rank].waiting, -sums[rank].time, rank)):
        s = sums[rank]
        values = [max(0, job.time - s.time), s.time, s.waiting, s.moving, caused[rank].waiting]
        bytes_ = [format_bytes(s.sends), format_bytes(s.receives)]
        rows.append([str(rank), job.timelines[rank].host, f"{s.calls:,}", *map(unit, values), *bytes_])
    heads = ["rank", "host", "calls", "outside", "in calls", "waiting", "moving", "others waited", "sends", "receives"]
    return _format_table(f"By rank, in {unit.name}: whom the others waited for most comes first", heads, rows, 2, most)


def _wait_table(job: Job, unit: TimeUnit, most: int) -> str:
    """Return the table of the waits of each rank for each other rank as text, with the line that waited longest."""
    lines: dict[tuple[int, int], Counter[str]] = defaultdict(Counter)
    for call in job.all_calls():
        if call.late is not None:
            lines[call.rank, call.late][call.line] += call.waiting
    rows = []
    for (rank, late), s in sorted(sum_waits(job).items(), key=lambda item: (-item[1].waiting, item[0])):
        ((line, share),) = lines[rank, late].most_common(1)
        rows.append([f"rank {rank}", f"rank {late}", line, unit(s.waiting), f"{s.calls:,}", unit(share)])
    heads = ["who", "for whom", "mostly at", "waiting", "calls", "of it there"]
    return _format_table(f"Who waited for whom, in {unit.name}", heads, rows, 3, most)


def format_tables(job: Job, most: int) -> str:
    """Return all tables as text, each sorted by descending time, with at most ``most`` rows."""
    calls = list(job.all_calls())
    whole = sum_all(calls)
    unit = TimeUnit(max(whole.time, job.time))
    ranks = f"{len(job.timelines)} of {job.ranks}" if len(job.timelines) < job.ranks else str(job.ranks)
    has_gpu = any(call.transport for call in calls)
    by_op = sum_by_key(calls, lambda call: (call.title,))
    by_line = sum_by_key(calls, lambda call: (call.line, call.title))
    parts = [
        f"{ranks} {'rank' if job.ranks == 1 else 'ranks'}, {whole.calls:,} calls in {unit(job.time)} {unit.name}; "
        f"{unit(whole.time)} {unit.name} in calls, added over the ranks, "
        f"{whole.format_waiting_share()} of it waiting.\n",
        _sum_table(f"By operation, in {unit.name}", ["operation"], by_op, unit, most, has_gpu),
        _sum_table(f"By line, in {unit.name}", ["line", "operation"], by_line, unit, most, has_gpu),
        _rank_table(job, unit, most),
    ]
    if whole.waiting:
        parts.append(_wait_table(job, unit, most))
    return "\n".join(parts)
