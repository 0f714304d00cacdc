"""The README says what is so."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import mpixla
from mpixla.runtime import native

README = (Path(__file__).parents[2] / "README.md").read_text()


# Rows of native/tables/ops.def that are no operation of their own, and the operations that are made of them.
SHARED = {
    "exchange": {"neighbor_allgather", "neighbor_alltoall", "neighbor_alltoallv"},
    "halo_transpose": set(),
    "wait": {"wait", "waitall"},
    "wait_recv": set(),
    "wait_send": set(),
}
OPERATIONS = set().union(*(SHARED.get(row, {row}) for row in (*native.ops, *native.request_ops)))


def test_example_prints_what_the_readme_says(job):
    code = re.search(r"```python\n(# sum.py\n.*?)```", README, re.DOTALL)[1]
    command, output = re.search(r"```console\n(\$ .*?)\n(.*?)```", README, re.DOTALL).groups()
    assert command == "$ mpirun -n 4 python sum.py"
    assert job(4, code).stdout == output


def test_table_of_operations():
    """One row an operation, with the signature that it has."""
    table = README.split("## Operations")[1].split("## Environment")[0]
    rows = dict(re.findall(r"^\| `(\w+)\((.*?)\)` \|", table, re.MULTILINE))
    assert set(rows) == OPERATIONS
    for name, arguments in rows.items():
        signature = inspect.signature(getattr(mpixla, name))
        assert [p.split("=")[0] for p in arguments.split(", ") if p != "*"] == list(signature.parameters)


def test_every_operation_is_exported():
    assert OPERATIONS.issubset(mpixla.__all__)


def test_every_environment_variable_is_explained():
    source = "".join(path.read_text() for path in Path(mpixla.__file__).parent.glob("**/*.py"))
    assert set(re.findall(r"MPIXLA_\w+", source)) == set(re.findall(r"`(MPIXLA_\w+)=", README))


def test_matrix_is_up_to_date():
    tests = Path(__file__).parents[1]
    printed = subprocess.run([sys.executable, tests / "matrix.py"], capture_output=True, text=True, check=True).stdout
    assert (tests.parent / "docs/matrix.md").read_text() == printed, "run: python tests/matrix.py > docs/matrix.md"
