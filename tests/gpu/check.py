"""make check-gpu: what can only be seen on a machine that has a GPU, in jobs of 1 and 2 ranks that share it.

Each check is a job with a limit of its own. Results are written as they come, so that those of a run that is cut off
are there.
"""

import os
import re
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "bench"))

import gpu_machine as machine  # noqa: E402

# The suite's files, what they say of a GPU first.
SUITE = (
    "value",
    "errors",
    "order",
    "in_place",
    "halo",
    "requests",
    "vector",
    "neighbor",
    "control_flow",
    "short_floats",
    "pairs",
    "tree",
    "jit",
    "eager",
    "freed",
    "transpose",
    "jvp",
    "vmap",
    "status",
    "to_oneself",
    "comm",
    "large_counts",
    "nan",
    "keys",
    "reveal",
    "lineax",
)
FAILURES = 4  # of a file of the suite: so often it is run again without the test that failed


@dataclass(frozen=True)
class Check:
    """A job, and how it must end.

    Attributes:
        name: what is checked.
        program: what each rank runs, after the name of Python.
        transport: MPIXLA_GPU_TRANSPORT, if it is set.
        ranks: how many there are.
        limit: seconds.
        fails: whether the exit status must be another than 0.
        says: what it must print, a regular expression.
        last: variables of the last rank.
        shares: whether ranks on one GPU may use NCCL.
    """

    name: str
    program: tuple[str, ...]
    transport: str = ""
    ranks: int = 2
    limit: float = 90
    fails: bool = False
    says: str = ""
    last: Mapping[str, str] = field(default_factory=dict)
    shares: bool = False

    def command(self) -> list[str]:
        each = {"MPIXLA_GPU_TRANSPORT": self.transport} if self.transport else {}
        if self.shares:
            each["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
        variables = [*[each] * (self.ranks - 1), {**each, **self.last}]
        return machine.job([sys.executable, *self.program], *variables)


def own(what: str, name: str, **how: Any) -> Check:
    """Return a check by one of the programs beside this file."""
    return Check(what, (str(HERE / "programs.py"), name), **how)


def checks() -> list[Check]:
    nccl = {"transport": "nccl", "shares": True}
    refused = "refused: "
    made = [
        Check("python -m mpixla", ("-m", "mpixla"), says=r"GPU transport +(host|nccl)"),
        Check("python -m mpixla test", ("-m", "mpixla", "test"), limit=150, says="mpixla works here"),
        Check("python -m mpixla test, one rank", ("-m", "mpixla", "test"), ranks=1, limit=150, says="works here"),
        own("every operation, host", "few_values", transport="host"),
        own("every operation, nccl, one rank", "few_values", ranks=1, **nccl),
        own("every operation, nccl", "few_values", **nccl),
        own("kernels and calls in order, host", "order", transport="host"),
        own("kernels and calls in order, nccl", "order", **nccl),
        own("large arrays, host", "large", transport="host", limit=120),
        own("large arrays, nccl", "large", limit=120, **nccl),
        own("shallow water as on one rank, host", "model", transport="host"),
        own("shallow water as on one rank, nccl", "model", **nccl),
        own("nccl asked for on one GPU without its variable", "one_gpu_for_two", transport="nccl", says=refused),
        own("mpi asked for, which takes no GPU's memory", "no_gpus_for_mpi", transport="mpi", says=refused),
        own("ranks ask for different transports", "different_wishes", transport="host", says=refused, last=NCCL),
        own(
            "a transport that does not exist",
            "failing_call",
            transport="nonsense",
            fails=True,
            says="MPIXLA_GPU_TRANSPORT is 'nonsense', but must be auto, nccl, mpi or host",
        ),
        own("select_local_gpu before JAX starts", "select_early"),
        own("select_local_gpu after JAX has started", "select_late", says=refused),
        own("CPU and GPU ranks on one communicator", "mixed_ranks", last=CPU, limit=120),
        own("arrays of CPU and GPU on one communicator", "mixed_arrays"),
        own("a reduction of the user's, host", "own_reduction", transport="host"),
        own("a reduction of the user's, nccl", "own_reduction", **nccl),
        own("a call that fails, host", "failing_call", transport="host", says=refused),
        own("a call that fails, nccl", "failing_call", says=refused, **nccl),
        own("a freed communicator, host", "freed_communicator", transport="host", says=refused),
        own("a freed communicator, nccl", "freed_communicator", says=refused, **nccl),
        own("exit with work pending, host", "pending", transport="host", says=DISPATCHED),
        own("exit with work pending, nccl", "pending", says=DISPATCHED, **nccl),
        own("an uncaught exception, host", "uncaught", transport="host", fails=True, says=LOST),
        own("an uncaught exception, nccl", "uncaught", fails=True, says=LOST, **nccl),
        own("a failure that nobody looks at", "unheard", transport="host", fails=True, says=UNHEARD),
        own("every type and reduction, host", "values", transport="host", limit=300),
        own("every type and reduction, nccl, one rank", "values", ranks=1, limit=300, **nccl),
        own("every type and reduction, nccl", "values", limit=300, **nccl),
    ]
    if find_spec("pytest"):
        made += [Check(f"suite: {name}, host", suite(name), transport="host", limit=240) for name in SUITE]
    return made


NCCL = {"MPIXLA_GPU_TRANSPORT": "nccl"}
CPU = {"JAX_PLATFORMS": "cpu", "MPIXLA_FAKE_DEVICE": "0"}
DISPATCHED = r"dispatched 0[\s\S]*dispatched 1|dispatched 1[\s\S]*dispatched 0"
LOST = r"KeyError: 'lost on rank 1'"
UNHEARD = r"r1 \| MPI_Recv returned error code"
# What `--quick` runs.
QUICK = (
    "python -m mpixla",
    "large arrays, host",
    "nccl asked for on one GPU without its variable",
    "an uncaught exception, host",
)


def suite(name: str, *arguments: str) -> tuple[str, ...]:
    return ("-m", "pytest", "-q", "-p", "no:cacheprovider", str(ROOT / f"tests/spmd/test_{name}.py"), *arguments)


class Run:
    """A run of all checks, some at a time, until the time is over.

    Args:
        variables: of all jobs.
        out: folder of the results.
        facts: about the machine.
        end: the time (time.monotonic()) at which everything must have ended.
    """

    def __init__(self, variables: Mapping[str, str], out: Path, facts: Mapping[str, str], end: float) -> None:
        self.variables, self.out, self.facts, self.end = variables, out, facts, end
        self.results: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()

    def all(self, wanted: list[Check], at_once: int) -> bool:
        """Run the checks, and return whether none has failed."""
        for check in wanted:
            self.results[check.name] = {"outcome": "not run", "why": "the time was over", "seconds": 0.0}
        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(self._one, wanted))
        return all(r["outcome"] in ("passed", "skipped") for r in self.results.values())

    def _one(self, check: Check) -> None:
        result = self._result(check)
        with self._lock:
            if result:
                self.results[check.name] = result
                print(f"{result['outcome']:8} {result['seconds']:6.1f} s  {check.name}  {result['why']}", flush=True)
            data = {"machine": dict(self.facts), "checks": self.results}
            machine.write(self.out, "gpu-check", data, self.page())

    def _result(self, check: Check) -> dict[str, Any] | None:
        begin, failed, check_now = time.monotonic(), [], check
        while (left := self.end - time.monotonic()) > 5:
            log = machine.BUILD / "logs" / f"{re.sub('[^a-z0-9]+', '-', check.name.lower())}.log"
            done = machine.run(check_now.command(), self.variables, min(check.limit, left), log)
            outcome, why = judge(check_now, done)
            test = re.search(r"== rank \d+ of \d+: (\S.*?) failed in ", done.text)
            if failed and outcome == "passed":
                outcome, why = "failed", "the rest passed"
            if outcome == "failed" and test:
                failed.append(test[1])
                if len(failed) < FAILURES:
                    check_now = Check(
                        **{**vars(check), "program": (*check.program, *(f"--deselect={t}" for t in failed))}
                    )
                    self._keep(log, len(failed))
                    continue
            why = "; ".join([*(f"failed: {t}" for t in failed), why] if failed else [why])
            tail = "" if outcome == "passed" else done.text[-3000:]
            return {
                "outcome": outcome,
                "why": why,
                "seconds": round(time.monotonic() - begin, 1),
                "command": " ".join(check.command()).replace(str(ROOT) + "/", ""),
                "printed": tail,
            }
        if failed:
            seconds = round(time.monotonic() - begin, 1)
            return {"outcome": "failed", "why": "; ".join(f"failed: {t}" for t in failed), "seconds": seconds}
        return None

    def _keep(self, log: Path, number: int) -> None:
        """Keep the output of a file of the suite that failed."""
        log.replace(log.with_suffix(f".{number}.log"))

    def page(self) -> str:
        """Return the results, to be read."""
        count = {kind: 0 for kind in ("passed", "failed", "skipped", "not run")}
        for result in self.results.values():
            count[result["outcome"]] += 1
        lines = ["# What `make check-gpu` found", "", "| | |", "| --- | --- |"]
        lines += [f"| {name} | {text} |" for name, text in self.facts.items()]
        lines += ["", ", ".join(f"{n} {kind}" for kind, n in count.items()) + ".", ""]
        lines += ["| check | outcome | seconds | |", "| --- | --- | --- | --- |"]
        for name, r in self.results.items():
            outcome = r["outcome"] if r["outcome"] != "failed" else "**failed**"
            why = " ".join(r["why"].split()).replace("|", "\\|")
            lines.append(f"| {name} | {outcome} | {r['seconds']:.0f} | {why} |")
        return "\n".join([*lines, ""])


