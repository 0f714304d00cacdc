"""What the README and docs/bench/README.md show of docs/bench: python bench/summary.py writes it, between two marks."""

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from marks import fill
from report import Figures, number, result_of, table
from rows import FULL, Measurement, Row, rows

ROOT = Path(__file__).parents[1]
NAMES = {"mpich": "MPICH", "openmpi": "Open MPI"}
SECTIONS = ("Calls from Python", "The carry of a loop", "Shallow-water model", "Other")
BEGIN = "<!-- bench/summary.py writes this -->\n"


class Headline(NamedTuple):
    """A line of the README's: a time of ours and one that it is compared with.

    Attributes:
        says: what was measured, in the README's words.
        than: what it is compared with, in the README's words.
        row: the section of a row, its name, and what it is over.
        is_peer: whether mpi4jax's figure in that row is what counts, rather than what the row is over.
        steps: of how many steps the time was measured, where it is shown for one.
    """

    says: str
    than: str
    row: tuple[str, str, str]
    is_peer: bool = False
    steps: int = 1


HEADLINES = (
    Headline(
        "`allreduce` of 4 bytes outside `jit`",
        "mpi4jax",
        ("Calls from Python", "eager allreduce of 4 bytes", "jax.jit(x + 1)"),
        is_peer=True,
    ),
    Headline(
        "a jitted function with one `allreduce` of 4 bytes",
        "mpi4jax",
        ("Calls from Python", "jax.jit, one 4-byte allreduce", "mpi4jax's"),
    ),
    Headline(
        "`allreduce` of 4 bytes within a compiled program",
        "MPI from C",
        ("One operation in a chain of them", "allreduce, 4 B", "raw C"),
    ),
    Headline(
        "a time step of mpi4jax's shallow-water example, with `halo_exchange`",
        "mpi4jax",
        ("Shallow-water model", "mpi4jax's example with halo_exchange, 360 x 180", "mpi4jax's example"),
        steps=2000,
    ),
    Headline(
        "`jax.lax.psum` of 16 MiB, with `mpixla.distributed`",
        "gloo",
        ("JAX's own collectives", "jax.lax.psum with mpixla.distributed, 16 MiB", "with gloo"),
    ),
)


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
    plots = [f"![{NAMES[name]}: one operation in a chain]({name}-chains.svg)" for name in runs]
    return "\n\n".join([table(head, lines), *plots])


def headlines(runs: Mapping[str, dict[Measurement, Figures]]) -> str:
    """A table of the few figures that the README has.

    Args:
        runs: the figures under each MPI, named as in ``NAMES``.
    """
    found = {(row.section, row.what, row.over): row for row in rows(FULL)}
    lines = [
        [line.says, line.than, *(_two_times(line, found[line.row], figures) for figures in runs.values())]
        for line in HEADLINES
    ]
    return table(["operation", "compared with", *(NAMES[name] for name in runs)], lines)


def _two_times(line: Headline, row: Row, figures: dict[Measurement, Figures]) -> str:
    both = (figures.get(m, "not measured") for m in (row.measured, row.peer if line.is_peer else row.against) if m)
    return " / ".join("-" if isinstance(times, str) else _microseconds(times, line.steps) for times in both)


def _microseconds(times: Sequence[Sequence[float]], steps: int) -> str:
    value = statistics.median(time[0] for time in times) * 1e6 / steps
    return f"{value:,.0f} µs" if value >= 10 else f"{value:.1f} µs"


def _cell(row: Row, figures: dict[Measurement, Figures]) -> str:
    if any(m not in figures for m in row.measurements()):
        return ""
    cell = number(result_of(row, figures).value, row.kind)
    peer = result_of(row, figures, row.peer).value if row.peer else None
    return cell if peer is None else f"{cell} (mpi4jax {number(peer, row.kind)})"


def pages() -> dict[Path, str]:
    """The pages that show what was measured, as they are to be."""
    files = {name: ROOT / "docs" / "bench" / f"{name}.json" for name in NAMES}
    runs = {name: load(path) for name, path in files.items() if path.exists()}
    blocks = {ROOT / "README.md": headlines(runs), ROOT / "docs" / "bench" / "README.md": summary(runs)}
    return {page: fill(page.read_text(), BEGIN, block) for page, block in blocks.items()}


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text)
