"""The code on counts known at run time in docs/solvers.md: it gives what NumPy gives with the arrays of all ranks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pages


@pytest.fixture(scope="module")
def page():
    return pages.run(pages.RUN_TIME)


def test_mixture_of_experts(page, rank, size):
    weights = [np.asarray(jax.random.normal(jax.random.key(r), (8, 8))) for r in range(size)]
    tokens = [np.asarray(jax.random.normal(jax.random.key(r + 100), (6, 8))) for r in range(size)]
    choice = np.arange(6) % size
    wanted = np.stack([np.tanh(t @ weights[c]) for t, c in zip(tokens[rank], choice, strict=True)])
    np.testing.assert_allclose(page["y"], wanted, rtol=1e-5, atol=1e-6)
    rows = jnp.concatenate([t[choice == rank] for t in tokens])
    gradient = jax.grad(lambda w: jnp.tanh(rows @ w).sum())(jnp.asarray(weights[rank]))
    np.testing.assert_allclose(page["gradient"], gradient, rtol=1e-5, atol=1e-5)
