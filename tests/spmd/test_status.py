"""Status objects, messages shorter than their template, and PROC_NULL."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import mpixla


@pytest.mark.parametrize("how", ["eager", "jit"])
def test_status_of_sendrecv(rank, below, above, how):
    status = MPI.Status()

    def exchange(x):
        return mpixla.sendrecv(x, jnp.zeros(5), MPI.ANY_SOURCE, above, sendtag=rank + 10, status=status)

    x = jnp.arange(5.0) + rank
    got = (jax.jit(exchange) if how == "jit" else exchange)(x).block_until_ready()
    np.testing.assert_array_equal(got, np.arange(5.0) + below)
    assert (status.Get_source(), status.Get_tag(), status.Get_count(MPI.DOUBLE)) == (below, below + 10, 5)


def test_status_is_filled_each_time(rank, size):
    status = MPI.Status()
    run = jax.jit(lambda x: mpixla.sendrecv(x, x, rank, rank, sendtag=4, comm=MPI.COMM_WORLD, status=status))
    for _ in range(3):
        status.Set_tag(0)
        run(jnp.ones(2)).block_until_ready()
        assert status.Get_tag() == 4


@pytest.mark.not_checked
def test_short_message_keeps_the_rest_of_the_template(rank):
    y = mpixla.sendrecv(jnp.array([1.0, 2.0]), jnp.arange(5.0) + 10, rank, rank)
    np.testing.assert_array_equal(y, [1, 2, 12, 13, 14])


def test_message_of_another_type_and_shape(rank, below, above):
    """sendbuf and recvbuf need not be alike."""
    x = jnp.full((2, 3), rank, jnp.int32)
    y = mpixla.sendrecv(x, jnp.zeros(6, jnp.int32), below, above)
    np.testing.assert_array_equal(y, np.full(6, below))


@pytest.mark.not_checked
def test_message_of_part_of_an_item(rank, below, above):
    """What MPI makes of it differs: MPICH would end the job, and Open MPI gives what fits."""
    x, template = jnp.full(3, rank, jnp.int8), jnp.zeros(2, jnp.int32)
    for exchange in (
        lambda: mpixla.sendrecv(x, template, below, above),
        lambda: mpixla.wait(mpixla.isendrecv(x, template, below, above)),
    ):
        with pytest.raises(Exception, match="a message of 3 bytes came, which is no whole number of items of int32"):
            jax.block_until_ready(exchange())
    y = mpixla.sendrecv(x, jnp.zeros(3, jnp.int8), below, above)
    np.testing.assert_array_equal(y, np.full(3, below))


@pytest.mark.parametrize("how", ["eager", "jit"])
def test_proc_null(how):
    status = MPI.Status()

    def nobody(x):
        mpixla.send(x, MPI.PROC_NULL)
        y = mpixla.recv(x, MPI.PROC_NULL, status=status)
        return mpixla.sendrecv(-x, y, MPI.PROC_NULL, MPI.PROC_NULL)

    x = jnp.arange(4)
    np.testing.assert_array_equal((jax.jit(nobody) if how == "jit" else nobody)(x), x)
    assert (status.Get_source(), status.Get_count(MPI.BYTE)) == (MPI.PROC_NULL, 0)


def test_template_is_not_modified(rank):
    template = jnp.zeros(3)
    y = mpixla.sendrecv(jnp.ones(3), template, rank, rank)
    np.testing.assert_array_equal(template, np.zeros(3))
    np.testing.assert_array_equal(y, np.ones(3))


def test_status_of_a_pytree(below, above):
    """Each array is a message, and the status is the last one's."""
    status = MPI.Status()
    tree = {"a": jnp.ones(3), "b": jnp.ones(5)}
    jax.block_until_ready(mpixla.sendrecv(tree, tree, below, above, sendtag=7, status=status))
    assert (status.Get_source(), status.Get_tag(), status.Get_count(MPI.DOUBLE)) == (below, 7, 5)
