"""These tests start MPI jobs of their own."""

import os
from pathlib import Path

import pytest

import sample
from jobs import PATIENCE, ROOT, job  # noqa: F401

# Compiling is what takes much of the time. So jobs keep compiled programs for each other, whichever MPI they use. One
# that reads what another is just writing notices, and compiles (tests/spmd/conftest.py). And there are more ranks than
# cores: those that wait leave theirs to the others.
ENVIRONMENT = {
    "JAX_COMPILATION_CACHE_DIR": str(ROOT / "build" / "programs"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    "PYTHONWARNINGS": "ignore:Error reading persistent compilation cache entry",
    "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}


def pytest_configure():
    os.environ.update(ENVIRONMENT)


def pytest_addoption(parser):
    sample.add_options(parser)


def pytest_collection_modifyitems(config, items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(PATIENCE))
    sample.take(config, items)
