"""Mistakes of users in environment variables and command lines, which no type can stop.

Each is ignored by a rule of docs/environment.md, or there is a sentence that names it. Nothing else may come of it.
"""

import re
from pathlib import Path

import pytest

from jobs import ROOT, alone

pytestmark = pytest.mark.any_mpi

VARIABLES = sorted(set(re.findall(r"MPIXLA_[A-Z_]+", (ROOT / "docs/environment.md").read_text())))

# JAX is imported once. Each variable has a process that was forked before mpixla was imported, in a folder of its own:
# a value may be taken for the name of a file. What it prints, and its status, are in there.
FORKS = """
import os, signal, sys
import jax.numpy as jnp
value, *variables = sys.argv[1:]
for variable in variables:
    os.mkdir(variable)
    child = os.fork()
    if child == 0:
        break
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    open(variable + "/status", "w").write(str(status))
else:
    sys.exit()
signal.alarm(100)
os.chdir(variable)
for number, name in ((1, "out"), (2, "err")):
    os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), number)
os.environ[variable] = value
import mpixla
from mpi4py import MPI
print(mpixla.allreduce(jnp.ones(2), op=MPI.SUM))
"""


@pytest.mark.parametrize(
    "value",
    [
        "-1",
        pytest.param("\udcff\udcfe", marks=pytest.mark.long),
        pytest.param("x" * 5000 + "\n", marks=pytest.mark.long),
    ],
    ids=["negative", "bytes", "long"],
)
def test_environment(tmp_path, value):
    """A call works, or importing mpixla fails with a sentence."""
    done = alone("-c", FORKS, value, *VARIABLES, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(VARIABLES) > 10
    for variable in VARIABLES:
        folder: Path = tmp_path / variable
        status, out, err = ((folder / name).read_text(errors="replace") for name in ("status", "out", "err"))
        assert status in ("0", "1"), (variable, err)
        if status == "0":
            assert "[1. 1.]" in out, variable
        else:
            assert variable in err.splitlines()[-1] or variable in err[-6000:], (variable, err)
            assert "Unicode" not in err, err


@pytest.mark.parametrize("variable", ["MPIXLA_GPU_TRANSPORT", "MPIXLA_HOOKS_OFF"])
def test_environment_of_one_rank(job, variable):
    """What ranks need not agree on is refused by the rank that has it, and the others do not wait for it."""
    program = f"""
    import os
    from mpi4py import MPI
    if MPI.COMM_WORLD.Get_rank() == 1:
        os.environ["{variable}"] = "wrong"
    import mpixla
    mpixla.barrier()
    """
    done = job(2, program, check=False, timeout=60)
    assert done.returncode != 0
    assert "rank 1 ended with an uncaught ValueError, so the whole job is aborted" in done.stderr
    assert f"ValueError: {variable}" in done.stderr


def test_command_line():
    """Those that are text: test_main.py."""
    done = alone("-m", "mpixla", "bench", "\udcff")
    assert done.returncode == 2, done.stderr
    assert "error: " in done.stderr
    assert "Traceback" not in done.stderr, done.stderr
