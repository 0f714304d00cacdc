"""These tests start jobs on two hosts (network.py), as a user would with ssh between them."""

import math
import os
import shlex
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import network
import pytest

import modules

ROOT = Path(__file__).parents[2]
# For processes to go after their job has ended, seconds.
GRACE = 15


def pytest_addoption(parser):
    parser.addoption("--rate", default="2gbit", help="of the network between the hosts, as tc(8) says it")


def _family():
    said = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=False).stdout
    return "openmpi" if "Open MPI" in said or "open-mpi" in said else "mpich"


FAMILY = _family()


@pytest.fixture(scope="session")
def hosts(request):
    """Yield both hosts, and leave nothing of them after the tests."""
    try:
        made = network.Network(request.config.getoption("rate"))
    except network.CannotBeMadeError as e:
        pytest.skip(f"two hosts cannot be made here: {e}")
    yield made
    made.remove()


def _launch(ssh, n, environment, options):
    """Return the command that starts n ranks, the first half on the first host."""
    each = math.ceil(n / 2)
    if FAMILY == "mpich":
        first = ["mpiexec", "-launcher", "ssh", "-launcher-exec", ssh, "-hosts", ",".join(network.NAMES), "-ppn", each]
    else:
        # It passes on only the variables that it is told, and the "hosts" have the same processors.
        first = ["mpirun", "--prtemca", "plm_ssh_agent", ssh, "--host", ",".join(f"{h}:{each}" for h in network.NAMES)]
        first += ["--bind-to", "none"]
        first += [word for name in environment for word in ("-x", name)]
    return [*map(str, first), "-n", str(n), *options]


def _shown(left):
    return "".join(f"\n  {name}: {line[:100]}" for name, lines in left.items() for line in lines.values())


def _but(processes, words):
    rest = {
        name: {number: line for number, line in lines.items() if not any(word in line for word in words)}
        for name, lines in processes.items()
    }
    return {name: lines for name, lines in rest.items() if lines}


def but_ssh(processes):
    """Leave out ssh, which stays for as long as its connection seems to exist."""
    return _but(processes, ["/ssh -x "])


def but_launchers(processes):
    """Leave out mpirun and its daemons, too: only ranks remain."""
    return _but(processes, ["/ssh -x ", "hydra_pmi_proxy", "mpiexec", "prterun", "prted"])


class Jobs:
    """The type of `hosts_job`."""

    def __init__(self, hosts, folder):
        self.hosts, self.folder = hosts, folder

    def __call__(
        self,
        n,
        code,
        *arguments,
        timeout=100,
        check=True,
        during=None,
        options=(),
        module=None,
        launch=None,
        **environment,
    ):
        """Run Python code on n ranks, the first half on the first host, where mpirun is: a CompletedProcess.

        A job that does not end in time, or leaves processes, fails the test with what it printed.

        Args:
            n: ranks.
            code: what each runs; a Path is a file.
            arguments: of the program.
            timeout: seconds.
            check: the exit status must be 0.
            during: a function that is called once the job was started.
            options: mpirun's.
            module: one that runs the code.
            launch: the command that starts the ranks, up to the code, in place of mpirun.
            environment: variables that all ranks have.
        """
        script = code if isinstance(code, Path) else self.folder / "script.py"
        if script is not code:
            script.write_text(textwrap.dedent(code))
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "PYTHONUNBUFFERED": "",
            # Compiling is what takes the time (tests/spmd/conftest.py).
            "JAX_COMPILATION_CACHE_DIR": str(ROOT / "build" / "programs"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            **environment,
        }
        launch = launch or [*_launch(self.hosts.ssh, n, environment, options), sys.executable]
        words = ["env", "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"]
        words += [f"{name}={value}" for name, value in environment.items()]
        words += [*map(str, launch), *(["-m", module] if module else []), str(script), *map(str, arguments)]
        command = [
            str(self.hosts.ssh),
            network.NAMES[0],
            f"cd {shlex.quote(str(self.folder))} && exec {shlex.join(words)}",
        ]
        return self._run(command, timeout, check, during)

    def _run(self, command, timeout, check, during):
        out, err = self.folder / "out", self.folder / "err"
        with out.open("w") as to_out, err.open("w") as to_err:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=to_out, stderr=to_err)
            try:
                if during:
                    during()
                status = process.wait(timeout)
                left = self._left()
            except subprocess.TimeoutExpired:
                status, left = None, self.hosts.processes()
            finally:
                for host in self.hosts.hosts:
                    host.kill_all()
                process.kill()
                process.wait()
        out, err = out.read_text(errors="replace"), err.read_text(errors="replace")
        printed = f"\n-- stdout\n{out}\n-- stderr\n{err}\n"
        if status is None:
            pytest.fail(f"the job did not end within {timeout} s; there are {_shown(left)}{printed}")
        if left:
            pytest.fail(f"{GRACE} s after the job's end ({status}) there are still {_shown(left)}{printed}")
        if check and status != 0:
            pytest.fail(f"the job ended with {status}{printed}")
        return subprocess.CompletedProcess(command, status, out, err)

    def _left(self):
        until = time.monotonic() + GRACE
        while (left := but_ssh(self.hosts.processes())) and time.monotonic() < until:
            time.sleep(0.1)
        return left


@pytest.fixture
def hosts_job(hosts, tmp_path):
    return Jobs(hosts, tmp_path)


@pytest.fixture
def site(tmp_path):
    """Return the variables of a user whose environment is ~/mpixla, at a site that calls its MPI `openmpi`."""
    (tmp_path / "mpixla").symlink_to(sys.prefix)
    (tmp_path / "modules").mkdir()
    return {"HOME": str(tmp_path), **modules.make(tmp_path / "modules", sys.prefix)}


@pytest.fixture
def until_mark(tmp_path):
    """Wait until a rank has made the file `mark`."""

    def wait():
        until = time.monotonic() + 60
        while not (tmp_path / "mark").exists() and time.monotonic() < until:
            time.sleep(0.05)

    return wait


@pytest.fixture
def link(hosts):
    """Yield the second host, whose link is up again after the test."""
    host = hosts.hosts[1]
    yield host
    host.set_link(True)
    for each in hosts.hosts:
        each.wait_for_link()
