"""End jobs that can never end, with no option set, and let those go on that only seem so."""

import re

import pytest

from jobs import alone, soon

BEGINNING = (
    soon(4)
    + """
    import sys, threading, time
    from mpi4py import MPI
    import jax, jax.numpy as jnp, numpy as np
    import mpixla
    world = MPI.COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    x, big = jnp.arange(4.0), jnp.zeros(1 << 20)
    mpixla.barrier()
"""
)

# Each rank waits for another one, in calls that nothing ends.
CIRCLES = {
    "both receive first": "mpixla.recv(x, source=left); mpixla.send(x, dest=right)",
    "in a jitted function": "jax.jit(lambda x: mpixla.recv(x, source=left))(x).block_until_ready()",
    "computed in another thread of XLA's": """
    a = jnp.ones((500, 500))
    print(jax.jit(lambda x, a: mpixla.recv(x, source=left) + (a @ a @ a)[0, 0])(x, a))
    """,
    "both send what is large": "mpixla.send(big, dest=right)",
    "started": "mpixla.wait(mpixla.irecv(x, source=left))",
    "a collective call and a message": """
    if rank == 0:
        mpixla.allreduce(x, op=MPI.SUM)
    mpixla.recv(x, source=left)
    """,
    "two communicators": """
    comms = [world.Dup(), world.Dup()]
    [mpixla.barrier(comm=comm) for comm in comms]
    mpixla.allreduce(x, op=MPI.SUM, comm=comms[rank % 2])
    mpixla.allreduce(x, op=MPI.SUM, comm=comms[1 - rank % 2])
    """,
}


@pytest.mark.any_mpi
@pytest.mark.parametrize("name", CIRCLES)
def test_ranks_that_wait_for_each_other_in_a_circle(job, name):
    """Expect two looks, a time apart, that say the same."""
    done = job(2, BEGINNING + f"\n    {CIRCLES[name]}\n", check=False, timeout=100)
    assert done.returncode != 0
    first, _, last = done.stderr.partition("that can never end, so the whole job ends.")
    assert re.search(
        r"\Ampixla: rank 0 has waited for [45]\.\d s in a call. It can never end, as it seems: if that is", first
    )
    assert "These ranks wait for each other in a circle: " in first
    assert "These ranks wait for each other in a circle: " in last
    assert done.stderr.count("so the whole job ends") == 1
    assert done.stderr.count("has waited for") == 2


def test_ranks_that_wait_for_a_circle_of_others(job):
    done = job(3, BEGINNING + "    mpixla.recv(x, source=3 - rank if rank else 1)\n", check=False, timeout=100)
    assert "that can never end, so the whole job ends." in done.stderr
    assert "in a circle: rank 1 waits for rank 2, rank 2 waits for rank 1." in done.stderr


# What may still end the circle, after two looks.
A_THREAD_SENDS = """
    def later():
        time.sleep(14)
        comm.Send(np.ones(4, np.float32), dest=right)
    thread = threading.Thread(target=later)
    thread.start()
    print(mpixla.recv(x, source={}, comm=comm)[1])
    thread.join()
    """
