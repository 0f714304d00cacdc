"""examples/adjoint.py: the model is NumPy's of the whole square, and the gradient a derivative of its misfit."""

import numpy as np
import pytest

DURATION, DIFFUSIVITY, GROWTH, NOISE = 1.0, 2e-4, 1.0, 0.003


def run(first):
    """Return the last state: cell by cell from the fluxes through eastern and northern faces, with np.roll."""
    size = len(first)
    h = 1 / size
    steps = 10 * int(np.ceil(DURATION * size / 8))
    dt = DURATION / steps
    corner = np.arange(1, size + 1) * h
    here = np.sin(np.pi * corner) ** 2  # at the eastern, or northern, corners
    before = np.roll(here, 1)
    u = here[None, :] * (here - before)[:, None] / np.pi / h  # d(stream)/dy on eastern faces
    v = -here[:, None] * (here - before)[None, :] / np.pi / h  # -d(stream)/dx on northern faces

    def east(c, n, axis):
        return np.roll(c, -n, axis)

    def flux(c, speed, axis):
        from_behind = (2 * east(c, 1, axis) + 5 * c - east(c, -1, axis)) / 6
        from_ahead = (2 * c + 5 * east(c, 1, axis) - east(c, 2, axis)) / 6
        upwind = np.maximum(speed, 0) * from_behind + np.minimum(speed, 0) * from_ahead
        return upwind - DIFFUSIVITY * (east(c, 1, axis) - c) / h

    def rate(c):
        fx, fy = flux(c, u, 1), flux(c, v, 0)
        return (np.roll(fx, 1, 1) - fx + np.roll(fy, 1, 0) - fy) / h + GROWTH * c * (1 - c)

    c = np.array(first)
    for _ in range(steps):
        c = c + dt * rate(c + dt / 2 * rate(c + dt / 3 * rate(c)))
    return c


@pytest.mark.parametrize("ranks", [2, 1, 4])
def test_against_numpy(computed, ranks):
    size = 12
    out, data = computed(ranks, "adjoint", "--size", size, "--iterations", "12")
    truth, observed, misfits = data["truth"], data["observed"], data["misfits"]
    assert float(out.split("finite difference by ")[1].split()[0]) < 1e-6

    noise = observed - run(truth)
    np.testing.assert_allclose(noise, NOISE * np.random.default_rng(1).standard_normal((size, size)), atol=1e-12)

    def misfit(first):
        return ((run(first) - observed) ** 2).sum() / 2

    np.testing.assert_allclose(misfits[0], misfit(np.zeros((size, size))), rtol=1e-12)
    np.testing.assert_allclose(misfits[-1], misfit(data["recovered"]), rtol=1e-9)
    gradient = np.empty((size, size))
    for cell in np.ndindex(size, size):
        change = np.zeros((size, size), complex)
        change[cell] = 1e-30j  # the derivative of what is analytic, without the rounding of a difference
        gradient[cell] = misfit(change).imag / 1e-30
    np.testing.assert_allclose(data["gradient"], gradient, rtol=1e-9, atol=1e-13)

    assert (np.diff(misfits) < 0).all()
    assert misfits[-1] < misfits[0] / 100
    assert np.linalg.norm(data["recovered"] - truth) < 0.7 * np.linalg.norm(truth)
