"""Waits of ranks for other ranks, from calls written by hand: for each kind of call, its dependences."""

import json

import numpy as np
import pytest

from mpixla.trace import layout, picture
from mpixla.trace.match import match_calls
from mpixla.trace.merge import write_merged_trace
from mpixla.trace.read import read_timelines, shorten_list
from mpixla.trace.tables import format_bytes, format_tables

pytestmark = pytest.mark.any_mpi

RANKS = 4


def record(kind_of_record, **values):
    made = np.zeros(1, kind_of_record)
    for name, value in values.items():
        made[name] = value
    return made.tobytes()


def part(kind, number, data):
    """Return a text or a list, which is short enough for one record."""
    return record(layout.PART, kind=kind, number=number, used=len(data), bytes=np.void(data)) if data else b""


# All others wait for all.
MEETINGS = {"bcast": 1, "scatterv": 1, "gather": 2, "reduce": 2, "scan": 3, "exscan": 3, "halo_exchange": 4}


class Files:
    """Timelines, in which a call begins at so many microseconds and takes so many."""

    def __init__(self, directory, members=(0, 1, 2, 3)):
        self.directory = directory
        self.members = members
        self.clocks = ["c"] * RANKS
        self.readings = [[] for _ in range(RANKS)]
        self.calls = [[] for _ in range(RANKS)]
        self.agreed = [{} for _ in range(RANKS)]

    def call(self, rank, name, begin, time, category="collective", *, ends=True, **values):
        values = {"site": f"model.py:{rank}", **{k.rstrip("_"): v for k, v in values.items()}}
        self.calls[rank].append(
            {"op": name, "category": category, "began": begin, "took": time, "ends": ends, **values}
        )

    def all(self, name, begins, end, **values):
        """Write a call of all ranks, which begin at these times and end together."""
        for rank, begin in enumerate(begins):
            self.call(rank, name, begin, end - begin, sequence=0, **values)

    def match(self):
        for rank in range(RANKS):
            (self.directory / f"rank-{rank:04}.trace").write_bytes(self._file(rank))
        job = read_timelines(self.directory)
        match_calls(job)
        assert format_tables(job, 10)
        write_merged_trace(job, self.directory / "merged.json")
        json.loads((self.directory / "merged.json").read_text())
        return job

    def _file(self, rank):
        header = np.zeros(1, layout.HEADER)
        header[0] = (b"mpixla", 4, 128, rank, RANKS, 1, b"here", b"1", self.clocks[rank].encode(), b"")
        self.texts = {}
        calls = b"".join(self._call(call) for call in self.calls[rank])
        place = self.members.index(rank) if rank in self.members else 0
        # Two, of which all but one test use the first.
        comms = b"".join(
            record(layout.COMMUNICATOR, kind=3, number=n, in_process=n, rank=place, size=4, name=b"world")
            for n in (1, 2)
        )
        members = np.array([[member, 1, 1] for member in self.members], "i4").tobytes()
        comms += part(4, 1, members) + part(4, 2, members)
        sources = b"".join(part(5, 1, np.array(call.get("sources", ()), "i4").tobytes()) for call in self.calls[rank])
        clocks = b"".join(
            record(layout.CLOCK, kind=7, when=when, ahead=ahead, round_trip=3) for when, ahead in self.readings[rank]
        )
        clocks += b"".join(
            record(layout.AGREED, kind=8, in_process=n, agreed=number) for n, number in self.agreed[rank].items()
        )
        texts = b"".join(part(2, number, text.encode()) for text, number in self.texts.items())
        return header.tobytes() + comms + sources + texts + calls + clocks

    def _call(self, call):
        values = {"root": -3, "to": -3, "from": -3, "request": -1, "sequence": -1, "items": -1, "gpu": 0}
        values |= {"number": 1, **call}
        for name, value in values.items():
            if name in ("site", "op", "transport", "waits_for"):
                values[name] = self.texts.setdefault(value, len(self.texts) + 1)
            elif name in ("began", "took", "gpu"):
                values[name] = 1000 * value
            elif value == "any":
                values[name] = -1
        values["category"] = ("collective", "message", "start", "wait").index(call["category"])
        values["meeting"] = MEETINGS.get(call["op"].removeprefix("i"), 0)
        values["neighbours"] = 5 if values.pop("sources", ()) else 0
        if "request" in call:
            values["request"], values["generation"] = map(int, call["request"].split("."))
        return record(layout.CALL, kind=1, state=int(values.pop("ends")), **values)

    def waits(self):
        """Return the waiting in microseconds and for whom, of the calls of each rank."""
        job = self.match()
        assert job.notes == []
        return [[(call.waiting / 1000, call.late) for call in job.timelines[rank].calls] for rank in range(RANKS)]


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


