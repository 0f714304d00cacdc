"""Jobs with MPIXLA_TRACE: who waited for whom is what the program does, and files are whole however a job ends."""

import json
import os
import random
import re
import subprocess
from pathlib import Path

import pytest

from jobs import alone
from mpixla.checks import timeline
from mpixla.mpi import clock
from mpixla.trace.match import match_calls
from mpixla.trace.merge import write_merged_trace
from mpixla.trace.read import read_file, read_timelines
from mpixla.trace.tables import format_tables

# Rank 1 comes late to the sum, rank 0 to the message. Nobody is late at the barriers.
SLEEPS = """
import time
import jax, jax.numpy as jnp, mpixla
from mpi4py import MPI
comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
x = jnp.ones(1000)

@jax.jit
def total(x):
    return mpixla.allreduce(x, op=MPI.SUM)  # THE SUM

total(x).block_until_ready()
mpixla.barrier()
for _ in range(3):
    mpixla.barrier()
    if rank == 1:
        time.sleep(0.3)
    total(x).block_until_ready()
mpixla.barrier()
if rank == 0:
    time.sleep(0.4)
    mpixla.send(x, 1, tag=7)
elif rank == 1:
    mpixla.recv(x, tag=7)  # THE MESSAGE
request = mpixla.isend(x, (rank + 1) % size)
got = mpixla.irecv(x, (rank - 1) % size)
mpixla.wait(got), mpixla.wait(request)
mpixla.barrier()
"""


def line_of(code, mark):
    return next(i for i, line in enumerate(code.splitlines(), 1) if mark in line)


def report(directory, *arguments, status=0, **environment):
    done = alone("-m", "mpixla.trace", directory, *arguments, **environment)
    assert done.returncode == status, done.stdout + done.stderr
    return done


def table(text, title):
    """Return the head of a printed table, and its rows as lists."""
    head, *lines = text.split(title)[1].split("\n\n")[0].splitlines()[1:]
    return head, [re.split(r" {2,}", line.strip()) for line in lines]


def waits_of(directory):
    """Return the seconds that a rank waited for another, by line."""
    job = read_timelines(directory)
    match_calls(job)
    waits = {}
    for call in job.all_calls():
        if call.waiting:
            key = call.rank, call.late, call.site.split(":")[1].split()[0]
            waits[key] = waits.get(key, 0) + call.waiting / 1e9
    return job, waits


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=[pytest.mark.long, pytest.mark.any_mpi])])
def test_waiting_is_of_the_rank_and_the_line(job, tmp_path, ranks):
    traces = tmp_path / "traces" / "deep"
    job(ranks, SLEEPS, MPIXLA_TRACE=traces)
    files = sorted(path.name for path in traces.iterdir())
    assert files == [f"rank-{rank:04}.trace" for rank in range(ranks)]
    found, waits = waits_of(traces)
    assert all(call.is_over and not call.has_failed for call in found.all_calls())
    assert found.notes == []
    assert len(found.timelines) == found.ranks == ranks
    summed, received = (str(line_of(SLEEPS, mark)) for mark in ("THE SUM", "THE MESSAGE"))
    # Other processes of the machine hold ranks up as well, so only orders are certain.
    held_up = sum(wait for (rank, _, line), wait in waits.items() if rank == 1 and line == summed)
    for rank in set(range(ranks)) - {1}:
        at_the_sum = {late: wait for (who, late, line), wait in waits.items() if (who, line) == (rank, summed)}
        assert max(at_the_sum, key=at_the_sum.get) == 1
        assert at_the_sum[1] > held_up
    assert {late for (rank, late, line) in waits if (rank, line) == (1, received)} == {0}

    merged, drawn = tmp_path / "mergéd.json", tmp_path / "picture"
    done = report(traces, "--picture", drawn, "-o", merged, PYTHONIOENCODING="ascii")
    assert f"The picture: {drawn}.png" in done.stdout
    assert "Note" not in done.stdout
    head, rows = table(done.stdout, "Who waited for whom, in ")
    assert " ".join(head.split()) == "who for whom mostly at waiting calls of it there"
    assert ["rank 0", "rank 1"] in [row[:2] for row in rows]
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    events = json.loads(merged.read_text())["traceEvents"]
    assert {event["pid"] for event in events} == set(range(ranks))
    slices = [event for event in events if event.get("cat") == "waiting" and event["ph"] == "X"]
    assert max(slices, key=lambda event: event["dur"])["name"] in ("waits for rank 1", "waits for rank 0")
    arrows = [event["id"] for event in events if event["ph"] == "s"]
    assert len(arrows) == len(set(arrows))
    assert sorted(arrows) == sorted(event["id"] for event in events if event["ph"] == "f")


