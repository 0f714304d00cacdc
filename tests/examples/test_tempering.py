"""examples/tempering.py: the samples have the density, are the same on any number of ranks, and swaps are swaps."""

import numpy as np
import pytest

PEAKS = [(-10, 0.5, 0.2), (-3, 0.8, 0.4), (4, 0.4, 0.1), (11, 1.0, 0.3)]  # place, width, weight
REPLICAS, STEPS = 12, 4000


def log_density(x):
    return np.log(sum(w / (s * np.sqrt(2 * np.pi)) * np.exp(-0.5 * ((x - m) / s) ** 2) for m, s, w in PEAKS) + 1e-300)


def test_samples(computed):
    _, found = computed(2, "tempering", "--steps", STEPS)
    x, walkers, swapped, stuck = (found[name] for name in ("x", "walkers", "swapped", "stuck"))
    assert x.shape == walkers.shape == swapped.shape == stuck.shape == (STEPS, REPLICAS)
    # The cold chain is at each peak for its share of the time, and there has its place and width. Alone it is stuck.
    edges = [-np.inf, -6.5, 1, 7.5, np.inf]
    for (place, width, weight), low, high in zip(PEAKS, edges, edges[1:], strict=False):
        here = x[(low < x[:, 0]) & (x[:, 0] < high), 0]
        assert abs(len(here) / STEPS - weight) < 0.06
        assert abs(here.mean() - place) < 0.3 * width
        assert abs(here.std() / width - 1) < 0.2
    assert stuck[:, 0].max() < -6
    # The hottest chain has the density to the power of 1 / 60: its moments, by a sum over a grid.
    grid = np.linspace(-60, 60, 6001)
    hot = np.exp(log_density(grid) / 60)
    mean = (grid * hot).sum() / hot.sum()
    width = np.sqrt(((grid - mean) ** 2 * hot).sum() / hot.sum())
    assert abs(x[:, -1].mean() - mean) < 0.15 * width
    assert abs(x[:, -1].std() / width - 1) < 0.1
    check_swaps(walkers, swapped)


def check_swaps(walkers, swapped):
    """Check that a replica that swaps gets its partner's place, and that no walker is lost or doubled."""
    assert (np.sort(walkers, axis=1) == np.arange(REPLICAS)).all()
    number = np.arange(REPLICAS)
    partner = number + np.where((number + np.arange(STEPS)[:, None]) % 2 == 0, 1, -1)
    before = np.concatenate([[number], walkers[:-1]])
    came_from = np.where(swapped, partner, number)
    assert (walkers == np.take_along_axis(before, came_from, axis=1)).all()
    assert 0.5 < swapped[:, 1:-1].mean() < 0.99


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_same_on_any_number_of_ranks(computed, ranks):
    some, two = (computed(n, "tempering", "--steps", 300)[1] for n in (ranks, 2))
    for name, values in two.items():
        np.testing.assert_allclose(some[name], values, atol=1e-4, err_msg=name)
