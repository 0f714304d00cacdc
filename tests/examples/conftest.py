"""These tests start the examples, and compare what they compute with NumPy, or with what one rank computes."""

from pathlib import Path

import pytest

from jobs import PATIENCE, example, job  # noqa: F401

# The others take longer; they are the same under every MPI.
QUICK = ("test_overlap.py", "test_refusals.py", "test_showing.py", "test_training.py")


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.any_mpi)
            item.add_marker(pytest.mark.timeout(PATIENCE))
            if item.path.name not in QUICK:
                item.add_marker(pytest.mark.long)
