"""MPIXLA_TIMEOUT: jobs that hang end with a report that says why, and jobs that only take long do not."""

import re

import pytest

from mpixla.watch import timeout

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


def report_of(job, n, code, *, seconds="2", **environment):
    """The report of a job that ends with one."""
    done = job(n, BEGINNING + code, check=False, MPIXLA_TIMEOUT=seconds, **environment)
    assert done.returncode != 0, done.stdout + done.stderr
    assert done.stderr.count("so the whole job ends") == 1, done.stderr
    return done.stderr[done.stderr.index("mpixla: rank") :]


def line_of(text, number):
    """What the report says of a rank."""
    return re.search(rf"^  rank {number} \(.*?(?=^  ranks? \d|\Z)", text, re.DOTALL | re.MULTILINE)[0]


def test_rank_that_never_comes(job):
    text = report_of(
        job,
        2,
        """
    if rank == 0:
        mpixla.allreduce(x, op=MPI.SUM).block_until_ready()
    """,
    )
    assert re.match(r"mpixla: rank 0 has waited for \d+\.\d s in a call, longer than MPIXLA_TIMEOUT=2 allows", text)
    assert "MPI_Allreduce with 3 items of float32, op MPI_SUM, on rank 0 of 2 of communicator 'mpixla default'" in text
    assert re.search(r"at script\.py:\d+", text)
    assert "Rank 1 has not come: it is at the end of its script." in text
    last = (
        r"s ago: MPI_Barrier, on rank 1 of 2 of communicator 'mpixla default', at script\.py:\d+ \(collective call 1\)"
    )
    assert re.search(last, line_of(text, 1))


def test_stopped(job):
    text = report_of(
        job,
        2,
        """
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    mpixla.allreduce(x, op=MPI.SUM).block_until_ready()
    """,
    )
    assert re.search(r"Rank 1 has not come: its process is stopped \(SIGSTOP, or a debugger\): process \d+ on ", text)


HOSTS = """
    import os
    from mpi4py import MPI
    real, host = os.readlink, f" of host {MPI.COMM_WORLD.Get_rank() > 0}"
    os.readlink = lambda path: real(path) + (host if path == "/proc/self/ns/pid" else "")
"""


def test_stopped_on_another_host(job):
    """Only a rank of the same host can see why a process does not answer."""
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
    assert "mpixla: rank 0 has waited for " in done.stderr, done.stderr
    assert "Rank 1 has not come: its process is stopped (SIGSTOP, or a debugger): process " in done.stderr, done.stderr


@pytest.mark.long
def test_stopped_when_the_others_have_ended(job):
    """They wait for each other at the end of their scripts, where no call is under way."""
    text = report_of(
        job,
        3,
        """
    mpixla.allreduce(x, op=MPI.SUM).block_until_ready()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    """,
    )
    assert "has come to the end of its script, and has waited there for longer than MPIXLA_TIMEOUT=" in text
    assert re.search(r"Rank 1 has not come: its process is stopped \(SIGSTOP, or a debugger\): process \d+ on ", text)


def test_both_receive_first(job):
    text = report_of(
        job,
        2,
        """
    other = 1 - rank
    got = mpixla.recv(x, source=other, tag=4)
    mpixla.send(x, dest=other, tag=4)
    """,
    )
    assert re.search(
        "These ranks wait for each other in a circle: "
        "rank (0 waits for rank 1, rank 1 waits for rank 0|1 waits for rank 0, rank 0 waits for rank 1).",
        text,
    )
    for rank in (0, 1):
        assert f"MPI_Recv <- {1 - rank} with tag 4 and 3 items of float32, on rank {rank} of 2" in line_of(text, rank)
        assert f"waits for rank {1 - rank}" in line_of(text, rank)


def test_other_collective(job):
    text = report_of(
        job,
        2,
        """
    big = jnp.zeros(100000)
    if rank == 0:
        mpixla.allreduce(big, op=MPI.SUM).block_until_ready()
    else:
        mpixla.barrier()
        mpixla.reduce(big, op=MPI.SUM, root=1).block_until_ready()
        mpixla.recv(x, source=0)
    """,
        MPIXLA_CHECK="0",
    )
    assert "Ranks 0 and 1 make different calls: collective call 2 on communicator 'mpixla default'" in text, text
    assert re.search(r"on rank 0: .*MPI_Allreduce .*script\.py:\d+", text)
    assert re.search(r"on rank 1: .*MPI_Barrier.*script\.py:\d+", text)


