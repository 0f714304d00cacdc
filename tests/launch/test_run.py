"""``python -m mpixla run``: it finds this MPI's launcher, gives each rank its cores, and becomes the launcher."""

import os
import py_compile
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mpi4py import MPI

from jobs import alone
from mpixla.base import cores as base_cores
from mpixla.base import program, started
from mpixla.base.cores import find_cores
from mpixla.base.missing_mpi import explain_missing_mpi
from mpixla.run import launchers, library, options, rank, slurm

VENDOR, VERSION = MPI.get_vendor()
RUN = [sys.executable, "-m", "mpixla", "run"]
PROGRAM = program.__file__
LAUNCHED = {name for name in os.environ if name.startswith(("PMI", "OMPI_", "SLURM", "HYDRA", "MPI_LOCAL", "NPROC"))}
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in LAUNCHED} | {"PYTHONUNBUFFERED": ""}


def run(*arguments, timeout=200, before=(), cwd=None, **environment):
    """Run the command as a user gives it, which must end."""
    command = [*before, *RUN, *map(str, arguments)]
    return subprocess.run(
        command,
        env=ENVIRONMENT | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=cwd,
        check=False,
    )


def start(script, **options):
    """Start a script on two ranks as a shell does it, which leaves Ctrl-C to the command."""
    return subprocess.Popen(
        [*RUN, "-n", "2", script],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **options,
    )


def lines_of(done):
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(done.stdout.splitlines())


TOTAL = """
import sys
import jax.numpy as jnp, mpixla
from mpi4py import MPI
total = mpixla.allreduce(jnp.ones(2) + MPI.COMM_WORLD.rank, op=MPI.SUM)
print(MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size, total, sys.argv[1:], __name__)
"""


FORMS = {"script": ["total.py"], "module": ["-m", "total"], "code": ["-c", TOTAL]}
FORMS |= {"attached module": ["-mtotal"], "attached code": ["-c" + TOTAL], "behind": ["--", "total.py"]}


@pytest.mark.parametrize("form", FORMS)
def test_program_in_each_form(tmp_path, form):
    (tmp_path / "total.py").write_text(TOTAL)
    program = FORMS[form]
    done = run("-n", 3, *program, "-n", "7", "--check", "-m", cwd=tmp_path)
    assert lines_of(done) == [f"{r} 3 [6. 6.] ['-n', '7', '--check', '-m'] __main__" for r in range(3)]


@pytest.mark.long
def test_rank_that_ends_while_another_imports_mpixla():
    """The one that waits knows it after 20 s."""
    code = "from mpi4py import MPI\nif MPI.COMM_WORLD.rank == 0:\n    import mpixla"
    done = run("-n", 2, "-c", code)
    assert done.returncode == 1, done.stderr
    assert "rank 0 has waited for 20 s" in done.stderr
    assert "the script of another rank has come to its end without importing mpixla, so the whole job" in done.stderr


CORES = "import os; print(sorted(os.sched_getaffinity(0)), os.environ['NPROC'])"


@pytest.mark.parametrize("ranks", [1, 2])
def test_each_rank_has_cores_of_its_own(ranks):
    cores = find_cores()
    if len(cores) < ranks:
        pytest.skip(f"this test needs {ranks} cores, and this process may use {len(cores)}")
    each = len(cores) // ranks
    cpus = [sorted(set().union(*cores[r * each : (r + 1) * each])) for r in range(ranks)]
    assert lines_of(run("-n", ranks, "-c", CORES)) == sorted(f"{mine} {each}" for mine in cpus)


def test_ranks_use_only_the_cores_of_taskset(tmp_path):
    """Where the process may not use all, as with taskset, its ranks may not either."""
    if not shutil.which("taskset"):
        pytest.skip("there is no taskset here")
    last = max(os.sched_getaffinity(0))
    assert lines_of(run("-n", 1, "-c", CORES, before=["taskset", "-c", str(last)])) == [f"[{last}] 1"]
    everything = sorted(os.sched_getaffinity(0))
    assert lines_of(run("-n", 1, "--no-pin", "-c", "import os; print(sorted(os.sched_getaffinity(0)))")) == [
        str(everything)
    ]


