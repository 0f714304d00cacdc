"""Communicators and reductions that were freed.

Programs that still carry them raise, also if another object has their handle now, and no data made for them is kept."""

import gc
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import mpixla
from mpixla.core import eager
from reference import ROWS, bits, expected, operands

SIZE = MPI.COMM_WORLD.Get_size()
FLOAT = np.dtype("float32")
# The others work on communicators that they make of the one that they are given, or, as pvary, communicate backward.
WITH_COMM = [row for row in ROWS if not row.name.startswith(("halo", "neighbor", "pvary"))]
WITH_OP = [row for row in ROWS if "op" in row.variants(1)[0]]
WAS_FREED = "was freed after this program was traced"


def arguments(row, rank, size):
    variant = next(v for v in row.variants(size) if row.takes(FLOAT, **v))
    return variant, [jnp.asarray(x) for x in operands(row, FLOAT, (3,), rank, size, **variant)]


@pytest.mark.parametrize("row", WITH_COMM, ids=lambda row: row.name)
def test_communicator(row, comm, rank, size):
    variant, inputs = arguments(row, rank, size)
    want = expected(row, FLOAT, (3,), rank, size, **variant)

    def check(run, c):
        got = run(*inputs)
        assert (got is None) == (want is None)
        if want is not None:
            np.testing.assert_array_equal(bits(got), bits(want))

    before = None
    for _ in range(3):
        c = comm.Dup()  # with the handle of the one before, under some MPIs
        run_eagerly = lambda *x, c=c: row.call(*x, comm=c, **variant)  # noqa: E731
        program = jax.jit(run_eagerly)
        for run in (run_eagerly, program, run_eagerly):
            check(run, c)
        for run in before or ():
            with pytest.raises(Exception, match=WAS_FREED):
                jax.block_until_ready(run(*inputs))
        c.Free()
        before = [program] if inputs or want is not None else []


@pytest.mark.parametrize("name", ["halo_exchange", "neighbor_allgather"])
def test_cartesian_communicator(name, comm, size):
    ring = comm.Create_cart([size], periods=[True])
    program = jax.jit(lambda x: getattr(mpixla, name)(x, comm=ring))
    jax.block_until_ready(program(jnp.zeros(3)))
    ring.Free()
    with pytest.raises(Exception, match=WAS_FREED):
        jax.block_until_ready(program(jnp.zeros(3)))


@pytest.mark.parametrize("jit", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_transposed_when_the_communicator_was_freed(jit, comm, rank, size):
    """What was known of it is forgotten by then."""
    ring = comm.Create_cart([size], periods=[True])
    x, counts = jnp.ones(4, FLOAT), jnp.array([1, 2])
    _, back = jax.vjp(lambda x: mpixla.neighbor_alltoallv(x, counts, capacity=6, comm=ring)[0], x)
    ring.Free()
    other = comm.Dup()
    mpixla.barrier(comm=other)
    other.Free()
    with pytest.raises(Exception, match=WAS_FREED):
        jax.block_until_ready(jit(back)(jnp.ones(6, FLOAT)))


def larger(a, b, datatype):
    x, y = np.frombuffer(a, FLOAT), np.frombuffer(b, FLOAT)
    y[:] = np.maximum(x, y)


def smaller(a, b, datatype):
    x, y = np.frombuffer(a, FLOAT), np.frombuffer(b, FLOAT)
    y[:] = np.minimum(x, y)


@pytest.mark.parametrize("row", WITH_OP, ids=lambda row: row.name)
def test_reduction(row, comm, rank, size):
    """The rows' own reductions MAX and MIN, made by a user."""
    variants = {v["op"]: v for v in row.variants(size) if v["op"] in ("MAX", "MIN") and v.get("root", 0) == 0}
    rest = {what: value for what, value in variants["MAX"].items() if what not in ("op", "cotangent")}
    inputs = [jnp.asarray(x) for x in operands(row, FLOAT, (3,), rank, size, **variants["MAX"])]
    programs = []
    for _ in range(2):
        for name, function in (("MAX", larger), ("MIN", smaller)):
            op = MPI.Op.Create(function, commute=True)
            MPI.user_made = op  # the rows look their reduction up by its name
            try:
                run_eagerly = lambda *x: row.call(*x, comm=comm, op="user_made", **rest)  # noqa: E731
                program = jax.jit(run_eagerly)
                want = expected(row, FLOAT, (3,), rank, size, **{**variants[name], **rest})
                if row.name in ("exscan", "iexscan") and rank == 0:
                    want = np.zeros_like(want)
                for run in (run_eagerly, program, run_eagerly):
                    np.testing.assert_array_equal(bits(run(*inputs)), bits(want))
                for old in programs:
                    with pytest.raises(Exception, match=WAS_FREED):
                        jax.block_until_ready(old(*inputs))
                op.Free()
                with pytest.raises(ValueError, match="freed"):
                    run_eagerly(*inputs)
                programs.append(program)
            finally:
                del MPI.user_made


def test_reduction_freed_through_another_object(comm, size):
    """Each object that mpixla was given is looked at."""
    op = MPI.Op.Create(larger, commute=True)
    same = MPI.Op(op)
    x = jnp.ones(3, FLOAT)
    program = jax.jit(lambda x: mpixla.allreduce(x, op))
    np.testing.assert_array_equal(program(x), x)
    np.testing.assert_array_equal(mpixla.allreduce(x, same), x)
    same.Free()
    with pytest.raises(Exception, match=WAS_FREED):
        program(x).block_until_ready()


def resident():
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def test_memory_does_not_grow(comm):
    """Of eager calls on one communicator after the other, each freed, and with one status object after the other."""
    x = jnp.ones(3, FLOAT)

    def work():
        c = comm.Dup()
        mpixla.allreduce(x, MPI.SUM, comm=c)
        mpixla.wait(mpixla.iallreduce(x, MPI.SUM, comm=c))
        c.Free()
        op = MPI.Op.Create(larger, commute=True)
        mpixla.allreduce(x, op, comm=comm)
        op.Free()
        mpixla.sendrecv(x, x, comm.rank, comm.rank, comm=comm, status=MPI.Status())

    for _ in range(30):
        work()
    before, programs = resident(), len(eager._programs)
    for _ in range(30):
        work()
    assert len(eager._programs) <= programs
    assert resident() - before < 15  # MB; a program takes about 1.5


def test_status_objects_share_a_program(comm, below, above, compilations):
    """A status object is filled when the call returns."""
    x = jnp.arange(4, dtype=FLOAT)
    mpixla.sendrecv(x, x, below, above, sendtag=6, comm=comm, status=MPI.Status())
    compilations.clear()
    for n in range(3):
        status = MPI.Status()
        mpixla.sendrecv(x, x, MPI.ANY_SOURCE if n else below, above, sendtag=7, comm=comm, status=status)
        assert (status.Get_source(), status.Get_tag(), status.Get_count(MPI.FLOAT)) == (below, 7, 4)
    assert len(compilations) <= 2  # two sources, and a tag
