"""Values of every operation, against the oracle."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import mpixla
from cases import cases, explicit_mesh
from reference import DTYPES, ROWS, bits, expected, operands

SIZE = MPI.COMM_WORLD.Get_size()
CALLS = cases()
# The others, whose names begin with "i", take the data types of these, by the same C.
BLOCKING = [row for row in ROWS if not row.name.startswith("i")]
HOW = pytest.mark.parametrize("how", [pytest.param("eager", marks=pytest.mark.two_ranks), "jit"])


def check(row, variant, dtype, shape, comm, how):
    check_all(row, variant, dtype, [shape], comm, how)


def check_all(row, variant, dtype, shapes, comm, how):
    """Check arrays of several shapes, jitted in one program, since compiling takes most of the time."""
    rank, size = comm.Get_rank(), comm.Get_size()
    # jnp.asarray would leave them outside of an explicit mesh in JAX 0.10.0, which then refuses what is in it beside.
    inputs = [[jnp.array(x) for x in operands(row, dtype, shape, rank, size, **variant)] for shape in shapes]

    def call(inputs):
        return [row.call(*x, comm=comm, **variant) for x in inputs]

    for shape, got in zip(shapes, (jax.jit(call) if how == "jit" else call)(inputs), strict=True):
        want = expected(row, dtype, shape, rank, size, **variant)
        if want is None:
            assert got is None
            continue
        assert isinstance(got, jax.Array)
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        np.testing.assert_array_equal(bits(got), bits(want))


@HOW
@pytest.mark.parametrize(("row", "variant"), CALLS)
def test_every_variant(row, variant, comm, how):
    dtype = next(t for t in map(np.dtype, ("float32", "int32")) if row.takes(t, **variant))
    check(row, variant, dtype, (2, 3), comm, how)


@pytest.mark.two_ranks
@HOW
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_explicit_mesh(row, comm, how):
    with explicit_mesh():
        check(row, row.variants(SIZE)[0], np.dtype("float32"), (2, 3), comm, how)


@pytest.mark.two_ranks
@HOW
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_shape(row, comm, how):
    check_all(row, row.variants(SIZE)[0], np.dtype("float32"), [(), (1,), (0,), (3, 0, 2)], comm, how)


@pytest.mark.two_ranks
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: t.name)
@pytest.mark.parametrize("row", BLOCKING, ids=lambda row: row.name)
def test_every_dtype(row, dtype, comm):
    """All the reductions of a type at once: compiling is what takes the time."""
    rank, size = comm.Get_rank(), comm.Get_size()
    variants = [v for v in row.variants(SIZE) if row.takes(dtype, **v)]
    inputs = [[jnp.asarray(x) for x in operands(row, dtype, (3,), rank, size, **v)] for v in variants]
    got = jax.jit(lambda inputs: [row.call(*x, comm=comm, **v) for x, v in zip(inputs, variants, strict=True)])(inputs)
    for result, variant in zip(got, variants, strict=True):
        want = expected(row, dtype, (3,), rank, size, **variant)
        if want is not None:
            assert result.dtype == want.dtype
            np.testing.assert_array_equal(bits(result), bits(want))


@pytest.mark.two_ranks
@pytest.mark.parametrize("row", [row for row in ROWS if "op" in row.variants(1)[0]], ids=lambda row: row.name)
def test_refused_reductions(row, comm):
    """What a reduction does not take is refused when tracing, with the ones that the type allows."""
    for variant in row.variants(SIZE):
        for dtype in DTYPES:
            if not row.takes(dtype, **variant) and dtype.name != "float8_e8m0fnu":
                x = jnp.zeros((comm.size, 2), dtype)
                with pytest.raises(TypeError, match=rf"{row.name} cannot reduce dtype {dtype.name} with op"):
                    row.call(x, comm=comm, **variant)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_split_communicators(row, comm):
    """Ranks are those of the communicator: reversed, and halved."""
    backward, half = comm.Split(0, -comm.Get_rank()), comm.Split(comm.Get_rank() % 2, comm.Get_rank())
    for c in (backward, half):
        check(row, row.variants(c.Get_size())[0], np.dtype("int32"), (2,), c, "jit")
        c.Free()


def test_nothing_else_is_transferred(comm, rank, size):
    """Eager operations on arrays of the device bring nothing else there, also those that compute themselves."""
    x, places = jax.device_put((np.arange(6.0), np.arange(6)))
    ring = comm.Create_cart([size], periods=[True])
    with jax.transfer_guard("disallow"):
        norms = [mpixla.norm(x, ord, comm=comm) for ord in (1, 2, np.inf, "rms")]
        greatest = mpixla.allreduce((x, places), MPI.MAXLOC, comm=comm)
        block, _ = mpixla.overlap(mpixla.halo_start(x, ring), jnp.sin, x)
        jax.jit(lambda: mpixla.barrier(comm=comm))()
        on_root = [lambda x: mpixla.reduce(x, MPI.SUM, 0, comm=comm), lambda x: mpixla.bcast(x, 0, comm=comm)]
        on_root.append(lambda x: mpixla.wait(mpixla.ibcast(x, 0, comm=comm)))
        back = [jax.vjp(f, x)[1](x)[0] for f in on_root]
        norms, greatest, block, back = jax.device_get((norms, greatest, block, back))
    np.testing.assert_allclose(norms, [15 * size, np.sqrt(55 * size), 5, np.sqrt(55 / 6)])
    np.testing.assert_array_equal(greatest, [np.arange(6), np.arange(6)])
    np.testing.assert_array_equal(block, [4, 1, 2, 3, 4, 1])
    x = np.arange(6.0)
    np.testing.assert_array_equal(back, [x if rank == 0 else 2 * x, x * (rank == 0), x * (rank == 0)])
    ring.Free()
