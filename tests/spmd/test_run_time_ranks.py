"""Ranks and tags that are traced. That they do what static ones do is in the table of tests/reference.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import mpixla
from messages import by_one_request, by_request, by_sendrecv

SIZE = MPI.COMM_WORLD.Get_size()


def _partners(seed, steps):
    """Return for each step a permutation: rank i sends to entry i."""
    rng = np.random.default_rng(seed)
    return np.stack([rng.permutation(SIZE) for _ in range(steps)]).astype(np.int32)


def _mixed(start, dests):
    """Return each rank's array at the end, if it adds half of the received array in each step."""
    x = start.copy()
    for dest in dests:
        came = np.empty_like(x)
        came[dest] = x
        x = x + came / 2
    return x


def _mix(comm, exchange):
    rank = comm.Get_rank()

    def step(x, dest):
        return x + exchange(x, x, jnp.argsort(dest)[rank], dest[rank], comm)[0] / 2, None

    return lambda x, dests: jax.lax.scan(step, x, dests)[0]


@pytest.mark.parametrize("exchange", [by_sendrecv, by_one_request, by_request])
@pytest.mark.parametrize("jit", [jax.jit, mpixla.jit], ids=["jax.jit", "mpixla.jit"])
def test_partners_drawn_at_random(comm, rank, exchange, jit):
    """A scan over them, forward and backward: the cotangents go the messages' ways backward."""
    start = np.arange(SIZE * 3.0).reshape(SIZE, 3)
    mix = _mix(comm, exchange)
    for seed in range(3):
        dests = _partners(seed, 5)
        got = jit(mix)(jnp.asarray(start[rank]), jnp.asarray(dests))
        np.testing.assert_allclose(got, _mixed(start, dests)[rank], rtol=1e-12)
        grad = jit(jax.grad(lambda x, dests: (rank + 1) * mix(x, dests).sum()))(jnp.asarray(start[rank]), dests)
        identity = np.eye(SIZE)[:, :, None]
        matrix = np.stack([_mixed(identity[:, i], dests)[:, 0] for i in range(SIZE)], axis=1)
        np.testing.assert_allclose(grad, np.full(3, ((np.arange(SIZE) + 1) @ matrix)[rank]), rtol=1e-12)


def test_one_program(comm, rank):
    """It is the same on every rank, and whoever the partner is."""
    step = jax.jit(lambda x, source, dest, tag: mpixla.sendrecv(x, x, source, dest, sendtag=tag, comm=comm))
    x = jnp.float64(rank)
    assert len(set(comm.allgather(step.lower(x, 0, rank, 3).as_text()))) == 1
    for i in range(4):
        assert float(step(x, (rank - i) % SIZE, (rank + i) % SIZE, i)) == (rank - i) % SIZE
    assert step._cache_size() == 1


def test_traced_proc_null_and_any_source_work_as_static_ones(comm, rank):
    """MPI's own numbers, as they are where they are static."""
    status = MPI.Status()

    @jax.jit
    def shift(x, template, source, dest, recvtag):
        return mpixla.sendrecv(x, template, source, dest, sendtag=4, recvtag=recvtag, comm=comm, status=status)

    below = rank - 1 if rank > 0 else MPI.PROC_NULL
    above = rank + 1 if rank < SIZE - 1 else MPI.PROC_NULL
    got = shift(jnp.float64(rank), jnp.float64(-5), below, above, 4)
    assert float(got) == (rank - 1 if rank else -5)
    comm.Barrier()
    got = shift(jnp.float64(rank), jnp.float64(-5), MPI.ANY_SOURCE, (rank + 1) % SIZE, MPI.ANY_TAG)
    jax.block_until_ready(got)
    assert float(got) == (rank - 1) % SIZE
    assert (status.Get_source(), status.Get_tag()) == ((rank - 1) % SIZE, 4)


def test_cotangents_of_templates(comm, rank):
    """They come back where nobody sent, and only there."""

    def loss(x, template, source, dest):
        return 3 * mpixla.sendrecv(x, template, source, dest, recvtag=0, comm=comm)

    below = rank - 1 if rank > 0 else MPI.PROC_NULL
    above = rank + 1 if rank < SIZE - 1 else MPI.PROC_NULL
    of_x, of_template = jax.jit(jax.grad(loss, argnums=(0, 1)))(1.0, 2.0, below, above)
    assert (float(of_x), float(of_template)) == (0 if rank == SIZE - 1 else 3, 0 if rank else 3)


