"""What type checkers say of a user's program."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.any_mpi

PROGRAM = Path(__file__).with_name("typed_program.py")


@pytest.mark.long
def test_mypy(tmp_path):
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={tmp_path}", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no issues found in 1 source file" in done.stdout


@pytest.mark.long
def test_pyright(tmp_path):
    """As mypy, in strict mode; but what JAX's own functions lack, a user of theirs need not have."""
    pytest.importorskip("basedpyright")
    settings = {
        "typeCheckingMode": "strict",
        "enableTypeIgnoreComments": True,
        "reportUnnecessaryTypeIgnoreComment": "error",
        "reportUnknownMemberType": "none",
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    shutil.copy(PROGRAM, tmp_path)
    command = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "--project", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 errors, 0 warnings" in done.stdout
