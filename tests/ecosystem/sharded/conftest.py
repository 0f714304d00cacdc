"""Unmodified programs with arrays that JAX spreads over the ranks: under `python -m mpixla.distributed -m pytest`."""

import jax
import numpy as np
import pytest

import mpixla.distributed

mpixla.distributed.initialize()


@pytest.fixture(scope="session")
def on_all():
    """Return a function that applies ``f`` to arrays spread over all ranks, and returns the results on every rank."""
    mesh = jax.make_mesh((jax.process_count(),), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    spread, everywhere = jax.NamedSharding(mesh, jax.P("x")), jax.NamedSharding(mesh, jax.P())

    def call(function, *arrays):
        parts = [jax.make_array_from_callback(x.shape, spread, lambda where, x=x: x[where]) for x in arrays]
        assert all(len(x.addressable_shards) == 1 for x in parts)
        results = jax.jit(function, out_shardings=everywhere)(*parts)
        return jax.tree.map(np.asarray, results)

    return call
