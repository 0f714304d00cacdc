"""Faults on two hosts: a rank that can still print reports them, nothing hangs, and no process is left."""

import re
import time

import pytest
from conftest import FAMILY, GRACE, but_launchers

BEGINNING = """
    import os, signal, sys, threading, time
    from pathlib import Path
    from mpi4py import MPI
    import jax, jax.numpy as jnp
    import mpixla
    rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
    x = jnp.arange(3.0)
    MPI.COMM_WORLD.Barrier()  # of mpi4py's: processes do not start at one time
    mpixla.barrier()
"""
STEPS = """
    mpixla.alltoall(jnp.ones(size)).block_until_ready()  # now there are all connections
    step = jax.jit(lambda x: mpixla.allreduce(x, op=MPI.SUM))
    for i in range({steps}):
        y = step(x).block_until_ready()
        if i == 3 and rank == 0:
            Path("mark").touch()
        time.sleep(0.01)
    assert (y == size * x).all()
    print("rank", rank, "has done all steps")
"""
SILENT = (
    r"it does not answer: process \d+ on mpixla-{host}, which has left MPI, has lost its connection, or is held up as "
    "a whole"
)


def report_in(text):
    """Return the only report."""
    assert text.count("so the whole job ends") == 1, text
    return text[text.index("mpixla: rank") :]


def line_of(text, number):
    """Return the report's line on a rank."""
    return re.search(rf"^  rank {number} \(.*?(?=^  ranks? \d|\Z)", text, re.DOTALL | re.MULTILINE)[0]


def job_whose_rank(hosts_job, ranks, victim, does, **environment):
    """Return the outcome of a job in which one rank runs this code, and the others communicate."""
    code = f"""
    if rank == {victim}:
        {does}
    mpixla.allreduce(x, op=MPI.SUM).block_until_ready()
    """
    return hosts_job(ranks, BEGINNING + code, check=False, **environment)


@pytest.mark.parametrize("victim", [0, 3])
def test_killed(hosts_job, victim):
    done = job_whose_rank(hosts_job, 4, victim, "os.kill(os.getpid(), signal.SIGKILL)")
    assert done.returncode != 0
    assert re.search(r"signal:? 9\b|exit code: 9\b", done.stdout + done.stderr, re.IGNORECASE)


@pytest.mark.parametrize("victim", [0, 3])
def test_exception(hosts_job, victim):
    done = job_whose_rank(hosts_job, 4, victim, 'raise RuntimeError("on purpose")')
    assert done.returncode != 0
    assert f"rank {victim} ended" in done.stderr
    assert "RuntimeError: on purpose" in done.stderr


@pytest.mark.parametrize("victim", [1, 3])
def test_stopped_next_to_a_rank_that_answers(hosts_job, victim):
    """The reporting rank's host, and the other, where a rank can look for it."""
    done = job_whose_rank(hosts_job, 4, victim, "os.kill(os.getpid(), signal.SIGSTOP)", MPIXLA_TIMEOUT="2")
    assert done.returncode == 124
    host = "a" if victim == 1 else "b"
    assert re.search(
        rf"Rank {victim} has not come: its process is stopped \(SIGSTOP, or a debugger\): "
        rf"process \d+ on mpixla-{host}\.",
        report_in(done.stderr),
    )


def test_stopped_alone_on_its_host(hosts_job):
    """Nobody can look for it. A process of this host that happens to have its number is another."""
    done = job_whose_rank(hosts_job, 2, 1, "os.kill(os.getpid(), signal.SIGSTOP)", MPIXLA_TIMEOUT="2")
    assert done.returncode == 124
    assert re.search(f"Rank 1 has not come: {SILENT.format(host='b')}", report_in(done.stderr))


def test_rank_that_never_comes(hosts_job):
    """Where it is, on a host that the reporting rank does not see."""
    done = hosts_job(
        4,
        BEGINNING
        + """
    def writes_a_checkpoint():
        time.sleep(1000)
    if rank == 3:
        writes_a_checkpoint()
    mpixla.allreduce(x, op=MPI.SUM).block_until_ready()
    """,
        check=False,
        MPIXLA_TIMEOUT="2",
    )
    assert done.returncode == 124
    text = report_in(done.stderr)
    assert "Rank 3 has not come: it is in no call of mpixla" in text
    assert re.search(r"script\.py:\d+ in writes_a_checkpoint: time\.sleep\(1000\)", text)
    assert re.match(r"  rank 3 \(process \d+ on mpixla-b\):", line_of(text, 3))


def test_link_goes_down(hosts_job, hosts, link, until_mark, tmp_path):
    """Both hosts end their ranks.

    mpirun runs on the first host. Open MPI's mpirun and its daemon wait for each other until TCP ends the connection.
    """
    left = []

    def during():
        until_mark()
        link.set_link(False)
        if FAMILY == "openmpi":
            until = time.monotonic() + 30 + GRACE
            while but_launchers(hosts.processes()) and time.monotonic() < until:
                time.sleep(0.1)
            left.append(but_launchers(hosts.processes()))
            link.set_link(True)

    done = hosts_job(
        4, BEGINNING + STEPS.format(steps=10**6), check=False, during=during, MPIXLA_TIMEOUT="2", timeout=60
    )
    assert left in ([], [{}])
    assert done.returncode == 124, done.stderr
    # What the second host has to say can only be heard once the link is up again.
    text = next(part for part in done.stderr.split("mpixla: ") if re.match("rank [01] has waited for", part))
    assert re.search(r"s in a call, longer than MPIXLA_TIMEOUT=2 allows, so the whole job ends\.", text)
    for rank in (2, 3):
        assert re.search(f"Rank {rank} has not come: {SILENT.format(host='b')}", text)
    for rank in (0, 1):
        assert f"Rank {rank} has not come" not in text


def test_link_is_down_for_a_moment(hosts_job, link, until_mark):
    """TCP sends again what was lost, and the job goes on."""

    def during():
        until_mark()
        link.set_link(False)
        time.sleep(1.5)
        link.set_link(True)

    done = hosts_job(2, BEGINNING + STEPS.format(steps=100), during=during, MPIXLA_TIMEOUT="30")
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} has done all steps" for rank in (0, 1)]
    assert "MPIXLA_TIMEOUT" not in done.stderr


@pytest.mark.skipif(FAMILY != "openmpi", reason="Open MPI's mpirun alone looks after its connections to the hosts")
def test_mpirun_notices_that_a_host_is_lost(hosts_job, link, until_mark):
    """Faster than after eight minutes, if told; and its exit status is 0 (docs/clusters.md)."""

    def during():
        until_mark()
        link.set_link(False)

    keepalive = {"PRTE_MCA_oob_tcp_keepalive_" + name: str(n) for name, n in (("time", 5), ("intvl", 1), ("probes", 3))}
    done = hosts_job(2, BEGINNING + STEPS.format(steps=10**6), check=False, during=during, **keepalive)
    assert "PRTE has lost communication with a remote daemon" in done.stdout + done.stderr
