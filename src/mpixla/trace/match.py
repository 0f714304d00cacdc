"""Matching of calls of different ranks, from which the waiting times follow.

A call waits from its own beginning until the calls that it depends on have begun. The rest of its time counts as moving
data.
"""

from collections import defaultdict, deque
from operator import attrgetter
from typing import Any

from .layout import ANY
from .read import Call, Job, shorten_list

_SHOWN = 5  # notes on calls that do not fit together


def match_calls(job: Job) -> None:
    """Set for each call of a job how long it waited, and for which rank; note calls that do not fit together."""
    meetings: dict[Any, list[Call]] = defaultdict(list)  # by communicator and number
    messages: dict[Any, list[Call]] = defaultdict(list)
    for call in job.all_calls():
        if call.sequence is not None:
            meetings[call.comm.group, call.sequence].append(call)
        elif call.category != "wait":
            messages[call.comm.group].append(call)
    notes: list[str] = []
    for calls in meetings.values():
        _match_collective(calls, notes)
    for calls in messages.values():
        _match_messages(calls)
    job.notes += notes[:_SHOWN]
    if len(notes) > _SHOWN:
        job.notes.append(f"{len(notes) - _SHOWN} further calls do not fit together.")


def _waiting_call(call: Call) -> Call | None:
    """Return the call that waits for this call's communication: for a start, its wait or None; otherwise the call."""
    return call.wait if call.category == "start" else call


def _note_wait(waiter: Call | None, until: int, late: int, late_call: Call | None = None) -> None:
    """Note that a call waited for another rank, unless a longer wait is noted; calls of NCCL are left out."""
    if waiter is None or waiter.rank == late:
        return
    if waiter.transport == "nccl" or (late_call is not None and late_call.transport == "nccl"):
        return
    waiting = min(until, waiter.end) - waiter.ready
    if waiting > waiter.waiting:
        waiter.waiting, waiter.late, waiter.late_call = waiting, late, late_call


def _add_dependence(call: Call, other: Call) -> None:
    """Note that a call's communication depends on the beginning of another call."""
    _note_wait(_waiting_call(call), other.ready, other.rank, other)


def _match_collective(calls: list[Call], notes: list[str]) -> None:
    """Set how long the calls of one collective call waited, by its pattern; note different names and absent ranks."""
    by_rank = {call.rank: call for call in calls}
    comm, sequence = calls[0].comm, calls[0].sequence
    if len({call.name for call in calls}) > 1 or len(by_rank) < len(calls):
        words = ", ".join(f"rank {call.rank} {call.name} at {call.line}" for call in calls[:4])
        notes.append(f"Call {sequence} on communicator '{comm.name}' is not the same on its ranks: {words}.")
        return
    stuck = [call for call in map(_waiting_call, calls) if call is not None and (not call.is_over or call.has_failed)]
    absent = [rank for rank in comm.members if rank >= 0 and rank not in by_rank]
    if stuck and absent:
        for call in stuck:
            _note_wait(call, call.end, absent[0])
        notes.append(
            f"Rank {shorten_list(absent)} never came to call {sequence} on communicator '{comm.name}', "
            f"{stuck[0].title} at {stuck[0].line}, in which rank {shorten_list([call.rank for call in stuck])} was "
            "to the end."
        )
    meeting, last = calls[0].meeting, max(calls, key=attrgetter("ready"))
    root = next((call for call in calls if call.rank == calls[0].root), None)
    if meeting == "each for all":
        for call in calls:
            _add_dependence(call, last)
    elif meeting == "each for root" and root:
        for call in calls:
            _add_dependence(call, root)
    elif meeting == "root for all" and root:
        _add_dependence(root, last)
    elif meeting == "each for those before":
        calls.sort(key=lambda call: -call.comm.position if call.is_reverse else call.comm.position)
        last = calls[0]
        for call in calls[1:]:
            _add_dependence(call, last)
            last = max(last, call, key=attrgetter("ready"))
    elif meeting == "each for neighbours":
        for call in calls:
            for source in call.sources:
                if source in by_rank:
                    _add_dependence(call, by_rank[source])


def _match_messages(calls: list[Call]) -> None:
    """Pair sends with receives, FIFO by source, destination and tag, and set, in place, how long each waited.

    ``calls`` are those of one communicator. A receive waits until its send has begun, and a send that ended after its
    receive began until then. ``ANY_SOURCE`` and ``ANY_TAG`` take the earliest message that fits. A call without a
    partner has waited until the end of the trace if it is unfinished, else not at all.
    """
    # By destination, then by source and tag.
    sent: dict[int, dict[tuple[int, int | None], deque[Call]]] = defaultdict(lambda: defaultdict(deque))
    for call in calls:
        if call.to is not None:
            sent[call.to][call.rank, call.sendtag].append(call)
    receives: dict[Call, Call] = {}  # by the call that sent the message
    for call in calls:
        if call.source is None:
            continue
        message = _take_message(sent[call.rank], call.source, call.recvtag)
        if message is None:
            _note_unmatched(call, call.source)
        else:
            receives[message] = call
            _add_dependence(call, message)
    for call in calls:
        if call.to is None or call.source is not None:  # no send, or a sendrecv, whose wait its receive has set
            continue
        waiter, receive = _waiting_call(call), receives.get(call)
        if receive is None:
            _note_unmatched(call, call.to)
        elif waiter is not None and waiter.end >= receive.begin:
            _add_dependence(call, receive)


def _take_message(sent: dict[tuple[int, int | None], deque[Call]], source: int, tag: int | None) -> Call | None:
    """Remove and return the message that a receive gets, the earliest one for wildcards; None if there is none."""
    queues = [sent[source, tag]]
    if ANY in (source, tag):
        queues = [queue for (rank, as_), queue in sent.items() if source in (ANY, rank) and tag in (ANY, as_)]
    queue = min(filter(None, queues), key=lambda queue: queue[0].begin, default=None)
    return queue.popleft() if queue else None


def _note_unmatched(call: Call, late: int) -> None:
    """Set the waiting time of a call whose message was not found: until the end if unfinished, else none."""
    waiter = _waiting_call(call)
    if waiter is not None and not waiter.is_over and late != ANY:
        _note_wait(waiter, waiter.end, late)