def judge(check: Check, done: machine.Ended) -> tuple[str, str]:
    """Return the outcome of a check, and why."""
    skipped = re.search(r"^SKIPPED: (.*)$", done.text, re.MULTILINE)
    if done.status is None:
        return "failed", f"it did not end within {done.seconds:.0f} s"
    if skipped and done.status == 0:
        return "skipped", skipped[1]
    if (done.status != 0) != check.fails:
        return "failed", f"it ended with status {done.status}: {last_words(done.text)}"
    if not re.search(check.says, done.text):
        return "failed", f"it did not print '{check.says}'"
    told = re.search(r"^(?:refused|transport): (.*)$", done.text, re.MULTILINE)
    return "passed", re.sub(r" \(\S*/.*?\)", "", told[1]) if told else ""


def last_words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line or line.startswith("E ")]
    return (errors or lines or ["it printed nothing"])[-1][:300]


def main() -> int:
    args = machine.parser("Checks mpixla on a GPU.", 540).parse_args()
    end = time.monotonic() + args.seconds
    variables = machine.environment(args.fake, args.wheels)
    facts = machine.about(variables, args.fake, machine.BUILD / "logs" / "about.log")
    wanted = [check for check in checks() if not args.quick or check.name in QUICK]
    run = Run(variables, args.out, facts, end)
    good = run.all(wanted, max(1, (os.cpu_count() or 1) // 4))
    print(f"wrote {args.out / 'gpu-check.md'} and .json; what failed printed more into {machine.BUILD / 'logs'}")
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
