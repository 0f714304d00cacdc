"""Runs of a compiled program after its first, of which the library reads no more than what can differ."""

import gc
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import mpixla
from reference import ROWS, bits, expected, operands

SIZE = MPI.COMM_WORLD.Get_size()
FLOAT = np.dtype("float32")
CASES = [
    pytest.param(row, variant, id="-".join([row.name, *map(str, variant.values())]))
    for row in ROWS
    for variant in row.variants(SIZE)
    if row.takes(FLOAT, **variant)
]


@pytest.mark.parametrize(("row", "variant"), CASES)
def test_each_run_has_the_result_of_its_own_values(row, variant, comm, rank, size):
    program = jax.jit(lambda *inputs: row.call(*inputs, comm=comm, **variant))
    for draw in (0, 1, 2, 0):
        got = program(*map(jnp.asarray, operands(row, FLOAT, (3,), rank, size, draw=draw, **variant)))
        want = expected(row, FLOAT, (3,), rank, size, draw=draw, **variant)
        assert (got is None) == (want is None)
        if want is not None:
            np.testing.assert_array_equal(bits(got), bits(want))


def test_runs_of_one_call_have_the_status_of_their_own_message(comm, rank, size):
    """A message of each length up to the template's: the status counts what came."""
    status = MPI.Status()
    above, below = (rank + 1) % size, (rank - 1) % size

    @jax.jit
    def receive(template):
        return mpixla.recv(template, source=below, comm=comm, status=status)

    for n in (3, 1, 2):
        mpixla.send(jnp.arange(n, dtype=jnp.float32) + n, dest=above, comm=comm)
        got = receive(jnp.zeros(3, jnp.float32))
        np.testing.assert_array_equal(got, [*(np.arange(n) + n), *[0] * (3 - n)])
        assert status.Get_count(MPI.FLOAT) == n


@pytest.mark.skipif(MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="this MPI is not for several threads at once")
def test_threads_run_one_program_at_once(comm):
    """Messages to nobody: the result is the template, each thread's own."""
    nobody = MPI.PROC_NULL
    program = jax.jit(lambda x, y: mpixla.sendrecv(x, y, source=nobody, dest=nobody, comm=comm) + 1)
    together, wrong = threading.Barrier(4), []

    def run(number):
        together.wait()
        for turn in range(200):
            mine = np.full(5, 1000.0 * number + turn, np.float32)
            if not np.array_equal(program(mine, 2 * mine), 2 * mine + 1):
                wrong.append((number, turn))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_program_that_is_dropped_and_made_again_communicates(comm, rank, size):
    for turn in range(3):
        program = jax.jit(lambda x, turn=turn: mpixla.allreduce(x + turn, op=MPI.SUM, comm=comm))
        for _ in range(2):
            np.testing.assert_array_equal(program(jnp.full(2, float(rank))), np.full(2, sum(range(size)) + size * turn))
        del program
        jax.clear_caches()
        gc.collect()
