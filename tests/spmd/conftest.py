"""These tests run on every rank at once: mpirun -n N python -m pytest tests/spmd.

A rank that fails would leave the others waiting in a communication call. So the first failure on any rank prints
its report and aborts the job, and a rank that is stuck does the same after a while (pytest-timeout, pyproject).
"""

import sys

import pytest
from mpi4py import MPI

WORLD = MPI.COMM_WORLD


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed and WORLD.Get_size() > 1:
        sys.__stderr__.write(
            f"\n== rank {WORLD.Get_rank()} of {WORLD.Get_size()}: {item.nodeid} failed in {report.when}\n"
            f"{report.longreprtext}\n{''.join(f'-- {name}\n{text}' for name, text in report.sections)}\n"
        )
        sys.__stderr__.flush()
        WORLD.Abort(1)
    return report


def pytest_configure(config):
    # Every rank runs the tests; one of them reports.
    if WORLD.Get_rank() > 0:
        config.option.verbose = -2
        config.pluginmanager.get_plugin("terminalreporter")._tw._file = open("/dev/null", "w")


@pytest.fixture
def comm():
    return WORLD
