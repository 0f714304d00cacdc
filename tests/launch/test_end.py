"""How jobs end: nobody hangs, nothing that was dispatched is lost."""

import re

import pytest

PREAMBLE = """
import jax, jax.numpy as jnp, mpixla, sys, os, signal, threading, time
from mpi4py import MPI
rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
"""


@pytest.mark.parametrize("where", ["eager", "jit"])
def test_uncaught_exception_ends_the_job(job, where):
    """The others wait in an allreduce that will never be answered."""
    call = "jax.jit(f)(jnp.ones(3))" if where == "jit" else "f(jnp.ones(3))"
    done = job(
        3,
        f"""{PREAMBLE}
def f(x):
    return mpixla.allreduce(x, op=MPI.SUM)
if rank == 1:
    raise KeyError("lost on rank 1")
{call}.block_until_ready()
""",
        check=False,
    )
    assert done.returncode != 0
    assert "KeyError: 'lost on rank 1'" in done.stderr
    assert "mpixla: rank 1 ended with an uncaught KeyError" in done.stderr
    assert "rank 0 ended" not in done.stderr


def test_failed_call_that_nobody_catches_ends_the_job(job):
    done = job(
        2,
        f"""{PREAMBLE}
if rank == 0:
    mpixla.send(jnp.ones(10), 1)
    mpixla.recv(jnp.ones(1), 1)
else:
    print(mpixla.recv(jnp.ones(2), 0))
""",
        check=False,
    )
    assert done.returncode != 0
    assert re.search(r"r1 \| MPI_Recv returned error code \d+: ", done.stderr)


def test_failure_of_a_result_that_nobody_looks_at_ends_the_job(job):
    done = job(
        2,
        f"""{PREAMBLE}
@jax.jit
def receive(x):
    x = jax.lax.fori_loop(0, 5, lambda i, x: x @ x, x)
    return mpixla.recv(x[0, :3], 0)
if rank == 0:
    mpixla.send(jnp.ones(10), 1)
    mpixla.recv(jnp.ones(1), 1)
else:
    receive(jnp.zeros((500, 500)))
""",
        check=False,
    )
    assert done.returncode != 0
    assert re.search(r"r1 \| MPI_Recv returned error code \d+: ", done.stderr)


def test_killed_rank_ends_the_job(job):
    done = job(
        2,
        f"""{PREAMBLE}
mpixla.barrier()
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
mpixla.allreduce(jnp.ones(3), op=MPI.SUM)
""",
        check=False,
    )
    assert done.returncode != 0


def test_abort_can_be_turned_off(job):
    """The failing rank ends alone; the others go on and end well."""
    done = job(
        2,
        f"""{PREAMBLE}
import atexit
atexit.register(print, "ended", rank, flush=True)
if rank == 1:
    raise KeyError("lost on rank 1")
""",
        check=False,
        MPIXLA_ABORT="0",
    )
    assert "ended 0" in done.stdout
    assert "ended 1" in done.stdout
    assert "the whole job is aborted" not in done.stderr


@pytest.mark.parametrize("how", ["jit", "eager", "thread"])
def test_what_still_runs_at_exit_is_finished(job, how):
    """The process ends right after dispatching; MPI must not be finalized under a running program."""
    finish = {
        "jit": "run(x)",
        "eager": "mpixla.allreduce(jax.jit(busy)(x), op=MPI.SUM)",
        "thread": "threading.Thread(target=lambda: run(x)).start()",
    }[how]
    done = job(
        2,
        f"""{PREAMBLE}
def busy(x):
    return jax.lax.fori_loop(0, 10, lambda i, x: x @ x, x)
run = jax.jit(lambda x: mpixla.allreduce(busy(x), op=MPI.SUM))
x = jnp.ones((500, 500)) / 500
{finish}
print("dispatched", rank, flush=True)
""",
        MPIXLA_DEBUG="1",
    )
    for rank in range(2):
        assert f"dispatched {rank}" in done.stdout
        assert re.search(rf"r{rank} \| \w{{4}} \| MPI_Allreduce done with code 0", done.stderr)


def test_interactive_sessions_survive(job):
    done = job(
        1,
        f"""{PREAMBLE}
sys.ps1 = ">>> "
import mpixla.runtime.exit as end
print(end._can_abort())
""",
    )
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("start", "line"),
    [
        ("mpixla.irecv(x, 1 - rank, tag=4)", "MPI_Irecv <- {other} with tag 4 and 4 items of float32"),
        ("mpixla.isend(x, 1 - rank, tag=4)", "MPI_Isend -> {other} with tag 4 and 4 items of float32"),
        (
            "jax.jit(lambda x: mpixla.isend(x, 1 - rank))(jnp.ones(10**6))",
            "MPI_Isend -> {other} with tag 0 and 1000000",
        ),
        ("mpixla.iallreduce(x, MPI.SUM)", "MPI_Iallreduce with 4 items of float32, op MPI_SUM"),
        ("rank == 1 or mpixla.irecv(x, 1)", "MPI_Irecv <- {other} with tag any"),
        ("mpixla.wait(mpixla.iallreduce(x, MPI.SUM))", None),
    ],
)
def test_requests_that_nobody_waits_for_are_named(job, start, line):
    """The job ends well, whatever is still under way."""
    done = job(2, f"{PREAMBLE}\nx = jnp.ones(4)\nrequest = {start}\nprint('ended', rank, flush=True)\n")
    assert "ended 0" in done.stdout
    assert "ended 1" in done.stdout
    named = re.findall(r"^mpixla: r(\d) \| (.*) was started, but never waited for$", done.stderr, re.MULTILINE)
    ranks = [] if line is None else [0] if start.startswith("rank") else [0, 1]
    assert sorted(int(rank) for rank, _ in named) == ranks
    for rank, what in named:
        assert what.startswith(line.format(other=1 - int(rank)))
        assert f"on rank {rank} of 2 of communicator 'mpixla default'" in what
