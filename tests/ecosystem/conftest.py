"""Programs with other libraries of JAX's: mpirun -n N python -m pytest tests/ecosystem, as tests/spmd.

`make test-ecosystem` installs the libraries.
"""

import jax.numpy as jnp
import pytest
from mpi4py import MPI

import pages
from ecosystem.ring import CELLS
from spmd.conftest import (  # noqa: F401
    comm,
    pytest_addoption,
    pytest_collection_finish,
    pytest_collectreport,
    pytest_configure,
    pytest_report_header,
    pytest_runtest_makereport,
    rank,
    size,
)


@pytest.fixture(scope="session")
def page():
    """What the code of docs/solvers.md defines."""
    return pages.run(pages.SOLVERS, print=lambda *_: None, MPI=MPI, own_loss=lambda w: jnp.sum(w**2))


@pytest.fixture
def mine(rank, size):  # noqa: F811
    """The cells of this rank."""
    return slice(rank * CELLS // size, (rank + 1) * CELLS // size)
