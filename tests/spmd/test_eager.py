"""Eager calls are programs of their own: those like one before go straight to its program, and to no other."""

import gc
import inspect
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import mpixla
from mpixla.core import eager
from mpixla.ops import collective, point_to_point, request
from reference import ROWS, operands

SIZE = MPI.COMM_WORLD.Get_size()


@pytest.fixture
def slow(monkeypatch):
    """Return a list that grows by one entry for each call that is checked."""
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
    """Send messages around a ring, by each operation that has a rank or a tag. Return the received arrays."""
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


@pytest.mark.two_ranks
@pytest.mark.parametrize("row", [row for row in ROWS if row.name != "pvary"], ids=lambda row: row.name)
def test_an_operation_is_one_program(row, comm, rank, monkeypatch):
    """Of all leaves of a pytree, too; a wait for a request is another one."""
    variant = row.variants(SIZE)[0]
    dtype = next(d for d in map(np.dtype, (np.float32, np.int32)) if row.takes(dtype=d, **variant))
    inputs = [jnp.asarray(x) for x in operands(row, dtype, (3,), rank, SIZE, **variant)]
    monkeypatch.setattr(eager, "_programs", {})
    row.call(*inputs, comm=comm, **variant)
    first = dict(eager._programs)
    assert row.name in {key[0].__name__ for key in first if inspect.isfunction(key[0])}
    assert {key[0].name for key in first if not inspect.isfunction(key[0])} <= {"wait"}
    row.call(*inputs, comm=comm, **variant)
    assert eager._programs == first


def test_a_pytree_is_one_program(rank, monkeypatch, compilations):
    tree = {"a": jnp.full((3, 5), float(rank)), "b": (jnp.arange(7) + rank, jnp.ones(2, jnp.int8)), "c": None}
    calls = [
        lambda x: mpixla.allreduce(x, MPI.MAX),
        lambda x: mpixla.bcast(x, SIZE - 1),
        lambda x: mpixla.allgather(x),
        lambda x: mpixla.sendrecv(x, x, (rank - 1) % SIZE, (rank + 1) % SIZE, sendtag=rank),
        lambda x: mpixla.assert_replicated(mpixla.bcast(x, 0)),
    ]
    for call in calls:
        monkeypatch.setattr(eager, "_programs", {})
        want = jax.jit(call)(tree)
        compilations.clear()
        first = call(tree)
        assert len(compilations) == len(eager._programs) <= 2
        for got in (first, call(tree)):
            assert jax.tree.structure(got) == jax.tree.structure(want)
            jax.tree.map(np.testing.assert_array_equal, got, want)
        assert len(compilations) == len(eager._programs)


@jax.tree_util.register_pytree_node_class
class Unhashable:
    """A pytree whose structure has no hash, which jax.jit refuses."""

    def __init__(self, x):
        self.x = x

    def tree_flatten(self):
        return [self.x], {"a": "dict"}

    @classmethod
    def tree_unflatten(cls, _, leaves):
        return cls(*leaves)


def test_pytree_that_no_program_takes():
    for _ in range(2):
        assert float(mpixla.allreduce(Unhashable(jnp.ones(())), MPI.SUM).x) == SIZE
        assert mpixla.allreduce({"a": 1, "b": jnp.ones(2)}, MPI.SUM)["a"] == SIZE


def test_operands_in_results_are_not_copied(rank):
    """A request keeps the array itself."""
    x = jnp.arange(5.0)
    request = mpixla.isend({"x": x}, rank, tag=2)
    mpixla.recv(x, rank, tag=2)
    assert any(leaf is x for leaf in jax.tree.leaves(request))
    mpixla.wait(request)


def test_request_of_an_eager_call_has_the_structure_of_a_traced_one(rank):
    x = jnp.ones(3)
    start = lambda: mpixla.isendrecv(x, x, rank, rank, sendtag=4, recvtag=4)  # noqa: E731
    for _ in range(2):
        request = start()
        assert jax.tree.structure(request) == jax.tree.structure(jax.eval_shape(start))
        mpixla.wait(request)


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


def test_programs_of_calls_that_were_made_last_are_kept(monkeypatch, slow):
    """The program that was used longest ago makes room for a new one."""
    monkeypatch.setattr(eager, "_programs", {})
    monkeypatch.setattr(eager, "CACHED_CALLS", 3)
    x = jnp.arange(11.0)
    comms = [MPI.COMM_SELF.Dup() for _ in range(5)]
    mpixla.bcast(x, 0, comm=comms[0])
    for comm in comms[1:]:
        mpixla.bcast(x, 0, comm=comm)
        before = len(slow)
        mpixla.bcast(x, 0, comm=comms[0])
        assert len(slow) == before
        assert len(eager._programs) <= 3
    for comm in comms:
        comm.Free()


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
    for counts in ([2] * SIZE, (2,) * SIZE, np.full(SIZE, 2)):
        assert mpixla.allgatherv(x, counts).shape == (2 * SIZE,)
    with pytest.raises(TypeError, match=r"counts\[0\] of allgatherv must be an integer"):
        mpixla.allgatherv(x, [2.0] * SIZE)
    mpixla.allreduce(x, MPI.SUM)
    with pytest.raises(TypeError, match="cannot reduce dtype float"):
        mpixla.allreduce(x, MPI.BAND)
    with pytest.raises(TypeError, match="op must be"):
        mpixla.allreduce(x, MPI._handleof(MPI.SUM))


def test_new_communicator_gets_no_program_of_a_freed_one(comm):
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
