"""docs/clusters.md's container and the one in .devcontainer, built by Charliecloud on a base of Debian's packages."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import pages

pytestmark = pytest.mark.timeout(1200)

CLUSTERS = pages.DOCS / "clusters.md"
TOOLS = {"ch-image": "charliecloud python3-lark", "ch-run": "charliecloud", "debootstrap": "debootstrap"}
MODEL = """
import jax.numpy as jnp, mpixla
from mpi4py import MPI
total = mpixla.allreduce(jnp.ones(2), op=MPI.SUM)
print(MPI.COMM_WORLD.rank, total.tolist(), MPI.Get_library_version().split(",")[0])
"""


# Charliecloud is the system's, and so is its Python.
SYSTEM = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "USER": "root"}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Return an archive of a system with Python, and with this one's certificates for pip."""
    missing = [package for tool, package in TOOLS.items() if not shutil.which(tool)]
    if missing:
        pytest.skip(f"there are no containers here (on Debian: apt-get install {' '.join(missing)})")
    if os.geteuid() != 0:
        pytest.skip("only root can make a system to build on")
    folder = tmp_path_factory.mktemp("base")
    root, archive = folder / "root", folder / "base.tar"
    subprocess.run(
        ["debootstrap", "--variant=minbase", "--include=python3,python3-pip", "bookworm", root],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    (root / "usr/bin/python").symlink_to("python3")
    (root / "usr/lib/python3.11/EXTERNALLY-MANAGED").unlink()
    certificates = Path("/etc/ssl/certs/ca-certificates.crt")
    if certificates.exists():
        (root / "etc/ssl/certs").mkdir(parents=True, exist_ok=True)
        shutil.copy(certificates, root / "etc/ssl/certs")
    # Without what only a kernel can fill.
    but = [f"--exclude=./{folder}/*" for folder in ("dev", "proc", "sys")]
    subprocess.run(
        ["tar", "--create", "--one-file-system", *but, f"--file={archive}", f"--directory={root}", "."], check=True
    )
    shutil.rmtree(root)
    return archive


@pytest.fixture
def image(home, base, tmp_path):
    """Build an image of a folder of the repository, and return the variables with which it is found."""
    system = {**SYSTEM, "CH_IMAGE_STORAGE": str(tmp_path / "images")}

    def build(command, folder):
        (come_from,) = re.findall(r"^FROM (.*)$", (home.repository / folder / "Dockerfile").read_text(), re.MULTILINE)
        home.type(f"ch-image --no-cache import {base} {come_from}", **system)
        home.type(f"cd {folder} && {command.replace('ch-image', 'ch-image --no-cache')}", **system)
        return system

    return build


def test_container(home, image, openmpi):
    context = home.repository / "context"
    context.mkdir()
    (context / "Dockerfile").write_text(pages.block(CLUSTERS, "FROM ").text)
    (context / "model.py").write_text(MODEL)
    home.type("python3 -m venv env && env/bin/pip wheel --no-deps --wheel-dir context .")
    build, start = pages.block(CLUSTERS, "ch-run").text.split("\n", 1)
    system = image(build, "context")
    start = start.replace("/opt/openmpi", str(openmpi)).replace("srun ", f"{openmpi}/bin/mpirun -n 2 ")
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    lines = home.type(f"cd context && {start}", **system, **root).splitlines()
    assert [line.partition(" Open MPI v5.")[:2] for line in sorted(lines)] == [
        (f"{rank} [2.0, 2.0]", " Open MPI v5.") for rank in range(2)
    ]


def test_dev_container(home, image):
    """It has what the Makefile takes from the system."""
    system = image("ch-image build --force --tag dev .", ".devcontainer")
    after = json.loads((home.repository / ".devcontainer/devcontainer.json").read_text())["postCreateCommand"]
    home.type(f"ch-run --bind {home.repository} --cd {home.repository} dev -- {after}", **system)
    assert (home.repository / ".venv/mpich-3.11/bin/mpirun").exists()
