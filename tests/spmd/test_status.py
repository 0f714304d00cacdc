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
    """Check that sendbuf and recvbuf may differ in shape and dtype."""
    x = jnp.full((2, 3), rank, jnp.int32)
    y = mpixla.sendrecv(x, jnp.zeros(6, jnp.int32), below, above)
    np.testing.assert_array_equal(y, np.full(6, below))


@pytest.mark.not_checked
def test_message_of_part_of_an_item(rank, below, above):
    """Check that a message of no whole number of items raises; MPICH would end the job, and Open MPI give what fits."""
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
    """Check that each array is a message, and that the status is the last one's."""
    status = MPI.Status()
    tree = {"a": jnp.ones(3), "b": jnp.ones(5)}
    jax.block_until_ready(mpixla.sendrecv(tree, tree, below, above, sendtag=7, status=status))
    assert (status.Get_source(), status.Get_tag(), status.Get_count(MPI.DOUBLE)) == (below, 7, 5)


def ways(function):
    """Return the function as it is, under jit, and in a scan, each of whose iterations returns one call's result."""

    def scanned(*args):
        _, results = jax.lax.scan(lambda carry, _: (carry, function(*args)), 0, None, length=2)
        return jax.tree.map(lambda x: x[1], results)

    return {"eager": function, "jit": jax.jit(function), "scan": jax.jit(scanned)}


HOW = ("eager", "jit", "scan")


def numbers(status):
    assert isinstance(status, mpixla.MessageStatus)
    return tuple(int(x) for x in status)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("call", ["sendrecv", "recv", "wait", "method"])
def test_status_is_returned(rank, below, above, call, how):
    def exchange(x):
        template = jnp.zeros(5)
        if call == "sendrecv":
            return mpixla.sendrecv(x, template, below, above, sendtag=rank + 10, return_status=True)
        if call == "recv":
            sending = mpixla.isend(x, above, tag=rank + 10)
            result = mpixla.recv(template, below, return_status=True)
            mpixla.wait(sending)
            return result
        request = mpixla.isendrecv(x, template, below, above, sendtag=rank + 10)
        return mpixla.wait(request, return_status=True) if call == "wait" else request.wait(return_status=True)

    x = jnp.arange(5.0) + rank
    y, status = ways(exchange)[how](x)
    np.testing.assert_array_equal(y, np.arange(5.0) + below)
    assert numbers(status) == (below, below + 10, 5)


@pytest.mark.not_checked
@pytest.mark.parametrize("how", HOW)
def test_length_of_a_short_message_is_returned(rank, how):
    def exchange(x):
        y, status = mpixla.sendrecv(x, jnp.arange(5.0) + 10, rank, rank, return_status=True)
        return y.at[0].set(0), status

    y, status = ways(exchange)[how](jnp.array([1.0, 2.0]))
    np.testing.assert_array_equal(y, [0, 2, 12, 13, 14])
    assert numbers(status) == (rank, 0, 2)


@pytest.mark.parametrize("how", HOW)
def test_status_of_no_message_is_returned(how):
    def nobody(x):
        first = mpixla.recv(x, MPI.PROC_NULL, return_status=True)
        request = mpixla.irecv(x, MPI.PROC_NULL)
        return first, request.wait(return_status=True)

    for y, status in ways(nobody)[how](jnp.arange(4)):
        np.testing.assert_array_equal(y, np.arange(4))
        assert numbers(status) == (MPI.PROC_NULL, MPI.ANY_TAG, 0)


@pytest.mark.parametrize("call", ["sendrecv", "isendrecv"])
def test_returned_length_is_of_each_example(rank, below, above, call):
    """Check the status of the one message that carries a batch."""

    def exchange(x):
        if call == "sendrecv":
            return mpixla.sendrecv(x, x, below, above, return_status=True)
        return mpixla.isendrecv(x, x, below, above).wait(return_status=True)

    x = jnp.arange(24.0).reshape(2, 3, 4) + rank
    once = jax.vmap(exchange, out_axes=(0, None))
    y, status = once(x[0])
    np.testing.assert_array_equal(y, x[0] - rank + below)
    assert numbers(status) == (below, 0, 4)
    y, status = jax.jit(jax.vmap(once, out_axes=(0, None)))(x)
    np.testing.assert_array_equal(y, x - rank + below)
    assert numbers(status) == (below, 0, 4)


