"""examples/c: libmpixla from C, without Python. And what docs/other_tools.md and the header say of it."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/other_tools.md").read_text().partition("\n## From C or another front end\n")[2]
HEADER = (ROOT / "include/mpixla.h").read_text()
TABLE = re.search(r"prints the table:\n \*\n(.*?) \*\n", HEADER, re.DOTALL)[1]
MPIRUN = shutil.which(os.environ.get("MPIRUN", "mpirun"))

# Another MPI's would not do.
needs_mpicc = pytest.mark.skipif(
    not (MPIRUN and Path(MPIRUN).with_name("mpicc").exists()),
    reason=f"mpicc, which compiles programs for an MPI, is not beside {MPIRUN or 'mpirun'}, so examples/c is not tried",
)


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def shell(code, cwd):
    """Run a command of the page, whose `python` is this one."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["sh", "-ec", code], cwd=cwd, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return the folder with the programs that the page's commands build; warnings are errors."""
    path = tmp_path_factory.mktemp("c")
    (path / "examples").symlink_to(ROOT / "examples")
    (code,) = blocks("sh")
    code = code.replace("mpicc ", "mpicc -Wall -Wextra -Werror ")
    build, start = code.split("mpirun")
    assert start == " -n 2 ./allreduce\n"
    # That one needs no MPI, but the same files.
    other = "-std=c11 -I$mpixla/include examples/c/operations.c $mpixla/libmpixla.so -Wl,-rpath,$mpixla -o operations"
    shell(f"{build}\nmpicc -Wall -Wextra -Werror {other}", path)
    return path


def run(job, n, program):
    """Return the lines of a job, those of each rank together."""
    done = job(n, f"import os; os.execv({str(program)!r}, [{program.name!r}])")
    assert done.stderr == ""
    return sorted(done.stdout.splitlines(), key=lambda line: line.split(" | ")[0])


@needs_mpicc
@pytest.mark.parametrize("n", [2, 3])
def test_sum_message_and_error(job, folder, n):
    x = np.arange(n)[:, None] + np.arange(3)  # a row a rank
    received = np.roll(x, 1, axis=0)

    def text(values):
        return " ".join(f"{value:g}" for value in values)

    assert run(job, n, folder / "allreduce") == [
        line
        for rank in range(n)
        for line in (
            f"r{rank} | sum: {text(x.sum(axis=0))}",
            f"r{rank} | received: {text(received[rank])}",
            f"r{rank} | error: MPI_Bcast got root = {n}, but the ranks of communicator 'ring' are 0 to {n - 1}",
        )
    ]


@needs_mpicc
def test_page_shows_the_output_of_the_program(job, folder):
    printed = re.search(r"```text\n(r0 \| .*?)```", PAGE, re.DOTALL)[1]
    assert run(job, 2, folder / "allreduce") == printed.splitlines()


@needs_mpicc
def test_table_of_the_header(folder):
    assert shell("./operations", folder) == TABLE


def test_every_attribute_is_explained():
    rows = [line[80:].split() for line in TABLE.splitlines()[1:]]
    boxes = {"recvbegin", "recvsize", "sendbegin", "sendsize"}
    attributes = {"comm", "packed", "site"}.union(boxes, *rows) - {"-"}
    meanings = HEADER.partition(TABLE)[2].partition("Where ranks, tags or rows")[0]
    explained = {name for row in re.findall(r"^ \*   (\w.*?)  ", meanings, re.MULTILINE) for name in row.split(", ")}
    assert attributes == explained
    assert len(attributes) > 15


def test_names_in_page_and_comments_exist_in_the_header():
    """The page, and the header's comments: functions and constants are there, and targets are operations'."""
    code = re.sub(r"/\*.*?\*/", "", HEADER, flags=re.DOTALL)
    operations = {f"mpixla_{name}" for name in re.findall(r"^ \*   (\w+) ", TABLE, re.MULTILINE)[1:]}
    comments = "".join(re.findall(r"/\*.*?\*/", HEADER, re.DOTALL))
    named = set(re.findall(r"\b(?:mpixla|MPIXLA)_\w+", PAGE + comments))
    assert {"mpixla_start", "MPIXLA_NO_STATUS", "mpixla_requests_end", "mpixla_scan"} <= named
    assert len(operations) > 30
    assert not [name for name in named - operations if not re.search(rf"\b{name}\b", code)]


def test_program_of_the_page_runs(job):
    """Compiled by XLA itself: each rank has a sum of all, then the scan of the sums."""
    (program,) = blocks("mlir")
    done = job(
        2,
        """
        import sys
        import jax
        import numpy as np
        from jaxlib import xla_client
        from jax.extend.backend import get_backend
        from mpi4py import MPI
        import mpixla

        rank = MPI.COMM_WORLD.Get_rank()
        devices = xla_client.DeviceList(tuple(jax.devices()))
        program = get_backend().compile_and_load(sys.argv[1], devices, xla_client.CompileOptions())
        x = jax.device_put(np.arange(3, dtype=np.float32) + rank)
        ((result,),) = program.execute_sharded([x]).disassemble_into_single_device_arrays()
        x = np.arange(2)[:, None] + np.arange(3)
        np.testing.assert_array_equal(result, (rank + 1) * x.sum(axis=0))
        print("right")
        """,
        program,
    )
    assert done.stdout.split() == ["right", "right"]
