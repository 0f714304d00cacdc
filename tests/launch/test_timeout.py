"""End jobs that hang, under MPIXLA_TIMEOUT, with a report that says why, and no jobs that only take long."""

import re
from typing import NamedTuple

import pytest

from mpixla.checks import timeout

BEGINNING = """
    import os, signal, sys, threading, time, warnings
    from mpi4py import MPI
    import jax, jax.numpy as jnp, numpy as np
    import mpixla
    rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
    x = jnp.arange(3.0)
    MPI.COMM_WORLD.Barrier()  # of mpi4py's: processes do not start at one time
    mpixla.barrier()
"""


class Hang(NamedTuple):
    """Describe the report on a program that hangs: patterns, each of a rank's own lines if it has a number."""

    code: str
    says: tuple[str | tuple[int, str], ...]
    ranks: int = 2
    check: str = ""


STOPPED = r"Rank 1 has not come: its process is stopped \(SIGSTOP, or a debugger\): process \d+ on "
BUSY = "Rank 1 has not come: it is in no call of mpixla; in the last second it used "
HANGS = {
    "a rank never comes": Hang(
        """
    if rank == 0:
        mpixla.allreduce(x, op=MPI.SUM).block_until_ready()
    """,
        (
            r"\Ampixla: rank 0 has waited for \d+\.\d s in a call, longer than MPIXLA_TIMEOUT=2 allows",
            "MPI_Allreduce with 3 items of float32, op MPI_SUM, on rank 0 of 2 of communicator 'mpixla default'",
            r"at script\.py:\d+",
            r"Rank 1 has not come: it is at the end of its script\.",
            (
                1,
                r"s ago: MPI_Barrier, on rank 1 of 2 of communicator 'mpixla default', at script\.py:\d+ \(collective "
                r"call 1\)",
            ),
        ),
    ),
    "a process is stopped": Hang(
        """
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    mpixla.allreduce(x, op=MPI.SUM).block_until_ready()
    """,
        (STOPPED,),
    ),
    "both receive first": Hang(
        """
    got = mpixla.recv(x, source=1 - rank, tag=4)
    mpixla.send(x, dest=1 - rank, tag=4)
    """,
        (
            "These ranks wait for each other in a circle: rank (0 waits for rank 1, rank 1 waits for rank 0|1 waits "
            r"for rank 0, rank 0 waits for rank 1)\.",
            (0, "MPI_Recv <- 1 with tag 4 and 3 items of float32, on rank 0 of 2"),
            (0, "waits for rank 1"),
            (1, "MPI_Recv <- 0 with tag 4 and 3 items of float32, on rank 1 of 2"),
            (1, "waits for rank 0"),
        ),
    ),
    "another collective call": Hang(
        """
    big = jnp.zeros(100000)
    if rank == 0:
        mpixla.allgather(big).block_until_ready()
    else:
        mpixla.barrier()
    """,
        (
            "Ranks 0 and 1 make different calls: collective call 2 on communicator 'mpixla default'",
            r"on rank 0: .*MPI_Allgather .*script\.py:\d+",
            r"on rank 1: .*MPI_Barrier.*script\.py:\d+",
        ),
        check="0",
    ),
    "a loop in Python": Hang(
        """
    def count_for_ever():
        n = 0
        while True:
            n += 1
    if rank == 1:
        count_for_ever()
    mpixla.allreduce(x, op=MPI.SUM).block_until_ready()
    """,
        (
            BUSY,
            r"Python's main thread:\s+script\.py:\d+ in count_for_ever: (n \+= 1|while True:)\s+"
            r"script\.py:\d+ in <module>: count_for_ever\(\)\n",
        ),
    ),
    "Python's lock is held in C": Hang(
        """
    import ctypes
    if rank == 1:
        ctypes.PyDLL(None).sleep(1000)
    mpixla.allreduce(x, op=MPI.SUM).block_until_ready()
    """,
        ("Rank 1 has not come", "Python does not answer for a long time: code in C holds its lock"),
    ),
    "standard output that nobody reads": Hang(
        """
    if rank == 1:
        nobody_reads, end = os.pipe()
        os.dup2(end, 1)
        print("x" * (1 << 20))
    mpixla.allreduce(x, op=MPI.SUM).block_until_ready()
    """,
        ("Rank 1 has not come", "Python does not answer: the program prints, and nothing reads"),
    ),
    "requests that nothing matches": Hang(
        """
    request = mpixla.irecv(x, source=1 - rank, tag=7)
    mpixla.wait(request).block_until_ready()
    """,
        ("MPI_Wait for MPI_Irecv <- ", r"started at script\.py", "circle"),
    ),
    # All compare it.
    "an exchange of the other ranks": Hang(
        """
    others = [1 - rank] if rank < 2 else []
    graph = MPI.COMM_WORLD.Create_dist_graph_adjacent(others, others)
    for step in range(2 if rank < 2 else 1):
        mpixla.neighbor_allgather(x, comm=graph).block_until_ready()
    """,
        (r"Rank 2 has not come: it is at the end of its script\.",),
        ranks=3,
    ),
    # Members are named by their rank in MPI_COMM_WORLD.
    "sub-communicators": Hang(
        """
    row = MPI.COMM_WORLD.Split(rank % 2, rank)
    row.Set_name("odd" if rank % 2 else "even")
    if rank == 3:
        time.sleep(1000)
    for i in range(3):
        mpixla.allreduce(x, op=MPI.SUM, comm=row).block_until_ready()
    """,
        (
            "Rank 3 has not come: it is in no call of mpixla",
            (1, "on rank 0 of 2 of communicator 'odd'"),
            "it is at the end of its script",
        ),
        ranks=4,
    ),
    # Each has a communicator. The one that hangs is named, and its lines.
    "threads": Hang(
        """
    comms = [MPI.COMM_WORLD.Dup() for _ in range(2)]
    for comm in comms:  # first used in one order on both ranks: docs/trouble.md
        mpixla.barrier(comm=comm)
    def work(i):
        for step in range(3):
            if (rank, i, step) == (1, 1, 2):
                time.sleep(1000)
            mpixla.allreduce(x, op=MPI.SUM, comm=comms[i]).block_until_ready()
    threads = [threading.Thread(target=work, args=(i,), name=f"worker {i}") for i in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    """,
        ("Rank 1 has not come", "Python's thread worker 1:", r"in work: time\.sleep\(1000\)"),
    ),
}
# They wait for each other at the end of their scripts, where no call is under way.
STOPS_LATE = Hang(
    """
    mpixla.allreduce(x, op=MPI.SUM).block_until_ready()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    """,
    ("has come to the end of its script, and has waited there for longer than MPIXLA_TIMEOUT=", STOPPED),
    ranks=3,
)


