"""vdot and norm: NumPy computes them of the whole vector, in double precision."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import mpixla
from cases import HOWS, check_refused

ORDS = pytest.mark.parametrize("order", [1, 2, np.inf, "rms"])
LAST = 4  # columns; the first is a ghost where a mask is given


def part(rank, seed=0, dtype=np.float64):
    """Return a rank's part: two leaves, whose sizes differ between ranks, one of them empty on rank 1."""
    random = np.random.default_rng(100 * seed + rank)

    def some(*shape):
        values = random.normal(size=shape)
        if np.dtype(dtype).kind == "c":
            values = values + 1j * random.normal(size=shape)
        return values.astype(dtype)

    return {"b": some(0 if rank == 1 else 3), "w": some(rank + 2, LAST)}


def whole(size, seed=0, dtype=np.float64, mask=None):
    """Return the vector of all ranks, where it counts."""
    wide = np.complex128 if np.dtype(dtype).kind == "c" else np.float64
    parts = [part(rank, seed, dtype) for rank in range(size)]
    return np.concatenate([x[name][mask_of(mask, name)].ravel().astype(wide) for x in parts for name in x])


def mask_of(mask, name):
    return ... if mask is None or name == "b" else (slice(None), mask)


def norm_of(x, order):
    return np.sqrt(np.mean(np.abs(x) ** 2)) if order == "rms" else np.linalg.norm(x, order)


WITHOUT_GHOST = np.arange(LAST) > 0
MASKS = pytest.mark.parametrize("mask", [None, WITHOUT_GHOST], ids=["all", "masked"])


def as_masks(mask):
    return None if mask is None else {"b": np.True_, "w": mask}


@MASKS
@pytest.mark.parametrize(
    ("dtype", "how"),
    [
        (np.float32, "eager"),
        (np.float64, "jit"),
        (np.complex64, "sealed"),
        (np.complex128, "eager"),
        (jnp.bfloat16, "jit"),
        (np.float16, "sealed"),
    ],
)
def test_vdot(rank, size, how, mask, dtype):
    got = HOWS[how](lambda x, y: mpixla.vdot(x, y, mask=as_masks(mask)))(part(rank, 0, dtype), part(rank, 1, dtype))
    want = np.vdot(whole(size, 0, dtype, mask), whole(size, 1, dtype, mask))
    assert got.dtype == dtype
    assert got.shape == ()
    near = 3 * np.abs(whole(size, 0, dtype)).sum() * float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(np.complex128(got), want, atol=near)


@MASKS
@ORDS
@pytest.mark.parametrize(("dtype", "how"), [(np.float32, "eager"), (np.complex128, "jit"), (jnp.bfloat16, "sealed")])
def test_norm(rank, size, how, mask, order, dtype):
    got = HOWS[how](lambda x: mpixla.norm(x, order, mask=as_masks(mask)))(part(rank, 0, dtype))
    assert got.dtype == jnp.finfo(dtype).dtype
    want = norm_of(whole(size, 0, dtype, mask), order)
    np.testing.assert_allclose(np.float64(got), want, rtol=4 * float(jnp.finfo(dtype).eps))


def test_integers_and_arrays(comm, rank, size):
    x = np.arange(3) + rank
    everyone = np.concatenate([np.arange(3) + r for r in range(size)])
    got = mpixla.vdot(x, x, comm=comm)
    assert got.dtype == np.int64
    assert got == everyone @ everyone
    np.testing.assert_allclose(mpixla.norm(x), np.linalg.norm(everyone))
    np.testing.assert_allclose(mpixla.vdot(np.float32(2), np.float64(3)), 6.0 * size)
    assert mpixla.vdot(jnp.float32(2), jnp.float64(3)).dtype == np.float64


def test_long_sums_of_short_floats():
    """4096 and more halves are no sum of halves: they stop to count at 2048."""
    x = jnp.ones(4096, jnp.float16)
    assert mpixla.vdot(x, x, comm=MPI.COMM_SELF) == 4096
    assert mpixla.norm(x, 1, comm=MPI.COMM_SELF) == 4096
    assert mpixla.norm(x, comm=MPI.COMM_SELF) == 64


