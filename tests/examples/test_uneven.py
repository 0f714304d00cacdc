"""examples/uneven.py, and what docs/trouble.md says of its timeline: the others wait for rank 0."""

import jax
import numpy as np
import pytest

from mpixla.trace.match import match_calls
from mpixla.trace.read import read_timelines
from mpixla.trace.tables import sum_waits


@pytest.mark.long
def test_the_others_wait_for_rank_0(example, tmp_path):
    options = ("--particles", "400", "--more", "6", "--steps", "10")
    done = example(3, "uneven", *options, MPIXLA_TRACE="traces")
    assert done.stdout.startswith("10 steps, energy ")
    found = read_timelines(tmp_path / "traces")
    match_calls(found)
    assert found.notes == []
    # But not in the first step, for which each rank compiles.
    for timeline in found.timelines.values():
        sums = [call for call in timeline.calls if call.name == "allreduce"]
        timeline.calls = sums[1:]
    waits = sum_waits(found)
    for rank in (1, 2):
        for late in (1, 2):
            if (rank, late) in waits:
                assert waits[rank, 0].waiting > waits[rank, late].waiting
    assert waits[1, 0].waiting + waits[2, 0].waiting > 0


def pull(places, others):
    apart = others[None] - places[:, None]
    return (apart / (0.01 + (apart**2).sum(2)[..., None]) ** 1.5).mean(1)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_against_numpy(example, ranks):
    """The energy after some steps, each of which every process makes with the edge of the process before."""
    particles, more, steps = 40, 2.5, 12
    places = [np.array(jax.random.normal(jax.random.key(r), (100 if r == 0 else 40, 3)), float) for r in range(ranks)]
    speeds = [np.zeros_like(p) for p in places]
    for _ in range(steps):
        edges = [p[:4] for p in places]
        for r in range(ranks):
            speeds[r] = speeds[r] + 1e-4 * (pull(places[r], places[r]) + pull(places[r], edges[r - 1]))
        places = [p + 1e-4 * v for p, v in zip(places, speeds, strict=True)]
    expected = sum((v**2).sum() for v in speeds)
    done = example(ranks, "uneven", "--particles", particles, "--more", more, "--steps", steps)
    assert float(done.stdout.removeprefix("12 steps, energy ")) == pytest.approx(expected, rel=2e-3)
