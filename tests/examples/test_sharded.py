"""examples/sharded.py: the droplets that NumPy computes on the whole grid."""

import numpy as np
import pytest

SIZE, STEPS, DT, PARTS = 24, 400, 0.1, 20
LAUNCHER = ("-m", "mpixla.distributed")


def laplacian(u):
    padded = np.pad(u, 1, mode="wrap")
    return padded[2:, 1:-1] + padded[:-2, 1:-1] + padded[1:-1, 2:] + padded[1:-1, :-2] - 4 * u


@pytest.mark.parametrize("ranks", [2, 1, 4])
def test_against_numpy(computed, ranks):
    out, saved = computed(ranks, "sharded", "--size", SIZE, "--steps", STEPS, python=LAUNCHER)
    assert out.startswith(f"{ranks} processes differ by ")
    assert float(out.split()[4]) < 1e-10
    u = saved["first"]
    assert u.shape == (SIZE, SIZE)
    assert 0.05 < u.std() < 0.2
    energies = []
    for step in range(1, STEPS + 1):
        f = u - u**3
        u = u + DT * (laplacian(u) + f - f.mean())
        if step % (STEPS // PARTS) == 0:
            gaps = sum((np.roll(u, 1, axis) - u) ** 2 for axis in (0, 1))  # the energy by its gradient
            energies.append(((1 - u**2) ** 2 / 4 + gaps / 2).mean())
    np.testing.assert_allclose(saved["last"], u, atol=1e-8)
    np.testing.assert_allclose(saved["energies"][1:], energies, atol=1e-10)
    assert np.ptp(u) > 1.5