def test_batches(comm, rank):
    """With one partner for all parts, one message; with a partner for each, a message for each, in their order."""
    x = np.arange(SIZE * 6.0).reshape(SIZE, 3, 2)
    exchange = lambda x, source, dest: mpixla.sendrecv(x, x, source, dest, comm=comm)  # noqa: E731
    ring = jax.jit(jax.vmap(exchange, in_axes=(0, None, None)))
    np.testing.assert_array_equal(ring(x[rank], (rank - 1) % SIZE, (rank + 1) % SIZE), x[rank - 1])
    disps = np.arange(3)
    dests, sources = (rank + disps) % SIZE, (rank - disps) % SIZE
    wanted = np.stack([x[source, i] for i, source in enumerate(sources)])
    for wrap in (lambda f: f, jax.jit):
        each = wrap(jax.vmap(exchange))
        np.testing.assert_array_equal(each(x[rank], sources, dests), wanted)
        grad = wrap(jax.grad(lambda x: ((rank + 1) * each(x, sources, dests)).sum()))(x[rank])  # noqa: B023
        np.testing.assert_array_equal(grad, np.broadcast_to((dests + 1.0)[:, None], (3, 2)))
    got = jax.vmap(exchange, in_axes=(None, 0, 0))(x[rank, 0], sources, dests)
    np.testing.assert_array_equal(got, x[sources, 0])


def test_requests_across_batches(comm, rank):
    """A request that was started in a vmap is waited for in another, with its partner among its leaves."""
    x = np.arange(SIZE * 6.0).reshape(SIZE, 3, 2)
    start = jax.vmap(lambda x, source, dest: mpixla.isendrecv(x, x, source, dest, comm=comm), in_axes=(0, None, None))
    request = jax.jit(start)(x[rank], (rank - 1) % SIZE, (rank + 1) % SIZE)
    np.testing.assert_array_equal(jax.vmap(mpixla.wait)(request), x[rank - 1])
    with pytest.raises(TypeError, match="isend got ranks or tags that differ within the batch of a vmap"):
        jax.vmap(lambda x, dest: mpixla.wait(mpixla.isend(x, dest, comm=comm)))(x[rank], jnp.arange(3))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
def test_any_integer_is_a_rank(comm, rank, dtype):
    exchange = jax.jit(lambda x, source, dest: mpixla.sendrecv(x, x, source, dest, comm=comm))
    ends = jnp.asarray((rank - 1) % SIZE, dtype), jnp.asarray((rank + 1) % SIZE, dtype)
    assert float(exchange(jnp.float64(rank), *ends)) == (rank - 1) % SIZE


@pytest.mark.parametrize("value", [1.5, True, np.arange(2)], ids=["float", "bool", "array"])
def test_rank_that_is_no_integer_is_refused(comm, value):
    with pytest.raises(TypeError, match="^dest of send must be an integer, but is a traced value of "):
        jax.jit(lambda x, dest: mpixla.send(x, dest, comm=comm))(jnp.ones(3), value)
    with pytest.raises(TypeError, match="^tag of irecv must be an integer, but is a traced value of "):
        jax.jit(lambda x, tag: mpixla.irecv(x, 0, tag=tag, comm=comm))(jnp.ones(3), value)


def test_numbers_out_of_range(comm):
    """The error names what was given, and where; nothing was sent."""
    x = jnp.ones(3)
    ends = {"dest": 0, "source": 0, "sendtag": 0, "recvtag": 0}

    @jax.jit
    def exchange(x, dest, source, sendtag, recvtag):
        return mpixla.sendrecv(x, x, source, dest, sendtag=sendtag, recvtag=recvtag, comm=comm)

    neither = min(MPI.ANY_SOURCE, MPI.PROC_NULL, MPI.ANY_TAG) - 7
    wrong = [("dest", SIZE), ("dest", MPI.ANY_SOURCE), ("dest", neither), ("source", 2**40), ("source", neither)]
    wrong += [("dest", np.uint64(2**40)), ("sendtag", MPI.ANY_TAG), ("recvtag", neither)]
    wrong.append(("sendtag", MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) + 1))
    for what, value in wrong:
        numbers = {name: np.int64(number) for name, number in {**ends, what: value}.items()}
        shown = min(value, 2**31 - 1) if isinstance(value, np.uint64) else value
        numbers[what] = value if isinstance(value, np.uint64) else np.int64(value)
        with pytest.raises(Exception, match=rf"MPI_Sendrecv got {what} = {shown}, but .* \(at .*test_run_time_ranks"):
            jax.block_until_ready(exchange(x, **numbers))


def test_sendrecv_from_any_source_has_no_reverse_mode(comm):
    """Static, it is refused when tracing; traced, by the call that would send the cotangent there."""
    exchange = lambda x, source, dest: mpixla.sendrecv(x, x, source, dest, comm=comm).sum()  # noqa: E731
    with pytest.raises(TypeError, match=r"sendrecv from MPI.ANY_SOURCE has no reverse mode"):
        jax.jit(jax.grad(lambda x, dest: exchange(x, MPI.ANY_SOURCE, dest)))(jnp.ones(3), 0)
    rank = comm.Get_rank()
    with pytest.raises(Exception, match=f"MPI_Sendrecv got dest = {MPI.ANY_SOURCE}, but"):
        jax.block_until_ready(jax.jit(jax.grad(exchange))(jnp.ones(3), MPI.ANY_SOURCE, rank))
