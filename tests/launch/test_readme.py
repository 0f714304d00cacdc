"""The README and the pages of reference say what is so."""

import importlib.util
import inspect
import pickle
import re
import tomllib
from pathlib import Path

import pytest

import mpixla
from jobs import alone
from mpixla.mpi import native
from reference import ROWS

pytestmark = pytest.mark.any_mpi

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text()


# Rows of native/tables/ops.def that are no operation of their own, and the operations that are made of them.
SHARED = {
    "exchange": {"neighbor_allgather", "neighbor_alltoall", "neighbor_alltoallv"},
    "halo_transpose": set(),
    "isendrecv": {"isendrecv", "halo_start"},
    "sendrecv": {"sendrecv", "shift"},
    "wait": {"wait", "waitall", "overlap"},
    "wait_recv": set(),
    "wait_send": set(),
}
OPERATIONS = set().union(*(SHARED.get(row, {row}) for row in (*native.ops, *native.request_ops)))


def test_table_of_operations():
    """One row an operation, with the signature that it has."""
    page = (DOCS / "reference.md").read_text()
    rows = dict(re.findall(r"^\| \[`(\w+)\((.*?)\)`\]", page.partition("## Also")[0], re.MULTILINE))
    assert set(rows) == OPERATIONS | {"fsum", "vdot", "norm"}
    for name, arguments in rows.items():
        signature = inspect.signature(getattr(mpixla, name))
        assert [p.split("=")[0].lstrip("*") for p in arguments.split(", ") if p != "*"] == list(signature.parameters)


def test_table_links_to_the_docstring_of_each_function():
    rows = re.findall(r"^\| (.*`\w+\(.*?) \|", (DOCS / "reference.md").read_text(), re.MULTILINE)
    assert len(rows) > 40
    for row in rows:
        calls = re.findall(r"\[`(\w+)\([^`]*`\]\(([\w/.]+)#mpixla\.(\w+)\)", row)
        assert len(calls) == row.count("(api/") > 0
        for name, target, anchor in calls:
            assert name == anchor
            assert f"\n.. autofunction:: {name}\n" in (DOCS / target).read_text()


def test_names_of_the_package():
    assert dir(mpixla) == sorted([*mpixla.__all__, "__version__"])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert mpixla.__version__ == project["version"]


@pytest.mark.parametrize("name", mpixla.__all__)
def test_names_can_be_pickled(name):
    """As what processes of multiprocessing are given."""
    thing = getattr(mpixla, name)
    assert pickle.loads(pickle.dumps(thing)) is thing


def test_every_operation_is_exported():
    assert OPERATIONS.issubset(mpixla.__all__)


def test_the_oracle_has_every_operation():
    """But those that are made of others, and the one that raises: suites in tests/spmd are drawn from it."""
    assert OPERATIONS - {row.name for row in ROWS} == {"assert_replicated", "overlap", "wait", "waitall"}


def test_every_name_is_on_one_page_of_reference():
    """What users can import has its docstring shown once, and a row in the table or a mention."""
    shown = [
        name
        for page in (DOCS / "api").glob("*.md")
        for name in re.findall(r"^\.\. auto(?:function|class|exception):: (\w+)$", page.read_text(), re.MULTILINE)
    ]
    assert sorted(shown) == sorted([*mpixla.__all__, "JaxVersionWarning"])
    page = (DOCS / "reference.md").read_text()
    assert {name for name in mpixla.__all__ if not re.search(rf"\b{name}\b", page)} == {"Request"}


def test_every_environment_variable_is_explained():
    python = "".join(path.read_text() for path in Path(mpixla.__file__).parent.glob("**/*.py"))
    c = "".join(path.read_text() for path in (ROOT / "native").glob("*/*.c") if path.parent.name != "test")
    read = {*re.findall(r"MPIXLA_\w+", python), *re.findall(r'"(MPIXLA_\w+)"', c)} - {
        "MPIXLA_ABI_VERSION"
    }  # a constant
    assert read == set(re.findall(r"`(MPIXLA_\w+)=", (DOCS / "environment.md").read_text()))


def test_every_option_of_run_is_explained():
    told = alone("-m", "mpixla", "run", "--help")
    assert told.returncode == 0, told.stderr
    page = (DOCS / "clusters.md").read_text().partition("\n## Start\n")[2].partition("\n## ")[0]
    options = set(re.findall(r"^  (?:-\w \w, )?(--[\w-]+)", told.stdout, re.MULTILINE)) - {
        "--help",
        "--ranks",
    }  # which is -n
    assert len(options) > 8
    assert options == set(re.findall(r"(?<=`)--[\w-]+", page))


def test_matrix_is_up_to_date():
    done = alone(ROOT / "tests" / "matrix.py")
    assert done.returncode == 0, done.stderr
    _, _, rest = (DOCS / "reference.md").read_text().partition("<!-- tests/matrix.py writes this -->\n")
    assert rest.partition("<!-- until here -->\n")[0] == f"\n{done.stdout}\n", "run: python tests/matrix.py --write"


def test_diagrams_are_up_to_date():
    path = DOCS / "diagrams" / "draw.py"
    found = importlib.util.spec_from_file_location("draw", path)
    draw = importlib.util.module_from_spec(found)
    found.loader.exec_module(draw)
    drawn = {f"{diagram.__name__}.svg": str(diagram()) for diagram in draw.DIAGRAMS}
    assert drawn == {file.name: file.read_text() for file in path.parent.glob("*.svg")}, "run: docs/diagrams/draw.py"


def test_every_example_is_shown():
    page = (DOCS / "examples.md").read_text()
    for example in (ROOT / "examples").glob("*.py"):
        if example.stem not in ("showing", "blocks"):  # what the others share
            assert f"](../examples/{example.name})" in page, example
            assert f"examples/{example.name}" in page.split(f"](../examples/{example.name})")[1], "its command"
    for picture in (DOCS / "gallery").iterdir():
        assert f"(gallery/{picture.name})" in page, picture
