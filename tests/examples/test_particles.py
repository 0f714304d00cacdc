"""examples/particles.py: each droplet moves as in NumPy, where nobody owns it, and is where it belongs."""

import numpy as np
import pytest

PARTICLES, STEPS, TIME, INERTIA = 300, 120, 6, 0.3
OPTIONS = ("--particles", PARTICLES, "--steps", STEPS, "--time", TIME, "--inertia", INERTIA)
GRIDS = {1: (1, 1), 2: (2, 1), 3: (3, 1), 4: (2, 2)}


def numpy_places():
    """Return the places of all droplets after each step, in double precision."""
    radius, angle = np.random.default_rng(1).random((2, PARTICLES))
    place = 0.4 + 0.3 * np.sqrt(radius)[:, None] * np.stack([np.cos(2 * np.pi * angle), np.sin(2 * np.pi * angle)], 1)
    speed, dt = np.zeros_like(place), TIME / STEPS
    places = []
    for step in range(STEPS):
        x, y = 2 * np.pi * place.T
        x = x + 2 * np.sin(step * dt)
        flow = np.stack([np.sin(x) * np.cos(y), -np.cos(x) * np.sin(y)], 1) / (2 * np.pi)
        speed = (speed + dt / INERTIA * flow) / (1 + dt / INERTIA)
        place = (place + dt * speed) % 1
        places.append(place)
    return np.array(places)


@pytest.mark.parametrize("ranks", [2, 1, 4])
def test_against_numpy(computed, ranks):
    out, saved = computed(ranks, "particles", *OPTIONS)
    assert "none was lost\n" in out
    exact = numpy_places()
    owners = (exact * GRIDS[ranks]).astype(int) @ (GRIDS[ranks][1], 1)
    number, counts, new = saved["number"], saved["counts"], saved["new"]
    assert sorted(number) == list(range(PARTICLES))
    away = abs(saved["place"] - exact[-1][number])
    assert np.minimum(away, 1 - away).max() < 1e-3
    assert counts.shape == new.shape == (STEPS, ranks)
    # Rounding may put a droplet on a border into the other domain.
    mine = (saved["place"] * GRIDS[ranks]).astype(int) @ (GRIDS[ranks][1], 1)
    assert (mine == np.repeat(np.arange(ranks), counts[-1])).all()
    assert (counts.sum(1) == PARTICLES).all()
    assert abs(counts - (owners[:, :, None] == np.arange(ranks)).sum(1)).max() <= 2
    went = (owners[1:] != owners[:-1]).sum()
    assert went > (100 if ranks > 1 else -1)
    assert abs(new[1:].sum() - went) <= 4


def test_too_little_room(example):
    """Room for those at the beginning, but not for those that come."""
    failed = example(2, "particles", *OPTIONS, "--room", 220, check=False)
    assert failed.returncode != 0
    assert "220 rows" in failed.stderr
