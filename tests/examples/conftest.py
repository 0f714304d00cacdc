"""These tests start the examples, and compare what they compute with NumPy, or with what one rank computes."""

from pathlib import Path

import numpy as np
import pytest

from jobs import PATIENCE, example, job  # noqa: F401

# The others take longer; they are the same under every MPI.
QUICK = ("test_overlap.py", "test_refusals.py", "test_showing.py", "test_training.py")


@pytest.fixture
def computed(example, tmp_path):  # noqa: F811
    """Run an example, which must draw a picture, and return its output and the arrays that it saves."""

    def run(n, name, *arguments, **how):
        done = example(n, name, *arguments, "--data", "out.npz", "--save", "out.png", **how)
        assert (tmp_path / "out.png").stat().st_size > 10_000
        with np.load(tmp_path / "out.npz") as file:
            return done.stdout, dict(file)

    return run


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.any_mpi)
            item.add_marker(pytest.mark.timeout(PATIENCE))
            if item.path.name not in QUICK:
                item.add_marker(pytest.mark.long)
