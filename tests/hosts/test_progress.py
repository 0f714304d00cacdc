"""Started messages move between hosts while a program computes (docs/performance.md)."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# A message that MPI moves only in its calls: the sender makes none until the receiver has said that it has arrived.
ONE_MESSAGE = """
import os, sys, time
import jax, jax.numpy as jnp, numpy as np
import mpixla
from mpi4py import MPI

rank, x = MPI.COMM_WORLD.rank, jnp.ones(2**24)

def until_it_arrived(_):
    until = time.monotonic() + 30
    while not os.path.exists("arrived") and time.monotonic() < until:
        time.sleep(0.01)
    return np.bool_(os.path.exists("arrived"))

@jax.jit
def send(x):
    request = mpixla.isend(x, 1)
    wait_for_it = lambda x: jax.pure_callback(until_it_arrived, jax.ShapeDtypeStruct((), np.bool_), x[0])
    return mpixla.overlap(request, wait_for_it, x)[1]

mpixla.barrier()
if rank == 0:
    print("moved", bool(send(x)))
else:
    assert (mpixla.recv(x * 0, 0) == 1).all()
    open("arrived", "w").close()
mpixla.barrier()
"""


def test_a_message_while_nobody_calls_mpi(hosts_job):
    assert hosts_job(2, ONE_MESSAGE).stdout.split() == ["moved", "True"]


def test_without_the_thread(hosts_job):
    """The program is right all the same, whatever has moved."""
    assert hosts_job(2, ONE_MESSAGE, MPIXLA_PROGRESS="0").stdout.split()[0] == "moved"


@pytest.mark.parametrize("ranks", [2, 4])
def test_example(hosts_job, ranks):
    """Both forms compute the same; `pytest -s` shows how long they take."""
    lines = hosts_job(
        ranks, ROOT / "examples/overlap.py", "--size", "64", "262144", "--steps", "3", "--repeat", "3"
    ).stdout.splitlines()
    assert float(lines[0].split()[-1]) < 1e-6
    print("", *lines, sep="\n")
