"""examples/workers.py: the picture is NumPy's, and each tile was computed once, by a worker."""

import numpy as np
import pytest

SIZE, TILE, TIME, DT = 24, 6, 8, 0.02


def numpy_picture():
    """Return when the pendulums first go over the top, in double precision."""
    angles = (2 * (np.arange(SIZE) + 0.5) / SIZE - 1) * np.pi
    b, a = np.meshgrid(angles, angles, indexing="ij")
    state = np.stack([a, b, 0 * a, 0 * b])
    when = np.full(a.shape, np.inf)

    def rates(state):
        # The equations of motion as they come from the Lagrangian: a mass matrix times the accelerations is a force.
        a, b, u, v = state
        c, s = np.cos(a - b), np.sin(a - b)
        matrix = np.moveaxis(np.array([[2 + 0 * c, c], [c, 1 + 0 * c]]), (0, 1), (-2, -1))
        force = np.stack([-s * v**2 - 2 * np.sin(a), s * u**2 - np.sin(b)], -1)
        return np.stack([u, v, *np.moveaxis(np.linalg.solve(matrix, force[..., None])[..., 0], -1, 0)])

    for step in range(round(TIME / DT)):
        k1 = rates(state)
        k2 = rates(state + DT / 2 * k1)
        k3 = rates(state + DT / 2 * k2)
        state = state + DT / 6 * (k1 + 2 * k2 + 2 * k3 + rates(state + DT * k3))
        is_over = (abs(state[:2]) > np.pi).any(0) & np.isinf(when)
        when[is_over] = (step + 1) * DT
    return when


@pytest.mark.parametrize("ranks", [2, 1, 4])
def test_against_numpy(computed, ranks):
    options = ("--size", SIZE, "--tile", TILE, "--time", TIME)
    out, saved = computed(ranks, "workers", *options)
    assert out.startswith(f"{(SIZE // TILE) ** 2} tiles in ")
    picture, tile, rank = saved["picture"], saved["tile"], saved["rank"]
    assert sorted(tile) == list(range((SIZE // TILE) ** 2))
    workers = {0} if ranks == 1 else set(range(1, ranks))
    assert set(rank) <= workers
    assert len(set(rank)) == len(workers)
    exact = numpy_picture()
    never = np.isinf(exact)
    assert 0.2 < never.mean() < 0.8
    # In single precision the way of a pendulum that comes very close to the top may be another.
    assert (np.isinf(picture) == never).mean() > 0.98
    both = np.isfinite(picture) & ~never
    assert (abs(picture[both] - exact[both]) < 1.5 * DT).mean() > 0.97
