"""Collective calls of ranks that share memory (native/local): how many bytes a call has decides how they go."""

import functools
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import mpixla
from reference import DTYPES, ROW, ROWS, bits, expected, operands

# Items of float32: nothing, what fits into a slot and what does not, one post and some, more than goes that way but for
# calls that combine, and some of their long posts.
ITEMS = (0, 1, 28, 29, 4096, 4097, 20_000, 70_000, 300_001)
NAMES = {
    "allgather",
    "allreduce",
    "alltoall",
    "bcast",
    "exscan",
    "gather",
    "reduce",
    "reduce_scatter",
    "scan",
    "scatter",
}
COMBINING = ("allreduce", "exscan", "reduce", "reduce_scatter", "scan")


def _is_shared():
    """Return whether a communicator's ranks share memory of the library."""
    maps = Path("/proc/self/maps")
    return maps.exists() and "/dev/shm/mpixla-" in maps.read_text()


@pytest.mark.parametrize("items", ITEMS)
@pytest.mark.parametrize("row", [row for row in ROWS if row.name in NAMES], ids=lambda row: row.name)
def test_any_number_of_bytes(row, items, comm, rank, size):
    """In one program, so that short calls and long ones are mixed."""
    dtype, shape = np.dtype(np.float32), (items,)
    variants = [v for v in row.variants(size) if v.get("op", "SUM") == "SUM"]
    draws = [(v, draw) for draw in range(2) for v in variants]
    given = [operands(row, dtype, shape, rank, size, draw=draw, **v) for v, draw in draws]
    results = jax.jit(lambda given: [row.call(*x, comm=comm, **v) for x, (v, _) in zip(given, draws, strict=True)])(
        given
    )
    for y, (v, draw) in zip(results, draws, strict=True):
        want = expected(row, dtype, shape, rank, size, draw=draw, **v)
        assert (y is None) == (want is None)
        if want is not None:
            np.testing.assert_allclose(y, want, rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("row", [ROW[name] for name in COMBINING], ids=lambda row: row.name)
def test_long_arrays_of_any_type(row, dtype, comm, rank, size):
    """Of more than one long post."""
    shape = (150_000 // dtype.itemsize + 1,)
    variants = [v for v in row.variants(size) if row.takes(dtype, **v) and v.get("root", 0) == 0]
    variants = variants if row.name == "allreduce" else variants[:2]
    given = [operands(row, dtype, shape, rank, size, **v) for v in variants]
    results = jax.jit(lambda given: [row.call(*x, comm=comm, **v) for x, v in zip(given, variants, strict=True)])(given)
    for y, v in zip(results, variants, strict=True):
        want = expected(row, dtype, shape, rank, size, **v)
        assert (y is None) == (want is None)
        if want is not None:
            # The sign of zeros in a product of complex numbers depends on the order, which MPI chooses.
            look = np.asarray if dtype.kind == "c" and not _is_shared() else bits
            np.testing.assert_array_equal(look(y), look(want), err_msg=str(v))


@pytest.mark.parametrize("items", [5000, 50_000, 200_003])
@pytest.mark.parametrize("name", [name for name in COMBINING if name != "reduce_scatter"])
def test_long_arrays_in_place(name, items, comm, rank, size):
    """Results in the memory of operands, which the program made itself."""
    row = ROW[name]
    variants = [v for v in row.variants(size) if v["op"] == "SUM"]
    for variant in variants:
        for dtype in (np.dtype(np.int32), np.dtype(np.float64)):
            (x,) = operands(row, dtype, (items,), rank, size, **variant)
            y = jax.jit(lambda x, v=variant: row.call(x * 2, comm=comm, **v))(x)
            want = expected(row, dtype, (items,), rank, size, **variant)
            if want is not None:
                np.testing.assert_array_equal(y, want * 2)


def test_places_of_extremes_in_long_arrays(comm, rank, size):
    rows = [np.random.default_rng(r).integers(0, 100, 40_001) for r in range(size)]
    values, places = jax.jit(lambda x: mpixla.allreduce((x, jnp.full_like(x, rank)), op=MPI.MAXLOC, comm=comm))(
        rows[rank].astype(np.int32)
    )
    np.testing.assert_array_equal(values, np.max(rows, axis=0))
    np.testing.assert_array_equal(places, np.argmax(rows, axis=0))


@pytest.mark.parametrize("items", [1000, 400_003])
@pytest.mark.parametrize("op", ["SUM", "PROD"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64])
def test_ranks_are_added_up_in_their_order(dtype, op, items, comm, rank, size):
    mpixla.barrier(comm=comm)
    if not _is_shared():
        pytest.skip("the ranks of this job share no memory")
    inputs = [np.random.default_rng(r).standard_normal(items).astype(dtype) * 1.1**r for r in range(size)]
    combine = np.add if op == "SUM" else np.multiply
    total = mpixla.allreduce(jnp.asarray(inputs[rank]), op=getattr(MPI, op), comm=comm)
    if dtype == np.complex64 and op == "PROD":  # which MPI may round in its own way
        np.testing.assert_allclose(total, functools.reduce(combine, inputs), rtol=1e-5)
    else:
        np.testing.assert_array_equal(bits(total), bits(functools.reduce(combine, inputs)))
    every = comm.allgather(np.asarray(total).tobytes())
    assert len(set(every)) == 1


def test_user_made_reductions_go_through_mpi(comm, rank, size):
    def keep_last(a, b, _):
        b[:] = bytes(b)

    op = MPI.Op.Create(keep_last, commute=False)
    y = mpixla.allreduce(jnp.full(3, rank, jnp.int32), op=op, comm=comm)
    np.testing.assert_array_equal(y, np.full(3, size - 1))
    op.Free()


def test_communicators_that_overlap(comm, rank, size):
    part = comm.Split(rank % 2, -rank)
    members = [r for r in range(size) if r % 2 == rank % 2]

    @jax.jit
    def step(x):
        for _ in range(5):
            x = mpixla.allreduce(x, op=MPI.SUM, comm=comm) - mpixla.allreduce(x, op=MPI.MAX, comm=part)
        return x

    values = np.arange(size, dtype=float)
    for _ in range(5):
        most = [max(values[r] for r in range(size) if r % 2 == parity) for parity in range(min(size, 2))]
        values = np.array([values.sum() - most[r % 2] for r in range(size)])
    assert part.Get_size() == len(members)
    assert step(jnp.float64(rank)) == values[rank]
    part.Free()


def test_memory_of_a_freed_communicator_is_released(comm):
    def mapped():
        found = re.findall(r"/dev/shm/mpixla-.*", Path("/proc/self/maps").read_text())
        assert all(name.endswith("(deleted)") for name in found)  # no file stays behind, however the job ends
        return len(found)

    mpixla.barrier(comm=comm)
    if not _is_shared():
        pytest.skip("the ranks of this job share no memory")
    before = mapped()
    for _ in range(20):
        clone = comm.Clone()
        mpixla.barrier(comm=clone)
        assert mapped() == before + 1
        clone.Free()
    assert mapped() == before


def test_messages_move_while_a_rank_waits(comm, rank, size):
    """The second rank comes to the call once it has the first one's message, which is too long to be sent ahead."""
    data = np.full(2_000_000, 1.0 + rank)
    room = np.zeros_like(data)
    mpixla.barrier(comm=comm)
    request = comm.Isend(data, (rank + 1) % size) if rank == 0 else None
    if rank == 1:
        comm.Recv(room, 0)
        assert (room == 1).all()
    if size == 1:
        comm.Recv(room, 0)
    total = mpixla.allreduce(jnp.ones(3), op=MPI.SUM, comm=comm)
    np.testing.assert_array_equal(total, np.full(3, size))
    if request:
        request.Wait()
