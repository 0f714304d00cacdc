"""The commands of README, docs/install.md and docs/clusters.md, typed into a shell, in an empty home."""

import re
from pathlib import Path

import pytest
from PIL import Image

import pages
from jobs import facts

pytestmark = pytest.mark.timeout(1200)

INSTALL, CLUSTERS = pages.DOCS / "install.md", pages.DOCS / "clusters.md"
ACTIVATE = ". env/bin/activate\n"
ENGINES = '''
import ipyparallel

with ipyparallel.Cluster(engines="mpi", n=2) as ranks:
    view = ranks[:]
    view.block = True
    view.execute(
        """
import jax, jax.numpy as jnp, mpixla
from mpi4py import MPI
rank = MPI.COMM_WORLD.Get_rank()
total = jax.jit(lambda x: mpixla.allreduce(x, op=MPI.SUM))(jnp.float32(rank + 1))
"""
    )
    print(view.pull("rank"), view["total"])
'''
DEBIAN_S_MPICH = Path("/usr/lib/x86_64-linux-gnu/libmpich.so.12")


def facts_in(said):
    """Return the facts on the installation in the output of a shell."""
    return facts("\n".join(line for line in said.splitlines() if "  " in line))


def test_readme(home):
    home.type(pages.block(pages.README, "pip install '.[demo]'").text)
    with Image.open(home.repository / "jet.gif") as film:
        assert film.format == "GIF"
        assert film.n_frames > 1
    (home.repository / "ring.py").write_text(pages.block(pages.README, "# ring.py").text)
    command, output = re.fullmatch(
        r"\$ (.*)\n((?:.*\n)*)", pages.block(pages.README, "$ python -m mpixla").text
    ).groups()
    assert home.type(ACTIVATE + command) == output


class TestWorkstation:
    """One after the other, in one home."""

    def test_install(self, home):
        home.type(pages.block(INSTALL, "pip install mpich").text)
        said = home.type(ACTIVATE + pages.block(INSTALL, "-m mpixla test").text)
        assert facts_in(said)["MPI library"].startswith(str(home.repository / "env"))
        assert "checks passed on 2 ranks." in said
        assert "mpixla bench: 2 ranks" in said

    @pytest.mark.parametrize("page", ["install", "gpu"])
    def test_gpu(self, home, page):
        """What pip would install, since it is gigabytes of CUDA. The program is happy with CPUs as well."""
        page = pages.DOCS / f"{page}.md"
        for block in pages.blocks(page, "python"):
            (home.repository / "sum.py").write_text(block.text)
        dry = 'pip() { command pip "$@" --dry-run; }\n'
        said = home.type(ACTIVATE + dry + pages.block(page, "cuda13").text, JAX_PLATFORMS="cpu")
        (line,) = [line for line in said.splitlines() if line.startswith("Would install")]
        assert re.search(r"\bjax-cuda13-plugin-", line)
        if pages.blocks(page, "python"):
            assert said.splitlines()[-2:] == ["[2. 2. 2.]"] * 2

    def test_ipyparallel(self, home):
        home.type(ACTIVATE + pages.block(pages.DOCS / "other_tools.md", "pip install ipyparallel").text)
        (home.repository / "session.py").write_text(ENGINES)
        printed = home.type(ACTIVATE + "python session.py").splitlines()[-1:]
        assert printed == ["[0, 1] [Array(3., dtype=float32), Array(3., dtype=float32)]"]

    def test_notebook(self, home):
        """The cells of docs/other_tools.md's notebook."""
        notebook = pages.block(pages.DOCS / "other_tools.md", "In [1]: ").text
        cells = re.findall(r"^In \[\d+\]: (.*\n(?:   \.\.\.: .*\n)*)", notebook, re.MULTILINE)
        assert len(cells) == 4
        typed = [cell.replace("   ...: ", "") for cell in cells]
        (home.repository / "cells.py").write_text(
            "import IPython\n"
            "shell = IPython.core.interactiveshell.InteractiveShell.instance()\n"
            f"for cell in {typed!r}:\n"
            "    shell.run_cell(cell).raise_error()\n"
        )
        said = home.type(ACTIVATE + "python cells.py")
        for line in re.findall(r"^Out.*$", notebook, re.MULTILINE):
            assert line.partition(": ")[2] in said


class TestCluster:
    """One after the other, in one home: a site's MPI is a module, and no other is installed."""

    def test_install(self, home, site, openmpi):
        home.type("python3 -m venv env")
        said = home.type(
            ACTIVATE + pages.block(INSTALL, "module load openmpi").text + "python -m mpixla run -n 2 -m mpixla", **site
        )
        assert facts_in(said)["MPI library"].startswith(str(openmpi))
        assert facts_in(said)["ranks"].startswith("2 ")

    def test_clusters(self, home, site, openmpi):
        install = pages.block(CLUSTERS, "/path/to/mpixla").text.replace("/path/to/mpixla", str(home.repository))
        home.type(install, **site)
        loaded = "module load openmpi\nsource ~/mpixla/bin/activate\n"
        said = home.type(loaded + pages.block(CLUSTERS, "-m mpixla bench").text, **site)
        assert facts_in(said)["MPI library"].startswith(str(openmpi))
        assert "checks passed on 2 ranks." in said

    @pytest.mark.skipif(not DEBIAN_S_MPICH.exists(), reason=f"there is no {DEBIAN_S_MPICH} (Debian's package mpich)")
    def test_mpich_of_debian(self, home):
        install = pages.block(CLUSTERS, "/path/to/mpixla").text.replace("/path/to/mpixla", str(home.repository))
        home.type("".join(line for line in install.splitlines(keepends=True) if "module load" not in line))
        said = home.type(pages.block(CLUSTERS, "~/mpich-lib").text)
        assert facts_in(said)["MPI"].startswith("MPICH Version: 4.")
        assert facts_in(said)["ranks"].startswith("2 ")
