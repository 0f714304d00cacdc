"""One timeline of all ranks, for Perfetto and chrome://tracing: on one clock, with what was waited for."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .read import Call, Job, Timeline

# Arrows for shorter waits would hide those for the longer ones.
_SHORTEST_ARROW = 1000


def _microseconds(nanoseconds: int) -> float:
    return nanoseconds / 1000


def _arguments(call: Call) -> dict[str, Any]:
    """What the call is, without what it has none of."""
    words = {
        "mpi": call.mpi,
        "site": call.site,
        "request": call.request,
        "waits_for": call.waits_for,
        "started_at": call.started_at,
        "dtype": call.dtype,
        "op": call.reduction,
        "transport": call.transport,
    }
    numbers = {
        "root": call.root,
        "items": call.items,
        "sequence": call.sequence if call.sequence >= 0 else None,
        "gpu": _microseconds(call.gpu) if call.transport else None,
    }
    arguments: dict[str, Any] = {"failed": int(call.has_failed), **{k: v for k, v in words.items() if v}}
    arguments |= {k: v for k, v in numbers.items() if v is not None}
    if call.group is not None:
        arguments |= {"comm": call.group.name, "number": call.comm}
    if call.is_reverse:
        arguments["reverse"] = 1
    if call.sendtag is not None:
        arguments |= {"to": call.to, "sendtag": call.sendtag}
    if call.recvtag is not None:
        arguments |= {"from": call.source, "recvtag": call.recvtag}
    if call.sources:
        arguments["sources"] = call.sources
    if call.category != "wait":
        arguments |= {"sends": call.sends, "receives": call.receives}
    return {**arguments, "thread": call.thread}


def _events_of(job: Job, call: Call) -> Iterator[dict[str, Any]]:
    place = {"pid": call.rank, "tid": call.lane}
    start = _microseconds(call.begin - job.begin)
    arguments = {**_arguments(call), "waiting": _microseconds(call.waiting), "moving": _microseconds(call.moving)}
    if not call.is_over:
        arguments["has_no_end"] = 1
    if call.late is not None:
        arguments["waited_for"] = f"rank {call.late}"
        if call.late_call is not None and call.late_call.site:
            arguments["which_came_to"] = call.late_call.site
    if call.transport == "nccl":
        arguments["note"] = "enqueued: NCCL runs it later, on the GPU's stream"
    yield {
        "ph": "X",
        "name": call.title,
        "cat": call.category,
        **place,
        "ts": start,
        "dur": _microseconds(call.time),
        "args": arguments,
    }
    if call.ready > call.begin:
        yield {
            "ph": "X",
            "name": "its GPU",
            "cat": "gpu",
            **place,
            "ts": start,
            "dur": _microseconds(call.ready - call.begin),
        }
    if call.waiting <= 0 or call.late is None:
        return
    begin, end = call.ready - job.begin, call.ready - job.begin + call.waiting
    yield {
        "ph": "X",
        "name": f"waits for rank {call.late}",
        "cat": "waiting",
        **place,
        "ts": _microseconds(begin),
        "dur": _microseconds(call.waiting),
    }
    late = call.late_call
    if late is not None and call.waiting >= _SHORTEST_ARROW:
        arrow = {"name": "is waited for", "cat": "waiting", "id": f"{call.rank}.{call.place}"}
        yield {
            "ph": "s",
            **arrow,
            "pid": late.rank,
            "tid": late.lane,
            "ts": _microseconds(late.begin - job.begin),
        }
        yield {"ph": "f", "bp": "e", **arrow, **place, "ts": _microseconds(end)}


def _request_arrow(job: Job, start: Call, wait: Call) -> Iterator[dict[str, Any]]:
    arrow = {"name": "request", "cat": "request", "id": f"r{start.rank}.{start.place}", "pid": start.rank}
    yield {"ph": "s", **arrow, "tid": start.lane, "ts": _microseconds(start.begin - job.begin)}
    yield {"ph": "f", "bp": "e", **arrow, "tid": wait.lane, "ts": _microseconds(wait.begin - job.begin)}


def _rank_events(job: Job, timeline: Timeline) -> Iterator[dict[str, Any]]:
    rank = timeline.rank
    yield {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank} on {timeline.host}"}}
    yield {"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}
    for lane in sorted({call.lane for call in timeline.calls}):
        name = {"name": f"calls {lane + 1}" if lane else "calls"}
        yield {"ph": "M", "name": "thread_name", "pid": rank, "tid": lane, "args": name}
    started: dict[str, Call] = {}
    for call in timeline.calls:
        yield from _events_of(job, call)
        if call.request and call.category == "start":
            started[call.request] = call
        elif call.request in started:
            yield from _request_arrow(job, started.pop(call.request), call)
    if timeline.stopped:
        last = max((call.end for call in timeline.calls), default=job.begin)
        yield {
            "ph": "i",
            "s": "p",
            "name": f"the timeline ends here: {timeline.stopped}",
            "pid": rank,
            "tid": 0,
            "ts": _microseconds(last - job.begin),
        }


def merge(job: Job, file: Path) -> int:
    """Writes the timeline of all ranks, and returns its number of events. Times begin at 0.

    Raises:
        OSError: if the file cannot be written.
    """
    count = 0
    with file.open("w", encoding="utf-8") as out:
        out.write('{"displayTimeUnit": "ms", "traceEvents": [')
        for rank in sorted(job.timelines):
            for event in _rank_events(job, job.timelines[rank]):
                out.write(",\n" if count else "\n")
                out.write(json.dumps(event))
                count += 1
        out.write("\n]}\n")
    return count