def test_sum_of_subnormals():
    x = np.array([1e-310, -3e-310])
    assert float(mpixla.norm(x, 1, exact=True, comm=MPI.COMM_SELF)) == np.abs(x).sum()


@ORDS
def test_masked_entries_do_not_count(order):
    """NaN in a ghost is not seen, and any other is."""
    x = jnp.array([jnp.nan, 3.0, -4.0])
    counts = jnp.array([False, True, True])
    want = norm_of(np.tile([3.0, -4.0], mpixla.get_default_comm().Get_size()), order)
    np.testing.assert_allclose(mpixla.norm(x, order, mask=counts), want)
    assert mpixla.vdot(x, x, mask=counts, comm=MPI.COMM_SELF) == 25
    assert jnp.isnan(mpixla.norm(x, order))
    gradient = jax.grad(lambda x: mpixla.norm(x, order, mask=counts))(x)
    assert jnp.isfinite(gradient).all()
    assert gradient[0] == 0
    assert mpixla.norm(x, order, mask=jnp.zeros(3, bool)) == 0


@ORDS
def test_zero(order):
    value, gradient = jax.value_and_grad(lambda x: mpixla.norm(x, order))(jnp.zeros(3))
    assert value == 0
    assert (gradient == 0).all()


@ORDS
@pytest.mark.parametrize("exact", [False, True])
def test_derivatives_where_a_rank_has_no_entries(rank, size, order, exact):
    """It takes part in each call, whatever the others have."""
    own, everyone = np.arange(1.0, 4.0)[: 3 * (rank == 0)], np.arange(1.0, 4.0)

    def norm(x):
        return mpixla.norm(x, order, exact=exact)

    def alone(x):
        return jnp.sqrt((x**2).mean()) if order == "rms" else jnp.linalg.norm(x, order)

    value, tangent = jax.jvp(norm, (own,), (2 * own,))
    np.testing.assert_allclose([value, tangent], [alone(everyone), 2 * alone(everyone)], rtol=1e-6)
    np.testing.assert_allclose(jax.grad(norm)(own), jax.grad(alone)(everyone)[: own.size], rtol=1e-6)


@MASKS
@ORDS
def test_gradient_of_norm(rank, size, order, mask):
    """A loss counts once: each rank has the gradient by its own part."""
    got = jax.grad(lambda x: 3 * mpixla.norm(x, order, mask=as_masks(mask)))(part(rank))
    everyone = jnp.asarray(whole(size, mask=mask))
    want = jax.grad(lambda x: 3 * (jnp.sqrt((x**2).mean()) if order == "rms" else jnp.linalg.norm(x, order)))(everyone)
    begin = sum(x[name][mask_of(mask, name)].size for r in range(rank) for x in [part(r)] for name in x)
    for name, ct in got.items():
        counted = np.asarray(ct)[mask_of(mask, name)].ravel()
        np.testing.assert_allclose(counted, want[begin : begin + counted.size], rtol=1e-12)
        begin += counted.size
        assert np.abs(ct).sum() == pytest.approx(np.abs(counted).sum())


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_derivatives_of_vdot(rank, size, dtype):
    x, y, t = (part(rank, seed, dtype) for seed in range(3))
    got = jax.jvp(lambda x: mpixla.vdot(x, y), (x,), (t,))[1]
    np.testing.assert_allclose(got, np.vdot(whole(size, 2, dtype), whole(size, 1, dtype)))
    back = jax.vjp(lambda y: mpixla.vdot(x, y), y)[1](jnp.asarray(2.0, dtype))[0]
    for name, ct in back.items():
        np.testing.assert_allclose(ct, 2 * np.conj(x[name]))