NONE = (0, None)
BEGINS = [10, 40, 20, 30]


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("allreduce", {}, [(30, 1), NONE, (20, 1), (10, 1)]),
        ("barrier", {}, [(30, 1), NONE, (20, 1), (10, 1)]),
        ("bcast", {"root": 3}, [(20, 3), NONE, (10, 3), NONE]),
        ("scatterv", {"root": 1}, [(30, 1), NONE, (20, 1), (10, 1)]),
        ("gather", {"root": 2}, [NONE, NONE, (20, 1), NONE]),
        ("reduce", {"root": 1}, [NONE, NONE, NONE, NONE]),
        ("scan", {}, [NONE, NONE, (20, 1), (10, 1)]),
        ("exscan", {"is_reverse": 1}, [(30, 1), NONE, (10, 3), NONE]),
        ("halo_exchange", {"sources": [3]}, [(20, 3), NONE, (10, 3), NONE]),
    ],
)
def test_collective(files, name, arguments, expected):
    files.all(name, BEGINS, 45, **arguments)
    assert files.waits() == [[wait] for wait in expected]


def test_communicators_that_look_alike(files):
    """Two have one name and the same ranks: their order tells them apart."""
    files.all("allreduce", BEGINS, 45)
    files.all("allreduce", [90, 60, 80, 70], 95, number=2)
    assert files.waits() == [[(30, 1), NONE], [NONE, (30, 0)], [(20, 1), (10, 0)], [(10, 1), (20, 0)]]


def test_communicators_that_ranks_use_in_another_order(files):
    """The numbers that all have agreed on tell them apart."""
    for rank, (begin, then) in enumerate(zip(BEGINS, [90, 60, 80, 70], strict=True)):
        first = 2 if rank == 0 else 1
        files.call(rank, "allreduce", begin, 45 - begin, sequence=0, number=first)
        files.call(rank, "allreduce", then, 95 - then, sequence=0, number=3 - first)
        files.agreed[rank] = {first: 77, 3 - first: 88}
    assert files.waits() == [[(30, 1), NONE], [NONE, (30, 0)], [(20, 1), (10, 0)], [(10, 1), (20, 0)]]


def test_rank_that_leaves_early_waited_until_it_left(files):
    """A rank that leaves before the last one comes has waited for no longer than it was there."""
    files.all("allgather", BEGINS, 45)
    files.calls[0][-1]["took"] = 5
    assert files.waits()[0] == [(5, 1)]


def test_order_of_ranks_is_the_communicator_s(tmp_path):
    files = Files(tmp_path, members=(1, 0, 3, 2))
    files.all("scan", BEGINS, 45)
    assert files.waits() == [[(30, 1)], [NONE], [(20, 1)], [(10, 1)]]


def test_messages(files):
    """Two under one tag arrive in their order, one under another tag before them."""
    for begin, tag in ((100, 5), (200, 5), (300, 6)):
        files.call(0, "send", begin, 1, "message", to=1, sendtag=tag)
    for begin, tag in ((10, 6), (305, 5), (306, 5)):
        files.call(1, "recv", begin, max(0, 301 - begin) or 1, "message", from_=0, recvtag=tag)
    assert files.waits()[:2] == [[NONE] * 3, [(290, 0), NONE, NONE]]


def test_any_source(files):
    files.call(2, "send", 50, 1, "message", to=0, sendtag=1)
    files.call(1, "send", 70, 1, "message", to=0, sendtag=2)
    files.call(0, "recv", 10, 42, "message", from_="any", recvtag="any")
    files.call(0, "recv", 60, 12, "message", from_="any", recvtag="any")
    assert files.waits()[0] == [(40, 2), (10, 1)]


@pytest.mark.parametrize(("of", "waits"), [({"from_": "any", "recvtag": 5}, (60, 1)), ({"from_": 2}, (80, 2))])
def test_any_source_or_any_tag(files, of, waits):
    """The first message of those that fit, which is not the first of all."""
    for rank, begin, tag in ((3, 50, 4), (1, 70, 5), (2, 90, 5)):
        files.call(rank, "send", begin, 1, "message", to=0, sendtag=tag)
    files.call(0, "recv", 10, 100, "message", **{"recvtag": "any", **of})
    assert files.waits()[0] == [waits]


def test_a_send_that_waits_for_its_receive(files):
    files.call(0, "send", 10, 50, "message", to=1, sendtag=0)
    files.call(1, "recv", 40, 25, "message", from_=0, recvtag=0)
    files.call(2, "send", 10, 5, "message", to=3, sendtag=0)  # does not wait
    files.call(3, "recv", 40, 25, "message", from_=2, recvtag=0)
    assert files.waits() == [[(30, 1)], [NONE], [NONE], [NONE]]


def test_nobody_waits_for_itself(files):
    files.call(0, "send", 10, 0, "message", to=0, sendtag=0, ends=False)
    files.call(1, "barrier", 10, 90)
    assert files.waits()[0] == [NONE]


def test_sendrecv(files):
    for rank, begin in enumerate(BEGINS):
        to, source = (rank + 1) % RANKS, (rank - 1) % RANKS
        files.call(rank, "sendrecv", begin, 45 - begin, "message", to=to, sendtag=0, from_=source, recvtag="any")
    assert files.waits() == [[(20, 3)], [NONE], [(20, 1)], [NONE]]


