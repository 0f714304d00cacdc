"""Eager calls like one before go straight to its program, and to no other."""

import gc
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import mpixla
from mpixla.core import repeat
from mpixla.ops import collective, point_to_point, request

SIZE = MPI.COMM_WORLD.Get_size()


@pytest.fixture
def slow(monkeypatch):
    """A list that grows by one entry for each call that is checked."""
    calls = []
    comm_of = collective.comm_of
    for module in (collective, point_to_point, request):
        monkeypatch.setattr(module, "comm_of", lambda comm: calls.append(comm) or comm_of(comm))
    return calls


def test_second_call_is_direct(slow, comm, rank, compilations):
    x, y = jnp.full((3, 5), float(rank)), jnp.arange(7) + rank
    before = (rank - 1) % SIZE, (rank + 1) % SIZE
    calls = [
        lambda x: mpixla.allreduce(x, MPI.SUM),
        lambda x: mpixla.allreduce(x, op=MPI.MAX, comm=comm),
        lambda x: mpixla.bcast(x, 0),
        lambda x: mpixla.bcast(x, root=SIZE - 1),
        lambda x: mpixla.scan(x, MPI.SUM),
        lambda x: mpixla.exscan(x, MPI.SUM),
        lambda x: mpixla.sendrecv(x, x, before[0], before[1], sendtag=3),
        lambda x: mpixla.sendrecv(x, x, *np.array(before)),
        lambda x: mpixla.allgather(x),
        lambda _: mpixla.barrier(),
        lambda x: mpixla.wait(mpixla.iallreduce(x, MPI.SUM)),
        lambda x: mpixla.wait(mpixla.isendrecv(x, x, before[0], before[1])),
        lambda x: mpixla.waitall([mpixla.isend(x, before[1]), mpixla.irecv(-x, before[0])])[1],
    ]
    first = [(f(x), f(y)) for f in calls]
    checked, compiled = len(slow), len(compilations)
    for _ in range(2):
        for f, (of_x, of_y) in zip(calls, first, strict=True):
            for got, want in ((f(x), of_x), (f(y), of_y)):
                assert (got is None) == (want is None)
                if got is not None:
                    assert got.dtype == want.dtype
                    np.testing.assert_array_equal(got, want)
    assert (len(slow), len(compilations)) == (checked, compiled)


def messages(x, source, dest, tag):
    """Messages around a ring, by each operation that has a rank or a tag. Returns what came."""
    rank = MPI.COMM_WORLD.Get_rank()
    received = [mpixla.sendrecv(x, x, source, dest, sendtag=tag, recvtag=tag)]
    if rank % 2 == 0:
        mpixla.send(x, dest, tag=tag)
        received.append(mpixla.recv(x, source, tag=tag))
    else:
        received.append(mpixla.recv(x, source, tag=tag))
        mpixla.send(x, dest, tag=tag)
    status = MPI.Status()
    received.append(mpixla.sendrecv(x, x, source, dest, sendtag=tag, status=status))
    assert (status.Get_source(), status.Get_tag()) == (source, tag)
    requests = [mpixla.irecv(x, source, tag=tag), mpixla.isend(x, dest, tag=tag)]
    received.append(mpixla.waitall(requests)[0])
    received.append(mpixla.wait(mpixla.isendrecv(x, x, source, dest, sendtag=tag, recvtag=tag)))
    return received


@pytest.mark.skipif(SIZE % 2 == 1, reason="neighbours send and receive in turn")
@pytest.mark.not_checked  # then each line has programs of its own
def test_another_rank_or_tag_compiles_nothing(rank, compilations):
    x = jnp.arange(3.0) + rank
    messages(x, (rank - 1) % SIZE, (rank + 1) % SIZE, 0)
    compilations.clear()
    for tag in range(1, 51):
        shift = 2 * tag % SIZE + 1
        source, dest = (rank - shift) % SIZE, (rank + shift) % SIZE
        for _ in range(2):
            for came in messages(x, source, dest, tag):
                np.testing.assert_array_equal(came, np.arange(3.0) + source)
    assert not compilations


