"""The README says what is so."""

import inspect
import re
from pathlib import Path

import mpixla
from mpixla import _native

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_example_prints_what_the_readme_says(job):
    code = re.search(r"```python\n(# sum.py\n.*?)```", README, re.DOTALL)[1]
    command, output = re.search(r"```console\n(\$ .*?)\n(.*?)```", README, re.DOTALL).groups()
    assert command == "$ mpirun -n 4 python sum.py"
    assert job(4, code).stdout == output


def test_table_of_operations():
    """One row an operation, with the signature that it has."""
    table = README.split("## Operations")[1].split("## Environment")[0]
    started = set(_native.request_ops) - {"wait", "wait_recv", "wait_send"}
    rows = dict(re.findall(r"^\| `(\w+)\((.*?)\)` \|", table, re.MULTILINE))
    assert set(rows) == set(_native.ops) | started | {"wait", "waitall"}
    for name, arguments in rows.items():
        signature = inspect.signature(getattr(mpixla, name))
        assert [p.split("=")[0] for p in arguments.split(", ") if p != "*"] == list(signature.parameters)


def test_every_operation_is_exported():
    assert set(_native.ops) <= set(mpixla.__all__)


def test_every_environment_variable_is_explained():
    source = "".join(path.read_text() for path in Path(mpixla.__file__).parent.glob("**/*.py"))
    assert set(re.findall(r"MPIXLA_\w+", source)) == set(re.findall(r"`(MPIXLA_\w+)=", README))