def test_more_ranks_than_cores():
    """They share the cores, and each computes with one thread."""
    everything, ranks = sorted(os.sched_getaffinity(0)), len(find_cores()) + 1
    done = run("-n", ranks, "-c", CORES)
    assert lines_of(done) == [f"{everything} 1"] * ranks
    assert done.stderr.count(f"{ranks} ranks, with 1 thread each, share {ranks - 1} core") == 1
    assert lines_of(run("-n", 1, "--threads", ranks, "-c", CORES)) == [f"{everything} {ranks}"]
    assert lines_of(run("-n", 1, "-c", CORES, NPROC="17"))[0].endswith(" 17")  # what the user says, holds


def test_ranks_may_start_processes(tmp_path):
    """MPI_Comm_spawn, which knows nothing of how the ranks were started."""
    (tmp_path / "spawns.py").write_text("""
import sys
import mpixla
from mpi4py import MPI
code = "from mpi4py import MPI; parent = MPI.Comm.Get_parent(); parent.send(17, 0); parent.Disconnect()"
child = MPI.COMM_SELF.Spawn(sys.executable, ["-c", code], 1)
print(child.recv(source=0))
child.Disconnect()
""")
    assert lines_of(run("-n", 1, "spawns.py", cwd=tmp_path)) == ["17"]


def test_xla_has_as_many_threads_as_cores():
    code = """
import os, jax.numpy as jnp
jnp.ones(3).block_until_ready()
names = [open(f"/proc/self/task/{t}/comm").read() for t in os.listdir("/proc/self/task")]
print(sum(name.startswith("tf_XLAEigen") for name in names))
"""
    assert lines_of(run("-n", 2, "--threads", 1, "-c", code)) == ["1", "1"]
    assert lines_of(run("-n", 1, "--threads", 3, "-c", code)) == ["3"]


def test_options_are_variables(tmp_path):
    code = "import os; print(*(os.environ.get('MPIXLA_' + name) for name in ('TIMEOUT', 'CHECK', 'TRACE')))"
    assert lines_of(run("-n", 1, "--timeout", 123456789, "--check", "--trace", "t", "-c", code, cwd=tmp_path)) == [
        f"123456789 1 {tmp_path}/t"
    ]
    assert lines_of(run("-n", 1, "-c", code)) == ["None None None"]


def test_label():
    done = lines_of(run("-n", 2, "--label", "-c", "print('hello')"))
    assert [re.search(r"\b([01])\](?:<stdout>:)? ?hello$", line).group(1) for line in done] == ["0", "1"]


def test_distributed():
    code = """
import mpixla.distributed; mpixla.distributed.initialize()
import jax, jax.numpy as jnp
mesh = jax.make_mesh((2,), ("i",))
x = jax.make_array_from_callback((4,), jax.NamedSharding(mesh, jax.P("i")), lambda at: jnp.arange(4.0)[at])
print(jax.process_count(), jax.jit(jnp.sum)(x))
"""
    assert lines_of(run("-n", 2, "--distributed", "-c", code)) == ["2 6.0"] * 2


def test_options_of_python():
    done = run("-n", 2, "--no-pin", "-c", "import sys; print(sys.flags.dev_mode, sys.flags.optimize)")
    assert lines_of(done) == ["False 0"] * 2
    code = "import sys; print(sys.flags.dev_mode, sys.flags.optimize)"
    for before in (["-X", "dev", "-Om", "mpixla"], ["-X", "dev", "-O", "-mmpixla"]):
        command = [sys.executable, *before, "run", "-n", "2", "--no-pin", "-c", code]
        done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=200, check=False)
        assert lines_of(done) == ["True 1"] * 2


