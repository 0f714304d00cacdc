"""examples/fft.py: the Taylor-Green vortex that NumPy computes on the whole grid, and its derivatives."""

from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
N, REYNOLDS, STEPS, DT = 12, 50, 20, 0.05


def numpy_spectra(viscosity, steps):
    """Return the energy by wave number at the beginning and after each tenth of the steps, in double precision."""
    k = np.stack(np.meshgrid(*[np.fft.fftfreq(N, 1 / N)] * 3, indexing="ij"))
    k2 = (k**2).sum(0)
    x, y, z = np.meshgrid(*[2 * np.pi * np.arange(N) / N] * 3, indexing="ij")
    u = np.stack([np.sin(x) * np.cos(y) * np.cos(z), -np.cos(x) * np.sin(y) * np.cos(z), 0 * x])
    u = np.fft.fftn(u, axes=(1, 2, 3))

    def rate(u):
        values, curl = (np.fft.ifftn(a, axes=(1, 2, 3)).real for a in (u, 1j * np.cross(k, u, axis=0)))
        force = np.fft.fftn(np.cross(values, curl, axis=0), axes=(1, 2, 3)) * (abs(k).max(0) < N / 3)
        return force - k * (k * force).sum(0) / np.where(k2 > 0, k2, 1) - viscosity * k2 * u

    def spectrum():
        shells = np.rint(np.sqrt(k2)).astype(int).ravel()
        return np.bincount(shells, (abs(u) ** 2).sum(0).ravel() / 2 / N**6, N)[:N]

    spectra, before = [spectrum()], None
    for step in range(1, steps + 1):
        now = rate(u)
        u, before = u + DT * (now if step == 1 else 1.5 * now - 0.5 * before), now
        if step % (STEPS // 10) == 0:
            spectra.append(spectrum())
    return np.array(spectra)


@pytest.mark.parametrize("ranks", [2, 1, 4])
def test_against_numpy(computed, ranks):
    options = ("--size", N, "--reynolds", REYNOLDS, "--time", STEPS * DT, "--steps", STEPS)
    _, saved = computed(ranks, "fft", *options)
    assert saved["error"] < 1e-6
    exact = numpy_spectra(1 / REYNOLDS, STEPS)
    assert abs(exact[-1] - exact[0]).max() > 0.01
    np.testing.assert_allclose(saved["spectra"], exact, atol=1e-6)
    step = 1e-4
    energies = [numpy_spectra(1 / REYNOLDS + d, STEPS // 10)[-1].sum() for d in (-step, step)]
    np.testing.assert_allclose(saved["slope"], (energies[1] - energies[0]) / (2 * step), rtol=1e-3)
    y, z = np.meshgrid(*[2 * np.pi * np.arange(N) / N] * 2, indexing="ij")
    vorticity = np.hypot(np.cos(y) * np.sin(z), 2 * np.sin(y) * np.cos(z))  # of the first field, where x is pi/2
    np.testing.assert_allclose(saved["slices"][0], vorticity, atol=1e-5)


# Half the sum of squares of what remains of an array when its short waves are taken out. Its gradient is what remains.
GRADIENT = """
import sys
sys.path.insert(0, sys.argv[1])
import fft, jax, jax.numpy as jnp, mpixla, numpy as np
from mpi4py import MPI

n = 12
whole = np.random.default_rng(1).normal(size=(n, n, n))
k = np.fft.fftfreq(n, 1 / n)
kept = (k[:, None, None] ** 2 + k[:, None] ** 2 + k**2) < 9
remains = np.fft.ifftn(np.fft.fftn(whole) * kept).real
places = fft.mine([np.arange(n)] * 3, (0, 1))
mask = kept[np.ix_(*(k.ravel() for k in fft.mine([np.arange(n)] * 3, (1, 2))))]

@jax.jit
def loss(x):
    rest = fft.backward(fft.forward(x) * mask).real
    return mpixla.allreduce((rest**2).sum() / 2, op=MPI.SUM)

value, gradient = jax.value_and_grad(loss)(jnp.asarray(whole[np.ix_(*(x.ravel() for x in places))], jnp.float32))
np.testing.assert_allclose(value, (remains**2).sum() / 2, rtol=1e-5)
np.testing.assert_allclose(gradient, remains[np.ix_(*(x.ravel() for x in places))], atol=1e-5)
print("ok")
"""


@pytest.mark.parametrize("ranks", [2, 4])
def test_gradient(job, ranks):
    assert job(ranks, GRADIENT, EXAMPLES).stdout.split() == ["ok"] * ranks