def test_nothing_else_is_transferred(rank):
    """Ranks and tags are no arrays of the user's, who forbids transfers."""
    x = jnp.arange(3.0)
    with jax.transfer_guard("disallow"):
        for tag in (7001, 7001, 7002):
            y = mpixla.sendrecv(x, x, rank, rank, sendtag=tag, recvtag=tag)
            z = mpixla.wait(mpixla.isendrecv(y, y, rank, rank, sendtag=tag, recvtag=tag))
    np.testing.assert_array_equal(z, x)


def test_operands_that_were_deleted(rank):
    """A program may delete all arrays that it finds, among them those that stand for ranks and tags."""
    before = jax.live_arrays()
    for _ in range(3):
        x = jnp.arange(3.0)
        np.testing.assert_array_equal(mpixla.sendrecv(x, x, rank, rank, sendtag=7003), np.arange(3.0))
        for array in jax.live_arrays():
            if not any(array is x for x in before):
                array.delete()


def test_calls_that_were_made_last_are_kept(monkeypatch, rank, slow):
    """Forget the calls that were made longest ago, where more are made than are remembered."""
    monkeypatch.setattr(repeat, "_LIMIT", 16)
    x = jnp.arange(11.0)
    one = lambda tag: mpixla.sendrecv(x, x, rank, rank, sendtag=tag)  # noqa: E731
    one(7100)
    for tag in range(7101, 7141):
        one(tag)
        before = len(slow)
        one(7100)
        assert len(slow) == before


def test_derivatives_compile_once(compilations):
    """What eager derivatives ask for besides, as the own rank, is compiled once as well."""
    x = jnp.ones(3)
    for f in (lambda x: mpixla.bcast(x, 0), lambda x: mpixla.reduce(x, MPI.SUM, 0), lambda x: mpixla.scan(x, MPI.MAX)):
        jax.vjp(f, x)[1](x)
        compiled = len(compilations)
        jax.vjp(f, x)[1](x)
        assert len(compilations) == compiled


def test_other_arguments_are_checked(slow):
    x = jnp.ones(2)
    mpixla.bcast(x, 0)
    with pytest.raises(TypeError, match="must be an integer"):
        mpixla.bcast(x, 0.0)
    with pytest.raises(ValueError, match="root of bcast is"):
        mpixla.bcast(x, SIZE)
    mpixla.allreduce(x, MPI.SUM)
    with pytest.raises(TypeError, match="cannot reduce dtype float"):
        mpixla.allreduce(x, MPI.BAND)
    with pytest.raises(TypeError, match="op must be"):
        mpixla.allreduce(x, MPI._handleof(MPI.SUM))


def test_communicator_in_the_place_of_a_freed_one(comm):
    x = jnp.ones(2)
    for color in (0, 1, 0):
        part = comm.Split(color if comm.Get_rank() else 0, 0)
        assert float(mpixla.allreduce(x, MPI.SUM, comm=part)[0]) == part.Get_size()
        part.Free()
        with pytest.raises(ValueError, match="COMM_NULL"):
            mpixla.allreduce(x, MPI.SUM, comm=part)


def test_inside_other_programs(rank):
    """The array is known, but the call belongs to the program that is traced."""
    x = jnp.full(2, float(rank))
    mpixla.allreduce(x, MPI.SUM)
    program = jax.make_jaxpr(lambda: mpixla.allreduce(x, MPI.SUM))()
    assert [e.primitive.name for e in program.eqns] == ["allreduce"]
    np.testing.assert_array_equal(
        jax.grad(lambda t: (t * mpixla.allreduce(x, MPI.SUM)).sum())(1.0), x.size * sum(range(SIZE))
    )
    with jax.disable_jit():
        np.testing.assert_array_equal(mpixla.allreduce(x, MPI.SUM), np.full(2, sum(range(SIZE))))


def test_memory_does_not_grow():
    x = jnp.ones(2)
    for _ in range(100):
        mpixla.allreduce(x, MPI.SUM)
    gc.collect()
    tracemalloc.start()
    for _ in range(5000):
        mpixla.allreduce(x, MPI.SUM)
    gc.collect()
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 100_000


def test_each_request_is_a_new_one():
    x = jnp.ones((2, 2))
    mpixla.allreduce(x, MPI.SUM)
    requests = mpixla.iallreduce(x, MPI.SUM), mpixla.iallreduce(x, MPI.SUM)
    assert all(float(y[0, 0]) == SIZE for y in mpixla.waitall(requests))