def test_dry_run_is_the_command(tmp_path):
    """What it prints does the same, given to a shell."""
    (tmp_path / "total.py").write_text(TOTAL)
    printed = run("-n", 2, "--timeout", 55, "--dry-run", "total.py", "it's", cwd=tmp_path)
    assert len(lines_of(printed)) == 1
    assert "MPIXLA_TIMEOUT=55" in printed.stdout
    done = subprocess.run(
        printed.stdout,
        shell=True,
        env=ENVIRONMENT,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert lines_of(done) == [f"""{r} 2 [3. 3.] ["it's"] __main__""" for r in range(2)]


EXITS = """
import atexit, os, sys
import jax.numpy as jnp, mpixla
from mpi4py import MPI
rank = MPI.COMM_WORLD.rank
{}
total = mpixla.allreduce(jnp.ones(2), op=MPI.SUM).block_until_ready()
print("ended", flush=True)
"""
ENDS_A_FORK = """
if os.fork() == 0: os._exit(3)
else: assert os.waitstatus_to_exitcode(os.wait()[1]) == 3
"""
# An exit that is caught, one of a forked process, and one with status 0.
ENDS_WELL = f"""
try: sys.exit(3)
except SystemExit: pass
{ENDS_A_FORK}
atexit.register(print, 'ended')
sys.exit(None if rank else 0)
"""

ABORTED = ", so the whole job is aborted. Set MPIXLA_ABORT=0 to let the other ranks go on."


@pytest.mark.parametrize(
    ("form", "code", "status", "who"),
    [
        ("script", "if rank == 1: sys.exit(5)", 5, f"rank 1 ended by sys.exit, with status 5{ABORTED}"),
        ("module", "if rank == 0: exit(7)", 7, f"rank 0 ended by sys.exit, with status 7{ABORTED}"),
        ("distributed", "if rank == 1: sys.exit(5)", 5, f"rank 1 ended by sys.exit, with status 5{ABORTED}"),
        ("script", "mpixla.barrier(); sys.exit('no file')", 1, "ranks 0 and 1 ended by sys.exit, with status 1."),
        ("code", ENDS_WELL, 0, None),
    ],
)
def test_sys_exit_ends_the_job(tmp_path, form, code, status, who):
    """As python -m mpi4py does it; the others would wait."""
    (tmp_path / "exits.py").write_text(EXITS.format(code))
    program = {"script": ["exits.py"], "module": ["-m", "exits"], "code": ["-c", EXITS.format(code)]}
    program["distributed"] = ["--distributed", "exits.py"]
    done = run("-n", 2, *program[form], cwd=tmp_path, timeout=60)
    assert done.returncode == status, done.stderr
    assert re.findall("^mpixla: (.* ended .*)$", done.stderr, re.MULTILINE) == ([who] if who else [])
    assert re.findall("^no file$", done.stderr, re.MULTILINE) == ["no file"] * ("no file" in code)
    assert done.stdout.count("ended") == (2 if status == 0 else 0)


# The others wait in their import, or in MPI's start.
ENDS_EARLY = """
import os, sys
{first}
rank = int(os.environ.get("PMI_RANK") or os.environ["OMPI_COMM_WORLD_RANK"])
{code}
import mpixla
mpixla.barrier()
"""


@pytest.mark.parametrize(
    ("first", "code", "status", "who"),
    [
        (
            "import mpi4py",
            "mpi4py.rc.thread_level = 'single'",
            1,
            "ranks 0 and 1 ended with an uncaught ImportError while importing mpixla.",
        ),
        (
            "import mpi4py",
            "if rank == 1: mpi4py.rc.thread_level = 'single'",
            1,
            f"rank 1 ended with an uncaught ImportError while importing mpixla{ABORTED}",
        ),
        ("", "import nowhere", 1, "ranks 0 and 1 ended with an uncaught ModuleNotFoundError before importing mpixla."),
        (ENDS_A_FORK, "if rank == 1: sys.exit(5)", 5, f"rank 1 ended by sys.exit, with status 5{ABORTED}"),
        ("", "sys.exit(5)", 5, "ranks 0 and 1 ended by sys.exit, with status 5."),
        ("", "0 / (1 - rank)", 1, f"rank 1 ended with an uncaught ZeroDivisionError before importing mpixla{ABORTED}"),
        ("", "0 / 0", 1, "ranks 0 and 1 ended with an uncaught ZeroDivisionError before importing mpixla."),
        (
            "from mpi4py import MPI",
            "0 / (1 - rank)",
            1,
            f"rank 1 ended with an uncaught ZeroDivisionError before importing mpixla{ABORTED}",
        ),
    ],
)
def test_failure_before_the_import_ends_the_job(tmp_path, first, code, status, who):
    (tmp_path / "early.py").write_text(ENDS_EARLY.format(first=first, code=code))
    done = run("-n", 2, "early.py", cwd=tmp_path, timeout=100, TMPDIR=str(tmp_path))
    assert not list(tmp_path.glob("mpixla-*"))
    assert done.returncode == status, done.stderr
    assert re.findall("^mpixla: (.* ended .*)$", done.stderr, re.MULTILINE) == [who]
    # The traceback is printed once for all, and in one piece.
    printed = re.findall(r"^Traceback .*\n(?:  .*\n)+\w+Error: .*$", done.stderr, re.MULTILINE)
    assert done.stderr.count("Traceback ") == len(printed) == (0 if "exit" in code else 1)


def test_sys_exit_ends_one_rank_where_that_is_wanted(tmp_path):
    code = EXITS.format("if rank == 1: sys.exit(5)").replace("mpixla.allreduce(jnp.ones(2), op=MPI.SUM)", "jnp.ones(2)")
    done = run("-n", 2, "-c", code, cwd=tmp_path, MPIXLA_ABORT="0")
    assert done.returncode == 5
    assert "mpixla: " not in done.stderr


@pytest.mark.parametrize("form", ["script", "code"])
def test_traceback_has_the_program_alone(tmp_path, form):
    (tmp_path / "fails.py").write_text(code := "def fail():\n    raise KeyError('lost')\nfail()\n")
    program = {"script": ["fails.py"], "module": ["-m", "fails"], "code": ["-c", code]}[form]
    done = run("-n", 1, *program, cwd=tmp_path)
    assert done.returncode == 1
    names = re.findall(r'^  File "(.*)", line \d+', done.stderr, re.MULTILINE)
    assert names == ["<string>" if form == "code" else str(tmp_path / "fails.py")] * 2 or names == ["fails.py"] * 2


def test_syntax_error_is_printed_as_by_python(tmp_path):
    (tmp_path / "wrong.py").write_text("def f(:\n")
    expected, got = (alone(*before, "wrong.py", cwd=tmp_path) for before in ((), (PROGRAM,)))
    assert (got.stderr, got.returncode) == (expected.stderr, 1)


# What a program finds of itself, and that exit handlers and threads can pickle what is of it.
SHOWS = """# -*- coding: latin-1 -*-
import atexit, pickle, sys, threading
class Mine: pass
def pickled():
    assert type(pickle.loads(pickle.dumps(Mine()))) is Mine and sys.modules["__main__"].pickled is pickled
    print("pickled", sys.argv)
atexit.register(pickled)
threading.Thread(target=lambda: (threading.main_thread().join(), pickled())).start()
names = {name: str(value).split(" object at ")[0] for name, value in globals().items() if name.startswith("__")}
print(sorted(names.items()), sys.argv, sys.path[0], sys._getframe().f_code.co_filename, "ä")
"""


@pytest.mark.parametrize("form", ["script", "linked", "mark", "absolute", "module", "code"])
def test_run_executes_programs_as_python_does(tmp_path, form):
    (tmp_path / "shows.py").write_bytes(SHOWS.encode("latin-1"))
    (tmp_path / "mark.py").write_bytes(SHOWS.replace("latin-1", "utf-8").encode("utf-8-sig"))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/linked.py").symlink_to("../shows.py")
    program = {"script": ["elsewhere/../shows.py"], "linked": ["elsewhere/linked.py"], "mark": ["mark.py"]}
    program |= {"absolute": [tmp_path / "shows.py"], "module": ["-m", "shows"], "code": ["-c", SHOWS]}
    command = [*map(str, program[form]), "a", "b"]
    expected, got = (alone(*before, *command, cwd=tmp_path) for before in ((), (PROGRAM,)))
    assert (got.stdout, got.stderr) == (expected.stdout, expected.stderr)
    assert got.stdout.count("pickled") == 2


def test_run_executes_folders_archives_and_compiled_files(tmp_path):
    """A folder, an archive and a compiled file."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/__main__.py").write_text("import sys; print(__name__, sys.argv)")
    shutil.make_archive(tmp_path / "archive", "zip", tmp_path / "folder")
    py_compile.compile(tmp_path / "folder/__main__.py", tmp_path / "compiled.pyc")
    for name in ("folder", "archive.zip", "compiled.pyc"):
        done = alone(PROGRAM, name, "a", cwd=tmp_path)
        assert done.stdout == f"__main__ [{name!r}, 'a']\n", done.stderr


def test_script_runs_in_a_removed_folder(tmp_path):
    """The working directory, which a script that is named in full does not need."""
    (tmp_path / "here.py").write_text("print('ran')")
    code = "import os, sys; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')"
    code += "; os.execv(sys.executable, [sys.executable, '-E', *sys.argv[1:]])"
    done = alone("-c", code, PROGRAM, tmp_path / "here.py", cwd=tmp_path)
    assert done.stdout == "ran\n", done.stderr


WAIT = """
import time, mpixla
print("ready", flush=True)
time.sleep(1000)  # TEST-RUN
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_signals_end_the_ranks(tmp_path, number):
    script = tmp_path / "wait.py"
    script.write_text(WAIT)
    with start(script, stderr=subprocess.STDOUT) as process:
        for _ in range(2):
            assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        try:
            process.communicate(timeout=100)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            pytest.fail(f"{number.name} did not end the job")
    assert process.returncode != 0
    _end_of_processes_with(str(script))


KILLED = """
import ctypes, os, signal, sys, time
import mpixla
from mpi4py import MPI
mpixla.barrier()
if MPI.COMM_WORLD.rank == 1:
    {}
MPI.COMM_WORLD.recv(source=1)
"""


@pytest.mark.parametrize(
    ("end", "number", "said"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", signal.SIGKILL, "often because memory ran out"),
        ("ctypes.string_at(8)", signal.SIGSEGV, "in C code. With python -X faulthandler -m mpixla run"),
        ("os.kill(os.getpid(), signal.SIGTERM)", signal.SIGTERM, None),  # somebody wants it to end
    ],
)
@pytest.mark.parametrize("pinned", [True, False])
def test_signal_that_ends_a_rank_is_reported(end, number, said, pinned):
    done = run("-n", 2, *([] if pinned else ["--no-pin"]), "-c", KILLED.format(end))
    assert done.returncode in (number, 128 + number)
    told = re.findall(r"^mpixla: (.*) was ended by (.*\)), (.*)$", done.stderr, re.MULTILINE)
    assert [who[:2] for who in told] == ([("rank 1", f"signal {number} ({number.name})")] if said else [])
    assert all(hint.startswith(said) for *_, hint in told)


def test_rank_ends_with_its_parent(tmp_path):
    (tmp_path / "orphan.py").write_text("import os, signal, time\nos.kill(os.getppid(), 9)\ntime.sleep(1000)\n")
    assert run("-n", 1, tmp_path / "orphan.py").returncode != 0
    _end_of_processes_with(str(tmp_path / "orphan.py"))


def _end_of_processes_with(text):
    until = time.monotonic() + 60
    while left := _processes_with(text):
        assert time.monotonic() < until, left
        time.sleep(0.1)


def _processes_with(text):
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                command = (folder / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if text in command:
                found.append(command.replace("\0", " "))
    return found


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["-n", "2"], "no program was given"),
        (["-n", "2", "-m"], "no program was given"),
        (["-n", "2", "-c", "pass", ":", "x"], "launchers take the argument ':' for the end of a program"),
        (["-n", "2", "nowhere.py"], "there is no file nowhere.py here"),
        (["-n", "0", "x.py"], "it must be a whole number, at least 1, but is '0'"),
        (["-n", "two", "x.py"], "it must be a whole number, at least 1, but is 'two'"),
        (["-n", "2", "--timeout", "-1", "x.py"], "it must be a number of seconds greater than 0, but is '-1'"),
        (["-n", "2", "--timeout", "0", "x.py"], "it must be a number of seconds greater than 0, but is '0'"),
        (["-n", "2", "--hosts", "a,,b", "x.py"], "it must be names of hosts with commas between them"),
        (["-c", "pass"], "how many ranks? Say it with -n"),
        (["-c", "pass", "-n", "2"], "Options of run stand before the program: python -m mpixla run -n 2 -c pass"),
        (["-n", "2", "python", "ok.py", "7"], "Leave python out: python -m mpixla run -n 2 ok.py 7"),
        (["-n", "2", "--", "python3.11", "-m", "it"], "Leave python3.11 out: python -m mpixla run -n 2 -m it"),
        (["-n", "2", "python", "-u", "ok.py"], "its own options before -m: python -u -m mpixla run"),
        (["-n", "2", "ls", "x"], "but a command /"),
        (["-n", "2", "-m", "nowhere.at"], "there is no module nowhere for this Python"),
        (["-n", "2", "--launcher", "/nowhere/mpirun", "-c", "pass"], "/nowhere/mpirun cannot be started: No such file"),
        (
            ["-n", "2", "--threads", "2", "--no-pin", "-c", "pass"],
            "--no-pin that it has all. Leave one of them out",
        ),
        (["-n", "2", "--rank", "2", "-c", "pass"], "unrecognized arguments: --rank"),
    ],
)
def test_bad_command_line(arguments, sentence):
    done = run(*arguments)
    assert done.returncode == 2
    assert "python -m mpixla run: " in done.stderr
    assert sentence in " ".join(done.stderr.split())


