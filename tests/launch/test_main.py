"""python -m mpixla: what it says is so, its self-test notices what is wrong and always ends, its benchmark measures."""

import importlib.metadata
import os
import re
from pathlib import Path

import jax.numpy as jnp
import pytest
from mpi4py import MPI

from mpixla import __main__
from mpixla.base import started
from mpixla.mpi import mpi, native
from mpixla.tools import bench, info, selftest

MAIN = "import runpy; runpy.run_module('mpixla', run_name='__main__', alter_sys=True)\n"


def test_info(job):
    report, _, hooks = job(2, MAIN).stdout.partition("\n\n")
    lines = report.splitlines()
    said = dict(re.split(r"  +", line, maxsplit=1) for line in lines)
    assert len(said) == len(lines), "rank 0 alone prints"
    for title, package in {"mpixla": "mpixla", "JAX": "jax", "NumPy": "numpy", "mpi4py": "mpi4py"}.items():
        assert re.split("[ ,]", said[title])[0] == importlib.metadata.version(package)
    first = " ".join(MPI.Get_library_version().replace("\0", "").splitlines()[0].split())
    assert said["MPI"] == first
    assert said["MPI standard"] == "{}.{}".format(*MPI.Get_version())
    assert said["MPI handles"].startswith("int" if "MPICH" in first or "Intel" in first else "pointer")
    assert said["thread level"] == "MPI_THREAD_MULTIPLE"
    assert said["ranks"].startswith("2 (")
    assert said["GPU transport"] == "none: CPU only"
    assert [line.split(":")[0].strip() for line in hooks.splitlines()[1:]] == said["hooks in JAX"].split(", ")
    assert said["GPUs of rank 0"].startswith(("none: no driver of a GPU can be loaded (CUDA: lib", "not used: "))
    # The file is one that this process has in its memory.
    library = Path(said["MPI library"].split(", which is ")[-1])
    assert re.search(rf" {re.escape(str(library))}$", Path("/proc/self/maps").read_text(), re.MULTILINE)
    assert library == Path(native.lib.mpixla_mpi_file().decode()).resolve()


def test_info_that_is_not_read_to_its_end(job):
    """As by ``| head -1``: in a pipe whose reader is gone."""
    gone = "import os; reader, writer = os.pipe(); os.close(reader); os.dup2(writer, 1)\n"
    assert job(2, gone + MAIN).stderr == ""


PLACES = [
    ([("a", [0, 1])], "1 (1 on a)", "2 for each rank, of its own"),
    ([("a", [0]), ("a", [1]), ("b", [0])], "3 (2 on a, 1 on b)", "1 for each rank, of its own"),
    ([("a", [0, 1]), ("a", [1])], "2 (2 on a)", "1 to 2 for each rank, shared with other ranks (not pinned)"),
    (
        [(f"n{i}", [0]) for i in range(10)],
        f"10 ({', '.join(f'1 on n{i}' for i in range(8))}, and 2 more hosts)",
        "1 for each rank, of its own",
    ),
]