def test_gradient_of_a_vdot_used_by_each_rank(rank, size):
    """The sum over ranks of (rank + 1) * |x|^2, where |x|^2 is of all ranks."""

    def loss(x, cotangent):
        scale = mpixla.vdot(x, x, cotangent=cotangent)
        return mpixla.allreduce((rank + 1) * scale, op=MPI.SUM)

    x = part(rank)
    total = size * (size + 1) / 2
    np.testing.assert_allclose(jax.grad(lambda x: loss(x, "varying"))(x)["w"], total * 2 * x["w"])
    np.testing.assert_allclose(jax.grad(lambda x: loss(x, "replicated"))(x)["w"], (rank + 1) * 2 * x["w"])


def test_batches_are_one_call(rank, size):
    x = np.stack([part(rank, seed)["w"] for seed in range(3)])
    norms = jax.vmap(functools.partial(mpixla.norm, ord="rms"))
    assert str(jax.make_jaxpr(norms)(x)).count("allreduce[") == 1
    want = [norm_of(np.concatenate([part(r, seed)["w"].ravel() for r in range(size)]), "rms") for seed in range(3)]
    np.testing.assert_allclose(norms(x), want)


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (lambda: mpixla.norm(jnp.ones(3), 3), ValueError, "ord of norm is 3, but must be 1, 2, jnp.inf or 'rms'."),
        (lambda: mpixla.norm([]), ValueError, "x of norm is .., which has no arrays"),
        (lambda: mpixla.norm({1}), TypeError, "x of norm must be an array or a number, but is a set"),
        (lambda: mpixla.norm(jnp.ones(3), mask=jnp.ones(3)), TypeError, "mask of norm must be of bools"),
        (lambda: mpixla.norm(jnp.ones(3), mask=jnp.ones(2, bool)), ValueError, r"shape \(2,\), which does not"),
        (lambda: mpixla.norm(jnp.ones(3), mask=jnp.ones((2, 3), bool)), ValueError, "does not broadcast"),
        (lambda: mpixla.norm([1.0, 2.0], mask=(True,)), ValueError, "mask of norm is the pytree"),
        (lambda: mpixla.vdot(jnp.ones(3), [jnp.ones(3)]), ValueError, "x and y of vdot differ in structure"),
        (lambda: mpixla.vdot(jnp.ones(3), jnp.ones(4)), ValueError, r"differ in shape: \(3,\) and \(4,\)"),
        (lambda: mpixla.vdot([1, jnp.ones(3)], [1, 2]), ValueError, "leaf 2 of x and y of vdot differ"),
        (lambda: mpixla.vdot(jnp.ones(3), 1, comm="world"), ValueError, "differ in shape"),
        (lambda: mpixla.vdot(1, 1, comm="world"), TypeError, "comm"),
        (lambda: mpixla.vdot(True, True), TypeError, "^vdot cannot sum up bools"),
        (lambda: mpixla.norm(1.0, cotangent="twice"), ValueError, "cotangent of norm must be"),
        (lambda: mpixla.vdot(1.0, 1.0, cotangent="twice"), ValueError, "cotangent of vdot must be"),
        (
            lambda: jax.jit(lambda x: mpixla.norm(x, np.float32(1) * jnp.float32(2)))(1.0),
            TypeError,
            "ord of norm is a traced",
        ),
        (
            lambda: mpixla.norm(jnp.ones(3), mask="none"),
            TypeError,
            "mask of norm must be an array or a number",
        ),
        (lambda: jax.jit(lambda o: mpixla.norm(1.0, o))(2), TypeError, "ord of norm is a traced value"),
        (lambda: jax.jit(lambda e: mpixla.norm(1.0, exact=e))(True), TypeError, "exact of norm is a traced value"),
        (lambda: jax.jit(lambda e: mpixla.vdot(1, 1, exact=e))(True), TypeError, "exact of vdot is a traced value"),
        (lambda: jax.jit(lambda c: mpixla.norm(1.0, cotangent=c))(0), TypeError, "cotangent of norm is a traced"),
    ],
)
def test_refusals(call, error, sentence):
    check_refused(call, error, sentence)
