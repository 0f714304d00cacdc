"""Importing mpixla imports none of the packages that use it, and works where they are not installed."""

import shutil
from pathlib import Path

from test_layers import SATELLITES

import mpixla

PROGRAM = f"""
import sys
import jax, jax.numpy as jnp, mpixla
from mpi4py import MPI
loaded = {{name.split(".")[1] for name in sys.modules if name.startswith("mpixla.")}}
assert not loaded & {{*{SATELLITES!r}}}, loaded
comm = MPI.COMM_WORLD
f = jax.jit(jax.grad(lambda x: (mpixla.allreduce(x, op=MPI.SUM) ** 2).sum()))
assert list(f(jnp.ones(2))) == [2 * comm.size] * 2
assert mpixla.bcast(jnp.float32(comm.rank), 1) == 1
print(mpixla.__file__)
"""


def test_without_satellites(job, tmp_path):
    """The program itself, too, finds the copy of the package that has none of them."""
    copy = tmp_path / "kernel" / "mpixla"
    shutil.copytree(
        Path(mpixla.__file__).parent, copy, ignore=lambda folder, names: {*SATELLITES, "__main__.py", "__pycache__"}
    )
    assert not any((copy / name).exists() for name in SATELLITES)
    done = job(2, PROGRAM, PYTHONPATH=str(tmp_path / "kernel"))
    assert done.stdout.split() == [str(copy / "__init__.py")] * 2


def test_import_loads_no_satellite(job):
    job(2, PROGRAM)


def test_launcher_loads_only_the_satellite_run(job):
    """And nothing else of the launcher."""
    job(2, PROGRAM.replace("assert not loaded &", "assert {'run'} == loaded &"), by_run=True)
