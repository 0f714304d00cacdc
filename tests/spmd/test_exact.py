"""Exact sums, compared with sums of fractions: the same bits however entries are split between the ranks."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import mpixla
from cases import check_refused

SIZE = MPI.COMM_WORLD.Get_size()
DTYPES = ["float64", "float32", "bfloat16", "float16", "float8_e5m2", "float8_e4m3fn", "float8_e4m3b11fnuz"]


def fraction(numbers):
    return sum((Fraction(float(x)) for x in numbers), Fraction(0))


def rounded(value, dtype):
    """Round to nearest, ties to even."""
    form = jnp.finfo(dtype)
    lowest = int(np.log2(float(form.smallest_subnormal)))
    if value == 0:
        return 0.0
    size, exponent = abs(value), lowest
    while Fraction(2) ** (exponent + form.nmant + 1) <= size:
        exponent += 1
    result = round(size / Fraction(2) ** exponent) * Fraction(2) ** exponent
    if result > Fraction(float(form.max)):
        return math.copysign(math.nan if "fn" in form.dtype.name else math.inf, value)
    return float(result) if value > 0 else -float(result)


def numbers(seed, n, dtype, spread):
    """Return numbers of which each third sums to nothing but the digits that the type lacks."""
    rng, form = np.random.default_rng(seed), jnp.finfo(dtype)
    low, high = int(form.minexp) - int(form.nmant), int(form.maxexp) - 2
    middle = (low + high) // 2
    exponents = rng.integers(max(low, middle - spread), min(high, middle + spread), n)
    with np.errstate(all="ignore"):
        x = np.ldexp(rng.uniform(-1, 1, n), exponents).astype(form.dtype)
        x[: n // 3] = -x[n // 3 : 2 * (n // 3)]
    return rng.permutation(x)


def part(x, rank, how):
    """Return this rank's entries."""
    if how == "last alone":
        return x if rank == SIZE - 1 else x[:0]
    if how == "backward":
        return x[::-1][rank::SIZE]
    return np.array_split(x, SIZE)[rank]


@pytest.mark.parametrize("spread", [1, 80, 3000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_fsum(comm, rank, dtype, spread):
    with jax.enable_x64(dtype == "float64"):
        for seed, (n, how) in enumerate(((1, "in parts"), (100, "last alone"), (1000, "backward"))):
            x = numbers(seed, n, dtype, spread)
            expected = np.float64(rounded(fraction(x), dtype))
            for mode in (lambda f: f, jax.jit):
                y = mode(lambda x: mpixla.fsum(x, comm=comm))(jnp.asarray(part(x, rank, how)))
                assert (y.dtype, y.shape) == (jnp.dtype(dtype), ())
                assert np.float64(y).tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([1, math.nan], math.nan),
        ([math.inf, 1], math.inf),
        ([-math.inf, 3e38], -math.inf),
        ([math.inf, 1, -math.inf], math.nan),
        ([3e38, 3e38], math.inf),
        ([3e38, 3e38, -3e38], 3e38),
        ([-0.0, -0.0, -0.0], -0.0),
        ([-0.0, 0.0], 0.0),
        ([1.0, -1.0], 0.0),
        ([], 0.0),
        ([1e-45, 1e-45], 3e-45),
    ],
)
def test_sums_of_nan_infinities_and_signed_zeros(comm, rank, entries, expected):
    x = np.array(entries, np.float32)
    y = np.float32(mpixla.fsum(jnp.asarray(part(x, rank, "backward")), comm=comm))
    assert math.isnan(y) if math.isnan(expected) else y.tobytes() == np.float32(expected).tobytes()