def test_own_cpus_are_all_without_sched_getaffinity(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity")
    assert info._own_cpus() == list(range(os.cpu_count()))


@pytest.mark.parametrize(("places", "ranks", "cpus"), PLACES)
def test_ranks_and_their_cpus(places, ranks, cpus):
    rows = info.describe_ranks(places, "none: CPU only")
    assert rows["ranks"] == ranks
    assert rows["CPUs"] == cpus


@pytest.mark.any_mpi
def test_hosts_of_one_name(job):
    """Which ranks share memory says MPI, and not the hosts' names."""
    code = """
        import sys
        from mpi4py import MPI
        from mpixla.mpi import hosts

        class TwoHosts(MPI.Intracomm):
            def Split_type(self, kind):
                assert kind == MPI.COMM_TYPE_SHARED
                return self.Split(self.rank % 2, -self.rank)

        one, two = MPI.COMM_WORLD, TwoHosts(MPI.COMM_WORLD)
        name = MPI.Get_processor_name()
        assert hosts.host_of_each(one) == [name] * 3 and not hosts.has_several(one)
        assert hosts.host_of_each(two) == [f"{name}#1", f"{name}#2", f"{name}#1"] and hosts.has_several(two)
        sys.stdout.write("ok\\n")
    """
    assert job(3, code).stdout == "ok\n" * 3


def test_info_when_a_rank_does_not_answer(job):
    done = job(
        2,
        """
        import sys, time
        from mpi4py import MPI
        import mpixla
        from mpixla.tools import info
        info._PATIENCE = 1
        if MPI.COMM_WORLD.rank == 1:
            time.sleep(1000)
        sys.exit(info.run())
        """,
        check=False,
    )
    assert done.returncode != 0
    assert "not arrived within 1 s" in done.stderr


@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"])
def test_launcher_of_another_mpi(monkeypatch, capsys, variable):
    """Each process is alone then, and everything would work, but for nobody."""
    for known in started.STARTED:
        monkeypatch.delenv(known, raising=False)
    assert mpi.wrong_launcher() is None
    monkeypatch.setenv(variable, "1")
    assert mpi.wrong_launcher() is None
    monkeypatch.setenv(variable, "4")
    assert f"{variable}=4: 4 processes were started" in mpi.wrong_launcher()
    assert selftest.run() == 1
    assert capsys.readouterr().out.startswith("mpixla does NOT work")


def test_selftest(job):
    lines = job(2, MAIN, "test", JAX_TRANSFER_GUARD="disallow").stdout.splitlines()
    assert re.fullmatch(rf"mpixla test: {len(selftest.CHECKS)} checks on 2 ranks, .+", lines[0])
    assert lines[1:-1] == [f"ok      {check.name}" for check in selftest.CHECKS]
    assert lines[-1] == f"mpixla works here: all {len(selftest.CHECKS)} checks passed on 2 ranks."


def test_selftest_alone(capsys):
    assert selftest.run() == 0
    assert f"all {len(selftest.CHECKS)} checks passed on 1 rank." in capsys.readouterr().out


@pytest.mark.parametrize("check", selftest.CHECKS, ids=lambda check: check.name)
def test_every_check_can_fail(check):
    """A result that differs in one item, or in its shape, is noticed."""
    world = selftest.CheckContext()

    right = check.expected(world, [world.make_operand(0, check.dtype)])
    spoiled = right.copy()
    spoiled.flat[0] += 1
    for other in (spoiled, right[None]):
        bad = selftest.SelfCheck(check.name, lambda w, x, y=other: jnp.asarray(y), check.expected, check.dtype)
        assert re.match("expected .*, got ", selftest._attempt_check(bad, world))


BREAK = """
import sys, time
from dataclasses import replace
import mpixla
from mpixla import __main__
from mpixla.tools import selftest
rank = mpixla.get_default_comm().Get_rank()
selftest._PATIENCE = 1
checks = selftest.CHECKS[:5]
i = [check.name for check in checks].index("allreduce")
right = checks[i].call
def call(w, x):
    {body}
checks[i] = replace(checks[i], call=call, jit={jit})
selftest.CHECKS[:] = checks
sys.exit(__main__.main(["test", "--timeout", "3"]))
"""
# What happens on rank 1, and whether the others can go on.
BROKEN = {
    "a wrong result": ("return right(w, x) + rank", True, "rank 1: expected float32[2, 3]", True),
    "an exception before the call": ("return right(w, x) if rank == 0 else 1 / 0", True, "ZeroDivisionError", False),
    "a rank that is stuck": ("rank and time.sleep(60)\n    return right(w, x)", False, "did not end within 3 s", False),
}


@pytest.mark.parametrize("what", BROKEN)
def test_selftest_that_fails(job, what):
    body, jit, report, goes_on = BROKEN[what]
    done = job(2, BREAK.format(body=body, jit=jit), check=False)
    assert done.returncode != 0
    assert report in done.stdout + done.stderr
    if goes_on:
        lines = done.stdout.splitlines()
        assert [line[:6].strip() for line in lines if line.startswith(("ok", "FAILED"))] == [
            "ok",
            "ok",
            "FAILED",
            "ok",
            "ok",
        ]
        assert lines[-1] == "mpixla does NOT work here: 1 of 5 checks failed: allreduce."
    else:
        assert (
            "mpixla does NOT work here: the ranks cannot go on after 'allreduce', so the job is aborted." in done.stderr
        )


def test_bench(job):
    """The command as it is but for the time that it takes."""
    lines = job(2, f"from mpixla.tools import bench; bench._SECONDS = 0.002\n{MAIN}", "bench").stdout.splitlines()
    assert re.match("mpixla bench: 2 ranks on 1 host, ", lines[0])
    assert lines[2].split() == ["bytes", "sendrecv", "us", "MB/s", "allreduce", "us", "MB/s"]
    sizes = []
    for line in lines[3:]:
        nbytes, *numbers = map(float, line.split())
        assert len(numbers) == 4
        assert min(numbers) >= 0
        for time, rate in (numbers[:2], numbers[2:]):
            assert time > 0
            assert rate == pytest.approx(nbytes / time, rel=0.1, abs=0.1)  # bytes in a microsecond are MB in a second
        sizes.append(nbytes)
    assert sizes == sorted(sizes)
    assert len(sizes) == 5


def test_bench_of_one_rank_has_no_rates(capsys, monkeypatch):
    monkeypatch.setattr(bench, "_SECONDS", 0.002)
    assert not __main__.main(["bench"])
    lines = capsys.readouterr().out.splitlines()
    assert "MB/s" not in "".join(lines)
    assert lines[3].split() == ["bytes", "sendrecv", "us", "allreduce", "us"]
    assert [len(line.split()) for line in lines[4:]] == [3] * 5


def test_version_is_printed_once(job):
    assert job(2, MAIN, "--version").stdout == f"mpixla {importlib.metadata.version('mpixla')}\n"


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["--help"], 0, "tries an operation of each kind"),
        (["test", "--timeout", "nan"], 2, "argument --timeout: it must be a number of seconds greater than 0"),
    ],
)
def test_usage_is_printed_once(job, arguments, status, says):
    """Rank 0 says it, last of all here, and no rank has ended before."""
    late = "import time\nfrom mpi4py import MPI\ntime.sleep(0.5 * (MPI.COMM_WORLD.Get_rank() == 0))\n"
    done = job(2, late + MAIN, *arguments, check=False)
    assert done.returncode == status
    text = done.stderr if status else done.stdout
    assert text.count("usage: python -m mpixla") == 1
    assert text.count(says) == 1
    assert "usage" not in (done.stdout if status else done.stderr)


