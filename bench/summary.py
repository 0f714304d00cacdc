"""What the README shows of docs/bench: python bench/summary.py writes it there, between two marks."""

import json
from pathlib import Path

from pages import fill
from report import Figures, number, result_of, table
from rows import FULL, Measurement, Row, rows

ROOT = Path(__file__).parents[1]
NAMES = {"mpich": "MPICH", "openmpi": "Open MPI"}
SECTIONS = ("Calls from Python", "The carry of a loop", "Shallow-water model", "Other")
BEGIN = "<!-- bench/summary.py writes this -->\n"


def load(path: Path) -> dict[Measurement, Figures]:
    """The figures of a run."""
    return {Measurement(item["contender"], item["line"]): item["figures"] for item in json.loads(path.read_text())}


def summary(runs: dict[str, dict[Measurement, Figures]]) -> str:
    """A table of the rows that have a target, and the plots of the chains.

    Args:
        runs: the figures under each MPI, named as in ``NAMES``.
    """
    wanted = [row for row in rows(FULL) if row.section in SECTIONS and row.target is not None]
    head = ["measured", "over", "to reach", *(NAMES[name] for name in runs)]
    lines = [
        [
            row.what,
            row.over,
            f"{'>=' if row.at_least else '<='} {number(row.target, row.kind)}",
            *(_cell(row, figures) for figures in runs.values()),
        ]
        for row in wanted
    ]
    plots = [f"![{NAMES[name]}: one operation in a chain](docs/bench/{name}-chains.svg)" for name in runs]
    return "\n\n".join([table(head, lines), *plots])


def _cell(row: Row, figures: dict[Measurement, Figures]) -> str:
    if any(m not in figures for m in row.measurements()):
        return ""
    cell = number(result_of(row, figures).value, row.kind)
    peer = result_of(row, figures, row.peer).value if row.peer else None
    return cell if peer is None else f"{cell} (mpi4jax {number(peer, row.kind)})"


def readme() -> str:
    """The README as it is to be."""
    files = {name: ROOT / "docs" / "bench" / f"{name}.json" for name in NAMES}
    block = summary({name: load(path) for name, path in files.items() if path.exists()})
    return fill((ROOT / "README.md").read_text(), BEGIN, block)


if __name__ == "__main__":
    (ROOT / "README.md").write_text(readme())