def test_axes_and_trees(comm, rank):
    """Axes that are not summed over are as long on every rank, the others are not."""
    xs = [numbers(r, 24 * (r + 1), "float32", 9).reshape(2, 3 * (r + 1), 4) for r in range(SIZE)]
    zs = [(x[:, 0] + 1j * x[:, 1]).astype(np.complex64) for x in xs]
    got = jax.jit(lambda tree: mpixla.fsum(tree, axis=1, comm=comm))({"x": xs[rank], "z": zs[rank]})
    for i in range(2):
        for k in range(4):
            assert got["x"][i, k] == rounded(fraction(v for x in xs for v in x[i, :, k]), "float32")
        assert got["z"][i].real == rounded(fraction(v.real for z in zs for v in z[i]), "float32")
        assert got["z"][i].imag == rounded(fraction(v.imag for z in zs for v in z[i]), "float32")
    several = mpixla.fsum(xs[rank], axis=(-2, 0), comm=comm)
    assert several[1] == rounded(fraction(v for x in xs for v in x[:, :, 1].ravel()), "float32")
    assert mpixla.fsum({}, comm=comm) == {}
    assert mpixla.fsum(jnp.zeros((2, 0)), axis=1, comm=comm).tolist() == [0, 0]


@pytest.mark.parametrize("cotangent", ["replicated", "varying"])
def test_derivatives_of_fsum(comm, rank, size, cotangent):
    """Those of an allreduce of sums."""
    x = jnp.arange(4.0) + rank

    def exact(x):
        return (mpixla.fsum(x * x, comm=comm, cotangent=cotangent) * (rank + 1)).sum()

    def plain(x):
        return (mpixla.allreduce((x * x).sum(), op=MPI.SUM, comm=comm, cotangent=cotangent) * (rank + 1)).sum()

    for f in (lambda g: g, jax.jit, jax.checkpoint):
        np.testing.assert_allclose(jax.grad(f(exact))(x), jax.grad(f(plain))(x), rtol=1e-6)
        np.testing.assert_allclose(jax.jvp(f(exact), (x,), (x,))[1], jax.jvp(f(plain), (x,), (x,))[1], rtol=1e-6)
    looped = jax.lax.scan(lambda a, _: (a + exact(x), None), 0.0, None, 3)[0]
    np.testing.assert_allclose(looped, 3 * plain(x), rtol=1e-6)
    batched = jax.vmap(lambda x: mpixla.fsum(x, comm=comm))
    text = jax.jit(batched).lower(jnp.ones((3, 4))).as_text()
    assert text.count("@mpixla_allreduce(") == 1
    assert batched(jnp.ones((3, 4))).tolist() == [4 * size] * 3


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "complex128", "complex64"])
def test_vdot_and_norm(comm, rank, dtype):
    real = {"complex128": "float64", "complex64": "float32"}.get(dtype, dtype)
    with jax.enable_x64(real == "float64"):
        parts = [numbers(seed, 600, real, 100 if real != "bfloat16" else 20) for seed in range(4)]
        if dtype.startswith("complex"):
            x, y = (np.asarray(parts[i] + 1j * parts[i + 1]).astype(dtype) for i in (0, 2))
        else:
            x, y = parts[0], parts[2]
        pairs = [
            tuple(Fraction(float(part)) for v in pair for part in (v.real, v.imag)) for pair in zip(x, y, strict=True)
        ]
        expected = [
            rounded(sum(ar * br + ai * bi for ar, ai, br, bi in pairs), real),
            rounded(sum(ar * bi - ai * br for ar, ai, br, bi in pairs), real),
        ]
        own = [jnp.asarray(part(v, rank, "backward")) for v in (x, y)]
        for mode in (lambda f: f, jax.jit):
            got = mode(lambda x, y: mpixla.vdot([x[:5], x[5:]], [y[:5], y[5:]], exact=True, comm=comm))(*own)
            assert got.dtype == jnp.dtype(dtype)
            assert (complex(got) if jnp.iscomplexobj(got) else float(got)) == (
                complex(*expected) if jnp.iscomplexobj(got) else expected[0]
            )
        squares = sum(ar * ar + ai * ai for ar, ai, *_ in pairs)
        wide = "float32" if real == "bfloat16" else real
        square = jnp.asarray(rounded(squares, wide), wide)
        assert mpixla.norm(own[0], exact=True, comm=comm) == jnp.sqrt(square).astype(real)
        assert mpixla.norm(own[0], "rms", exact=True, comm=comm) == jnp.sqrt(square / len(x)).astype(real)
        if not dtype.startswith("complex"):
            sizes = rounded(fraction(abs(v) for v in x), real)
            assert mpixla.norm(own[0], 1, exact=True, comm=comm) == sizes


