"""These tests start MPI jobs of their own."""

import sample
from jobs import job  # noqa: F401


def pytest_addoption(parser):
    sample.add_options(parser)


def pytest_collection_modifyitems(config, items):
    sample.take(config, items)
