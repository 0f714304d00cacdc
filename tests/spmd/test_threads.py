"""Several Python threads that communicate at the same time, each on a communicator of its own.

What a thread gets is checked value by value; whatever the others do, whichever of them fails or has its communicator
freed, must not be seen in it.
"""

import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import mpixla
from cases import HOWS
from mpixla.core import eager
from mpixla.mpi.comm import comm_of

THREADS = 3
ROUNDS = 9

pytestmark = pytest.mark.skipif(
    MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="this MPI is not for several threads at once"
)


@pytest.fixture
def comms():
    """Yield a communicator for each thread, a ring, made in one order on all ranks."""
    made = [MPI.COMM_WORLD.Create_cart([MPI.COMM_WORLD.size], periods=[True]) for _ in range(THREADS)]
    yield made
    for comm in made:
        comm.Free()


def in_threads(work, comms):
    """Run work(number, communicator) in a thread for each, at once, and return or raise the outcome of each."""
    together = threading.Barrier(len(comms))
    results = [None] * len(comms)

    def run(number, comm):
        together.wait()
        try:
            results[number] = work(number, comm)
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=item, daemon=True) for item in enumerate(comms)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def check(work, comms):
    results = in_threads(work, comms)
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def values(number, turn, rank, items=5):
    """Return other ones for each thread, round and rank, all exact."""
    return np.arange(items, dtype=np.float32) + 1000 * number + 50 * turn + 7 * rank


# What a thread does in a round. Each takes a function that compiles, or none.


def collectives(number, turn, comm, compiled):
    rank, size = comm.rank, comm.size
    mine = values(number, turn, rank)
    everyone = [values(number, turn, r) for r in range(size)]
    root = turn % size

    def program(x):
        return (
            mpixla.allreduce(x, op=MPI.SUM, comm=comm),
            mpixla.allreduce(x, op=MPI.MAX, comm=comm),
            mpixla.allgather(x, comm=comm),
            mpixla.bcast(x, root, comm=comm),
            mpixla.scan(x, op=MPI.SUM, comm=comm),
            mpixla.alltoall(jnp.stack([x + i for i in range(size)]), comm=comm),
        )

    total, greatest, gathered, spread, so_far, exchanged = compiled(program)(jnp.asarray(mine))
    np.testing.assert_array_equal(total, np.sum(everyone, axis=0))
    np.testing.assert_array_equal(greatest, np.max(everyone, axis=0))
    np.testing.assert_array_equal(gathered, everyone)
    np.testing.assert_array_equal(spread, everyone[root])
    np.testing.assert_array_equal(so_far, np.sum(everyone[: rank + 1], axis=0))
    np.testing.assert_array_equal(exchanged, [value + rank for value in everyone])


def messages(number, turn, comm, compiled):
    rank, size = comm.rank, comm.size
    below, above = (rank - 1) % size, (rank + 1) % size

    def program(x):
        passed = mpixla.sendrecv(x, x, source=below, dest=above, sendtag=turn, recvtag=turn, comm=comm)
        request = mpixla.isend(passed, above, tag=number, comm=comm)
        received = mpixla.irecv(x, below, tag=number, comm=comm)
        return passed, mpixla.wait(received), mpixla.wait(request)

    passed, twice, sent = compiled(program)(jnp.asarray(values(number, turn, rank)))
    np.testing.assert_array_equal(passed, values(number, turn, below))
    np.testing.assert_array_equal(sent, passed)
    np.testing.assert_array_equal(twice, values(number, turn, (rank - 2) % size))


def requests(number, turn, comm, compiled):
    rank, size = comm.rank, comm.size

    def program(x):
        started = [mpixla.iallreduce(x + i, op=MPI.SUM, comm=comm) for i in range(3)]
        return [mpixla.wait(request) for request in reversed(started)]

    results = compiled(program)(jnp.asarray(values(number, turn, rank)))
    total = np.sum([values(number, turn, r) for r in range(size)], axis=0)
    for i, result in enumerate(results):
        np.testing.assert_array_equal(result, total + (2 - i) * size)


def halos(number, turn, comm, compiled):
    below, above = comm.Shift(0, 1)
    mine, low, high = (values(number, turn, r, 12).reshape(4, 3) for r in (comm.rank, below, above))

    def program(x):
        return mpixla.halo_exchange(x, comm), mpixla.neighbor_allgather(x[1], comm=comm)

    filled, gathered = compiled(program)(jnp.asarray(mine))
    np.testing.assert_array_equal(filled, [low[2], mine[1], mine[2], high[1]])
    np.testing.assert_array_equal(gathered, [low[1], high[1]])