def test_requests(files):
    """The wait waits, from its own beginning on."""
    for rank, begin in enumerate(BEGINS):
        files.call(rank, "iallreduce", begin, 1, "start", sequence=0, request="4.1")
        files.call(rank, "wait", begin + 5, 50, "wait", request="4.1", waits_for="iallreduce")
    assert files.waits() == [[NONE, (25, 1)], [NONE, NONE], [NONE, (15, 1)], [NONE, (5, 1)]]
    assert "wait for iallreduce" in format_tables(files.match(), 3)


def test_irecv_and_isend(files):
    files.call(0, "irecv", 10, 1, "start", request="0.1", from_=1, recvtag=3)
    files.call(0, "wait_recv", 20, 40, "wait", request="0.1", waits_for="irecv")
    files.call(1, "isend", 50, 1, "start", request="0.9", to=0, sendtag=3)
    files.call(1, "wait_send", 60, 1, "wait", request="0.9", waits_for="isend")
    assert files.waits()[:2] == [[NONE, (30, 1)], [NONE, NONE]]


def test_waiting_for_a_gpu_comes_first(files):
    files.all("allreduce", BEGINS, 60, transport="host", gpu=2)
    files.calls[2][-1]["gpu"] = 35
    job = files.match()
    assert [(c.waiting / 1000, c.late, c.gpu / 1000) for c in job.all_calls()] == [
        (43, 2, 2),
        (13, 2, 2),
        (0, None, 35),
        (23, 2, 2),
    ]
    files.all("allreduce", [70, 80, 70, 70], 90, transport="nccl")
    for calls in files.calls:
        calls[-1]["sequence"] = 1
    assert [call.waiting for call in files.match().all_calls()][1::2] == [0] * RANKS
    assert "gpu" in format_tables(job, 3)


def test_notes_name_the_rank_that_never_came(files):
    for rank in (0, 1, 3):
        files.call(rank, "allreduce", 10 * rank, 0, sequence=0, ends=False)
    files.call(2, "send", 90, 10, "message", to=1, sendtag=3)
    files.call(1, "recv", 95, 0, "message", from_=3, recvtag=3, ends=False)
    job = files.match()
    assert job.notes == [
        "Rank 2 never came to call 0 on communicator 'world', allreduce at model.py:0, in which rank 0, 1, 3 was "
        "to the end."
    ]
    waits = [(call.waiting / 1000, call.late) for call in job.all_calls()]
    assert waits == [(100, 2), (90, 2), (5, 3), (0, None), (70, 2)]
    files.calls[0][0]["transport"] = "nccl"  # which has only got the call
    assert next(files.match().all_calls()).waiting == 0


def test_calls_that_do_not_fit_together(files):
    for i in range(8):
        files.call(0, "allreduce", 10 * i, 1, sequence=i)
        files.call(1, "barrier", 10 * i, 1, sequence=i)
    notes = files.match().notes
    assert notes[0] == (
        "Call 0 on communicator 'world' is not the same on its ranks: rank 0 allreduce at model.py:0, rank 1 barrier "
        "at model.py:1."
    )
    assert len(notes) == 6
    assert notes[-1] == "3 further calls do not fit together."


def test_clocks(files):
    """Rank 1 has another clock, which was compared twice and runs fast; ranks of its host share what it found."""
    files.all("allreduce", [1000, 2000, 1000, 1000], 3000)
    files.clocks[1] = files.clocks[3] = "other"
    files.readings[1] = [(0, 5_000_000), (2_000_000, 4_000_000), (4_000_000, 3_000_000)]
    job = files.match()
    assert [call.begin for call in job.all_calls()] == [0, 5_000_000, 0, 4_500_000]
    files.readings[1] = []
    assert "The clocks of here were not compared" in files.match().notes[0]


def test_numbers_of_bytes_have_binary_units():
    assert [format_bytes(n) for n in (0, 1023, 1024, 1536 * 1024, 5 * 2**40)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 MiB",
        "5.0 TiB",
    ]


def test_of_many_ranks_some_are_named():
    assert shorten_list([3, 5]) == "3, 5"
    assert shorten_list(list(range(10))) == "0, 1, 2, 3, 4, 5, 6, 7 and 2 more"


def test_picture_shares_of_activities(files):
    """Spans are spread over the steps that they cover. Where calls overlap, the worst is seen."""
    files.call(0, "send", 0, 501, "message", to=1, sendtag=0)
    files.call(0, "allreduce", 501, 499, sequence=0, transport="host", gpu=150)
    files.call(0, "barrier", 750, 0, sequence=1, ends=False)
    files.call(1, "allreduce", 800, 200, sequence=0)
    files.call(1, "barrier", 2400, 0, sequence=1)
    job = files.match()
    shares = picture._activity_shares(job.timelines[0].calls, job.time)
    steps = picture._STEPS / 2400
    spent = {part: share.sum() / steps for part, share in shares.items()}
    assert spent == pytest.approx({"moving": 501, "gpu": 150, "waiting": 2400 - 651})
    assert max(sum(shares.values())) <= 1 + 1e-9
