"""One timeline of all ranks on one clock, with arrows for waits, for Perfetto and chrome://tracing."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .layout import ANY
from .read import Call, Job, Timeline

# Nanoseconds: arrows for shorter waits would hide arrows for longer ones.
_SHORTEST_ARROW = 1000

# Attributes of a call that the timeline has under the same names.
_SAID = (
    *("mpi", "site", "request", "waits_for", "started_at", "dtype", "transport"),
    *("root", "items", "sequence", "sources", "thread"),
)

# An event as viewers read it; its times are in microseconds.
Event = dict[str, Any]


def _event_arguments(call: Call) -> Event:
    """Return a call's known attributes by the names in the timeline, times in microseconds."""
    values = {
        "failed": int(call.has_failed),
        **{name: getattr(call, name) for name in _SAID},
        "op": call.reduction,
        "comm": call.comm.name,
        "number": call.comm.number,
        "gpu": call.gpu / 1000 if call.transport else None,
        "reverse": 1 if call.is_reverse else None,
        "window": call.windows,
        "waiting": call.waiting / 1000,
        "moving": call.moving / 1000,
        "has_no_end": None if call.is_over else 1,
        "waited_for": None if call.late is None else f"rank {call.late}",
        "which_came_to": call.late_call.site if call.late_call else None,
        "note": "enqueued: NCCL runs it later, on the GPU's stream" if call.transport == "nccl" else None,
    }
    arguments = {name: value for name, value in values.items() if value not in (None, "", ())}
    if call.sendtag is not None:
        arguments |= {"to": call.to, "sendtag": call.sendtag}
    if call.recvtag is not None:
        source, tag = ("any" if value == ANY else value for value in (call.source, call.recvtag))
        arguments |= {"from": source, "recvtag": tag}
    if call.category != "wait":
        arguments |= {"sends": call.sends, "receives": call.receives}
    return arguments


def _slice_event(call: Call, name: str, category: str, begin: int, time: int, **more: Any) -> Event:
    place = {"pid": call.rank, "tid": call.lane}
    return {"ph": "X", "name": name, "cat": category, **place, "ts": begin / 1000, "dur": time / 1000, **more}


def _call_events(call: Call) -> Iterator[Event]:
    """Yield the Chrome trace events of one call: the call, its time on the GPU, and its waiting time."""
    yield _slice_event(call, call.title, call.category, call.begin, call.time, args=_event_arguments(call))
    if call.ready > call.begin:
        yield _slice_event(call, "its GPU", "gpu", call.begin, call.ready - call.begin)
    if call.waiting:
        yield _slice_event(call, f"waits for rank {call.late}", "waiting", call.ready, call.waiting)


def _arrow_events(name: str, category: str, number: str, start: Call, end: Call, when: int) -> Iterator[Event]:
    """Yield the two events of an arrow from the beginning of the call ``start`` to the call ``end`` at ``when``."""
    arrow = {"name": name, "cat": category, "id": number}
    yield {"ph": "s", **arrow, "pid": start.rank, "tid": start.lane, "ts": start.begin / 1000}
    yield {"ph": "f", "bp": "e", **arrow, "pid": end.rank, "tid": end.lane, "ts": when / 1000}


def _rank_events(timeline: Timeline) -> Iterator[Event]:
    """Yield the Chrome trace events of one rank: names, calls, and arrows for requests and waits."""
    rank, calls = timeline.rank, timeline.calls
    yield {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank} on {timeline.host}"}}
    yield {"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}
    for lane in sorted({call.lane for call in calls}):
        name = f"calls {lane + 1}" if lane else "calls"
        yield {"ph": "M", "name": "thread_name", "pid": rank, "tid": lane, "args": {"name": name}}
    for call in calls:
        yield from _call_events(call)
    for i, call in enumerate(calls):
        if call.wait is not None:
            yield from _arrow_events("request", "request", f"r{rank}.{i}", call, call.wait, call.wait.begin)
        if call.late_call is not None and call.waiting >= _SHORTEST_ARROW:
            until = call.ready + call.waiting
            yield from _arrow_events("is waited for", "waiting", f"{rank}.{i}", call.late_call, call, until)
    if timeline.stopped:
        name, last = f"the timeline ends here: {timeline.stopped}", max((call.end for call in calls), default=0)
        yield {"ph": "i", "s": "p", "name": name, "pid": rank, "tid": 0, "ts": last / 1000}


def write_merged_trace(job: Job, file: Path) -> None:
    """Write the calls of all ranks to one JSON file in Chrome's trace format, with times from 0 on.

    Raises:
        OSError: if the file cannot be written.
    """
    between = "\n"
    with file.open("w", encoding="utf-8") as out:
        out.write('{"displayTimeUnit": "ms", "traceEvents": [')
        for rank in sorted(job.timelines):
            for event in _rank_events(job.timelines[rank]):
                out.write(between + json.dumps(event))
                between = ",\n"
        out.write("\n]}\n")