def test_inside_a_job(job):
    done = job(
        2,
        "import sys, subprocess; sys.exit(subprocess.run(sys.argv[1:]).returncode)",
        *RUN,
        "-n",
        "2",
        "-c",
        "1",
        check=False,
    )
    assert done.returncode == 2
    assert "start it once, without a launcher" in done.stderr


def test_no_mpi_library(monkeypatch):
    monkeypatch.delenv("MPI4PY_LIBMPI", raising=False)
    assert explain_missing_mpi(ImportError("the reason")).startswith(
        "no MPI library was found that mpi4py can load. Inst"
    )
    done = run("-n", 2, "-c", "pass", MPI4PY_LIBMPI="/nowhere/libmpi.so", MPI4PY_MPIABI="mpiabi")
    if done.returncode == 0:
        pytest.skip("this mpi4py was built for one MPI")
    assert done.returncode == 2
    assert "MPI4PY_LIBMPI" in done.stderr
    assert "/nowhere/libmpi.so" in done.stderr


# How a rank ends the job, and what is said.
ENDS = {
    "threading.Thread(target=lambda: {}['in a thread']).start()": "mpixla: rank 1: uncaught KeyError in thread .*, so"
    r"(?:.*\n)*?KeyError: 'in a thread'\n",
    "threading.Thread(target=interrupt).start()": r"rank 1 was interrupted \(SIGINT\) in MPI_Recv .*, which has",
    "time.sleep(100)": "mpixla: rank 0 has waited for .* longer than MPIXLA_TIMEOUT=2 allows, so the whole job ends",
}


