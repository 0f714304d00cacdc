"""Programs with other libraries of JAX's: mpirun -n N python -m pytest tests/ecosystem, as tests/spmd.

`make test-ecosystem` installs the libraries.
"""

from importlib.metadata import requires, version

import pytest

import pages
import spmd.conftest
from ecosystem.ring import CELLS
from spmd.conftest import (  # noqa: F401
    comm,
    pytest_addoption,
    pytest_collection_finish,
    pytest_collectreport,
    pytest_configure,
    pytest_runtest_makereport,
    rank,
    size,
)


def pytest_report_header():
    libraries = [need.partition(";")[0].strip() for need in requires("mpixla") or () if "ecosystem" in need]
    versions = ", ".join(f"{name} {version(name)}" for name in ("jax", *libraries))
    return [spmd.conftest.pytest_report_header(), f"with {versions}"]


@pytest.fixture(scope="session")
def page():
    """Return the names that the code of docs/solvers.md defines."""
    return pages.run(pages.SOLVERS, print=lambda *_: None)


@pytest.fixture
def mine(rank, size):  # noqa: F811
    """Return the cells of this rank."""
    return slice(rank * CELLS // size, (rank + 1) * CELLS // size)
