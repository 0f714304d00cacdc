"""Messages of a rank to itself: a blocking send returns, since nobody else could receive what it sends."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import mpixla

# Those that MPI sends unasked, and those that wait for a receive.
LENGTHS = [0, 3, 200_000]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("how", ["eager", "jit"])
def test_send_then_receive(length, how, comm, rank):
    def f(x):
        mpixla.send(x, rank, tag=1, comm=comm)
        mpixla.send(x + 1, rank, tag=2, comm=comm)
        second = mpixla.recv(jnp.zeros_like(x), rank, tag=2, comm=comm)
        return second, mpixla.recv(jnp.zeros_like(x), rank, tag=1, comm=comm)

    run = jax.jit(f) if how == "jit" else f
    for n in range(4):
        second, first = run(jnp.full(length, n))
        np.testing.assert_array_equal(first, np.full(length, n))
        np.testing.assert_array_equal(second, np.full(length, n + 1))


@pytest.mark.parametrize("length", LENGTHS)
def test_the_array_may_change(length, comm, rank):
    """What is sent is what the array was then, though its memory is another's before it is received."""

    @jax.jit
    def f(x):
        for n in range(3):
            mpixla.send(x + n, rank, tag=n, comm=comm)
        y = jnp.sin(x) * 2
        return y, [mpixla.recv(y, rank, tag=n, comm=comm) for n in (2, 0, 1)]

    x = np.arange(float(length))
    _, received = f(x)
    for n, y in zip((2, 0, 1), received, strict=True):
        np.testing.assert_array_equal(y, x + n)


@pytest.mark.parametrize("length", LENGTHS)
def test_receive_that_was_started_before(length, comm, rank):
    x = jnp.arange(length)
    request = mpixla.irecv(jnp.zeros_like(x), rank, comm=comm)
    mpixla.send(x, rank, comm=comm)
    np.testing.assert_array_equal(mpixla.wait(request), x)


@pytest.mark.parametrize("length", LENGTHS)
def test_isend_is_waited_for_before_it_is_received(length, comm, rank):
    x = jnp.arange(length)
    np.testing.assert_array_equal(mpixla.wait(mpixla.isend(x, rank, comm=comm)), x)
    np.testing.assert_array_equal(mpixla.recv(jnp.zeros_like(x), rank, comm=comm), x)
    request = mpixla.isend(x + 1, rank, comm=comm)
    np.testing.assert_array_equal(mpixla.recv(jnp.zeros_like(x), rank, comm=comm), x + 1)
    np.testing.assert_array_equal(mpixla.wait(request), x + 1)


@pytest.mark.not_checked
def test_truncated(comm, rank):
    """MPI tells the receiver, and the next message is the next one."""
    if MPI.Get_library_version().startswith("Open MPI v4"):
        pytest.skip("it reports nothing for a message to oneself")
    mpixla.send(jnp.ones(9), rank, tag=3, comm=comm)
    with pytest.raises(Exception, match=rf"r{comm.rank} \| MPI_Recv "):
        mpixla.recv(jnp.ones(2), rank, tag=3, comm=comm).block_until_ready()
    mpixla.send(jnp.full(2, 5.0), rank, tag=3, comm=comm)
    np.testing.assert_array_equal(mpixla.recv(jnp.ones(2), rank, tag=3, comm=comm), [5, 5])