def test_returned_status_where_ranks_differ_in_a_batch(rank, below, above):
    """Check that each example is a message with a status of its own if ranks differ within the batch."""

    def exchange(x, source, dest):
        return mpixla.sendrecv(x, x, source, dest, return_status=True)

    x = jnp.arange(6.0).reshape(2, 3) + rank
    y, status = jax.vmap(exchange)(x, jnp.array([below, rank]), jnp.array([above, rank]))
    np.testing.assert_array_equal(y, [x[0] - rank + below, x[1]])
    assert status.source.tolist() == [below, rank]
    assert status.length.tolist() == [3, 3]


@pytest.mark.parametrize("call", ["sendrecv", "isendrecv", "irecv"])
def test_derivative_beside_a_returned_status(rank, below, above, call):
    def exchange(x):
        if call == "sendrecv":
            return mpixla.sendrecv(x, x, below, above, return_status=True)
        if call == "isendrecv":
            return mpixla.isendrecv(x, x, below, above).wait(return_status=True)
        sending, receiving = mpixla.isend(x, above), mpixla.irecv(x, below)
        y, status = receiving.wait(return_status=True)
        return y + 0 * mpixla.wait(sending), status

    def loss(x):
        y, status = exchange(x)
        return (rank + 1) * (y**2).sum() * status.length

    x = jnp.arange(3.0) + rank
    for differentiate in (jax.grad(loss), jax.jit(jax.grad(loss)), jax.grad(jax.checkpoint(loss))):
        np.testing.assert_allclose(differentiate(x), 3 * 2 * (above + 1) * x)
    (y, status), (t, _) = jax.jvp(exchange, (x,), (x + 1,))
    np.testing.assert_allclose(y, x - rank + below)
    np.testing.assert_allclose(t, x - rank + below + 1)
    assert numbers(status) == (below, 0, 3)
    hessian = jax.jit(jax.hessian(loss))(x)
    np.testing.assert_allclose(hessian, 6 * (above + 1) * np.eye(3))


def test_queue_of_work_in_one_compiled_loop(rank, size):
    """Check a loop in which rank 0 answers whichever rank asks, which it knows only when the loop runs."""
    each = 3

    @jax.jit
    def master(x):
        def turn(total, _):
            y, status = mpixla.recv(x, MPI.ANY_SOURCE, tag=1, return_status=True)
            mpixla.send(2 * y + status.source, status.source, tag=2)
            return total + y, status.source

        return jax.lax.scan(turn, x, None, length=each * (size - 1))

    @jax.jit
    def worker(x):
        def turn(y, _):
            mpixla.send(y, 0, tag=1)
            return mpixla.recv(y, 0, tag=2), None

        return jax.lax.scan(turn, x, None, length=each)[0]

    if rank == 0:
        total, sources = master(jnp.zeros(()))
        assert sorted(sources.tolist()) == sorted(each * [*range(1, size)])
        assert total == sum(7 * i + 4 * i for i in range(1, size))
    else:  # x, 2 x + rank, 4 x + 3 rank, 8 x + 7 rank
        np.testing.assert_array_equal(worker(jnp.asarray(float(rank))), 15 * rank)


def test_returned_status_of_a_pytree(below, above):
    """Check that each array is a message, and that the status is the last one's."""
    tree = {"a": jnp.ones(3), "b": jnp.ones(5)}
    y, status = mpixla.sendrecv(tree, tree, below, above, sendtag=7, return_status=True)
    assert y.keys() == tree.keys()
    assert numbers(status) == (below, 7, 5)
    y, status = mpixla.isendrecv(tree, tree, below, above, sendtag=8).wait(return_status=True)
    assert y.keys() == tree.keys()
    assert numbers(status) == (below, 8, 5)
    with pytest.raises(ValueError, match="sendrecv cannot return a status for a pytree without arrays"):
        mpixla.sendrecv({}, {}, below, above, return_status=True)