A_TIME = "--timeout: it must be a number of seconds greater than 0, but is "


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        *((["test", "--timeout", time], f"{A_TIME}'{time}'.") for time in ("-1", "0", "nan", "inf", "1e300", "abc")),
        (["test", "--timeout"], "argument --timeout: expected one argument"),
        (["bench", "--sizes"], "unrecognized arguments: --sizes"),
        (["tset"], "invalid choice: 'tset'"),
        (["-n", "2", "ok.py", "7"], "run starts programs: python -m mpixla run -n 2 ok.py 7"),
        (["ok.py"], "run starts programs: python -m mpixla run ok.py"),
        ([""], "invalid choice: ''"),
        (["x" * 5000], "invalid choice: 'xxx"),
        (["--bogus"], "--bogus"),
    ],
)
def test_bad_command_line(capsys, arguments, says):
    with pytest.raises(SystemExit) as ended:
        __main__.main(arguments)
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_trace_is_a_command(capsys, tmp_path):
    """What it does is that of ``python -m mpixla.trace`` (test_trace.py)."""
    assert __main__.main(["trace", str(tmp_path / "nowhere")]) == 1
    assert "nowhere" in capsys.readouterr().err


def test_run_is_a_command_line(capsys):
    """It starts before this (test_run.py); from Python it would take the process that calls it."""
    with pytest.raises(SystemExit) as ended:
        __main__.main(["run", "-n", "2", "x.py"])
    assert ended.value.code == 2
    assert "unrecognized arguments: -n 2 x.py" in capsys.readouterr().err