ABORTS = """
import os, signal, sys, time
import jax.numpy as jnp, mpixla
from pathlib import Path
from mpi4py import MPI
from mpixla.trace.read import read_file
rank = MPI.COMM_WORLD.Get_rank()
x = jnp.ones(10)
for _ in range(100):
    mpixla.allreduce(x, op=MPI.SUM)
mpixla.barrier()
def has(rank, calls):
    found = read_file(Path(f"traces/rank-000{rank}.trace")).calls
    return len(found) == calls and sum(call.is_over for call in found) == 101
if rank == 1:
    while not (has(0, 102) and has(1, 101)):  # they are written a moment later
        time.sleep(0.01)
    if sys.argv[1] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise ValueError("no")
mpixla.allreduce(x, op=MPI.SUM)
time.sleep(60)
"""


@pytest.mark.parametrize("how", ["kill", "raise"])
def test_files_of_an_aborted_job_are_complete(job, tmp_path, how):
    done = job(2, ABORTS, how, MPIXLA_TRACE="traces", check=False)
    assert done.returncode != 0
    for rank in range(2):
        timeline = read_file(tmp_path / f"traces/rank-000{rank}.trace")
        assert timeline.damaged == 0
        ended = [call.is_over and not call.has_failed for call in timeline.calls]
        assert sum(ended) == 101
        # Rank 0 may hear of the other's death, by an error of its last call, before the launcher ends it.
        assert [call.name for call, e in zip(timeline.calls, ended, strict=True) if not e] == ["allreduce"] * (1 - rank)
    done = report(tmp_path / "traces")
    assert "Rank 1 never came to call 101 on communicator 'mpixla default', allreduce at script.py:" in done.stdout


FILLS = """
import sys
import jax, jax.numpy as jnp, mpixla
from jax import lax
from mpi4py import MPI
size = MPI.COMM_WORLD.Get_size()
mpixla.allreduce(jnp.ones(2), op=MPI.SUM).block_until_ready()
mpixla.barrier()  # MPI has the files that it needs
LIMIT
step = lambda i, x: mpixla.allreduce(x, op=MPI.SUM) / size + 1
x = mpixla.jit(lambda x: lax.fori_loop(0, 14000, step, x))(jnp.zeros(2))
print(f"{float(x[0]):.0f}\\n", end="")
"""
UNLIMITED = FILLS.replace("LIMIT", "")


@pytest.mark.any_mpi
@pytest.mark.long
def test_a_limit(job, tmp_path):
    done = job(2, UNLIMITED, MPIXLA_TRACE="traces", MPIXLA_TRACE_LIMIT="1.5")
    assert done.stdout.split() == ["14000"] * 2
    assert done.stderr.count("and the program goes on: the file has reached its limit of 1 MiB") == 2
    for rank in range(2):
        file = tmp_path / f"traces/rank-000{rank}.trace"
        assert 2**20 < file.stat().st_size <= 1.5 * 2**20
        assert read_file(file).stopped.startswith("the file has reached its limit")
    done = report(tmp_path / "traces")
    assert "Note: rank-0001.trace ends before the program did: the file has reached its limit of 1 MiB" in done.stdout
    assert '"ph": "i"' in (tmp_path / "traces/merged.json").read_text()


@pytest.mark.any_mpi
def test_a_file_that_cannot_grow(job, tmp_path):
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (400000, resource.RLIM_INFINITY))"
    done = job(2, FILLS.replace("LIMIT", limit), MPIXLA_TRACE="traces")
    assert done.stdout.split() == ["14000"] * 2
    assert done.stderr.count("and the program goes on: the file cannot be written: File too large") == 2
    for rank in range(2):
        timeline = read_file(tmp_path / f"traces/rank-000{rank}.trace")
        assert len(timeline.calls) > 1000
        assert timeline.stopped.endswith("File too large")
    done = report(tmp_path / "traces", "-o", "/dev/full", status=1)
    assert "cannot be written to" in done.stderr
    assert "Name another file with -o." in done.stderr


