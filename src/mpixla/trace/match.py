"""Which calls of different ranks belong together, and so who waited for whom.

A call waits from its own beginning until the calls that it depends on have begun. The rest of its time, data moves.
"""

from collections import defaultdict, deque
from collections.abc import Iterable

from .read import Call, Group, Job

_SHOWN = 5


def _depend(call: Call, until: Call) -> None:
    """The call could not end before the other one had begun."""
    _wait(call, until.ready, until.rank, until)


def _wait(call: Call, until: int, late: int, late_call: Call | None) -> None:
    waiting = min(until, call.end) - call.ready
    if waiting > call.waiting and "nccl" not in (call.transport, late_call.transport if late_call else ""):
        call.waiting, call.late, call.late_call = waiting, late, late_call


def _is_start(call: Call) -> bool:
    return call.category == "start"


class _Matcher:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._notes = 0
        # The waits for requests, by what started them.
        self._waits: dict[Call, Call] = {}

    def run(self) -> None:
        self._find_waits()
        meetings: dict[tuple[Group, int], list[Call]] = defaultdict(list)
        messages: dict[Group, list[Call]] = defaultdict(list)
        for call in self._job.calls():
            if call.group is None:
                continue
            if call.sequence >= 0:
                meetings[call.group, call.sequence].append(call)
            elif call.category != "wait":
                messages[call.group].append(call)
        for (group, sequence), calls in meetings.items():
            self._meet(group, sequence, calls)
        for group_calls in messages.values():
            _Messages(self, group_calls).match()

    def _find_waits(self) -> None:
        for timeline in self._job.timelines.values():
            started: dict[str, Call] = {}
            for call in timeline.calls:
                if not call.request:
                    continue
                if call.category == "wait":
                    start = started.pop(call.request, None)
                    if start is not None:
                        self._waits[start] = call
                else:
                    started[call.request] = call

    def waiting_call(self, call: Call) -> Call | None:
        """The call that waits for what this one does: of a start, the wait for it."""
        return self._waits.get(call) if _is_start(call) else call

    def _note(self, text: str) -> None:
        self._notes += 1
        if self._notes <= _SHOWN:
            self._job.notes.append(text)

    def _meet(self, group: Group, sequence: int, calls: list[Call]) -> None:
        names = {call.name for call in calls}
        if len(names) > 1 or len({call.rank for call in calls}) < len(calls):
            words = ", ".join(f"rank {call.rank} {call.name} at {call.site or 'an unknown line'}" for call in calls[:4])
            self._note(f"Call {sequence} on communicator '{group.name}' is not the same on its ranks: {words}.")
            return
        self._never_came(group, sequence, calls)
        meeting, at_root = calls[0].meeting, [call for call in calls if call.rank == calls[0].root]
        if meeting == "each for all":
            _all_on_last(self, calls, calls)
        elif meeting == "each for root":
            _all_on_last(self, calls, at_root)
        elif meeting == "root for all":
            _all_on_last(self, at_root, calls)
        elif meeting == "each for those before":
            calls.sort(key=lambda call: -call.position if call.is_reverse else call.position)
            last: Call | None = None
            for call in calls:
                waiting = self.waiting_call(call)
                if last is not None and waiting is not None:
                    _depend(waiting, last)
                if last is None or call.ready > last.ready:
                    last = call
        else:
            by_rank = {call.rank: call for call in calls}
            for call in calls:
                for source in call.sources:
                    if source in by_rank and source != call.rank:
                        _depend(call, by_rank[source])

    def _never_came(self, group: Group, sequence: int, calls: list[Call]) -> None:
        stuck = [call for call in map(self.waiting_call, calls) if call is not None and not call.is_over]
        if not stuck or len(calls) == group.size or not group.members:
            return
        here = {call.rank for call in calls}
        absent = [rank for rank in group.members if rank not in here]
        if not absent:
            return
        for call in stuck:
            _wait(call, call.end, absent[0], None)
        ranks = ", ".join(str(call.rank) for call in stuck[:8])
        self._note(
            f"Rank {', '.join(map(str, absent[:8]))} never came to call {sequence} on communicator '{group.name}', "
            f"{stuck[0].title} at {stuck[0].site or 'an unknown line'}, in which rank {ranks} was to the end."
        )

    def tell_rest(self) -> None:
        if self._notes > _SHOWN:
            self._job.notes.append(f"{self._notes - _SHOWN} further calls do not fit together.")


def _all_on_last(matcher: _Matcher, waiting: Iterable[Call], awaited: list[Call]) -> None:
    """Each waits until the last of the others has begun."""
    if not awaited:
        return
    last = max(awaited, key=lambda call: call.ready)
    others = [call for call in awaited if call is not last]
    second = max(others, key=lambda call: call.ready) if others else None
    for call in waiting:
        until, waits = second if call is last else last, matcher.waiting_call(call)
        if until is not None and waits is not None:
            _depend(waits, until)


class _Messages:
    """The messages on a communicator. Those between two ranks under one tag arrive in their order."""

    def __init__(self, matcher: _Matcher, calls: list[Call]) -> None:
        self._matcher = matcher
        # What was sent to a rank and not yet received there: by source and tag.
        self._sent: dict[int, dict[tuple[int, int | None], deque[Call]]] = defaultdict(lambda: defaultdict(deque))
        for call in calls:
            if call.to is not None:
                self._sent[call.to][call.rank, call.sendtag].append(call)
        self._receives = [call for call in calls if call.source is not None]
        self._sends = [call for call in calls if call.to is not None]

    def match(self) -> None:
        received: dict[Call, Call] = {}
        for call in self._receives:
            sent = self._take(call)
            waits = self._matcher.waiting_call(call)
            if sent is None:
                self._stuck(waits, call.source)
                continue
            received[sent] = call
            if waits is not None and sent.rank != call.rank:
                _depend(waits, sent)
        for sent in self._sends:
            if sent.source is not None:  # a sendrecv: what it received has told
                continue
            waits, receive = self._matcher.waiting_call(sent), received.get(sent)
            if receive is None:
                self._stuck(waits, sent.to)
            elif waits is not None and waits.end >= receive.begin and sent.rank != receive.rank:
                _depend(waits, receive)

    def _stuck(self, call: Call | None, late: int | str | None) -> None:
        if call is not None and not call.is_over and type(late) is int and late != call.rank:
            _wait(call, call.end, late, None)

    def _take(self, call: Call) -> Call | None:
        """The message that a receive gets: where it takes any, that which was sent first."""
        sent = self._sent[call.rank]
        if call.source != "any" and call.recvtag != "any":
            queue = sent.get((call.source, call.recvtag))  # type: ignore[arg-type]
            return queue.popleft() if queue else None
        fits = [
            queue
            for (source, tag), queue in sent.items()
            if queue and call.source in ("any", source) and call.recvtag in ("any", tag)
        ]
        return min(fits, key=lambda queue: queue[0].begin).popleft() if fits else None


def match(job: Job) -> None:
    """Says of each call of a job for how long it waited, and for whom."""
    matcher = _Matcher(job)
    matcher.run()
    matcher.tell_rest()