def test_rms_of_many(comm, rank, size):
    """More than a float32 can count."""
    many = 2**24 + 1
    x = jnp.full((many if rank == 0 else 2, 1), 1.5, jnp.float32)
    count = many + 2 * (size - 1)
    expected = jnp.sqrt(jnp.float32(rounded(Fraction(9, 4) * count, "float32")) / jnp.float32(count))
    assert mpixla.norm(x, "rms", exact=True, comm=comm) == expected


@pytest.mark.parametrize("cotangent", ["replicated", "varying"])
def test_derivatives_of_vdot_and_norm(comm, rank, cotangent):
    x = jnp.arange(1.0, 5.0) + rank
    mask = jnp.arange(4) != 2
    for f in (
        lambda x, exact: mpixla.vdot(x, jnp.sin(x), exact=exact, mask=mask, comm=comm, cotangent=cotangent),
        lambda x, exact: mpixla.vdot(x, (1 + 2j) * x, exact=exact, comm=comm, cotangent=cotangent).real,
        lambda x, exact: mpixla.norm(x, exact=exact, comm=comm, cotangent=cotangent),
        lambda x, exact: mpixla.norm(x, 1, exact=exact, comm=comm, cotangent=cotangent),
        lambda x, exact: mpixla.norm(x, "rms", exact=exact, mask=mask, comm=comm, cotangent=cotangent),
    ):
        for derive in (jax.grad, jax.jacfwd, jax.hessian):
            got, expected = (jax.jit(derive(lambda x, e=exact: f(x, e)))(x) for exact in (True, False))  # noqa: B023
            np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("call", "kind", "sentence"),
    [
        (lambda c: mpixla.fsum(jnp.arange(3), comm=c), TypeError, "x of fsum has dtype int.., whose sums are exact"),
        (lambda c: mpixla.fsum(jnp.ones(3) > 0, comm=c), TypeError, "has dtype bool, whose sums are exact already"),
        (lambda c: mpixla.fsum("text", comm=c), TypeError, "^x of fsum must be an array or a number"),
        (lambda c: mpixla.fsum(None, comm=c), TypeError, "^x of fsum must be an array or a number"),
        (lambda c: mpixla.fsum(jax.random.key(0), comm=c), TypeError, "fsum cannot sum PRNG keys"),
        (
            lambda c: mpixla.fsum(jnp.ones(3), axis=1, comm=c),
            ValueError,
            r"axis of fsum is 1, but .* \(3,\) has 1 axes",
        ),
        (lambda c: mpixla.fsum(jnp.ones((3, 3)), axis=(0, -2), comm=c), ValueError, "names an axis twice"),
        (lambda c: mpixla.fsum(jnp.ones(3), axis=1.5, comm=c), TypeError, "axis of fsum must be an integer"),
        (lambda c: mpixla.fsum(1.0, comm=c, cotangent="twice"), ValueError, "^cotangent of fsum must be"),
        (lambda c: mpixla.fsum(1.0, comm=3), TypeError, "must be an mpi4py communicator"),
        (
            lambda c: mpixla.vdot(jnp.arange(3), jnp.arange(3), exact=True, comm=c),
            TypeError,
            "x of vdot has dtype int.., but exact is for floats",
        ),
        (lambda c: mpixla.fsum(jnp.ones(3, jnp.float8_e8m0fnu), comm=c), TypeError, "which has no zero"),
    ],
)
def test_bad_calls(comm, call, kind, sentence):
    check_refused(lambda: call(comm), kind, sentence)
