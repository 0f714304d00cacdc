"""Bayesian regression on data that are spread over all ranks: the chain is that of one process with all the data."""

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from mpi4py import MPI
from numpyro.infer import MCMC, NUTS

import mpixla
from ecosystem.ring import CELLS

X = np.random.default_rng(3).normal(size=(CELLS, 2))
Y = X @ [1.0, -2.0] + np.random.default_rng(4).normal(size=CELLS) / 2
SAMPLES = 20


def own_likelihood(w, mine):
    return -2 * jnp.sum((X[mine] @ w - Y[mine]) ** 2)


def everyone_s_likelihood(w, mine):
    return mpixla.allreduce(own_likelihood(mpixla.pvary(w), mine), op=MPI.SUM)


def with_blackjax(likelihood, mine):
    def density(w):
        return likelihood(w, mine) - jnp.sum(w**2) / 2

    kernel = blackjax.nuts(density, step_size=0.03, inverse_mass_matrix=jnp.ones(2))

    def step(state, key):
        state, _ = kernel.step(key, state)
        return state, state.position

    keys = jax.random.split(jax.random.key(0), SAMPLES)  # the same on every rank
    return jax.jit(lambda: jax.lax.scan(step, kernel.init(jnp.zeros(2)), keys)[1])()


def with_numpyro(likelihood, mine):
    def model():
        w = numpyro.sample("w", dist.Normal(jnp.zeros(2), 1).to_event(1))
        numpyro.factor("data", likelihood(w, mine))

    chain = MCMC(NUTS(model), num_warmup=SAMPLES, num_samples=SAMPLES, progress_bar=False)
    chain.run(jax.random.key(0))
    return chain.get_samples()["w"]


@pytest.mark.parametrize("sampler", [with_blackjax, with_numpyro])
def test_chain(sampler, mine):
    got = sampler(everyone_s_likelihood, mine)
    want = sampler(own_likelihood, slice(None))
    assert np.ptp(want, axis=0).min() > 0.01
    np.testing.assert_allclose(got, want, rtol=1e-5)
    mpixla.assert_replicated(got)