def test_returned_status_of_a_message_received_in_place(rank, below, above):
    """Check the status of a message that is a box of an array (core/windows.py)."""

    @jax.jit
    def exchange(u):
        y, status = mpixla.sendrecv(u[1], u[0], below, above, sendtag=3, return_status=True)
        return u.at[0].set(y), status

    u = jnp.arange(6.0).reshape(2, 3) + rank
    got, status = exchange(u)
    np.testing.assert_array_equal(got, np.stack([np.arange(3.0, 6) + below, u[1]]))
    assert numbers(status) == (below, 3, 3)


def test_refuses_to_return_a_status_that_there_is_not(rank):
    x = jnp.ones(3)
    with pytest.raises(TypeError, match="recv takes a status to fill, or returns one"):
        mpixla.recv(x, MPI.PROC_NULL, status=MPI.Status(), return_status=True)
    with pytest.raises(TypeError, match="return_status of sendrecv must be True or False, but is 1"):
        mpixla.sendrecv(x, x, rank, rank, return_status=1)
    for request in (mpixla.iallreduce(x, MPI.SUM), mpixla.isend(x, MPI.PROC_NULL)):
        with pytest.raises(TypeError, match="receives no message, so that wait has no status to return"):
            request.wait(return_status=True)
        request.wait()
    line = MPI.COMM_SELF.Create_cart([1])
    request = mpixla.halo_start(x, line)
    with pytest.raises(TypeError, match="halo_start receives several messages"):
        request.wait(return_status=True)
    request.wait()
    line.Free()


# Templates that are given by their types


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("call", ["recv", "irecv", "sendrecv", "isendrecv"])
def test_template_by_its_type(rank, below, above, call, how):
    def exchange(x):
        template = jax.ShapeDtypeStruct(x.shape, x.dtype)
        if call == "sendrecv":
            return mpixla.sendrecv(x, template, below, above)
        if call == "isendrecv":
            return mpixla.isendrecv(x, recvbuf=template, source=below, dest=above).wait()
        sending = mpixla.isend(x, above)
        y = mpixla.recv(template, below) if call == "recv" else mpixla.irecv(template, below).wait()
        mpixla.wait(sending)
        return y

    x = jnp.arange(3.0) + rank
    np.testing.assert_array_equal(ways(exchange)[how](x), x - rank + below)


@pytest.mark.parametrize("call", [mpixla.sendrecv, lambda *args: mpixla.isendrecv(*args).wait()])
def test_batch_and_tangent_of_a_template_by_its_type(rank, below, above, call):
    """Check that batches, tangents and cotangents are those of the array that is sent."""

    def exchange(x):
        return call(x, jax.ShapeDtypeStruct((3,), x.dtype), below, above)

    x = jnp.arange(6.0).reshape(2, 3) + rank
    np.testing.assert_array_equal(jax.vmap(exchange)(x), x - rank + below)
    (y, t) = jax.jvp(exchange, (x[0],), (x[1],))
    np.testing.assert_array_equal([y, t], x - rank + below)
    for transform in (jax.grad, lambda f: jax.jit(jax.grad(f))):
        gradient = transform(lambda x: (rank + 1) * exchange(x).sum())(x[0])
        np.testing.assert_array_equal(gradient, np.full(3, above + 1))


def test_pytree_of_templates_by_their_types(below, above, rank):
    tree = {"a": jnp.full(3, rank), "key": jax.random.key(rank)}
    types = jax.eval_shape(lambda: tree)
    received = mpixla.sendrecv(tree, types, below, above)
    np.testing.assert_array_equal(received["a"], np.full(3, below))
    assert received["key"] == jax.random.key(below)
    assert mpixla.recv(types["key"], MPI.PROC_NULL).dtype == tree["key"].dtype


def test_only_templates_are_given_by_their_types():
    with pytest.raises(TypeError, match="x of send must be an array or a number"):
        mpixla.send(jax.ShapeDtypeStruct((3,), jnp.float32), MPI.PROC_NULL)
