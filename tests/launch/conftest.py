"""These tests start MPI jobs of their own."""

from pathlib import Path

import pytest

import sample
from jobs import PATIENCE, job  # noqa: F401


def pytest_addoption(parser):
    sample.add_options(parser)


def pytest_collection_modifyitems(config, items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(PATIENCE))
    sample.take(config, items)
