"""docs/clusters.md's container, built and started by Charliecloud. Its base is made of Debian's packages."""

import os
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


@pytest.fixture
def base(tmp_path):
    """An archive of a system with Python, and with this one's certificates for pip."""
    missing = [package for tool, package in TOOLS.items() if not shutil.which(tool)]
    if missing:
        pytest.skip(f"there are no containers here (on Debian: apt-get install {' '.join(missing)})")
    if os.geteuid() != 0:
        pytest.skip("only root can make a system to build on")
    root, archive = tmp_path / "root", tmp_path / "base.tar"
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


def test_container(home, base, openmpi, tmp_path):
    context = home.repository / "context"
    context.mkdir()
    dockerfile = pages.block(CLUSTERS, "FROM ")
    (context / "Dockerfile").write_text(dockerfile.text)
    (context / "model.py").write_text(MODEL)
    system = {"PATH": os.defpath, "USER": "root", "CH_IMAGE_STORAGE": str(tmp_path / "images")}
    name = dockerfile.text.split()[1]
    home.type("python3 -m venv env && env/bin/pip wheel --no-deps --wheel-dir context .")
    home.type(f"ch-image --no-cache import {base} {name}", **system)
    build, start = pages.block(CLUSTERS, "ch-run").text.split("\n", 1)
    home.type(f"cd context && {build.replace('ch-image', 'ch-image --no-cache')}", **system)
    start = start.replace("/opt/openmpi", str(openmpi)).replace("srun ", f"{openmpi}/bin/mpirun -n 2 ")
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    said = home.type(f"cd context && {start}", **system, **root)
    assert sorted(said.splitlines()) == [f"{r} [2.0, 2.0] Open MPI v5.0.11" for r in range(2)]
