"""Data-parallel training: on any number of ranks what one process comes to with all the data."""

import equinox
import flax.linen
import flax.nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax._src import dispatch as _dispatch
from mpi4py import MPI

import mpixla
from ecosystem.ring import CELLS

# Small pictures, and a number for each.
PICTURES = np.random.default_rng(2).normal(size=(CELLS, 8, 8))
NUMBERS = np.tanh(PICTURES[:, 2, 3] * PICTURES[:, 4, 4])
STEPS = 5


class EquinoxNet(equinox.Module):
    conv: equinox.nn.Conv2d
    out: equinox.nn.Linear

    def __call__(self, picture):
        return self.out(jax.nn.gelu(self.conv(picture[None])).ravel())[0]


class LinenNet(flax.linen.Module):
    @flax.linen.compact
    def __call__(self, pictures):
        y = jax.nn.gelu(flax.linen.Conv(3, (3, 3), param_dtype=jnp.float64)(pictures[..., None]))
        return flax.linen.Dense(1, param_dtype=jnp.float64)(y.reshape(len(y), -1))[:, 0]


class NnxNet(flax.nnx.Module):
    def __init__(self, rngs):
        self.conv = flax.nnx.Conv(1, 3, (3, 3), param_dtype=jnp.float64, rngs=rngs)
        self.out = flax.nnx.Linear(192, 1, param_dtype=jnp.float64, rngs=rngs)

    def __call__(self, pictures):
        y = jax.nn.gelu(self.conv(pictures[..., None]))
        return self.out(y.reshape(len(y), -1))[:, 0]


def with_equinox():
    first, second = jax.random.split(jax.random.key(0))
    net = EquinoxNet(
        equinox.nn.Conv2d(1, 2, 3, dtype=jnp.float64, key=first),
        equinox.nn.Linear(72, 1, dtype=jnp.float64, key=second),
    )
    params, static = equinox.partition(net, equinox.is_array)
    return params, lambda params, pictures: jax.vmap(equinox.combine(params, static))(pictures)


def with_linen():
    net = LinenNet()
    return net.init(jax.random.key(0), PICTURES), net.apply


def with_nnx():
    structure, params = flax.nnx.split(NnxNet(flax.nnx.Rngs(0)))
    return params, lambda params, pictures: flax.nnx.merge(structure, params)(pictures)


def own_loss(apply, params, mine):
    return jnp.sum((apply(params, PICTURES[mine]) - NUMBERS[mine]) ** 2) / CELLS


def everyone_s_loss(apply, params, mine):
    return mpixla.allreduce(own_loss(apply, mpixla.pvary(params), mine), op=MPI.SUM)


def train(net, loss, mine, optimizer, jit):
    params, apply = net()

    def value(params):
        return loss(apply, params, mine)

    @jit
    def step(params, state):
        at, gradient = jax.value_and_grad(value)(params)
        more = {"value": at, "grad": gradient, "value_fn": value} if optimizer is lbfgs else {}
        updates, state = optimizer().update(gradient, state, params, **more)
        return optax.apply_updates(params, updates), state, at

    state, losses = optimizer().init(params), []
    for _ in range(STEPS):
        params, state, at = step(params, state)
        losses.append(float(at))
    return losses, params


def clipped_adam():
    return optax.chain(optax.clip_by_global_norm(0.5), optax.adam(1e-2))


def lbfgs():
    return optax.lbfgs()


NETS = pytest.mark.parametrize("net", [with_equinox, with_linen, with_nnx])


@NETS
@pytest.mark.parametrize("optimizer", [clipped_adam, lbfgs])
def test_data_parallel(mine, net, optimizer):
    losses, params = train(net, everyone_s_loss, mine, optimizer, mpixla.jit)
    want_losses, want_params = train(net, own_loss, slice(None), optimizer, jax.jit)
    assert want_losses[-1] < 0.95 * want_losses[0]
    np.testing.assert_allclose(losses, want_losses, rtol=1e-6)
    for got, want in zip(jax.tree.leaves(params), jax.tree.leaves(want_params), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
    mpixla.assert_replicated(params)


@pytest.mark.parametrize("jit", [equinox.filter_jit, flax.nnx.jit])
def test_jits_of_others(mine, jit):
    losses, _ = train(with_equinox, everyone_s_loss, mine, clipped_adam, jit)
    want, _ = train(with_equinox, own_loss, slice(None), clipped_adam, jax.jit)
    np.testing.assert_allclose(losses, want, rtol=1e-6)


@pytest.mark.parametrize("jit", [jax.jit, equinox.filter_jit, flax.nnx.jit, mpixla.jit])
def test_jits_are_dispatched_without_python(jit, rank, size, monkeypatch):
    """JAX asks for no token, as it would for a program with effects; and calls of all kinds keep their order."""
    asked = []
    monkeypatch.setattr(_dispatch.RuntimeTokenSet, "get_token_input", lambda *args: asked.append(args))
    add = jit(lambda x: mpixla.allreduce(x * 2, op=MPI.SUM))
    shift = jit(lambda x: mpixla.sendrecv(x, x, (rank - 1) % size, (rank + 1) % size))
    x = jnp.float64(rank)
    for i in range(5):
        assert float(add(shift(x + i))) == size * (size - 1) + 2 * i * size
        assert float(shift(x)) == (rank - 1) % size
    assert not asked
