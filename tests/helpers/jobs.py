"""Tests that start MPI jobs of their own, as a user would, and look at what they print and how they end."""

import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Seconds that pytest gives such a test: more than any job's own, whose end fails the test with what the job printed.
# pytest's own ends the process that runs the test.
PATIENCE = 600


def facts(said):
    """Return the table that `python -m mpixla` prints, by the words at the left; the list of hooks is behind it."""
    table, _, _ = said.partition("\n\n")
    return dict(re.split(r"  +", line, maxsplit=1) for line in table.splitlines())


def alone(*arguments, cwd=None, timeout=200, **environment):
    """Run Python with these arguments and without mpirun, as one rank: alone("-c", code) -> CompletedProcess."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, **environment},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout,
        check=False,
    )


def together(programs, begin=""):
    """Return one script of several programs by their names, so that they share a start. Each says its name at its end.

    They are functions, in which what `begin` defines is there; none may end the job. See `all_ended`.
    """
    lines = [textwrap.dedent(begin)]
    for number, (name, code) in enumerate(programs.items()):
        body = textwrap.indent(textwrap.dedent(code).strip("\n"), "    ")
        lines += [f"def program_{number}():", body, f"    print({name!r}, flush=True)", f"program_{number}()"]
    return "\n".join(lines) + "\n"


def all_ended(done, programs, n):
    """Return whether each of `n` ranks came to the end of each program (see `together`)."""
    said = done.stdout.splitlines()
    return {name: said.count(name) for name in programs} == dict.fromkeys(programs, n)


def soon(seconds):
    """Return code for the beginning of a script: a wait is reported and checked again, each time after so long."""
    return f"""
    import importlib.machinery as _machinery
    def _load(loader, module, load=_machinery.SourceFileLoader.exec_module):
        load(loader, module)
        if module.__name__ == "mpixla.checks.timeout":
            module._WORD = {seconds}
    _machinery.SourceFileLoader.exec_module = _load
    """


@pytest.fixture
def job(tmp_path):
    """Run Python code on `n` ranks: job(n, code, *arguments, timeout=..., **environment) -> CompletedProcess.

    `options` are mpirun's, `python` Python's own. With `by_run` it is `python -m mpixla run` in place of mpirun.

    A job that does not end in time is killed, and fails the test with what it printed, unless the launcher `may_hang`.
    """

    def run(n, code, *arguments, cwd=tmp_path, **how):
        script = tmp_path / "script.py"
        script.write_text(textwrap.dedent(code))
        return start(n, script, *arguments, cwd=cwd, **how)

    return run


@pytest.fixture
def example(tmp_path):
    """Run examples/`name`.py on `n` ranks, as `job` runs code: example(n, name, *arguments) -> CompletedProcess."""

    def run(n, name, *arguments, cwd=tmp_path, timeout=200, **named):
        return start(n, ROOT / f"examples/{name}.py", *arguments, cwd=cwd, timeout=timeout, **named)

    return run


def start(
    n,
    script,
    *arguments,
    timeout=200,
    check=True,
    cwd=None,
    by_run=False,
    may_hang=False,
    options=(),
    python=(),
    **environment,
):
    """Run a script on `n` ranks, with mpirun's `options` and Python's, and wait for it (see `job`)."""
    if by_run:
        command = [sys.executable, *python, "-m", "mpixla", "run", "-n", str(n), *options, "--", str(script)]
    else:
        command = [str(ROOT / "tools/mpirun"), "-n", str(n), *options, sys.executable, *python, str(script)]
    command += map(str, arguments)
    # Unbuffered, print writes a line and its end one after the other, and another rank's line comes between.
    env = {**os.environ, "PYTHONUNBUFFERED": "", **environment}
    with subprocess.Popen(
        command,
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            if not may_hang:
                pytest.fail(f"the job did not end within {timeout} s\n-- stdout\n{out}\n-- stderr\n{err}")
    if check and process.returncode != 0:
        pytest.fail(f"the job ended with {process.returncode}\n-- stdout\n{out}\n-- stderr\n{err}")
    return subprocess.CompletedProcess(command, process.returncode, out, err)