@pytest.mark.parametrize(
    "hang",
    [*HANGS.values(), pytest.param(STOPS_LATE, marks=pytest.mark.long)],
    ids=[*HANGS, "a process is stopped when the others have ended"],
)
def test_report(job, hang):
    done = job(hang.ranks, BEGINNING + hang.code, check=False, MPIXLA_TIMEOUT="2", MPIXLA_CHECK=hang.check)
    assert done.returncode != 0, done.stdout + done.stderr
    assert done.stderr.count("so the whole job ends") == 1, done.stderr
    text = done.stderr[done.stderr.index("mpixla: rank") :]
    for says in hang.says:
        if isinstance(says, tuple):
            rank, says = says
            own = re.search(rf"^  rank {rank} \(.*?(?=^  ranks? \d|\Z)", text, re.DOTALL | re.MULTILINE)[0]
            assert re.search(says, own), text
        else:
            assert re.search(says, text), text


HOSTS = """
    import os
    from mpi4py import MPI
    real, host = os.readlink, f" of host {MPI.COMM_WORLD.Get_rank() > 0}"
    os.readlink = lambda path: real(path) + (host if path == "/proc/self/ns/pid" else "")
"""


def test_stopped_on_another_host(job):
    """Stop a process of which only a rank of the same host can see why it does not answer."""
    done = job(
        3,
        HOSTS
        + BEGINNING
        + """
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    mpixla.allreduce(x, op=MPI.SUM).block_until_ready()
    """,
        check=False,
        MPIXLA_TIMEOUT="2",
    )
    assert "rank 0 has waited" in done.stderr, done.stderr
    assert re.search(r"Rank 1 .* stopped .* process \d+", done.stderr), done.stderr


