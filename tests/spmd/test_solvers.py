"""The code of docs/solvers.md runs as printed, and gives what NumPy gives with the arrays of all ranks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mpixla
import pages

N = 8  # cells of a rank, as on the page


@pytest.fixture(scope="module")
def page():
    """Run the page's code, and return the names that it defines, and as ``printed`` the values that it prints."""
    printed = []
    names = pages.run(
        pages.SOLVERS_WITHOUT_LIBRARIES, print=lambda *values: printed.extend(map(bool, values)), printed=printed
    )
    yield names
    names["line"].Free()


@pytest.fixture
def mine(rank):
    """Return the slice of this rank's cells."""
    return slice(rank * N, (rank + 1) * N)


def matrix(size, k=0.3):
    one = np.eye(N * size)
    return one - k * (np.roll(one, 1, 0) + np.roll(one, -1, 0) - 2 * one)


def vectors(size):
    return np.random.default_rng(7).normal(size=(3, N * size))


def test_page(page, size):
    assert len(pages.blocks_of(pages.SOLVERS_WITHOUT_LIBRARIES)) == 5
    assert page["printed"] == [True]
    assert page["energy"] == 4 * size


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit, mpixla.jit], ids=["eager", "jit", "sealed"])
def test_cg(page, mine, size, jit):
    solve = jit(functools.partial(page["cg"], page["matvec"], tol=1e-10))
    b, t, w = vectors(size)
    np.testing.assert_allclose(solve(b[mine]), np.linalg.solve(matrix(size), b)[mine], rtol=1e-7)
    np.testing.assert_allclose(
        jit(jax.vmap(solve))(np.stack([b, t])[:, mine]), np.linalg.solve(matrix(size), np.stack([b, t]).T).T[:, mine]
    )
    moved = jax.jvp(solve, (b[mine],), (t[mine],))[1]
    np.testing.assert_allclose(moved, np.linalg.solve(matrix(size), t)[mine], rtol=1e-7)
    gradient = jit(jax.grad(lambda b: mpixla.vdot(w[mine], solve(b))))(b[mine])
    np.testing.assert_allclose(gradient, np.linalg.solve(matrix(size).T, w)[mine], rtol=1e-7)


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_batch_of_loops_whose_condition_communicates(rank, size, jit):
    """Examples that are done keep what they have while others go on."""

    def solve(x, key):
        return jax.lax.while_loop(
            lambda s: mpixla.norm(s[0]) > 1, lambda s: (s[0] / 2, s[1] + 1, jax.random.clone(s[2])), (x, 0, key)
        )

    x = np.array([[[0.5, 0], [3, 1]], [[100, -2], [0, 0]]]) * (rank + 1)
    keys = jax.random.split(jax.random.key(rank), 4).reshape(2, 2)
    norms = np.sqrt(np.sum(np.square(x / (rank + 1)), -1) * sum((r + 1) ** 2 for r in range(size)))
    turns = np.ceil(np.log2(np.maximum(norms, 1))).astype(int)
    got, counted, same = jit(jax.vmap(jax.vmap(solve)))(x, keys)
    np.testing.assert_array_equal(counted, turns)
    np.testing.assert_array_equal(got, x / 2.0 ** turns[..., None])
    np.testing.assert_array_equal(jax.random.key_data(same), jax.random.key_data(keys))


def test_gradient_by_a_parameter_of_the_matrix(page, mine, size):
    """One number that all ranks share: each has its own part's say, and pvary adds them up."""
    b, w, _ = vectors(size)

    def loss(k):
        k = mpixla.pvary(k)

        def matvec(u):
            u = mpixla.halo_exchange(jnp.pad(u, 1), page["line"])
            return u[1:-1] - k * (u[2:] - 2 * u[1:-1] + u[:-2])

        return mpixla.vdot(w[mine], page["cg"](matvec, b[mine], tol=1e-12))

    def of_the_whole(k):
        return w @ jnp.linalg.solve(matrix(size, k), b)

    np.testing.assert_allclose(jax.jit(jax.grad(loss))(0.3), jax.grad(of_the_whole)(0.3), rtol=1e-7)


def test_gradient_of_every_step(page, mine, size):
    """Steepest descent, differentiated step by step: what goes back into the parts is of all ranks' cotangents."""
    b, w, _ = vectors(size)

    def descend(matvec, vdot, b):
        x = jnp.zeros_like(b)
        for _ in range(3):
            r = b - matvec(x)
            x = x + vdot(r, r) / vdot(r, matvec(r)) * r
        return x

    varying = functools.partial(mpixla.vdot, cotangent="varying")
    got = jax.jit(jax.grad(lambda b: mpixla.vdot(w[mine], descend(page["matvec"], varying, b))))(b[mine])
    want = jax.grad(lambda b: w @ descend(lambda x: matrix(size) @ x, jnp.vdot, b))(jnp.asarray(b))
    np.testing.assert_allclose(got, want[mine], rtol=1e-9)


@pytest.mark.two_ranks
def test_mixture_of_experts(page, rank, size):
    weights = [np.asarray(jax.random.normal(jax.random.key(r), (8, 8))) for r in range(size)]
    tokens = [np.asarray(jax.random.normal(jax.random.key(r + 100), (6, 8))) for r in range(size)]
    choice = np.arange(6) % size
    wanted = np.stack([np.tanh(t @ weights[c]) for t, c in zip(tokens[rank], choice, strict=True)])
    np.testing.assert_allclose(page["y"], wanted, rtol=1e-5, atol=1e-6)
    rows = jnp.concatenate([t[choice == rank] for t in tokens])
    gradient = jax.grad(lambda w: jnp.tanh(rows @ w).sum())(jnp.asarray(weights[rank]))
    np.testing.assert_allclose(page["gradient"], gradient, rtol=1e-5, atol=1e-5)