SHORTENS = """
import os
import jax.numpy as jnp, mpixla
from mpi4py import MPI
file = f"traces/rank-000{MPI.COMM_WORLD.rank}.trace"
x = jnp.ones(10)
for i in range(20):
    for _ in range(500):
        mpixla.allreduce(x, op=MPI.SUM).block_until_ready()
    i == 5 and os.truncate(file, 0)
print("ended")
"""


@pytest.mark.any_mpi
def test_a_file_that_is_made_shorter(job, tmp_path):
    done = job(2, SHORTENS, MPIXLA_TRACE="traces")
    assert done.stdout.split() == ["ended"] * 2
    told = "and the program goes on: it has been made shorter by another process"
    assert done.stderr.count(told) == 2
    for rank in range(2):
        assert read_file(tmp_path / f"traces/rank-000{rank}.trace").stopped.startswith("it has been made shorter")


@pytest.mark.any_mpi
def test_a_full_disk(job, tmp_path):
    """A small one, where that can be mounted."""
    disk = tmp_path / "traces"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("no disk can be mounted here")
    try:
        done = job(2, UNLIMITED, MPIXLA_TRACE="traces")
        timelines = [read_file(disk / f"rank-000{rank}.trace") for rank in range(2)]
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
    assert done.stdout.split() == ["14000"] * 2
    assert done.stderr.count("No space left on device") == 2
    assert any(timeline.calls for timeline in timelines)


NOTHING = "import mpixla, jax.numpy as jnp; from mpi4py import MPI; mpixla.allreduce(jnp.ones(3), op=MPI.SUM)"


@pytest.mark.any_mpi
def test_unwritable_trace_directory_is_reported_on_every_rank(job, tmp_path):
    (tmp_path / "file").write_text("")
    done = job(2, NOTHING, MPIXLA_TRACE="file", check=False, by_run=True)
    assert done.returncode != 0
    sentence = (
        f"ImportError: mpixla cannot trace on rank 0 (MPIXLA_TRACE): the directory {tmp_path}/file cannot be made: "
    )
    assert "mpixla: ranks 0 and 1 ended with an uncaught ImportError" in done.stderr
    assert done.stderr.count(sentence) == 1
    assert done.stderr.count("Name a directory that every rank can write to, or unset MPIXLA_TRACE.\n") == 1


