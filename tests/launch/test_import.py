"""Importing mpixla: alone, under MPI, and where MPI cannot be used."""

import _ctypes
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mpi4py import MPI

import mpixla
import pages
from jobs import ROOT, alone
from mpixla.base import files, host_lock, settings
from mpixla.base.state import state
from mpixla.checks import agreement
from mpixla.mpi import arrival, native


def python(code, **environment):
    return alone("-c", code, **environment)


def test_import_does_little():
    """It does not start JAX, whose devices can be chosen later, it uses nothing that goes, and threads take turns."""
    done = python(
        "import warnings; warnings.simplefilter('error'); import mpi4py; mpi4py.rc.thread_level = 'serialized'\n"
        "import mpixla, jax; jax.config.update('jax_num_cpu_devices', 2); print(len(jax.devices())); mpixla.barrier()"
    )
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr


def test_package_in_two_folders(monkeypatch, tmp_path):
    """After `pip install -e` what was built is not beside the sources."""
    library = files.own_file("libmpixla.so")
    monkeypatch.setattr(mpixla, "__path__", [str(tmp_path), *mpixla.__path__])
    assert files.own_file("libmpixla.so") == library
    assert files.own_file("nothing") == tmp_path / "nothing"


@pytest.mark.parametrize("has_version", [True, False])
def test_library_of_another_installation(tmp_path, has_version):
    """Its functions would be called with arguments that are not theirs."""
    package = tmp_path / "mpixla"
    shutil.copytree(Path(mpixla.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    if has_version:
        file = package / "mpi/native.py"
        text = file.read_text()
        assert f"\nABI_VERSION = {native.ABI_VERSION} " in text
        file.write_text(text.replace("\nABI_VERSION = ", "\nABI_VERSION = 9"))
        needed, found = f"9{native.ABI_VERSION}", f"ABI version {native.ABI_VERSION}"
    else:  # any other library
        shutil.copy(_ctypes.__file__, package / "libmpixla.so")
        needed, found = str(native.ABI_VERSION), "no ABI version"
    done = python("import mpixla", PYTHONPATH=str(tmp_path))
    assert done.returncode != 0
    assert "ImportError: mpixla's C library and its Python files are not of one installation" in done.stderr
    assert f"{package / 'libmpixla.so'} has {found}, but the Python files need {needed}. Install" in done.stderr


def test_version_is_the_headers():
    header = (ROOT / "include/mpixla.h").read_text()
    assert f"\n#define MPIXLA_ABI_VERSION {native.ABI_VERSION}\n" in header


def test_too_low_a_thread_level():
    done = python("import mpi4py; mpi4py.rc.thread_level = 'funneled'; import mpixla")
    assert done.returncode != 0
    assert "ImportError: MPI was initialized with the thread level MPI_THREAD_FUNNELED" in done.stderr
    assert "mpi4py.rc.thread_level = 'multiple'" in done.stderr


def test_mpi_not_initialized():
    done = python("import mpi4py; mpi4py.rc.initialize = False; import mpixla")
    assert done.returncode != 0
    assert "ImportError: mpixla needs MPI to be running" in done.stderr


def test_no_mpi_library():
    done = python("import mpixla", MPI4PY_LIBMPI="/nowhere/libmpi.so")
    assert done.returncode != 0
    assert "ImportError: MPI4PY_LIBMPI names /nowhere/libmpi.so, which mpi4py cannot load. Name the" in done.stderr
    assert done.stderr.count("Traceback (most recent call last)") == 1


@pytest.mark.parametrize("asked_before", [False, True])
def test_import_that_waits_is_reported(monkeypatch, capsys, asked_before):
    """Once for the ranks of a host."""
    monkeypatch.delenv("MPIXLA_TIMEOUT", raising=False)
    monkeypatch.setattr(arrival, "_LEAST", 0.05)
    monkeypatch.setattr(os, "getppid", lambda: f"{os.getpid()} {asked_before}")
    if asked_before:
        assert host_lock.take_lock(f"import mpixla {os.getppid()}")
    said, until = "", time.monotonic() + (0.5 if asked_before else 60)
    with arrival.limit_wait():
        while not said and time.monotonic() < until:
            time.sleep(0.05)
            said = capsys.readouterr().err
    assert ("mpixla: rank 0 has waited for 0.05 s in `import mpixla`, and goes on waiting." in said) != asked_before
    assert ("has chosen a network that does not connect the hosts" in said) != asked_before


START = """
import os, sys, time
rank = os.environ.get("PMI_RANK") or os.environ["OMPI_COMM_WORLD_RANK"]
"""


@pytest.mark.long
def test_start_of_mpi_that_waits_is_reported(job):
    """As where a rank has no script, or does something else before it imports anything."""
    done = job(2, f"{START}if rank == '1':\n    time.sleep(25)\nimport mpixla")
    assert "20 s in the start of MPI, and goes on waiting. All processes" in done.stderr
    assert done.stderr.count("mpixla: ") == 1


STARTED = """
import sys, time
from mpixla.mpi import mpi
del sys.modules["mpi4py.MPI"]
mpi._PATIENCE = 0.2
mpi.started.detect_launcher = lambda: ("RANKS", "a launcher", 2)
with mpi._report_late_start():
    pass
time.sleep(1)
"""


@pytest.mark.any_mpi
def test_fast_start_of_mpi_is_not_reported():
    done = alone("-c", STARTED)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(
    "MPICH" not in MPI.Get_library_version(), reason="of MPICH: its launcher speaks through a descriptor"
)
def test_program_between_the_launcher_and_python(job):
    """It starts Python without the launcher's descriptor."""
    code = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', 'import mpixla']))"
    done = job(2, code, check=False, timeout=60)
    assert done.returncode != 0
    assert "(PMI_FD), which is not open: a program between mpiexec and Python has closed it" in done.stderr
    assert "Have mpiexec start Python itself" in done.stderr


@pytest.mark.long
def test_pool_whose_workers_import_the_script(job):
    """A limit ends the job; without one the same is said, and the root goes on waiting."""
    done = job(
        3,
        "import mpixla\nfrom mpi4py.futures import MPIPoolExecutor\nMPIPoolExecutor().submit(abs, -1).result()\n",
        python=("-m", "mpi4py.futures"),
        check=False,
        MPIXLA_TIMEOUT="2",
    )
    assert done.returncode != 0
    assert "in `import mpixla`" in done.stderr
    assert "Import mpixla on this rank after each worker was asked to" in done.stderr


def test_pools_of_workers(job, tmp_path):
    """docs/other_tools.md's program, and the same with workers that MPI spawns."""
    program = pages.block(pages.DOCS / "other_tools.md", "MPIPoolExecutor").text
    done = job(3, program, python=("-m", "mpi4py.futures"))
    assert done.stdout == "[0.0, 1.0, 4.0, 9.0]\n"
    done = job(1, program.replace("MPIPoolExecutor()", "MPIPoolExecutor(2)"))
    assert done.stdout == "[0.0, 1.0, 4.0, 9.0]\n"


POOL = """
def square(i):
    return i * i
if __name__ == "__main__":
    IMPORT
    import multiprocessing
    with multiprocessing.get_context("METHOD").Pool(2) as pool:
        print(pool.map(square, range(4)))
    mpixla.barrier()
"""


WORKERS = """
import mpixla
def square(i):
    return i * i
if __name__ == "__main__":
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    with ProcessPoolExecutor(1, multiprocessing.get_context("METHOD")) as pool:
        try:
            pool.submit(square, 2).result()
        except BrokenProcessPool:
            print("broken", flush=True)
    mpixla.barrier()
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_processes_of_multiprocessing_are_no_ranks(job, method):
    """They import the script; the rank itself goes on."""
    done = job(2, WORKERS.replace("METHOD", method), timeout=60)
    assert done.stdout == "broken\n" * 2
    refused = re.findall(
        r"^ImportError: multiprocessing has .* on rank (\d) of an MPI job, so", done.stderr, re.MULTILINE
    )
    assert sorted(refused) == ["0", "1"]
    assert 'Import mpixla, and mpi4py, under `if __name__ == "__main__":`' in done.stderr


def test_processes_of_multiprocessing_that_do_not_import_it(job):
    code = POOL.replace("IMPORT", "import mpixla").replace("METHOD", "spawn")
    done = job(2, code)
    assert sorted(done.stdout.splitlines()) == ["[0, 1, 4, 9]"] * 2
    assert done.stderr == ""


def test_processes_of_multiprocessing_without_a_launcher(tmp_path):
    """Each is a job of its own."""
    (tmp_path / "pool.py").write_text(f"import mpixla\n{POOL}".replace("IMPORT", "").replace("METHOD", "spawn"))
    done = alone(tmp_path / "pool.py")
    assert done.stdout == "[0, 1, 4, 9]\n", done.stderr


def test_process_that_a_rank_starts(job):
    """As the page says: without the variables of the launcher, or as a launcher of another job."""
    environment = pages.block(pages.DOCS / "sharp_bits.md", "env = {").text
    code = f"""{environment}
import mpixla
import subprocess, sys

def said_by(*command, **how):
    command = [*command, sys.executable, "-c", "import mpixla; mpixla.barrier(); print('there')"]
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60, **how)

for done in (said_by(env=env), said_by(sys.argv[1], "-n", "2")):
    print(done.stdout, done.stderr)
"""
    assert job(1, code, ROOT / "tools/mpirun").stdout.split() == ["there"] * 3


def test_launcher_of_another_mpi():
    """Open MPI's and MPICH's library, which ends the process in MPI_Init."""
    done = python("import mpixla", OMPI_COMM_WORLD_RANK="0")
    is_other = "MPICH" in MPI.Get_library_version()
    assert ("mpixla: Open MPI's mpirun has started this process, but the library" in done.stderr) == is_other


# What the environment says, and what ranks do whose environments differ.


@pytest.mark.parametrize("word", ["y", "Yes", "1", "true", "ON", "n", "No", "0", "false", "OFF"])
def test_words_for_yes_and_no(word, monkeypatch):
    """They are the same for every variable."""
    is_yes = word.lower() in ("y", "yes", "1", "true", "on")
    for otherwise in (True, False):
        monkeypatch.setenv("SOME_VARIABLE", word)
        assert settings.is_on("SOME_VARIABLE", otherwise=otherwise) == is_yes
        monkeypatch.setenv("SOME_VARIABLE", "")
        assert settings.is_on("SOME_VARIABLE", otherwise=otherwise) == otherwise
    monkeypatch.setenv(settings.CHECK, word)
    assert agreement._read_check_mode() == ("lines" if is_yes else "off")


def test_ranks_agree_by_one_exchange(monkeypatch):
    """Each part gets what each rank wants of it."""
    sent, began = [], []

    class Comm:
        def allgather(self, wishes):
            sent.append(wishes)
            return [wishes, [True, "more", None]]

    def part(wish):
        return lambda: wish, began.append

    monkeypatch.setattr(state, "reports", False)
    monkeypatch.setattr(agreement, "_PARTS", (part("some"), part(0.5)))
    monkeypatch.setattr(agreement, "own_comm", Comm)
    for variable in (settings.CHECK, settings.TIMEOUT, settings.TRACE):
        monkeypatch.delenv(variable, raising=False)
    agreement.begin_agreed_parts()
    assert sent == [[False, "some", 0.5]]
    assert began == [("some", "more"), (0.5, None)]
    assert state.reports is True


OTHER_ON_RANK_1 = """
import os
from mpi4py import MPI
if MPI.COMM_WORLD.rank == 1:
    os.environ["{}"] = "{}"
import jax.numpy as jnp, mpixla
from mpixla.core import eager
x = jnp.ones(3)
mpixla.allreduce(x, op=MPI.SUM)
mpixla.allreduce(x, op=MPI.SUM)
print(len(eager._programs))
"""


def test_no_place_for_files(job):
    """On one rank, which then speaks for itself."""
    code = """
        import tempfile
        from mpi4py import MPI
        if MPI.COMM_WORLD.rank == 1:
            tempfile._candidate_tempdir_list = lambda: ["/proc/nowhere"]
        import mpixla
        mpixla.barrier()
        print("there", flush=True)
        MPI.COMM_WORLD.rank or MPI.COMM_WORLD.recv()
        raise KeyError("no")
        """
    done = job(2, code, check=False)
    assert done.stdout.split() == ["there"] * 2
    assert "rank 1 ended" in done.stderr
    assert "KeyError" in done.stderr


def test_reports_that_one_rank_asks_for(job):
    """The others then have a program for each line as well: they are in its reports."""
    assert job(2, OTHER_ON_RANK_1.format("MPIXLA_TIMEOUT", "100")).stdout.split() == ["2", "2"]


@pytest.mark.parametrize("value", ["0", "1"])
def test_progress_on_one_rank(job, value):
    """The others ask which hosts there are, together with it."""
    assert job(2, OTHER_ON_RANK_1.format("MPIXLA_PROGRESS", value), timeout=60).stdout.split() == ["1", "1"]


@pytest.mark.parametrize(("value", "on"), [("0", "rank == 1"), ("", "True")])
def test_memory_that_ranks_share(job, value, on):
    """All of them use it, or none."""
    done = job(
        2,
        f"""
        import os
        from pathlib import Path
        from mpi4py import MPI
        rank = MPI.COMM_WORLD.rank
        if {on}:
            os.environ["MPIXLA_LOCAL"] = "{value}"
        import jax.numpy as jnp, mpixla
        total = mpixla.allreduce(jnp.ones(()), op=MPI.SUM)
        print(total, "/dev/shm/mpixla-" in Path("/proc/self/maps").read_text())
        """,
    )
    assert done.stdout.split() == ["2.0", str(value != "0")] * 2


# Runs what follows with 8 MiB of memory to share, 2 MiB of which are another program's.
LITTLE_MEMORY = 'mount -t tmpfs -o size=8m none /dev/shm && head -c 2M /dev/zero > /dev/shm/other && exec "$@"'
IN_LITTLE_MEMORY = ("unshare", "--mount", "--map-root-user", "sh", "-c", LITTLE_MEMORY, "sh")
MANY_COMMUNICATORS = """
import shutil
from pathlib import Path
import jax.numpy as jnp, mpixla
from mpi4py import MPI
rank = MPI.COMM_WORLD.rank
comms = [MPI.COMM_WORLD.Create_cart([2], periods=[True]) for _ in range(30)]
wrong = 0
for i, comm in enumerate(comms):
    wrong += mpixla.allreduce(jnp.full(20000, i + rank), op=MPI.SUM, comm=comm).tolist() != [2 * i + 1] * 20000
    got, _ = mpixla.neighbor_allgather(jnp.array([i + rank]), comm=comm)
    wrong += got.tolist() != [i + 1 - rank]
total, _, free = shutil.disk_usage("/dev/shm")
shared = Path("/proc/self/maps").read_text().count("/dev/shm/mpixla-")
MPI.COMM_WORLD.Barrier()
print(wrong, shared > 0, free >= total // 5, len(list(Path("/dev/shm").glob("mpixla-*"))))
"""


@pytest.mark.skipif(
    subprocess.run([*IN_LITTLE_MEMORY, "true"], capture_output=True, check=False).returncode != 0,
    reason="no file system can be mounted here",
)
def test_memory_that_ranks_share_leaves_some_to_others(tmp_path):
    """Calls of the communicators that have none go through MPI, and no name of what could not be had is left."""
    script = tmp_path / "script.py"
    script.write_text(MANY_COMMUNICATORS)
    mpirun = [*IN_LITTLE_MEMORY, ROOT / "tools/mpirun", "-n", "2", sys.executable, script]
    # MPI's own memory for messages would fill what there is by itself.
    env = {**os.environ, "MPIR_CVAR_NOLOCAL": "1", "OMPI_MCA_btl": "self,tcp"}
    done = subprocess.run(mpirun, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert done.stdout.splitlines() == ["0 True True 0"] * 2, done.stdout + done.stderr


WHILE_PROGRAMS_RUN = """
import time
import jax, jax.numpy as jnp, mpixla
from mpi4py import MPI
comm = mpixla.get_default_comm()
rank, size = comm.Get_rank(), comm.Get_size()

@jax.jit
def step(x):
    x = jax.lax.fori_loop(0, 30, lambda i, y: jnp.sin(y @ y), x)
    return mpixla.allgather(x[:2, :1], comm=comm)

x = jnp.ones((300, 300))
step(x).block_until_ready()
for n in range(6):
    y = step(x)
    if rank == n % 2:
        time.sleep(0.2)
    assert comm.allgather((n, rank)) == [(n, other) for other in range(size)]
print("right")
"""


def test_calls_of_mpi4py_on_the_default_communicator_do_not_meet_programs_that_run(job):
    """On one rank the program's call comes first, on the other mpi4py's: without a word to wait for the program."""
    done = job(2, WHILE_PROGRAMS_RUN, MPIXLA_LOCAL="0", MPIXLA_CHECK="0")
    assert (done.stdout.split(), done.stderr) == (["right"] * 2, "")


FREED = """
import jax.numpy as jnp, mpixla
from mpi4py import MPI
default = mpixla.get_default_comm()
x = jnp.ones(3)
for _ in range(3):
    assert mpixla.allreduce(x, MPI.SUM, comm=default)[0] == 2
MPI.Intracomm(default).Free()
others = [MPI.COMM_SELF.Dup() for _ in range(4)]
for _ in range(3):
    assert [mpixla.allreduce(x, MPI.SUM, comm=other)[0] for other in others] == [1] * 4
    assert mpixla.allreduce(x, MPI.SUM)[0] == 2
print("right")
"""


def test_communicator_with_the_handle_of_the_freed_default_is_its_own(job):
    """It is the communicator that it is, and operations without one go on."""
    done = job(2, FREED)
    assert done.stdout.split() == ["right"] * 2, done.stderr
