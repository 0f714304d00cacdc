"""A ring of cells, of all ranks together: what solvers are tried on."""

import jax.numpy as jnp
import numpy as np

CELLS = 24
ANGLE = np.arange(CELLS) * 2 * np.pi / CELLS
START = np.sin(ANGLE) + 0.3 * np.cos(5 * ANGLE) ** 3
WEIGHTS = np.random.default_rng(1).normal(size=CELLS)


def laplacian(u):
    return jnp.roll(u, -1) - 2 * u + jnp.roll(u, 1)
