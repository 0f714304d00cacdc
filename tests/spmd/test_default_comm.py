"""The default communicator of a block, and communicators that are static arguments of jax.jit."""

import functools
import threading
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from mpi4py import MPI

import mpixla


@pytest.fixture
def half(comm, rank):
    """Return the communicator of the ranks with this one's parity, in falling order."""
    made = comm.Split(rank % 2, -rank)
    yield made
    if made != MPI.COMM_NULL:
        made.Free()


def sum_of_ranks(of):
    """Return the sum of the ranks' numbers in MPI.COMM_WORLD, over a communicator."""
    return float(sum(of.allgather(MPI.COMM_WORLD.Get_rank())))


def total(x):
    return mpixla.allreduce(x, MPI.SUM)


@functools.partial(jax.custom_vjp)
def with_own_derivative(x):
    return total(x)


with_own_derivative.defvjp(lambda x: (total(x), None), lambda _, ct: (ct,))

inner = jax.jit(total)

# Functions of this rank's number: each gives the sum of the numbers of the default communicator's ranks.
PROGRAMS = {
    "eager": total,
    "eager, of a pytree": lambda x: mpixla.allreduce({"a": x, "b": 1}, MPI.SUM)["a"],
    "eager request": lambda x: mpixla.wait(mpixla.iallreduce(x, MPI.SUM)),
    "jit": jax.jit(total),
    "mpixla.jit": mpixla.jit(total),
    "nested jit": jax.jit(lambda x: inner(x) * 1),
    "jit of a request": jax.jit(lambda x: mpixla.wait(mpixla.iallreduce(x, MPI.SUM))),
    "vmap": lambda x: jax.vmap(total)(jnp.stack([x, x]))[1],
    "jit of vmap": jax.jit(lambda x: jax.vmap(total)(jnp.stack([x, x]))[1]),
    "vmap of jit": lambda x: jax.vmap(inner)(jnp.stack([x, x]))[1],
    "scan": jax.jit(lambda x: lax.scan(lambda c, _: (c, total(x)), 0.0, length=2)[1][1]),
    "scan, eagerly": lambda x: lax.scan(lambda c, _: (c, total(x)), 0.0, length=2)[1][1],
    "cond": jax.jit(lambda x: lax.cond(x > -1, total, lambda x: x, x)),
    "checkpoint": jax.jit(jax.checkpoint(total)),
    "value and grad": jax.jit(lambda x: jax.value_and_grad(total)(x)[0]),
    "jvp": jax.jit(lambda x: jax.jvp(total, (x,), (x,))[1]),
    "gradient that communicates": jax.jit(lambda x: jax.grad(lambda w: mpixla.pvary(w) * x)(1.0)),
    "gradient, eagerly": lambda x: jax.grad(lambda w: mpixla.pvary(w) * x)(1.0),
    "custom_vjp": jax.jit(with_own_derivative),
    "allgather": jax.jit(lambda x: mpixla.allgather(x).sum()),
    "vdot": jax.jit(lambda x: mpixla.vdot(x, jnp.float32(1))),
    "fsum": jax.jit(mpixla.fsum),
    "static size": jax.jit(lambda x: mpixla.allreduce(jnp.full(mpixla.size(), x), MPI.SUM)[-1]),
    "bcast of a reduce": jax.jit(
        lambda x: mpixla.bcast(mpixla.reduce(x, MPI.SUM, mpixla.size() - 1), mpixla.size() - 1)
    ),
    "shifts": jax.jit(lambda x: sum(mpixla.shift(x, i) for i in range(mpixla.size()))),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_operations_of_a_block(name, comm, rank, half, compilations):
    """Check that a function uses the block's communicator in the block, and the default one before and after it."""
    run, x = PROGRAMS[name], jnp.float32(rank)
    everyone, some = sum_of_ranks(comm), sum_of_ranks(half)
    for repeat in range(2):
        if repeat:
            compilations.clear()
        assert float(run(x)) == everyone
        with mpixla.default_comm(half):
            assert float(run(x)) == some
            with mpixla.default_comm(MPI.COMM_SELF):
                assert float(run(x)) == rank
            with mpixla.default_comm(comm):
                assert float(run(x)) == everyone
            assert float(run(x)) == some
        assert float(run(x)) == everyone
    if "eagerly" not in name and "vmap" not in name:  # JAX traces these each time
        assert compilations == []


def test_ranks_and_size(comm, rank, size, half):
    rank_of = jax.jit(mpixla.rank)
    assert int(rank_of()) == rank
    with mpixla.default_comm(half):
        assert int(rank_of()) == int(mpixla.rank()) == half.Get_rank()
        assert mpixla.size() == half.Get_size()
        assert mpixla.get_default_comm() == half
        assert mpixla.get_default_comm().Get_rank() == half.Get_rank()
    assert int(rank_of()) == rank
    assert mpixla.get_default_comm() != half


def test_own_comm_has_precedence(comm, rank, half):
    one = jnp.float32(1)
    with mpixla.default_comm(half):
        everyone = functools.partial(mpixla.allreduce, op=MPI.SUM, comm=comm)
        assert float(everyone(one)) == float(jax.jit(everyone)(one)) == comm.Get_size()
        with mpixla.default_comm(None):  # as it is
            assert float(total(one)) == half.Get_size()


def test_default_of_all_ranks_in_a_block(size, half):
    """Check that the communicator that stands for the default one stands for it in a block, too."""
    everyone = mpixla.get_default_comm()
    with mpixla.default_comm(half), mpixla.default_comm(everyone):
        assert float(total(jnp.float32(1))) == size
        assert mpixla.get_default_comm() == everyone
        assert "comm=mpixla default" in str(jax.make_jaxpr(total)(1.0))


def test_derivative_outside_of_the_block(rank, half):
    """Check that a function that was traced in the block keeps the block's communicator."""
    with mpixla.default_comm(half):
        _, pull = jax.vjp(lambda w: mpixla.pvary(w) * rank, 1.0)
        request = mpixla.iallreduce(jnp.float32(rank), MPI.SUM)
    some = sum_of_ranks(half)
    assert float(pull(1.0)[0]) == some
    assert float(mpixla.wait(request)) == some


def test_block_in_a_traced_function(comm, rank, half):
    @jax.jit
    def program(x):
        before = inner(x)
        with mpixla.default_comm(half):
            inside = inner(x), total(x)
        return before, *inside, inner(x)

    everyone, some = sum_of_ranks(comm), sum_of_ranks(half)
    assert [float(y) for y in program(jnp.float32(rank))] == [everyone, some, some, everyone]


def test_exception_ends_the_block(size, half):
    with pytest.raises(KeyError), mpixla.default_comm(half):
        raise KeyError
    assert float(total(jnp.float32(1))) == size


def test_other_threads_are_not_in_the_block(size, half):
    seen = []
    with mpixla.default_comm(half):
        thread = threading.Thread(target=lambda: seen.append(mpixla.size()))
        thread.start()
        thread.join()
        assert mpixla.size() == half.Get_size()
    assert seen == [size]


def test_messages_with_ranks_of_the_block(comm, rank, half):
    """Check that a rank that the block's communicator lacks is refused, also eagerly after a call that allowed it."""
    x = jnp.ones(2)
    for _ in range(2):
        np.testing.assert_array_equal(mpixla.sendrecv(x, x, rank, rank), x)
        with mpixla.default_comm(half):
            own, size = half.Get_rank(), half.Get_size()
            np.testing.assert_array_equal(mpixla.sendrecv(x, x, own, own), x)
            with pytest.raises(ValueError, match=f"dest of send is {size}, but the ranks of .* are 0 to {size - 1}"):
                mpixla.send(x, size)


def test_freed_communicator(comm, size, half):
    run = jax.jit(total)
    one = jnp.float32(1)
    with mpixla.default_comm(half):
        assert float(total(one)) == float(run(one)) == half.Get_size()
        half.Free()
        with pytest.raises(ValueError, match="of a communicator that was freed"):
            total(one)
        with pytest.raises(Exception, match="freed"):
            run(one).block_until_ready()
    with pytest.raises(ValueError, match=r"comm is MPI\.COMM_NULL"):
        mpixla.default_comm(half)
    other = comm.Dup()  # which may have its handle
    assert float(total(one)) == float(run(one)) == size
    with mpixla.default_comm(other):
        assert float(total(one)) == float(run(one)) == size
    other.Free()


def test_refusals():
    for function in (mpixla.default_comm, mpixla.hashable_comm):
        with pytest.raises(TypeError, match="comm must be an mpi4py communicator .* is an int"):
            function(3)
        with pytest.raises(ValueError, match=r"comm is MPI\.COMM_NULL"):
            function(MPI.COMM_NULL)


# Communicators with a hash.


def test_static_argument_of_jit(comm, rank, half, compilations):
    @functools.partial(jax.jit, static_argnames="comm")
    def mean(x, comm):
        return mpixla.allreduce(x, MPI.SUM, comm=comm) / comm.Get_size()

    x = jnp.float32(rank)
    for of in (comm, half):
        want = sum_of_ranks(of) / of.Get_size()
        assert float(mean(x, comm=mpixla.hashable_comm(of))) == pytest.approx(want)
    compilations.clear()
    for of in (comm, half, MPI.Intracomm(half)):
        mean(x, comm=mpixla.hashable_comm(of))
    assert compilations == []


def test_equality_and_hash(comm, half):
    one, same, other = mpixla.hashable_comm(half), mpixla.hashable_comm(MPI.Intracomm(half)), mpixla.hashable_comm(comm)
    assert one == same == half == one
    assert (one != same) is False
    assert hash(one) == hash(same)
    assert one != other
    assert other != half
    assert len({one, same, other}) == 2
    assert mpixla.hashable_comm(one) is one
    assert mpixla.hashable_comm() == mpixla.get_default_comm()


def test_it_is_a_communicator(comm, rank, size):
    """Check the class and methods of a hashable communicator, and that operations take it eagerly and in programs."""
    line = comm.Create_cart([size], periods=[True])
    hashed = mpixla.hashable_comm(line)
    assert isinstance(hashed, MPI.Cartcomm)
    assert hashed.Get_coords(hashed.Get_rank()) == line.Get_coords(line.Get_rank())
    x = jnp.arange(3.0) + 3 * rank
    for run in (mpixla.halo_exchange, jax.jit(mpixla.halo_exchange, static_argnums=1)):
        got = run(jnp.pad(x, 1), hashed)
        np.testing.assert_array_equal(got[1:-1], x)
        assert float(got[0]) == (3 * rank - 1) % (3 * size)
    with mpixla.default_comm(line):
        assert float(mpixla.shift(jnp.float32(rank), 1)) == (rank - 1) % size
    hashed.Free()
    with pytest.raises(ValueError, match="freed"):
        mpixla.barrier(comm=hashed)
    line = MPI.Cartcomm()  # its handle is no communicator's any more


def test_duplicates(comm, size):
    """Check that mpi4py's Dup of a hashable communicator has the same class, and is another communicator."""
    hashed = mpixla.hashable_comm(comm)
    duplicate = hashed.Dup()
    assert duplicate != hashed
    assert len({duplicate, hashed}) == 2
    assert float(mpixla.allreduce(jnp.float32(1), MPI.SUM, comm=duplicate)) == size
    duplicate.Free()


def test_eager_calls_share_a_program(half):
    from mpixla.core import eager

    x = jnp.ones(4)
    mpixla.allreduce(x, MPI.SUM, comm=half)
    programs = len(eager._programs)
    for comm in (mpixla.hashable_comm(half), half, mpixla.hashable_comm(half)):
        np.testing.assert_array_equal(mpixla.allreduce(x, MPI.SUM, comm=comm), np.full(4, half.Get_size()))
    assert len(eager._programs) == programs


def test_field_of_a_pytree(comm, rank, half):
    """Check that JAX finds the program of a function of a pytree by a communicator in the pytree's metadata."""

    @functools.partial(jax.tree_util.register_dataclass, data_fields=["x"], meta_fields=["comm"])
    @dataclass
    class Field:
        x: jax.Array
        comm: MPI.Intracomm

    run = jax.jit(lambda field: mpixla.allreduce(field.x, MPI.SUM, comm=field.comm))
    for of in (comm, half, comm):
        assert float(run(Field(jnp.float32(rank), mpixla.hashable_comm(of)))) == sum_of_ranks(of)


def test_freed_static_argument(comm, size):
    """Check that a later communicator with a freed one's handle is another communicator."""
    run = jax.jit(lambda x, comm: mpixla.allreduce(x, MPI.SUM, comm=comm), static_argnums=1)
    one = jnp.float32(1)
    for _ in range(3):
        made = comm.Dup()
        hashed = mpixla.hashable_comm(made)
        assert float(run(one, hashed)) == float(mpixla.allreduce(one, MPI.SUM, comm=hashed)) == size
        made.Free()
        for call in (run, lambda x, comm: mpixla.allreduce(x, MPI.SUM, comm=comm)):
            with pytest.raises(Exception, match="freed"):
                jax.block_until_ready(call(one, hashed))


@pytest.mark.needs_hook("refusals")
def test_argument_that_is_not_static(comm):
    with pytest.raises(ValueError, match=r"mpixla\.hashable_comm\(comm\) can be a static argument\."):
        jax.jit(lambda x, comm: mpixla.allreduce(x, MPI.SUM, comm=comm))(1.0, comm)