ENDINGS = {
    "another thread sends": A_THREAD_SENDS.format("left"),
    "the main thread sends while XLA waits": """
    a = jnp.ones((500, 500))
    got = jax.jit(lambda x, a: mpixla.recv(x, source=left, comm=comm) + 0 * (a @ a @ a)[0, 0])(x, a)
    time.sleep(14)
    comm.Send(np.ones(4, np.float32), dest=right)
    print(got[1])
    """,
    "of any source": A_THREAD_SENDS.format("MPI.ANY_SOURCE"),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_circles_that_end(job, name):
    """Expect a sentence, and that the job goes on."""
    done = job(2, BEGINNING + "\n    comm = world.Dup()\n" + ENDINGS[name], timeout=100)
    assert done.stdout.split() == ["1.0", "1.0"]
    assert done.stderr.count("goes on waiting") == 1
    assert "so the whole job ends" not in done.stderr


# More than a report lists: the last one is left out of it.
MANY = """
    from mpixla.mpi.comm import comm_of
    for _ in range(1030):
        comm = MPI.COMM_SELF.Dup()
        comm_of(comm)
    comm = world.Dup()
    mpixla.barrier(comm=comm)
"""


@pytest.mark.any_mpi
def test_more_communicators_than_are_listed(job):
    """Expect that a rank is not missed in a call of which it has made its part."""
    done = job(
        3,
        BEGINNING.replace("= 4", "= 60")
        + MANY
        + """
    for i in range(70):
        mpixla.barrier(comm=comm)
    if rank == 2:
        time.sleep(9)
    got = mpixla.reduce(x, op=MPI.SUM, root=0, comm=comm)
    for i in range(20):  # so that the call is not among its last ones
        mpixla.barrier(comm=MPI.COMM_SELF)
    print(got[1])
    """,
        timeout=150,
    )
    assert sorted(done.stdout.split()) == ["1.0", "1.0", "3.0"]
    assert done.stderr == ""


SELF = """
    import threading, time
    from mpi4py import MPI
    import jax, jax.numpy as jnp, numpy as np
    import mpixla
    world = MPI.COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()
    x, a = jnp.arange(4.0), jnp.ones((500, 500))
    comm = world.Dup()
"""
# Receives of what only this rank could send, and does not.
IN_VAIN = {
    "eager": "mpixla.recv(x, (rank - 1) % size)",
    "jit": "jax.jit(lambda x: mpixla.recv(x, (rank - 1) % size))(x)",
    "a thread of XLA's": "print(jax.jit(lambda x, a: mpixla.recv(x, 0) + (a @ a @ a)[0, 0])(x, a))",
    "blocked on": "jax.jit(lambda x, a: mpixla.recv(x, 0) + (a @ a @ a)[0, 0])(x, a).block_until_ready()",
    "MPI_COMM_SELF": "mpixla.recv(x, 0, comm=MPI.COMM_SELF)",
    "any source": "mpixla.recv(x, MPI.ANY_SOURCE, comm=MPI.COMM_SELF)",
    "a part of the ranks": "mpixla.recv(x, 0, comm=world.Split(rank))",
    "other tags": "mpixla.sendrecv(x, x, source=rank, dest=rank, sendtag=1, recvtag=2, comm=comm)",
    "started": "mpixla.wait(mpixla.irecv(x, rank, tag=3))",
    "started both ways": "mpixla.wait(mpixla.isendrecv(x, x, source=rank, dest=rank, sendtag=3, recvtag=4, comm=comm))",
}
TRY = """
    def attempt(name, call):
        try:
            jax.block_until_ready(call())
        except Exception as e:
            print(name, "waits in vain" if "nothing can send it any more" in str(e) else e, flush=True)
"""


@pytest.mark.any_mpi
@pytest.mark.parametrize("ranks", [1, 2])
def test_receive_from_oneself_without_a_send_is_refused(job, ranks):
    programs = [name for name in IN_VAIN if ranks == 1 or "size" not in IN_VAIN[name]]
    calls = "".join(f"    attempt({name!r}, lambda: {IN_VAIN[name]})\n".replace(", 0)", ", rank)") for name in programs)
    done = job(ranks, SELF + TRY + calls)
    assert sorted(done.stdout.splitlines()) == sorted(
        f"{name} waits in vain" for name in programs for _ in range(ranks)
    )


# The same with a message that was sent, is sent by the call itself, or will be.
FROM_ONESELF = """
    request = mpixla.isend(x, rank, tag=7)
    assert mpixla.recv(x, rank, tag=7)[3] == 3
    mpixla.wait(request)
    mpixla.send(x, rank, tag=8)
    assert mpixla.recv(x, rank, tag=8)[3] == 3
    assert mpixla.sendrecv(x, x, source=rank, dest=rank)[3] == 3
    assert mpixla.wait(mpixla.isendrecv(x, x, source=rank, dest=rank))[3] == 3
    request = mpixla.irecv(x, rank, tag=9)
    mpixla.send(x, rank, tag=9)
    assert mpixla.wait(request)[3] == 3

    ones = np.ones(4, np.float32)
    request = comm.Isend(ones, dest=rank)  # by mpi4py: before,
    assert mpixla.recv(x, rank, comm=comm)[3] == 1
    request.Wait()

    def later():
        time.sleep(3)
        comm.Send(ones, dest=rank)

    thread = threading.Thread(target=later)  # from another thread,
    thread.start()
    assert mpixla.recv(x, rank, comm=comm)[3] == 1
    thread.join()
    got = jax.jit(lambda x, a: mpixla.recv(x, rank, comm=comm) + 0 * (a @ a @ a)[0, 0])(x, a)
    later()  # and from this one, while XLA waits
    assert got[3] == 1
    print("right")
"""


@pytest.mark.any_mpi
@pytest.mark.parametrize("ranks", [1, 2])
def test_receiving_from_oneself(job, ranks):
    done = job(ranks, SELF + FROM_ONESELF)
    assert done.stdout.split() == ["right"] * ranks
    assert done.stderr == ""


def test_receiving_from_oneself_in_a_notebook(tmp_path):
    """Have threads, as a notebook's kernel, that make no call of the program's."""
    package = tmp_path / "ipykernel"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import threading, time\n"
        "def serve():\n    while True:\n        time.sleep(1)\n"
        "threading.Thread(target=serve, daemon=True).start()\n"
    )
    code = "import ipykernel\n" + "\n".join(line.strip() for line in SELF.splitlines()) + "\nmpixla.recv(x, 0)"
    done = alone("-c", code, PYTHONPATH=str(tmp_path))
    assert done.returncode != 0
    assert "nothing can send it any more" in done.stderr


def test_extra_call_after_the_compared_ones_is_reported(job):
    """Expect a report that is short, and says how to find the call."""
    done = job(
        2,
        BEGINNING.replace("= 4", "= 60")
        + """
    step = jax.jit(lambda x: mpixla.allreduce(x, op=MPI.SUM) / 2)
    for i in range(100):
        x = step(x)
        if rank == 1 and i == 70:
            x = step(x)
    """,
        check=False,
    )
    report = done.stderr[done.stderr.index("mpixla: rank 1 has waited for ") :]
    said = re.split(r"^Abort|^----", report, maxsplit=1, flags=re.M)[0].splitlines()  # what mpirun says is behind it
    assert "for a rank that is at the end of its script, so the whole job ends." in report
    assert "collective call 102 on communicator 'mpixla default', of which the first 64 were compared" in report
    assert "--check (MPIXLA_CHECK=1) compares all, and names the first line that differs." in report
    assert len(re.findall(r"^      1[45] times, the first one \d+\.\d s ago and the last one ", report, re.M)) == 2
    assert len(said) <= 14, report


def test_threads_of_one_rank_on_one_communicator(job):
    """Make the same calls on the other rank in the main thread, in another order."""
    done = job(
        2,
        BEGINNING
        + """
    def work(i):
        mpixla.allreduce(x, op=MPI.SUM) if i == 0 else mpixla.bcast(x, 0)
    for i in range(2):
        if rank == 0:
            thread = threading.Thread(target=work, args=(i,))
            thread.start()
            thread.join()
        else:
            work(0)
    """,
        check=False,
    )
    assert "On rank 0 several threads make collective calls on this communicator" in done.stderr
    assert "give each thread a communicator of its own" in done.stderr
