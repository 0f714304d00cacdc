"""make check-gpu and make bench-gpu: their own logic, and their quick forms on the fake GPU."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tests" / "gpu"), str(ROOT / "tests" / "seam")]

import check  # noqa: E402
import fake_gpu  # noqa: E402
from check import Check  # noqa: E402

import gpu  # noqa: E402
import gpu_machine as machine  # noqa: E402
from contenders import NoAnswerError  # noqa: E402
from gpu import Measurement, Rounds  # noqa: E402

PASSES, FAILS = Check("passes", (), says="all right"), Check("fails", (), fails=True, says="Error: lost")


@pytest.mark.parametrize(
    ("wanted", "status", "text", "outcome"),
    [
        (PASSES, 0, "all right\n", "passed"),
        (PASSES, 0, "nothing", "failed"),
        (PASSES, 1, "all right\nValueError: no", "failed"),
        (PASSES, None, "all right", "failed"),
        (PASSES, 0, "SKIPPED: no GPU\n", "skipped"),
        (PASSES, 1, "SKIPPED: no GPU\n", "failed"),
        (FAILS, 1, "Error: lost", "passed"),
        (FAILS, 1, "Error: other", "failed"),
        (FAILS, 0, "Error: lost", "failed"),
    ],
)
def test_outcome_of_a_check(wanted, status, text, outcome):
    assert check.judge(wanted, machine.Ended(status, text, 1.0))[0] == outcome


def test_names_are_of_checks():
    names = [c.name for c in check.checks()]
    assert len(set(names)) == len(names)
    assert set(check.QUICK) <= set(names)
    for name in check.SUITE:
        assert (ROOT / f"tests/spmd/test_{name}.py").exists()


def test_a_job_that_hangs_is_ended(tmp_path):
    program = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
    done = machine.run(machine.job(program, {}, {"A": "1"}), {}, 5, tmp_path / "log")
    assert done.status is None
    assert done.seconds < 60


def test_checks_not_run_are_listed(tmp_path):
    """The time is over before the second check, and the results of the first are there."""
    checks = [Check(name, ("-c", "print('all right')"), ranks=1, says="all right") for name in ("one", "two")]
    run = check.Run({}, tmp_path, {"GPU": "none"}, time.monotonic() + 60)
    run.results = {c.name: {"outcome": "not run", "why": "the time was over", "seconds": 0.0} for c in checks}
    run._one(checks[0])
    run.end = time.monotonic()
    run._one(checks[1])
    results = json.loads((tmp_path / "gpu-check.json").read_text())["checks"]
    assert {name: r["outcome"] for name, r in results.items()} == {"one": "passed", "two": "not run"}
    assert "1 passed, 0 failed, 0 skipped, 1 not run." in (tmp_path / "gpu-check.md").read_text()


def test_suite_runs_again_without_failed_tests(tmp_path):
    """A file of the suite ends at its first failure, and is run again without that."""
    program = "import sys; left = {'a', 'b'} - {x.split('=')[1] for x in sys.argv[1:]}; [print(f'== rank 0 of 2: {x} "
    program += "failed in call') for x in sorted(left)[:1]]; sys.exit(bool(left))"
    run = check.Run({}, tmp_path, {}, time.monotonic() + 60)
    run.all([Check("suite", ("-c", program), ranks=1)], 1)
    assert run.results["suite"]["outcome"] == "failed"
    assert run.results["suite"]["why"] == "failed: a; failed: b; the rest passed"


class Contender:
    """Answers so often before the time is over, and dies of `gone`."""

    def __init__(self, answers):
        self.answers = answers
        self.is_up = False

    def start(self):
        self.is_up = True
        return self

    def ask(self, line, timeout):
        assert self.is_up
        if "gone" in line:
            self.is_up = False
            raise NoAnswerError("it is gone")
        self.answers -= 1
        if self.answers < 0:
            rounds._end = 0.0  # the time is over
        return [[[2.0, 1.0]]]


@pytest.mark.parametrize(("answers", "complete"), [(2, 1), (4, 1), (5, 2), (100, 3)])
def test_only_whole_rounds_count(answers, complete):
    global rounds
    asked = ("gone@8", "x@8", f"x@{gpu.WHOLE}")
    lines = [Measurement("a", f"chain {op} f32 1024 2 1 1") for op in asked]
    rows = [gpu.Row("section", "what", "over", m) for m in lines]
    rounds = Rounds({"a": Contender(answers).start}, rows, time.monotonic() + 2 * gpu.PATIENCE)
    for _ in rounds.measure(3):
        pass
    figures = rounds.figures()
    assert figures[lines[0]] == "a: it is gone"
    assert len(rounds.complete()) == complete
    assert figures[lines[1]] == figures[lines[2]] == [[1.0]] * complete
    text = gpu.page({}, rows, figures, complete)
    assert "not available: a: it is gone" in text
    assert "- x, 1 KiB: 1.00 8 B, 1.00 whole" in text


needs_fake_gpu = pytest.mark.skipif(not fake_gpu.PATH.exists(), reason="there is no fake GPU: make fake-device")


@needs_fake_gpu
@pytest.mark.parametrize(("program", "name"), [("tests/gpu/check.py", "gpu-check"), ("bench/gpu.py", "gpu-bench")])
def test_quick_form_on_the_fake_gpu(program, name, tmp_path):
    command = [sys.executable, str(ROOT / program), "--fake", "--quick", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=230)
    assert done.returncode == 0, done.stdout + done.stderr
    assert machine.FAKE in (tmp_path / f"{name}.md").read_text()
    data = json.loads((tmp_path / f"{name}.json").read_text())
    if name == "gpu-check":
        assert {r["outcome"] for r in data["checks"].values()} == {"passed"}, data
    else:
        assert all(isinstance(m["figures"], list) for m in data["measured"] if m["contender"] != "mpi4jax"), data


@needs_fake_gpu
def test_check_that_needs_a_newer_nccl_is_skipped(tmp_path):
    """Where ranks cannot share the GPU, whatever the program is about."""
    name = "an uncaught exception, nccl"
    variables = {**machine.environment(True, None), "MPIXLA_FAKE_NCCL_VERSION": "22809"}
    run = check.Run(variables, tmp_path, {}, time.monotonic() + 100)
    run.all([c for c in check.checks() if c.name == name], 1)
    assert run.results[name]["outcome"] == "skipped", run.results
    assert "use the same GPU" in run.results[name]["why"]
