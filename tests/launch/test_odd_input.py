"""What users write by mistake where there is no type to stop them: environment variables and command lines.

Each is ignored by a rule of docs/environment.md, or there is a sentence that names it. Nothing else may come of it.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.any_mpi

PAGE = (Path(__file__).parents[2] / "docs/environment.md").read_text()
VARIABLES = sorted(set(re.findall(r"MPIXLA_[A-Z_]+", PAGE)))
VALUES = ["-1", "\udcff\udcfe", "x" * 5000 + "\n"]


def run(folder, *arguments, **environment):
    """Python alone, which is one rank, in a folder of its own: a value may be taken for the name of a file."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        timeout=200,
        encoding="utf-8",
        errors="replace",
    )


@pytest.mark.parametrize(
    "value",
    [VALUES[0], *(pytest.param(value, marks=pytest.mark.long) for value in VALUES[1:])],
    ids=["negative", "bytes", "long"],
)
@pytest.mark.parametrize("variable", VARIABLES)
def test_environment(tmp_path, variable, value):
    """A call works, or importing mpixla fails with a sentence."""
    code = "import jax.numpy as jnp, mpixla; from mpi4py import MPI; print(mpixla.allreduce(jnp.ones(2), op=MPI.SUM))"
    done = run(tmp_path, "-c", code, **{variable: value})
    assert done.returncode in (0, 1), done.stderr
    if done.returncode == 0:
        assert "[1. 1.]" in done.stdout
    else:
        assert variable in done.stderr.splitlines()[-1] or variable in done.stderr[-6000:], done.stderr
        assert "Unicode" not in done.stderr, done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        [""],
        ["--bogus"],
        ["test", "--timeout"],
        ["test", "--timeout=nan"],
        ["bench", "\udcff"],
        ["x" * 5000],
    ],
    ids=["word", "empty", "option", "no-value", "nan", "bytes", "long"],
)
def test_command_line(tmp_path, arguments):
    done = run(tmp_path, "-m", "mpixla", *arguments)
    assert done.returncode == 2, done.stderr
    assert "error: " in done.stderr
    assert "Traceback" not in done.stderr, done.stderr
