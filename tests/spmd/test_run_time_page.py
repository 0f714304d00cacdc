"""The code of docs/run_time.md: it runs, and gives what NumPy gives with the arrays of all ranks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pages


@pytest.fixture(scope="module")
def page():
    return pages.run(pages.RUN_TIME)


def test_gossip(page, rank, size):
    values = np.arange(size, dtype=np.float32)
    for key in jax.random.split(jax.random.key(0), 50):
        dest = np.asarray(jax.random.permutation(key, size))
        came = np.empty_like(values)
        came[dest] = values
        values = (values + came) / 2
    np.testing.assert_allclose(page["x"], values[rank], rtol=1e-6)


def test_particles(page, rank, size):
    all_places = [np.asarray(jax.random.uniform(jax.random.key(r), (100 * size,)))[:50] for r in range(size)]
    mine = [p[(p * size).astype(int) == rank] for p in all_places]
    alive, places = np.asarray(page["alive"]), np.asarray(page["places"])
    assert alive.sum() == sum(map(len, mine))
    np.testing.assert_array_equal(np.sort(places[alive]), np.sort(np.concatenate(mine)))
    assert (places[~alive] == 0).all()


def test_mixture_of_experts(page, rank, size):
    weights = [np.asarray(jax.random.normal(jax.random.key(r), (8, 8))) for r in range(size)]
    tokens = [np.asarray(jax.random.normal(jax.random.key(r + 100), (6, 8))) for r in range(size)]
    choice = np.arange(6) % size
    wanted = np.stack([np.tanh(t @ weights[c]) for t, c in zip(tokens[rank], choice, strict=True)])
    np.testing.assert_allclose(page["y"], wanted, rtol=1e-5, atol=1e-6)
    rows = jnp.concatenate([t[choice == rank] for t in tokens])
    gradient = jax.grad(lambda w: jnp.tanh(rows @ w).sum())(jnp.asarray(weights[rank]))
    np.testing.assert_allclose(page["gradient"], gradient, rtol=1e-5, atol=1e-5)