def gradients(number, turn, comm, compiled):
    mine = values(number, turn, comm.rank)
    everyone = [values(number, turn, r) for r in range(comm.size)]

    def loss(x):
        return jnp.sum(mpixla.allreduce(x, op=MPI.SUM, comm=comm) * x) + jnp.sum(mpixla.scan(x, op=MPI.SUM, comm=comm))

    gradient = compiled(jax.grad(loss))(jnp.asarray(mine))
    # The sum's cotangent is x and comes back as it is (docs/derivatives.md); the reverse scan counts this rank and
    # those above.
    np.testing.assert_array_equal(gradient, np.sum(everyone, axis=0) + mine + comm.size - comm.rank)


WORK = (collectives, messages, requests, halos, gradients)


@pytest.mark.parametrize("how", [*HOWS, "mixed"])
def test_every_kind_of_call_at_once(comms, how):
    """Threads do the same things in different orders, so that all kinds meet."""

    def work(number, comm):
        for turn in range(ROUNDS):
            compile_as = [*HOWS.values()][(number + turn) % 3] if how == "mixed" else HOWS[how]
            WORK[(number + turn) % len(WORK)](number, turn, comm, compile_as)

    check(work, comms)


def test_one_program_for_all(comms, rank, size):
    """Threads run compiled programs again and again, without Python in between."""
    programs = [mpixla.jit(lambda x, comm=comm: mpixla.allreduce(x, op=MPI.SUM, comm=comm)) for comm in comms]

    def work(number, comm):
        x = jnp.asarray(values(number, 0, rank))
        total = np.sum([values(number, 0, r) for r in range(size)], axis=0)
        for turn in range(100):
            result = programs[number](x + turn)
            if turn % 10 == 0:
                np.testing.assert_array_equal(result, total + turn * size)

    check(work, comms)


def test_many_calls_in_one_program(comms, size):
    """Loops of two threads run inside XLA at the same time."""

    def work(number, comm):
        def step(carry, _):
            return mpixla.allreduce(carry, op=MPI.SUM, comm=comm) / size + number, None

        def program(x):
            return jax.lax.scan(step, x, length=50)[0]

        np.testing.assert_array_equal(jax.jit(program)(jnp.zeros(3)), np.full(3, 50.0 * number))

    check(work, comms)


def test_errors_of_one_thread_stay_there(comms, size):
    """Refused arguments and calls that fail when they run: the others get their values all the same."""

    def work(number, comm):
        told = []
        freed = comm.Dup() if number == 0 else None
        doomed = jax.jit(lambda x: mpixla.allreduce(x, op=MPI.SUM, comm=freed)) if number == 0 else None
        if number == 0:
            np.testing.assert_array_equal(doomed(jnp.ones(2)), np.full(2, size))
            freed.Free()
        for turn in range(ROUNDS):
            if number == 0:
                with pytest.raises(Exception, match="was freed") as caught:
                    jax.block_until_ready(doomed(jnp.ones(2)))
                told.append(str(caught.value))
                with pytest.raises(ValueError, match="root"):
                    mpixla.bcast(jnp.ones(2), size, comm=comm)
            collectives(number, turn, comm, HOWS["jit" if turn % 2 else "eager"])
        return told

    assert len(check(work, comms)[0]) == ROUNDS


def test_a_communicator_is_freed_while_others_work(comms):
    """What is kept for a freed communicator goes away in whichever thread registers the next."""

    def work(number, comm):
        for turn in range(ROUNDS // 2):
            short_lived = comm.Dup() if number != 1 else comm
            collectives(number, turn, short_lived, [*HOWS.values()][turn % 3])
            if number != 1:
                short_lived.Free()

    check(work, comms)


def test_threads_that_end_and_begin(comms):
    """Places of threads that ended are used again."""
    for turn in range(4):
        check(lambda number, comm, turn=turn: messages(number, turn, comm, jax.jit), comms)


def test_programs_of_eager_calls(comms):
    """Threads use them for the first time, while another one drops those of freed communicators."""
    interval = sys.getswitchinterval()

    def use_or_drop(number, comm):
        for tag in range(600):
            if number == 0:
                eager._forget_freed()
                continue
            key = number, tag
            program = eager._add_program(key, eager._Program("bcast", mpixla.bcast, [comm_of(comm)]))
            assert eager._find_program(key) is program
            assert eager._add_program(key, eager._Program("bcast", mpixla.bcast, [])) is program

    sys.setswitchinterval(1e-6)
    try:
        check(use_or_drop, comms)
    finally:
        sys.setswitchinterval(interval)
