"""Communicators, reductions and status objects: identity, caching, and what a program carries of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import mpixla
from mpixla.mpi.comm import comm_of, reduction_of, status_of
from reference import ROWS, operands


def test_default_communicator(comm):
    default = mpixla.get_default_comm()
    assert MPI.Comm.Compare(default, comm) == MPI.CONGRUENT
    assert default is mpixla.get_default_comm()
    assert comm_of(None) == comm_of(default) != comm_of(comm)


def test_default_communicator_of_users_means_the_one_of_operations(rank, size):
    """One rank may write it, or another object for it, and another rank nothing, eagerly and in programs."""
    default = mpixla.get_default_comm()
    mine = (None, default, MPI.Intracomm(default))[rank % 3]
    x = jnp.arange(3.0) + rank
    calls = {
        "eager": lambda x: mpixla.allreduce(x, MPI.SUM, comm=mine),
        "jit": jax.jit(lambda x: mpixla.allreduce(x, MPI.SUM, comm=mine)),
    }
    for call in calls.values():
        for _ in range(3):
            np.testing.assert_array_equal(call(x), size * np.arange(3.0) + size * (size - 1) / 2)
    jaxprs = [str(jax.make_jaxpr(lambda x, c=c: mpixla.allgather(x, comm=c))(x)) for c in (None, default)]
    assert jaxprs[0] == jaxprs[1]
    assert "comm=mpixla default" in jaxprs[0]
    assert default.Get_name() == "mpixla default"


def test_clone_of_the_default_communicator_is_another(comm, size):
    clone = mpixla.get_default_comm().Clone()
    assert comm_of(clone) != comm_of(None)
    assert mpixla.allreduce(jnp.int32(1), MPI.SUM, comm=clone) == size
    clone.Free()


def test_the_same_object_has_the_same_number(comm):
    clone = comm.Clone()
    again = MPI.Intracomm(clone)
    assert comm_of(clone) == comm_of(again)
    assert hash(comm_of(clone)) == hash(comm_of(again))
    assert comm_of(clone) != comm_of(comm)
    assert comm_of(clone) is comm_of(again)
    clone.Free()


def test_names_of_communicators(comm, size):
    clone = comm.Clone()
    for name, said in (("", "unnamed"), ("ocean", "ocean")):
        clone.Set_name(name)
        with pytest.raises(ValueError, match=rf"root of bcast is {size}, .* of communicator '{said}' are"):
            mpixla.bcast(jnp.ones(3), size, comm=clone)
    clone.Free()


def test_reductions_and_status():
    assert reduction_of(MPI.SUM) == reduction_of(MPI.Op(MPI.SUM)) != reduction_of(MPI.MAX)
    one, other = MPI.Status(), MPI.Status()
    assert status_of(one) == status_of(one) != status_of(other)
    assert hash(status_of(one)) == hash(status_of(one))


@pytest.mark.two_ranks
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_eager_calls_compile_once_for_a_shape(row, comm, rank, size, compilations):
    variant = row.variants(size)[0]
    inputs = [jnp.asarray(x) for x in operands(row, np.dtype("int32"), (5, 7), rank, size, **variant)]
    row.call(*inputs, comm=comm, **variant)
    compilations.clear()
    for _ in range(3):
        row.call(*inputs, comm=MPI.Intracomm(comm), **variant)
    assert compilations == []
    # The fixture does see a compilation.
    jax.jit(lambda x: x * 17 + rank)(jnp.zeros((3, 1, 2)))
    assert compilations


def test_programs_lower_to_the_same_text(comm, rank):
    """No addresses: tracing again, with other Python objects for the same communicator, gives the same program."""

    def lower():
        c = MPI.Intracomm(comm)

        def program(x):
            x = mpixla.allreduce(x, MPI.SUM, comm=c)
            x = mpixla.sendrecv(x, x, rank, rank, comm=c)
            return mpixla.bcast(x, 0, comm=c), mpixla.allgather(x, comm=c)

        return jax.jit(program).lower(jnp.ones(3)).as_text()

    text = lower()
    assert text == lower()
    assert "mpixla_bcast" in text
    assert str(MPI._handleof(comm)) not in text


def test_jaxprs_are_readable(size):
    text = str(
        jax.make_jaxpr(lambda x: mpixla.reduce(x, MPI.SUM, 0, comm=MPI.COMM_WORLD))(jnp.ones(3)).pretty_print(
            use_color=False
        )
    )
    for part in ("reduce[", "comm=MPI_COMM_WORLD", "op=SUM", "root=0"):
        assert part in text