def test_python_loop(job):
    text = report_of(
        job,
        2,
        """
    def count_for_ever():
        n = 0
        while True:
            n += 1
    if rank == 1:
        count_for_ever()
    mpixla.allreduce(x, op=MPI.SUM).block_until_ready()
    """,
    )
    assert "Rank 1 has not come: it is in no call of mpixla; in the last second it used " in text
    assert "Python's main thread:" in text
    assert re.search(r"script\.py:\d+ in count_for_ever: (n \+= 1|while True:)", text)


def test_lock_of_python_held_in_c(job):
    text = report_of(
        job,
        2,
        """
    import ctypes
    if rank == 1:
        ctypes.PyDLL(None).sleep(1000)
    mpixla.allreduce(x, op=MPI.SUM).block_until_ready()
    """,
    )
    assert "Rank 1 has not come" in text
    assert "Python's lock is held for a long time" in text


def test_requests_never_matched(job):
    text = report_of(
        job,
        2,
        """
    request = mpixla.irecv(x, source=1 - rank, tag=7)
    mpixla.wait(request).block_until_ready()
    """,
    )
    assert "MPI_Wait for MPI_Irecv <- " in text
    assert "started at script.py" in text
    assert "circle" in text


def test_sub_communicators(job):
    """Members are named by their rank in MPI_COMM_WORLD."""
    text = report_of(
        job,
        4,
        """
    row = MPI.COMM_WORLD.Split(rank % 2, rank)
    row.Set_name("odd" if rank % 2 else "even")
    if rank == 3:
        time.sleep(1000)
    for i in range(3):
        mpixla.allreduce(x, op=MPI.SUM, comm=row).block_until_ready()
    """,
    )
    assert "Rank 3 has not come: it is in no call of mpixla" in text
    assert "on rank 0 of 2 of communicator 'odd'" in line_of(text, 1)
    assert "it is at the end of its script" in text


def test_threads(job):
    """Each thread has a communicator; the one that hangs is named, and its Python lines."""
    text = report_of(
        job,
        2,
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
    )
    assert "Rank 1 has not come" in text
    assert "Python's thread worker 1:" in text
    assert re.search(r"in work: time\.sleep\(1000\)", text)


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
        sys.exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    print(float(mpixla.allreduce(x, op=MPI.SUM)[1]), flush=True)
    MPI.Finalize()
    time.sleep(0.3 * rank)
    print("end")
"""


def test_those_that_need_less_than_the_limit(job):
    done = job(2, BEGINNING + SLOWLY, MPIXLA_TIMEOUT="10")
    assert sorted(done.stdout.split()) == ["1.0", "1.0", "2.0", "2.0", "end", "end"]
    assert done.stderr == ""


def test_while_pytest_captures(job, tmp_path):
    """The process ends before pytest shows what it has captured."""
    test = tmp_path / "test_it.py"
    test.write_text(
        "import jax.numpy as jnp, mpixla, time\n"
        "from mpi4py import MPI\n"
        "def test_it():\n"
        "    print('captured')\n"
        "    if MPI.COMM_WORLD.rank == 0:\n"
        "        mpixla.barrier()\n"
        "    time.sleep(100)\n"
    )
    done = job(
        2, "import pytest, sys; sys.exit(pytest.main(['-q', sys.argv[1]]))", test, check=False, MPIXLA_TIMEOUT="2"
    )
    assert done.returncode != 0
    assert done.stderr.count("mpixla: rank 0 has waited for ") == 1
    assert "captured" not in done.stderr + done.stdout


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
    """Each computes, or is in a call to which all have come, for longer than the limit; and one ends long after."""
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


@pytest.mark.parametrize("value", ["soon", "-1", "nan", "inf", "1e30"])
def test_bad_value(monkeypatch, value):
    """Of one rank: all refuse it."""
    monkeypatch.setenv("MPIXLA_TIMEOUT", value)
    most, minus_least = timeout.wish()
    with pytest.raises(ValueError, match="MPIXLA_TIMEOUT must be a number of seconds greater than 0"):
        timeout.begin(max(most, 5.0), max(minus_least, -5.0))


def test_ranks_that_disagree(job):
    """The variable reaches one rank only."""
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
    """Without MPI_THREAD_MULTIPLE each rank tells of itself alone."""
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
