"""Importing mpixla: alone, under MPI, and where MPI cannot be used."""

import subprocess
import sys
import time

import pytest

from mpixla.runtime import arrival


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)


def test_without_mpirun():
    done = python(
        "import mpixla, jax.numpy as jnp; from mpi4py import MPI;print(mpixla.allreduce(jnp.arange(3), op=MPI.SUM))"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[0 1 2]"


def test_import_does_not_start_jax():
    """A program may still choose its platform and its number of devices after importing mpixla."""
    done = python("import mpixla, jax; jax.config.update('jax_num_cpu_devices', 2); print(len(jax.devices()))")
    assert done.stdout.strip() == "2", done.stderr


def test_too_low_a_thread_level():
    done = python("import mpi4py; mpi4py.rc.thread_level = 'funneled'; import mpixla")
    assert done.returncode != 0
    assert "ImportError: MPI was initialized with the thread level MPI_THREAD_FUNNELED" in done.stderr
    assert "mpi4py.rc.thread_level = 'multiple'" in done.stderr


def test_serialized_is_enough():
    done = python("import mpi4py; mpi4py.rc.thread_level = 'serialized'; import mpixla; mpixla.barrier()")
    assert done.returncode == 0, done.stderr


def test_mpi_not_initialized():
    done = python("import mpi4py; mpi4py.rc.initialize = False; import mpixla")
    assert done.returncode != 0
    assert "ImportError: mpixla needs MPI to be running" in done.stderr


def test_no_mpi_library():
    done = python("import os; os.environ['MPI4PY_LIBMPI'] = '/nowhere/libmpi.so'; import mpixla")
    assert done.returncode != 0
    assert "ImportError: mpixla found no MPI library that mpi4py can load. Install one" in done.stderr


def test_after_finalize():
    """The C library knows that MPI is gone, whoever ended it."""
    done = python(
        "import mpixla, jax, jax.numpy as jnp; from mpi4py import MPI\n"
        "f = jax.jit(lambda x: mpixla.allreduce(x, op=MPI.SUM)); f(jnp.ones(2)).block_until_ready()\n"
        "MPI.Finalize()\n"
        "f(jnp.ones(2)).block_until_ready()\n"
    )
    assert done.returncode != 0
    assert "MPI is finalized" in done.stderr


def test_no_use_of_jax_deprecations():
    done = python("import warnings; warnings.simplefilter('error'); import mpixla; mpixla.barrier()")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("argv", "says"), [(["-m"], True), (["program.py"], False)])
def test_command_that_waits_says_so(monkeypatch, capsys, argv, says):
    """`python -m mpixla` is to tell what is wrong, so it does not hang in silence."""
    monkeypatch.delenv("MPIXLA_TIMEOUT", raising=False)
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(arrival, "_NOTICE", 0.05)
    with arrival.limited():
        time.sleep(0.5)
    said = capsys.readouterr().err
    assert ("mpixla: rank 0 has waited for 0.05 s in `import mpixla`, and goes on waiting." in said) == says
    assert ("has chosen a network that does not connect the hosts" in said) == says
