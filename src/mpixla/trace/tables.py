"""Where the time went: by operation, by line of the source, by rank, and who waited for whom."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .read import Call, Job

UNKNOWN = "an unknown line"


@dataclass(slots=True)
class Sum:
    """Of several calls; times in nanoseconds."""

    calls: int = 0
    time: int = 0
    gpu: int = 0
    waiting: int = 0
    moving: int = 0
    sends: int = 0
    receives: int = 0

    def add(self, call: Call) -> None:
        """Counts a call in."""
        self.calls += 1
        self.time += call.time
        self.gpu += call.ready - call.begin
        self.waiting += call.waiting
        self.moving += call.moving
        self.sends += call.sends
        self.receives += call.receives


def group(calls: Iterable[Call], key: Callable[[Call], tuple[str, ...]]) -> dict[tuple[str, ...], Sum]:
    """The sums of the calls that have the same key."""
    sums: dict[tuple[str, ...], Sum] = defaultdict(Sum)
    for call in calls:
        sums[key(call)].add(call)
    return sums


@dataclass(slots=True)
class Wait:
    """What a rank waited for another one."""

    waiting: int = 0
    calls: int = 0
    lines: Counter[str] | None = None  # nanoseconds, by the line of the one who waited

    def add(self, call: Call) -> None:
        """Counts a call in."""
        self.waiting += call.waiting
        self.calls += 1
        self.lines = Counter() if self.lines is None else self.lines
        self.lines[call.site or UNKNOWN] += call.waiting


def who_waited(job: Job) -> dict[tuple[int, int], Wait]:
    """By who waited and for whom."""
    waits: dict[tuple[int, int], Wait] = defaultdict(Wait)
    for call in job.calls():
        if call.late is not None and call.waiting > 0:
            waits[call.rank, call.late].add(call)
    return waits


# Words

_UNITS = ((10**9, "s"), (10**6, "ms"), (10**3, "us"))


class Unit:
    """One for all times of a table: the largest in which the greatest of them is 1 or more."""

    def __init__(self, greatest: int) -> None:
        self._nanoseconds, self.name = next((unit for unit in _UNITS if greatest >= unit[0]), _UNITS[-1])

    def __call__(self, nanoseconds: int) -> str:
        """The time, without the unit."""
        return f"{nanoseconds / self._nanoseconds:.3f}"


def amount(count: int) -> str:
    """Bytes in words."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def _table(title: str, heads: list[str], rows: list[list[str]], words: int, most: int) -> str:
    """Columns: the first `words` to the left, numbers to the right."""
    shown, left_out = rows[:most], len(rows) - most
    widths = [max(map(len, column)) for column in zip(heads, *shown, strict=True)]
    lines = [title]
    for row in (heads, *shown):
        cells = [
            cell.ljust(n) if i < words else cell.rjust(n) for i, (cell, n) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  " + "  ".join(cells).rstrip())
    if left_out > 0:
        lines.append(f"  ... and {left_out:,} more (--rows)")
    return "\n".join(lines) + "\n"


def _sums(title: str, heads: list[str], sums: dict[tuple[str, ...], Sum], unit: Unit, most: int, has_gpu: bool) -> str:
    ordered = sorted(sums.items(), key=lambda item: (-item[1].time, item[0]))
    times = ["time", "gpu", "waiting", "moving"] if has_gpu else ["time", "waiting", "moving"]
    rows = []
    for key, s in ordered:
        gpu = [unit(s.gpu)] if has_gpu else []
        values = [unit(s.time), *gpu, unit(s.waiting), unit(s.moving), amount(s.sends), amount(s.receives)]
        rows.append([*key, f"{s.calls:,}", *values])
    return _table(title, [*heads, "calls", *times, "sends", "receives"], rows, len(heads), most)


def _ranks(job: Job, waits: dict[tuple[int, int], Wait], unit: Unit, most: int) -> str:
    caused: Counter[int] = Counter()
    for (_, late), wait in waits.items():
        caused[late] += wait.waiting
    sums = {rank: Sum() for rank in job.timelines}
    for call in job.calls():
        sums[call.rank].add(call)
    rows = []
    # Who held the others up comes first.
    for rank, s in sorted(sums.items(), key=lambda item: (-caused[item[0]], -item[1].time, item[0])):
        outside = max(0, job.end - job.begin - s.time)
        values = [unit(outside), unit(s.time), unit(s.waiting), unit(s.moving), unit(caused[rank])]
        rows.append([str(rank), job.timelines[rank].host, f"{s.calls:,}", *values, amount(s.sends), amount(s.receives)])
    heads = ["rank", "host", "calls", "outside", "in calls", "waiting", "moving", "others waited", "sends", "receives"]
    return _table(f"By rank, in {unit.name}: whom the others waited for most comes first", heads, rows, 2, most)


def _who(waits: dict[tuple[int, int], Wait], unit: Unit, most: int) -> str:
    rows = []
    for (rank, late), wait in sorted(waits.items(), key=lambda item: (-item[1].waiting, item[0])):
        line, share = wait.lines.most_common(1)[0] if wait.lines else (UNKNOWN, 0)
        rows.append([f"rank {rank}", f"rank {late}", line, unit(wait.waiting), f"{wait.calls:,}", unit(share)])
    heads = ["who", "for whom", "mostly at", "waiting", "calls", "of it there"]
    return _table(f"Who waited for whom, in {unit.name}", heads, rows, 3, most)


def tables(job: Job, most: int) -> str:
    """All tables as text, the worst first, with at most so many rows each."""
    calls = list(job.calls())
    whole = Sum()
    for call in calls:
        whole.add(call)
    unit = Unit(max(whole.time, job.end - job.begin))
    share = f"{100 * whole.waiting / whole.time:.0f} % of it waiting" if whole.time else "none of it waiting"
    ranks = f"{len(job.timelines)} of {job.ranks}" if len(job.timelines) < job.ranks else str(job.ranks)
    has_gpu = any(call.transport for call in calls)
    by_op = group(calls, lambda call: (call.title,))
    by_line = group(calls, lambda call: (call.site or UNKNOWN, call.title))
    waits = who_waited(job)
    span = unit(job.end - job.begin)
    parts = [
        f"{ranks} {'rank' if job.ranks == 1 else 'ranks'}, {whole.calls:,} calls in {span} {unit.name}; "
        f"{unit(whole.time)} {unit.name} in calls, added over the ranks, {share}.\n",
        _sums(f"By operation, in {unit.name}", ["operation"], by_op, unit, most, has_gpu),
        _sums(f"By line, in {unit.name}", ["line", "operation"], by_line, unit, most, has_gpu),
        _ranks(job, waits, unit, most),
    ]
    if waits:
        parts.append(_who(waits, unit, most))
    return "\n".join(parts)
