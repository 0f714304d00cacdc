"""Communication keeps program order: inside control flow, between separate calls, and where ranks differ."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from mpi4py import MPI

import mpixla


def test_send_and_recv_in_scan(rank, size):
    """Rank 0 sends numbered messages; each rank adds its own and passes them on."""
    steps = 20

    @jax.jit
    def pipeline(xs):
        def stage(carry, x):
            if rank > 0:
                x = mpixla.recv(x, rank - 1, tag=3)
            if rank < size - 1:
                mpixla.send(x + 1, rank + 1, tag=3)
            return carry + x, x

        return lax.scan(stage, jnp.int32(0), xs)

    total, seen = pipeline(jnp.arange(steps, dtype=jnp.int32) if rank == 0 else jnp.zeros(steps, jnp.int32))
    np.testing.assert_array_equal(seen, np.arange(steps) + rank)
    assert total == np.sum(np.arange(steps) + rank)


def test_cond_whose_branches_differ_by_rank(rank, size):
    """The branch is chosen at run time: one sends to all, the others receive."""

    @jax.jit
    def step(x, rank):
        def give(x):
            for other in range(1, size):
                mpixla.send(x, other)
            return x

        return lax.cond(rank == 0, give, lambda x: mpixla.recv(x, 0), x)

    assert step(jnp.float32(rank + 5), rank) == 5


def test_master_and_workers(rank, size):
    """The master hands out tasks to whoever asks, with ANY_SOURCE, a status and a Python loop around programs."""
    tasks, status = 12, MPI.Status()
    if size == 1:
        pytest.skip("needs a worker")
    if rank == 0:
        done = {}
        for task in range(tasks + size - 1):
            answer = mpixla.recv(jnp.zeros(2, jnp.int32), MPI.ANY_SOURCE, tag=1, status=status)
            number, result = map(int, answer)
            if number >= 0:
                done[number] = result
            mpixla.send(jnp.int32(task if task < tasks else -1), status.Get_source(), tag=2)
        assert done == {n: n * n for n in range(tasks)}
    else:

        @jax.jit
        def ask(answer):
            mpixla.send(answer, 0, tag=1)
            return mpixla.recv(jnp.int32(0), 0, tag=2)

        task = ask(jnp.array([-1, 0], jnp.int32))
        while task >= 0:
            task = ask(jnp.stack([task, task * task]))


def test_results_nobody_uses_are_communicated(rank, below, above):
    """A receive whose result is thrown away still takes its message."""

    @jax.jit
    def exchange(x):
        mpixla.sendrecv(x, x, below, above)
        return mpixla.sendrecv(x * 10, x, below, above)

    np.testing.assert_array_equal(exchange(jnp.full(2, rank)), np.full(2, below * 10))


@pytest.mark.parametrize("second", ["jit", "eager"])
@pytest.mark.parametrize("first", ["jit", "eager"])
def test_separate_calls_stay_in_order(rank, size, first, second):
    """A long program, then a short one on unrelated data: their messages have one tag, and are told apart by order."""
    if size == 1:
        pytest.skip("needs a partner")
    if rank > 1:
        return
    slow = jnp.ones((700, 700)) / 700

    def busy(x):
        return lax.fori_loop(0, 12, lambda i, x: x @ x, x).sum()

    if rank == 0:

        def send_late(x):
            mpixla.send(busy(x), 1)
            return x

        def send_soon(x):
            mpixla.send(x, 1)
            return x

        for i in range(3):
            # With "eager" the communication is a program of its own that waits for the slow one.
            (jax.jit(send_late) if first == "jit" else lambda x: mpixla.send(jax.jit(busy)(x), 1))(slow)
            (jax.jit(send_soon) if second == "jit" else send_soon)(jnp.float64(-i))
        return
    got = [float(mpixla.recv(jnp.float64(0), 0)) for _ in range(6)]
    np.testing.assert_allclose(got, [700, 0, 700, -1, 700, -2], rtol=1e-6)


def test_calls_do_not_depend_on_their_data(rank, size):
    """An order that follows from the program alone, where data flow would allow any."""
    if size == 1:
        pytest.skip("needs a partner")

    @jax.jit
    def program(xs):
        if rank == 0:
            for x in xs:
                mpixla.send(x, 1)
            return xs
        if rank == 1:
            return [mpixla.recv(x, 0) for x in xs]
        return xs

    values = [jnp.full(n + 1, n) for n in range(10)]
    for n, x in enumerate(program(values if rank == 0 else [jnp.zeros_like(x) for x in values])):
        np.testing.assert_array_equal(x, np.full(n + 1, n) if rank < 2 else np.zeros(n + 1))


def test_barrier_waits(comm, rank, size, tmp_path):
    """After a barrier every rank has written what it wrote before it, in memory that all of them map."""
    path = comm.bcast(tmp_path / "flags", 0)
    if rank == 0:
        np.memmap(path, np.int64, "w+", shape=(size,))
    comm.Barrier()
    flags = np.memmap(path, np.int64, "r+", shape=(size,))
    for step in range(1, 20):
        flags[rank] = step
        mpixla.barrier()
        assert (flags >= step).all()
        mpixla.barrier()
