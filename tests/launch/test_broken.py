"""A short collective call in shared memory that fails on one rank after it has begun.

The program survives it, and no later call returns the result of another call."""

import re

PREAMBLE = """
import time
import jax, jax.numpy as jnp, mpixla
from mpi4py import MPI
comm = MPI.COMM_WORLD.Dup()
rank = comm.rank
x = jnp.zeros(3, jnp.int32)
FAILURES = (jax.errors.JaxRuntimeError, ValueError)
mpixla.allreduce(x, op=MPI.SUM, comm=comm).block_until_ready()
def fails(call):
    try:
        jax.block_until_ready(call())
    except FAILURES as e:
        return str(e)
def broadcasts(first):
    wrong = 0
    for i in range(first, first + 60):
        try:
            wrong += int(mpixla.bcast(x + i, 2, comm=comm)[0]) != i
        except FAILURES:
            pass
    return wrong
"""


def test_no_rank_receives_bytes_of_another_call(job):
    """Rank 1 is slow: what rank 2 has sent it lies there while a call of rank 2 fails, and while it makes others."""
    done = job(
        3,
        PREAMBLE
        + """
if rank == 1:
    MPI.COMM_WORLD.Barrier()
wrong = broadcasts(0)
if rank == 0:
    mpixla.bcast(x, 0, comm=comm)
else:
    print(rank, fails(lambda: mpixla.allreduce(x, op=MPI.SUM, comm=comm)), flush=True)
wrong += broadcasts(60)
if rank != 1:
    MPI.COMM_WORLD.Barrier()
print("wrong:", wrong, flush=True)
calls = (lambda: mpixla.barrier(comm=comm), lambda: mpixla.bcast(x, 0, comm=comm),
         lambda: mpixla.bcast(jnp.ones(1 << 20), 0, comm=comm),
         lambda: mpixla.wait(mpixla.iallreduce(x, MPI.SUM, comm=comm)),
         jax.jit(lambda: mpixla.allgatherv(x, [3, 3, 3], comm=comm)))
for call in calls:
    print("later:", fails(call), flush=True)
new = comm.Dup()
assert mpixla.allreduce(x + rank, op=MPI.SUM, comm=new).tolist() == [3, 3, 3]
print("ended", flush=True)
""",
        MPIXLA_CHECK="0",
    )
    assert done.stdout.count("wrong: 0") == 3
    assert re.search(r"^2 .*MPI_Allreduce: rank 0 of communicator .* makes another call", done.stdout, re.MULTILINE)
    later = re.findall(r"^later: (.*)", done.stdout, re.MULTILINE)
    assert len(later) == 3 * 5
    for line in later:
        assert "no collective call can be made on communicator" in line
        assert re.search(r"one has failed on rank 2 before .*: MPI_Allreduce: rank 0 .* \(at script.py:\d+", line)
        assert "comm.Dup()" in line
    assert done.stdout.count("ended") == 3


def test_ranks_go_on_after_a_refusal_before_any_post(job):
    """Ranks that compare calls before they make them, and a call that no rank begins: all go on."""
    done = job(
        3,
        PREAMBLE
        + """
for i in range(3):
    assert fails(lambda: mpixla.bcast(x if rank else x + 0.5, 0, comm=comm))
    assert fails(lambda: mpixla.bcast(x, 7, comm=comm))
    assert mpixla.allreduce(x + rank + i, op=MPI.SUM, comm=comm).tolist() == [3 + 3 * i] * 3
assert broadcasts(0) == 0
print("ended", flush=True)
""",
        MPIXLA_CHECK="1",
    )
    assert done.stdout.count("ended") == 3


def test_two_threads_on_one_communicator(job):
    """The call that is refused is not made, so the other ranks would take the next one for it."""
    done = job(
        2,
        PREAMBLE
        + """
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
def total(i):
    return fails(lambda: mpixla.allreduce(x + i, op=MPI.SUM, comm=comm))
if rank == 0:
    with ThreadPoolExecutor(2) as pool:
        (refused,), (other,) = wait([pool.submit(total, i) for i in range(2)], return_when=FIRST_COMPLETED)
        MPI.COMM_WORLD.Barrier()
    assert "two threads make collective calls" in refused.result(), refused.result()
else:
    MPI.COMM_WORLD.Barrier()
    total(0)
said = fails(lambda: mpixla.barrier(comm=comm))
assert said and "one has failed on rank 0 before" in said and "two threads" in said, said
print("ended", flush=True)
""",
        MPIXLA_CHECK="0",
    )
    assert done.stdout.count("ended") == 2
