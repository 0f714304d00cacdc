"""The tests' own promise: a rank that fails or is stuck ends the run, with its report."""

import os
import subprocess

import pytest

from jobs import ROOT, start

BAD = {
    "fails": ('assert rank != 1, "this rank is different"\n    mpixla.barrier()', "this rank is different"),
    "dies": ("if rank == 1:\n        os._exit(3)\n    mpixla.barrier()", ""),
    "is stuck": ("if rank == 1:\n        return\n    mpixla.barrier()", "Timeout"),
}


@pytest.mark.parametrize("how", BAD)
def test_a_bad_rank_ends_the_run(tmp_path, how):
    body, report = BAD[how]
    (tmp_path / "conftest.py").write_text((ROOT / "tests/spmd/conftest.py").read_text())
    (tmp_path / "test_bad.py").write_text(f"import os, mpixla\n\ndef test_bad(rank):\n    {body}\n")
    pytest_command = ["-m", "pytest", "--timeout=5", "--timeout-method=thread", "-p", "no:cacheprovider", tmp_path]
    paths = [ROOT / "tests/helpers", ROOT / "tests", os.environ.get("PYTHONPATH", "")]
    # What mpixla says of a rank that has ended would come first.
    silent = {"MPIXLA_TIMEOUT": "0", "PYTHONPATH": os.pathsep.join(map(str, paths))}
    done = start(2, *pytest_command, timeout=60, cwd=tmp_path, check=False, **silent)
    assert done.returncode != 0
    assert report in done.stdout + done.stderr


def test_mpirun_starts_beside_the_directory_of_a_killed_one(tmp_path):
    """Open MPI's directory of a killed mpirun, whose process number another one was given."""
    starter = 'mkdir "$TMPDIR/ompi.$$" && touch "$TMPDIR/ompi.$$/pmix.$(uname -n).tool" && exec "$@"'
    done = subprocess.run(
        ["sh", "-c", starter, "sh", ROOT / "tools/mpirun", "-n", "1", "echo", "started"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert (done.returncode, done.stdout) == (0, "started\n"), done.stderr
