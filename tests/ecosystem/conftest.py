"""Programs with other libraries of JAX's: mpirun -n N python -m pytest tests/ecosystem, as tests/spmd.

`make test-ecosystem` installs the libraries.
"""

import re
from pathlib import Path

import jax.numpy as jnp
import pytest
from mpi4py import MPI

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

PAGE = Path(__file__).parents[2] / "docs/solvers.md"


@pytest.fixture(scope="session")
def page():
    """What the code of docs/solvers.md defines."""
    names = {"x": jnp.ones(3), "y": jnp.ones(3), "u": jnp.ones((4, 4)), "interior": (2, 2), "print": lambda *_: None}
    names |= {"MPI": MPI, "jnp": jnp, "mpixla": __import__("mpixla"), "own_loss": lambda w: jnp.sum(w**2)}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(block, names)
    return names


@pytest.fixture
def mine(rank, size):  # noqa: F811
    """The cells of this rank."""
    return slice(rank * CELLS // size, (rank + 1) * CELLS // size)
