"""Ranks that are given by how far away they are: who they are. What arrives is in the table of tests/reference.py."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import mpixla

SIZE = MPI.COMM_WORLD.Get_size()
GRIDS = [
    ([SIZE], [False]),
    ([SIZE], [True]),
    ([1, SIZE, 1], [True, False, False]),
    (MPI.Compute_dims(SIZE, 2), [True, False]),
    (MPI.Compute_dims(SIZE, 3), [False, True, True]),
]


@pytest.fixture(params=GRIDS, ids=[f"{dims}-{periods}" for dims, periods in GRIDS])
def cart(request):
    dims, periods = request.param
    comm = MPI.COMM_WORLD.Create_cart(dims, periods=periods, reorder=True)
    yield comm
    comm.Free()


def test_shift_receives_from_the_rank_of_mpi_cart_shift(cart):
    """For each direction and distance, the message is that of the rank that MPI_Cart_shift names."""
    rank = jnp.float32(cart.Get_rank())
    for direction in range(cart.Get_dim()):
        for disp in (-SIZE - 1, -2, -1, 0, 1, 3, SIZE):
            source, _ = cart.Shift(direction, disp)
            got = mpixla.sendrecv(
                rank,
                jnp.float32(-5),
                mpixla.Shift(direction, -disp),
                mpixla.Shift(direction, disp),
                comm=cart,
            )
            assert float(got) == (-5 if source == MPI.PROC_NULL else source)


def test_around_corners(cart):
    """Several directions at once, against the coordinates that MPI has."""
    rank, dims, periods, here = jnp.float32(cart.Get_rank()), *cart.Get_topo()
    for disps in itertools.product((-1, 0, 2), repeat=cart.Get_dim()):
        source = [at - disp for at, disp in zip(here, disps, strict=True)]
        inside = all(wraps or 0 <= at < n for at, n, wraps in zip(source, dims, periods, strict=True))
        directions = tuple(range(cart.Get_dim()))
        ends = [mpixla.Shift(directions, tuple(sign * disp for disp in disps)) for sign in (-1, 1)]
        got = mpixla.sendrecv(rank, jnp.float32(-5), *ends, comm=cart)
        assert float(got) == (cart.Get_cart_rank(source) if inside else -5)


def test_without_a_grid_the_ranks_are_a_ring(comm, rank):
    for of in (comm, MPI.COMM_SELF):
        size, own = of.Get_size(), of.Get_rank()
        for disp in (-SIZE, -1, 0, 1, 2, 7 * SIZE + 1):
            ends = mpixla.Shift(0, -disp), mpixla.Shift(0, disp)
            got = mpixla.sendrecv(jnp.float32(own), jnp.float32(-5), *ends, comm=of)
            assert float(got) == (own - disp) % size


def test_statuses_and_reports_have_the_rank(comm, rank):
    """Nobody is told a shift."""
    status = MPI.Status()
    x = jnp.ones(3)
    shifts = mpixla.Shift(0, -1), mpixla.Shift(0, 1)
    mpixla.sendrecv(x, x, *shifts, sendtag=4, comm=comm, status=status)
    assert (status.Get_source(), status.Get_tag()) == ((rank - 1) % SIZE, 4)


@pytest.mark.not_checked
def test_eager_calls_share_a_program(comm):
    """A second one with an equal shift goes straight to it."""
    from mpixla.core import eager

    x = jnp.arange(5.0) + 1
    mpixla.sendrecv(x, x, mpixla.Shift(0, -1), mpixla.Shift(0, 1), sendtag=77, comm=comm)
    programs = len(eager._programs)
    for _ in range(3):
        mpixla.sendrecv(x, x, mpixla.Shift(0, -1), mpixla.Shift(np.int32(0), 1), sendtag=77, comm=comm)
    assert len(eager._programs) == programs


@pytest.mark.parametrize(
    ("shift", "error", "sentence"),
    [
        ((1, 1), ValueError, "'{name}' is not Cartesian: its ranks are one ring, whose direction is 0"),
        ((-1, 1), ValueError, "direction -1"),
        ((0, 2**31), ValueError, "the numbers of a shift have 32 bits"),
        ((0.5, 1), TypeError, "direction of dest of send must be an integer, but is 0.5"),
        ((0, None), TypeError, "disp of dest of send must be an integer, but is None"),
        (((0, 0), (1, 2)), ValueError, "a shift has direction 0 twice; give the sum of both"),
        (((0, 1), (1,)), ValueError, "Give as many displacements as directions, and at least one."),
        (((), ()), ValueError, "Give as many displacements as directions, and at least one."),
        (((0, 1.5), (1, 2)), TypeError, "direction of dest of send must be an integer, but is 1.5"),
    ],
)
def test_wrong_shifts_are_refused_when_tracing(shift, error, sentence, comm):
    name = comm.Get_name()
    with pytest.raises(error, match="dest of send") as refused:
        mpixla.send(jnp.ones(2), mpixla.Shift(*shift), comm=comm)
    assert sentence.format(name=name) in str(refused.value)


def test_wrong_directions_of_a_grid_are_refused(cart):
    with pytest.raises(ValueError, match=rf"has {cart.Get_dim()} dimensions, which count from 0\.$"):
        mpixla.recv(jnp.ones(2), mpixla.Shift(cart.Get_dim(), 1), comm=cart)
    with pytest.raises(TypeError, match="traced value"):
        jax.jit(lambda disp: mpixla.recv(jnp.ones(2), mpixla.Shift(0, disp), comm=cart))(1)
