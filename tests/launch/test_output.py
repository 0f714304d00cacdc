"""Check that what a program has printed is there, however its job ends: half a line, and of other ranks, too."""

import os
import signal
import subprocess
import time

import pytest
from test_run import ENVIRONMENT, RUN, start

PREAMBLE = """
import os, signal, sys, threading, time
import jax, jax.numpy as jnp, mpixla
from mpi4py import MPI
rank = MPI.COMM_WORLD.rank
def interrupt():
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGINT)
print("line", rank)
print("half", rank, end=".")
mpixla.barrier()
"""
WAIT = "mpixla.recv(jnp.ones(3), 1 - rank)"
# Before it: a file of each rank says that half a line was flushed.
FLUSHED = """
import io, os, sys, time
class File(io.FileIO):
    def write(self, printed):
        written = super().write(printed)
        if b"half" in bytes(printed):
            open(f"flushed{rank}", "w").close()
        return written
sys.stdout = io.TextIOWrapper(io.BufferedWriter(File(1, "w", closefd=False)))
def until_flushed():
    while not all(os.path.exists(f"flushed{rank}") for rank in range(2)):
        time.sleep(0.01)
"""
PRINTED = [f"{what} {rank}" for what in ("line", "half") for rank in range(2)]


def has_all(printed):
    assert [printed.count(text) for text in PRINTED] == [1] * len(PRINTED), printed


# What rank 1 does, and then both.
ENDS = {
    "exception": ("{}['lost']", WAIT),
    "exception while the other computes": ("{}['lost']", "time.sleep(1000)"),
    "exception before any call": ("{}['lost']", "time.sleep(1000)"),
    "exit": ("sys.exit(3)", WAIT),
    "limit": ("None", WAIT),
    "interrupt": ("threading.Thread(target=interrupt).start()", WAIT),
    "signal": ("until_flushed() or os.kill(os.getpid(), signal.SIGKILL)", WAIT),
    "abort": ("until_flushed() or MPI.COMM_WORLD.Abort(3)", WAIT),
}


@pytest.mark.parametrize("how", ENDS)
def test_printed_output_survives_the_end_of_the_job(job, how):
    end, then = ENDS[how]
    variables = {"MPIXLA_TIMEOUT": "1"} if how == "limit" else {}
    flushed = FLUSHED if "until_flushed" in end else ""
    begin = PREAMBLE.replace("mpixla.barrier", "MPI.COMM_WORLD.Barrier") if "any call" in how else PREAMBLE
    code = f"{flushed}\n{begin}\nrank == 0 or {end}\n{then}\n"
    done = job(2, code, check=False, by_run=how == "interrupt", **variables)
    assert done.returncode != 0
    has_all(done.stdout)


def test_interrupted_under_run(tmp_path):
    """Interrupt both ranks while they wait, by Ctrl-C, which the launcher passes on. They have flushed before."""
    script = tmp_path / "wait.py"
    script.write_text(f"{FLUSHED}\n{PREAMBLE}\n{WAIT}\n")
    with start(script, cwd=tmp_path, stderr=subprocess.PIPE) as process:
        until = time.monotonic() + 200
        while process.poll() is None and not all((tmp_path / f"flushed{rank}").exists() for rank in range(2)):
            if time.monotonic() > until:
                os.killpg(process.pid, signal.SIGKILL)
                pytest.fail("nothing was flushed")
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=100)
    assert process.returncode != 0
    has_all(printed)


def test_output_with_another_stream_in_its_place(job):
    """Let the thread that flushes touch nothing but streams of Python's own kind, and end with the program."""
    done = job(
        2,
        f"""{PREAMBLE}
class Stream:
    def write(self, text):
        return len(text)
    def flush(self):
        os.write(1, b"flushed " + threading.current_thread().name.encode())
sys.stdout = Stream()
time.sleep(1)
sys.stdout = sys.__stdout__
""",
    )
    has_all(done.stdout)
    assert "flushed" not in done.stdout


def test_forks_while_output_is_flushed(job):
    """Have children print, each once, and nothing twice."""
    done = job(
        2,
        f"""{PREAMBLE}
for i in range(200):
    print("parent", rank, i)
    sys.stdout.flush()
    if (child := os.fork()) == 0:
        print("child", rank, i, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
""",
        timeout=400,
    )
    has_all(done.stdout)
    lines = done.stdout.replace("half 0.", "").replace("half 1.", "").splitlines()
    for who in ("parent", "child"):
        assert sorted(line for line in lines if line.startswith(who)) == sorted(
            f"{who} {rank} {i}" for rank in range(2) for i in range(200)
        )


KILLED = "import os\nprint('line')\nos.kill(os.getpid(), 9)\n"
FORMS = {
    "script": ["killed.py"],
    "module": ["-m", "killed"],
    "code": ["-c", KILLED],
    "distributed": ["--distributed", "killed.py"],
    "compat": ["-m", "mpixla.compat", "mpi4jax", "killed.py"],
}


@pytest.mark.parametrize("form", FORMS)
def test_run_makes_each_line_come_at_once(tmp_path, form):
    (tmp_path / "killed.py").write_text(KILLED)
    command = [*RUN, "-n", "1", *FORMS[form]]
    done = subprocess.run(
        command, env=ENVIRONMENT, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode != 0
    assert "line\n" in done.stdout


STATES = """
import faulthandler, tempfile, time
def has_state():
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        return "<no Python frame>" in file.read()
while not all(has_state() for _ in range(50)):
    time.sleep(0.01)
print("kept")
"""


@pytest.mark.any_mpi
def test_thread_that_flushes_keeps_its_state_of_python(job):
    """A state that is made for each flush crashes Python where ``tracemalloc.stop`` runs meanwhile."""
    assert job(2, f"import mpixla\n{STATES}").stdout.split() == ["kept"] * 2