def test_bad_limit(monkeypatch, tmp_path):
    """Of one rank: all refuse it. And unset, with no trace, nothing has come of this."""
    monkeypatch.setenv("MPIXLA_TRACE", str(tmp_path))
    monkeypatch.setenv("MPIXLA_TRACE_LIMIT", "much")
    with pytest.raises(ImportError) as refused:
        timeline.start_timelines([timeline.read_settings()])
    assert str(refused.value) == (
        "mpixla cannot trace on rank 0 (MPIXLA_TRACE): MPIXLA_TRACE_LIMIT must be a number of MiB, at least 1, but is "
        "'much'. Set it to such a number, or unset MPIXLA_TRACE_LIMIT."
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.any_mpi
def test_ranks_need_not_agree(job, tmp_path):
    """Each has a different idea of what is to be traced, and where."""
    setting = "import os; from mpi4py import MPI; rank = MPI.COMM_WORLD.Get_rank()\n"
    setting += "if rank < 2: os.environ['MPIXLA_TRACE'] = f'traces-{rank}'\n"
    job(3, setting + NOTHING)
    assert sorted(path.name for path in tmp_path.glob("traces*/*")) == ["rank-0000.trace", "rank-0001.trace"]
    os.rename(tmp_path / "traces-1/rank-0001.trace", tmp_path / "traces-0/rank-0001.trace")
    done = report(tmp_path / "traces-0")
    assert "2 of 3 ranks, 2 calls in " in done.stdout
    assert (
        "Note: No timeline of rank 2: it made no call, wrote elsewhere, or its file is damaged. "
        "Waits for it count as moving."
    ) in done.stdout


@pytest.mark.long
def test_under_mpirun_one_rank_answers(job, tmp_path):
    job(2, NOTHING, MPIXLA_TRACE="traces")
    main = "import sys; from mpixla.trace.__main__ import main; sys.exit(main(sys.argv[1:]))"
    done = job(2, main, tmp_path / "traces")
    assert done.stdout.count("By operation") == 1
    nothing = job(2, main, tmp_path / "nowhere", check=False)
    assert nothing.returncode == 1
    assert nothing.stderr.count(f"There is no timeline in {tmp_path}/nowhere.") == 1
    file = job(2, main, tmp_path / "traces/rank-0000.trace", check=False)
    assert f"is a file. Name the directory of all ranks' timelines: {tmp_path}/traces." in file.stderr


@pytest.mark.any_mpi
def test_damaged_files(job, tmp_path):
    """Whatever is done to the files, the reader tells what is left, or says in a sentence why it cannot."""
    traces = tmp_path / "traces"
    job(2, SLEEPS.replace("sleep(0.", "sleep(0.00"), MPIXLA_TRACE=traces)
    whole = {path.name: path.read_bytes() for path in traces.iterdir()}
    calls = sum(1 for _ in read_timelines(traces).all_calls())
    numbers = random.Random(12)
    seen = 0
    for _ in range(400):
        for name, file in whole.items():
            data = bytearray(file)
            for _ in range(numbers.randrange(4)):
                at = numbers.randrange(len(data) + 1)
                kind = numbers.randrange(4)
                if kind == 0:
                    del data[at:]
                elif kind == 1:
                    data[at : at + numbers.randrange(1, 60)] = numbers.randbytes(numbers.randrange(60))
                elif kind == 2:  # a number of 1 to 8 bytes, far out
                    size = 2 ** numbers.randrange(4)
                    value = numbers.choice((0, 1, 5, 2 ** (8 * size - 1) - 1, 2 ** (8 * size - 1), 2 ** (8 * size) - 1))
                    at -= at % size
                    data[at : at + size] = value.to_bytes(size, "little")
                elif data:
                    data[at % len(data)] = numbers.randrange(256)
            (traces / name).write_bytes(data)
        try:
            found = read_timelines(traces)
            match_calls(found)
        except FileNotFoundError:
            continue
        seen += 1
        for call in found.all_calls():
            assert 0 <= call.waiting <= max(0, call.time)
            assert call.moving >= 0
        assert all(note.endswith(".") for note in found.notes)
        if seen % 40 == 0:
            assert format_tables(found, 5).count("By ") == 3
            write_merged_trace(found, tmp_path / "merged.json")
            json.loads((tmp_path / "merged.json").read_text())
    assert seen > 200
    assert calls > 20


@pytest.mark.any_mpi
def test_files_of_other_runs_and_versions(job, tmp_path):
    traces = tmp_path / "traces"
    job(3, NOTHING, MPIXLA_TRACE=traces)
    job(2, NOTHING, MPIXLA_TRACE=traces)
    files = {path.name: path.read_bytes() for path in traces.iterdir()}
    # A program without calls, as this one that reads, leaves what was there, though it was to be traced.
    done = report(traces, "--rows", 1, MPIXLA_TRACE=str(traces))
    assert done.stdout.startswith("2 ranks, 2 calls in ")
    assert "Note: rank-0002.trace: of an earlier run, and left out." in done.stdout
    (traces / "merged.json").unlink()
    assert {path.name: path.read_bytes() for path in traces.iterdir()} == files
    (traces / "rank-0002.trace").unlink()

    first, second = sorted(traces.iterdir())
    data = bytearray(second.read_bytes())
    data[8] = 2
    second.write_bytes(data)
    (traces / "rank-0003.trace").write_text("what somebody wrote")
    (traces / "rank-0004.trace.1-2.new").write_text("of a process that was killed before its first call")
    notes = [
        "rank-0001.trace was written by another version of mpixla, whose timelines have layout 2 where this one reads "
        "layout 4: read it with python -m mpixla.trace of that version.",
        "rank-0003.trace is no timeline, or its beginning is damaged: it does not say whose it is.",
        "No timeline of rank 1: it made no call, wrote elsewhere, or its file is damaged. "
        "Waits for it count as moving.",
    ]
    assert read_timelines(traces).notes == notes
    first.unlink()
    done = report(traces, status=1)
    assert done.stderr.startswith(f"There is no timeline in {traces}. Run the program with MPIXLA_TRACE={traces} first")
    assert " ".join(notes[:2]) in done.stderr


SPAWNS = """
import sys
from mpi4py import MPI
import jax.numpy as jnp, mpixla
parent = MPI.Comm.Get_parent()
for _ in range(2 if parent == MPI.COMM_NULL else 3):
    mpixla.allreduce(jnp.ones(3), op=MPI.SUM)
if parent == MPI.COMM_NULL:
    parent = MPI.COMM_SELF.Spawn(sys.executable, [__file__], 1)
both = parent.Merge()
mpixla.allreduce(jnp.ones(3), op=MPI.SUM, comm=both)
mpixla.bcast(jnp.ones(3), root=1, comm=both)
parent.Disconnect()
"""


@pytest.mark.any_mpi
def test_spawned_processes_have_timelines_of_their_own(job, tmp_path):
    """Their ranks count from 0, too. Calls that they make together are in both."""
    traces = tmp_path / "traces"
    job(1, SPAWNS, MPIXLA_TRACE=traces)
    (spawned,) = traces.glob("spawned-*")
    done = report(traces)
    assert done.stdout.startswith("1 rank, 4 calls in ")
    assert f"Note: Processes that were spawned have timelines of their own: in {spawned}." in done.stdout
    assert "damaged" not in done.stdout
    assert report(spawned).stdout.startswith("1 rank, 5 calls in ")
    (traces / "rank-0000.trace").unlink()
    assert f"timelines of their own: in {spawned}." in report(traces, status=1).stderr


WINDOWS = """
import jax, jax.numpy as jnp, mpixla
from mpi4py import MPI
other = 1 - MPI.COMM_WORLD.Get_rank()

def swap(x):
    x = x.at[0].set(mpixla.sendrecv(x[1], jnp.zeros(3), source=other, dest=other))
    y = mpixla.sendrecv(x[0], jnp.zeros(3), source=other, dest=other)
    return x, y.sum() + mpixla.sendrecv(y + 1, y, source=other, dest=other)

jax.block_until_ready(jax.jit(swap)(jnp.ones((3, 3))))
"""


@pytest.mark.any_mpi
def test_timelines_mark_windows(job, tmp_path):
    job(2, WINDOWS, MPIXLA_TRACE="traces")
    report(tmp_path / "traces")
    events = json.loads((tmp_path / "traces/merged.json").read_text())["traceEvents"]
    for rank in range(2):
        found = [e["args"] for e in events if e["pid"] == rank and e["name"] == "sendrecv"]
        assert [x.get("window") for x in found] == ["sent and received", "sent", None]
        assert {x["sends"] for x in found} == {12}


EVERYTHING = """
import jax.numpy as jnp, mpixla
from mpi4py import MPI
comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
x = jnp.ones((3, 2))
mpixla.allreduce(x, op=MPI.MAX)  # ONE
mpixla.bcast(x, root=1)
if rank == 0:
    mpixla.send(x, 1, tag=5)
    mpixla.send(x, MPI.PROC_NULL)
else:
    mpixla.recv(x, source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG)
mpixla.wait(mpixla.iallreduce(x, op=MPI.SUM))
grid = comm.Create_cart([size], [False])
mpixla.halo_exchange(x, comm=grid)
"""


@pytest.mark.any_mpi
def test_merged_timeline_describes_each_call(job, tmp_path):
    job(2, EVERYTHING, MPIXLA_TRACE="traces")
    report(tmp_path / "traces")
    events = json.loads((tmp_path / "traces/merged.json").read_text())["traceEvents"]
    calls = [[e for e in events if e["pid"] == rank and "mpi" in e.get("args", ())] for rank in range(2)]

    def arguments(rank, name):
        found = [call["args"] for call in calls[rank] if call["name"] == name]
        for call in found:
            assert call.pop("site").startswith("script.py:")
            assert (call.pop("failed"), call.pop("thread") > 0, call.pop("number") > 0) == (0, True, True)
            assert call.pop("waiting") + call.pop("moving") >= 0
            call.pop("waited_for", 0), call.pop("which_came_to", 0)
        return found

    data = {"comm": "mpixla default", "items": 6, "dtype": "float32"}
    both = {**data, "sends": 24, "receives": 24}
    sends, receives = {**data, "sends": 24, "receives": 0}, {**data, "sends": 0, "receives": 24}
    for rank in range(2):
        summed = {"mpi": "MPI_Allreduce", "sequence": 0, "op": "MPI_MAX", **both}
        assert arguments(rank, "allreduce") == [summed]
        started = {"mpi": "MPI_Iallreduce", "sequence": 2, "op": "MPI_SUM", "request": "0.1", **both}
        assert arguments(rank, "iallreduce") == [started]
        (waited,) = arguments(rank, "wait for iallreduce")
        assert waited.pop("started_at").startswith("script.py:")
        assert waited == {"mpi": "MPI_Wait", "comm": data["comm"], "request": "0.1", "waits_for": "iallreduce"}
        halo = {"mpi": "MPI_Isend", "sequence": 0, "sources": [1 - rank], "sends": 8, "receives": 8}
        (found,) = arguments(rank, "halo_exchange")
        assert {name: found[name] for name in halo} == halo
    assert [arguments(rank, "bcast") for rank in range(2)] == [
        [{"mpi": "MPI_Bcast", "sequence": 1, "root": 1, **receives}],
        [{"mpi": "MPI_Bcast", "sequence": 1, "root": 1, **sends}],
    ]
    sent = {"mpi": "MPI_Send", **sends}
    assert arguments(0, "send") == [{**sent, "to": 1, "sendtag": 5}, {**sent, "to": None, "sendtag": 0}]
    assert arguments(1, "recv") == [{"mpi": "MPI_Recv", "from": "any", "recvtag": "any", **receives}]


CLOCKS = """
import time
import mpixla
from mpi4py import MPI
from mpixla.mpi import clock
comm = MPI.COMM_WORLD.Dup()
rank = comm.Get_rank()
ahead = [0, 3_000_000_000, -7_000_000_000][rank]
reading = clock.compare_clocks(comm, [1, 2], lambda: time.monotonic_ns() - ahead, float("inf"))
if rank == 0:
    assert reading is None
else:
    assert abs(reading.ahead - ahead) <= reading.round_trip, (reading, ahead)
# The others do not come.
begin = time.monotonic()
if rank != 1:
    assert clock.compare_clocks(comm, [1, 2], time.monotonic_ns, 0.2) is None or rank == 2
print("ok\\n", end="")
"""


def test_clocks_are_compared(job):
    assert job(3, CLOCKS).stdout.split() == ["ok"] * 3


def test_clock_host_names_boot_and_namespace():
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    for namespace in ("time", "pid"):
        assert clock.host_identifier(namespace) == f"{boot} {os.readlink(f'/proc/self/ns/{namespace}')}"


HOSTS = """
import os
from mpi4py import MPI
from mpixla_hosts import pretend
pretend(MPI.COMM_WORLD.Get_rank())
"""
PRETEND = """
import importlib.util, pathlib, sys
import mpi4py
def pretend(rank):
    # Each rank of its own host, before mpixla asks.
    read = pathlib.Path.read_text
    def read_text(self, *arguments, **options):
        return f"host {rank}" if str(self).endswith("boot_id") else read(self, *arguments, **options)
    pathlib.Path.read_text = read_text
"""


def test_several_hosts(job, tmp_path):
    (tmp_path / "mpixla_hosts.py").write_text(PRETEND)
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    job(3, HOSTS + SLEEPS, MPIXLA_TRACE="traces", PYTHONPATH=paths)
    found, waits = waits_of(tmp_path / "traces")
    assert found.notes == []
    assert [len(found.timelines[rank].readings) for rank in range(3)] == [0, 2, 2]
    summed = str(line_of(HOSTS + SLEEPS, "THE SUM"))
    for rank in (0, 2):
        at_the_sum = {late: wait for (who, late, line), wait in waits.items() if (who, line) == (rank, summed)}
        assert max(at_the_sum, key=at_the_sum.get) == 1
