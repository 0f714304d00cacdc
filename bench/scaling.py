"""How cost grows with the number of ranks: python bench/scaling.py --name mpich. It writes tables into docs/scaling.md.

Ranks share the cores of one machine, so nothing here is a time but the processor's own. scaling_worker.py measures.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from marks import fill
from report import table

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "scaling.md"
RANKS = (1, 2, 4, 8, 16, 32, 64)
FIGURES = ROOT / "docs" / "bench"
TOOLS = {"MPIXLA_CHECK": "1", "MPIXLA_TIMEOUT": "600"}


def start(ranks: int, verb: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Return the worker on so many ranks."""
    command = [ROOT / "tools/mpirun", "-n", ranks, sys.executable, ROOT / "bench/scaling_worker.py", verb]
    environment = {**os.environ, **environment}
    return subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, timeout=1200)


def measure(ranks: int) -> dict[str, Any]:
    """Measure the costs of a job of so many ranks.

    Raises:
        RuntimeError: if it fails, or does not fail where it has to.
    """
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="mpixla-") as traces:
        for name, environment in (("plain", {}), ("tools", {**TOOLS, "MPIXLA_TRACE": traces})):
            done = start(ranks, "cost", **environment)
            if done.returncode != 0:
                raise RuntimeError(f"{ranks} ranks failed:\n{done.stdout}{done.stderr}")
            found[name] = json.loads(done.stdout)
    for verb, environment in reports(ranks).items():
        done = start(ranks, verb, **environment)
        if done.returncode == 0:
            raise RuntimeError(f"{ranks} ranks did not fail, but had to: {verb}")
        found[verb] = len(said_by_one(done.stderr))
    return found


def reports(ranks: int) -> dict[str, dict[str, str]]:
    """Return the faults, each with the settings by which it is reported."""
    limit = {"MPIXLA_TIMEOUT": str(5 + ranks // 2)}  # ranks that share cores come late
    return {} if ranks == 1 else {"absent": limit, "circle": limit, "mismatch": {"MPIXLA_CHECK": "1"}}


def said_by_one(stderr: str) -> str:
    """Return the first report, or the first exception's message."""
    found = re.search(r"^mpixla: rank \d+ has waited.*?(?=^\S(?!hat each rank))", stderr, re.MULTILINE | re.DOTALL)
    found = found or re.search(r"r\d+ \| MPIXLA_CHECK: .*?\(at [^)]*\)", stderr, re.DOTALL)
    if not found:
        raise RuntimeError(f"There is no report in\n{stderr}")
    return found[0]


def mib(number: float) -> str:
    return f"{number / (1 << 20):.1f}"


def tables(figures: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return the texts of the page between two marks, by name."""
    several = [n for n in figures if int(n) > 1]  # alone, a process shares no pages of its libraries with others
    several = [several[0], several[-1]]

    def own_and_shared(how: str) -> list[str]:
        taken = [figures[n][how]["import"] for n in several]
        return [f"{mib(memory['own'])} + {mib(memory['shared'])}" for memory in taken]

    memory = [
        ["JAX and MPI, MiB of its own", *(mib(figures[n]["plain"]["JAX and MPI"]["own"]) for n in several)],
        ["`import mpixla`, MiB of its own + shared", *own_and_shared("plain")],
        ["with checks, time limit and timeline", *own_and_shared("tools")],
        ["a communicator, bytes", *(str(figures[n]["plain"]["communicator"]) for n in several)],
    ]
    text = {n: figures[n]["plain"]["programs"] for n in several}
    programs = [
        [name, *(str(text[n][name]["bytes"]) for n in several), str(text[several[-1]][name]["distinct"])]
        for name in text[several[0]]
    ]
    said = [
        [words, *(str(figures[n][verb]) for n in several)]
        for verb, words in {
            "absent": "the time limit: one rank does not come",
            "circle": "the time limit: each waits for the next",
            "mismatch": "checked mode: every second rank has another data type",
        }.items()
    ]
    head = [f"{n} ranks" for n in several]
    return {
        "memory": table(["of each rank", *head], memory),
        "programs": table(["bytes of a program", *head, "different ones"], programs),
        "reports": table(["characters of a report", *head], said),
    }


def page(text: str, name: str, blocks: dict[str, str]) -> str:
    """Return the new page, with the tables of one MPI. Of Open MPI it has the first."""
    for what, block in blocks.items():
        if name == "mpich" or what == "memory":
            text = fill(text, f"<!-- {what}, {name}: make bench-scaling writes this -->\n", block)
    return text


def figures_of(name: str) -> dict[str, dict[str, Any]]:
    """Return the figures of an MPI by the number of ranks."""
    return json.loads((FIGURES / f"scaling-{name}.json").read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", choices=("mpich", "openmpi"), required=True, help="the MPI")
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    args = parser.parse_args()
    figures = {}
    for ranks in args.ranks:
        print(f"{ranks} ranks ...", file=sys.stderr, flush=True)
        figures[str(ranks)] = measure(ranks)
    (FIGURES / f"scaling-{args.name}.json").write_text(json.dumps(figures, indent=1) + "\n")
    PAGE.write_text(page(PAGE.read_text(), args.name, tables(figures)))


if __name__ == "__main__":
    main()