# Partners that come late, large messages, a process that was forked, and an end of the program's own.
SLOWLY = """
    if rank == 1:
        time.sleep(2)
    for i in range(3):
        mpixla.allreduce(x, op=MPI.SUM).block_until_ready()
        mpixla.sendrecv(x, x, source=(rank - 1) % size, dest=(rank + 1) % size).block_until_ready()
    big = jnp.ones(20_000_000)
    for i in range(4):
        big = mpixla.allreduce(big, op=MPI.MAX)
        big = mpixla.sendrecv(big, big, source=1 - rank, dest=1 - rank)
    print(float(big[-1]), flush=True)
    warnings.simplefilter("ignore")  # JAX's, of forks
    child = os.fork()
    if child == 0:
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    print(float(mpixla.allreduce(x, op=MPI.SUM)[1]), flush=True)
    MPI.Finalize()
    time.sleep(0.3 * rank)
    print("end")
"""


def test_calls_shorter_than_the_limit_are_not_reported(job):
    done = job(2, BEGINNING + SLOWLY, MPIXLA_TIMEOUT="10")
    assert sorted(done.stdout.split()) == ["1.0", "1.0", "2.0", "2.0", "end", "end"]
    assert done.stderr == ""


# A reduction whose function takes its time, while both ranks are in the call.
SLOW = """
    def combine(a, b, dtype):
        time.sleep(float(sys.argv[1]))
        b[:] = a
    op = MPI.Op.Create(combine, commute=True)
    print(float(mpixla.allreduce(x, op=op)[1]))
"""


@pytest.mark.long
def test_nobody_waits_for_a_rank(job):
    """Compute, or be in a call to which all have come, for longer than the limit; and end long after the others."""
    done = job(
        3,
        BEGINNING
        + """
    end = time.monotonic() + 5
    while time.monotonic() < end:
        jax.jit(lambda x: jax.lax.fori_loop(0, 10**5, lambda i, x: x * 1.0001, x))(x).block_until_ready()
    """
        + SLOW
        + """
    if rank == 1:
        time.sleep(5)
    """,
        3,
        MPIXLA_TIMEOUT="2",
    )
    assert done.stdout.split() == ["1.0"] * 3
    assert done.stderr == ""


@pytest.mark.long
def test_all_are_there_for_very_long(job):
    done = job(2, BEGINNING + SLOW, 1000, check=False, MPIXLA_TIMEOUT="1")
    assert done.returncode != 0
    assert "All ranks that the call takes have come to it, and yet it does not end." in done.stderr


def test_empty_value(monkeypatch):
    """Take an empty value for none."""
    monkeypatch.setenv("MPIXLA_TIMEOUT", "")
    assert timeout.read_settings()[0] == timeout._UNSET


@pytest.mark.parametrize("value", ["soon", "-1", "nan", "inf", "1e30"])
def test_bad_value(monkeypatch, value):
    """Refuse it on all ranks, where one rank has it."""
    monkeypatch.setenv("MPIXLA_TIMEOUT", value)
    own = timeout.read_settings()
    with pytest.raises(ValueError, match="MPIXLA_TIMEOUT must be a number of seconds greater than 0"):
        timeout.start_watchdog([(5.0, own[1]), own])


def test_ranks_that_disagree(job):
    """Set the variable on one rank only."""
    done = job(
        2,
        """
    import os
    from mpi4py import MPI
    if MPI.COMM_WORLD.Get_rank() == 1:
        os.environ["MPIXLA_TIMEOUT"] = "1"
    """
        + BEGINNING
        + """
    if rank == 0:
        mpixla.recv(x, source=1).block_until_ready()
    """,
        check=False,
    )
    assert done.returncode != 0
    assert "MPIXLA_TIMEOUT differs between the ranks: all take the greatest value, 1 s." in done.stderr
    assert "Rank 1 has not come: it is at the end of its script." in done.stderr


def test_without_threads_in_mpi(job):
    """Expect each rank to tell of itself alone, without MPI_THREAD_MULTIPLE."""
    done = job(
        2,
        """
    import mpi4py
    mpi4py.rc.thread_level = "serialized"
    """
        + BEGINNING
        + """
    if rank == 0:
        mpixla.recv(x, source=1).block_until_ready()
    else:
        time.sleep(1000)
    """,
        check=False,
        MPIXLA_TIMEOUT="1",
    )
    assert done.returncode != 0
    assert "MPI_Recv <- 1 with tag any and 3 items of float32, on rank 0 of 2" in done.stderr