@pytest.mark.parametrize("ends", ENDS)
def test_while_pytest_captures(tmp_path, ends):
    """The process ends before pytest shows what it has captured."""
    code = """
import os, signal, sys, threading, time
import jax.numpy as jnp, mpixla
from mpi4py import MPI
rank = MPI.COMM_WORLD.rank
def interrupt():
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGINT)
def test_it():
    print("captured")
    rank == 0 or ENDS
    mpixla.recv(jnp.ones(3), 1 - rank)
"""
    (tmp_path / "test_it.py").write_text(code.replace("ENDS", ends))
    limit = {"MPIXLA_TIMEOUT": "2"} if "sleep" in ends else {}
    done = run("-n", 2, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py", cwd=tmp_path, **limit)
    assert done.returncode != 0
    assert len(re.findall(ENDS[ends], done.stderr)) == 1, done.stderr
    assert "captured" not in done.stderr + done.stdout


# Launchers that are not here: what is chosen, and what it is told.


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Put programs that print a text onto PATH, which then has nothing else: programs(name=text) -> their folder."""

    def make(folder="bin", **texts):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            file = tmp_path / folder / name.replace("_", ".")
            file.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
            file.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path / folder}:/bin")
        return tmp_path / folder

    for name in [*started.STARTED, "SLURM_JOB_ID", "SLURM_CPUS_PER_TASK", "SLURM_NTASKS"]:
        monkeypatch.delenv(name, raising=False)
    return make


HYDRA = "HYDRA build details:\n    Version:                                 {}"
OPEN_MPI = "mpirun.openmpi (OpenRTE) {}\n\nReport bugs to"
INTEL = "Intel(R) MPI Library for Linux* OS, Version {} Build 20260626 (id: b44796a)"
SAID = {"MPICH": HYDRA, "Open MPI": OPEN_MPI, "Intel MPI": INTEL}


@pytest.mark.parametrize("vendor", SAID)
def test_the_launcher_of_the_same_mpi(programs, tmp_path, vendor):
    """Others of the same name on PATH, of other MPIs and of other versions, are passed over; none is told of all."""
    mine = library.Library(vendor, "4.9.1", tmp_path / "mpi/lib/libmpi.so.12")
    kind = launchers.kind_of(mine)
    others = {other: said for other, said in SAID.items() if other != vendor}
    names = dict(zip(kind.names, (said.format("4.9.1") for said in others.values()), strict=False))
    names[kind.names[-1]] = SAID[vendor].format("4.9.2")
    folder = programs(**{name.replace(".", "_"): said for name, said in names.items()})
    with pytest.raises(library.CannotStartError) as refused:
        launchers.find_launcher(kind, mine)
    assert f"{vendor} 4.9.1 ({tmp_path}/mpi/lib/libmpi.so.12)" in str(refused.value)
    assert f"{folder / kind.names[-1]} (4.9.2)" in str(refused.value)
    (tmp_path / "mpi/lib").mkdir(parents=True)
    programs("mpi/bin", **{kind.names[0].replace(".", "_"): SAID[vendor].format("4.9.1")})
    programs()  # PATH as before
    assert launchers.find_launcher(kind, mine) == tmp_path / "mpi/bin" / kind.names[0]


def test_launchers_above_the_installation_are_left_alone(programs, tmp_path):
    """A folder that anybody can write to may have a `bin` beside an installation: nothing there is even asked."""
    trap = programs("shared/bin", mpiexec_hydra=HYDRA.format("4.9.1"))
    ran = tmp_path / "ran"
    (trap / "mpiexec.hydra").write_text(f"#!/bin/sh\ntouch {ran}\necho '{HYDRA.format('4.9.1')}'\n")
    folder = programs("shared/mpi/bin")
    programs()
    for place in ("lib/libmpi.so.12", "lib/release/libmpi.so.12", "lib/x86_64-linux-gnu/libmpi.so.12", "libmpi.so.12"):
        mine = library.Library("MPICH", "4.9.1", folder.parent / place)
        with pytest.raises(library.CannotStartError):
            launchers.find_launcher(launchers.kind_of(mine), mine)
    assert not ran.exists()
    programs("shared/mpi/bin", mpiexec_hydra=HYDRA.format("4.9.1"))
    programs()
    for place in ("lib/libmpi.so.12", "lib/release/libmpi.so.12", "lib64/libmpi.so.12"):
        mine = library.Library("MPICH", "4.9.1", folder.parent / place)
        assert launchers.find_launcher(launchers.kind_of(mine), mine) == folder / "mpiexec.hydra"


@pytest.mark.parametrize(("said", "version"), [("4.2", "4.2.0"), ("4.2.0rc1", "4.2.0"), ("4.2.3", "4.2.3")])
def test_versions_are_numbers(programs, said, version):
    """Hydra leaves a zero out that mpi4py does not, and has names for what comes before a release."""
    folder = programs(mpiexec_hydra=HYDRA.format(said))
    mine = library.Library("MPICH", version, None)
    assert launchers.find_launcher(launchers.kind_of(mine), mine) == folder / "mpiexec.hydra"


def test_unknown_mpi_cannot_start_ranks():
    with pytest.raises(
        library.CannotStartError, match=r"mpi4py loads LAM 7\.1, and mpixla does not know how that MPI starts ranks"
    ):
        launchers.kind_of(library.Library("LAM", "7.1", None))


def test_this_mpi_has_its_launcher():
    """The one that every other test here has used."""
    found = library.find_library()
    assert (found.vendor, found.version) == (VENDOR, ".".join(map(str, VERSION)))
    assert found.file is not None
    assert found.file.exists()
    launchers.find_launcher(launchers.kind_of(found), found)


CLUSTER = "MPI plugin types are...\n\tnone\n\tpmi2\n\tcray_shasta\n\tpmix_v4"


@pytest.mark.parametrize(
    ("vendor", "language"),
    [("MPICH", "pmi2"), ("Intel MPI", "pmi2"), ("Open MPI", "pmix"), ("Cray MPICH", "cray_shasta")],
)
def test_slurm(programs, monkeypatch, vendor, language):
    kind = launchers.kind_of(library.Library(vendor, "1.0", None))
    programs(srun=CLUSTER)
    assert slurm.srun_plugin(kind.srun) is None  # not in an allocation
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    assert slurm.srun_plugin(kind.srun) == language

    def command(*given):
        return shlex.join(slurm.srun_command(language, options.parse_options([*given, "-c", ""])))

    assert command() == f"srun --mpi={language} --cpu-bind=cores"
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "6")
    assert command("-n", "8", "--label") == (
        f"srun --mpi={language} --ntasks=8 --cpus-per-task=6 --cpu-bind=cores --label"
    )
    assert "--cpus-per-task=4 --cpu-bind=none" in command("-n", "8", "--threads", "4", "--no-pin")
    assert slurm.task_count() is None
    monkeypatch.setenv("SLURM_NTASKS", "12")
    assert slurm.task_count() == 12
    programs(srun="MPI plugin types are...\n\tnone")
    assert slurm.srun_plugin(kind.srun) is None


@pytest.mark.parametrize(("vendor", "says"), [("MPICH", "-hosts a,b -ppn 2"), ("Open MPI", "--host a:2,b:2 -x ")])
def test_hosts(programs, vendor, says, monkeypatch):
    from mpixla.run import start

    programs()
    monkeypatch.setenv("MPIXLA_GPU_TRANSPORT", "host")
    monkeypatch.setenv("SECRET", "stays here")
    assert options.parse_options(["-np", "3", "-c", ""]).ranks == 3  # as for mpirun
    named = options.parse_options(["-n", "3", "--launcher", "env", "-c", ""])
    assert (
        start._start_command(named, library.Library(vendor, "1.0", None), ["python"])[1]["PATH"] == os.environ["PATH"]
    )
    asked = options.parse_options(["-n", "3", "--hosts", "a,b", "--launcher", "/opt/mpirun", "--timeout", "5", "x.py"])
    command, environment = start._start_command(asked, library.Library(vendor, "1.0", None), ["python"])
    said = shlex.join(command)
    assert says in said
    assert said.startswith("/opt/mpirun ")
    assert said.endswith(
        f"-n 3 python -I -S {rank.__file__} {Path(program.__file__).parent} auto python {PROGRAM} x.py"
    )
    assert environment["MPIXLA_TIMEOUT"] == "5"
    passed = {command[i + 1] for i, word in enumerate(command) if word == "-x"}
    assert not passed or {"MPIXLA_TIMEOUT", "MPIXLA_GPU_TRANSPORT", "PATH"} <= passed
    assert "SECRET" not in passed


@pytest.mark.parametrize("where", ["here", "hosts", "slurm"])
def test_ucx_moves_more_at_a_time_between_hosts(programs, monkeypatch, tmp_path, where):
    from mpixla.run import start

    programs(srun=CLUSTER)
    monkeypatch.setenv("UCX_TCP_RX_SEG_SIZE", "32k")
    monkeypatch.delenv("UCX_TCP_TX_SEG_SIZE", raising=False)
    if where == "slurm":
        monkeypatch.setenv("SLURM_JOB_ID", "17")
    options_of = {"here": ["--launcher", "/opt/mpirun"], "slurm": []}
    options_of["hosts"] = [*options_of["here"], "--hosts", "a,b"]
    (tmp_path / "x.py").touch()
    asked = options.parse_options(["-n", "2", *options_of[where], str(tmp_path / "x.py")])
    _, environment = start._start_command(asked, library.Library("MPICH", "1.0", None), ["python"])
    assert environment["UCX_TCP_RX_SEG_SIZE"] == "32k"  # the user's
    assert environment.get("UCX_TCP_TX_SEG_SIZE") == (None if where == "here" else "256k")


# Shares of cores


@pytest.mark.parametrize(
    ("ranks", "threads", "expected"),
    [
        (1, None, [({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, 5)]),
        (2, None, [({0, 1, 2, 3}, 2), ({4, 5, 6, 7}, 2)]),
        (5, None, [({2 * i, 2 * i + 1}, 1) for i in range(5)]),
        (6, None, [(None, 1)] * 6),
        (2, 1, [({0, 1}, 1), ({2, 3}, 1)]),
        (2, 3, [(None, 3)] * 2),
    ],
)
def test_shares(ranks, threads, expected):
    """Of five cores of two CPUs each: whole cores, equally many for each rank, or none for itself."""
    cores = [{2 * i, 2 * i + 1} for i in range(5)]
    assert [rank.share_cores(cores, place, ranks, threads) for place in range(ranks)] == expected


def test_cores_side_by_side(monkeypatch, tmp_path):
    """Two packages, whose CPUs are numbered in turns, with two threads a core: neighbours come one after the other."""
    for cpu in range(8):
        topology = tmp_path / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{cpu % 2}\n")
        (topology / "core_id").write_text(f"{cpu // 2 % 2}\n")
        (tmp_path / f"cpu{cpu}" / f"node{cpu % 2}").mkdir()
    monkeypatch.setattr(base_cores, "_CPUS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert find_cores() == [{0, 4}, {2, 6}, {1, 5}, {3, 7}]
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 4, 5, 6})
    assert find_cores() == [{4}, {6}, {1, 5}]


def test_help_has_every_option(capsys):
    with pytest.raises(SystemExit):
        options.parse_options(["--help"])
    said = capsys.readouterr().out
    assert all(option in said for option in ("--hosts", "--timeout", "--check", "--trace", "--dry-run", "--no-pin"))
