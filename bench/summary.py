"""The excerpts of docs/bench in README and docs/bench/README.md: python bench/summary.py writes them between marks."""

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from marks import fill
from report import NAMES, Figures, number, result_of, table
from rows import CLIENTS, FULL, Measurement, Row, rows, rows_of_clients

ROOT = Path(__file__).parents[1]
SECTIONS = (CLIENTS, "Calls from Python", "The carry of a loop", "Shallow-water model", "Other")
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


EXAMPLE = "mpi4jax's shallow-water example, 360 x 180"
HEADLINES = (
    Headline(
        "a time step of mpi4jax's shallow-water example, unmodified",
        "mpi4jax",
        (CLIENTS, EXAMPLE, "on mpi4jax"),
        steps=2000,
    ),
    Headline(
        "a time step of the ocean model Veros, unmodified",
        "mpi4jax",
        (CLIENTS, "Veros, acc_basic, a time step", "on mpi4jax"),
    ),
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


# The figures of the runs under one MPI, by their file's last word: "" is the run of all rows but those of clients. Runs
# have measurements in common, and figures are compared within a run only.
Runs = Mapping[str, Mapping[Measurement, Figures]]


def load(path: Path) -> dict[Measurement, Figures]:
    """Return the figures of a run; none if there is no file."""
    items = json.loads(path.read_text()) if path.exists() else []
    return {Measurement(item["contender"], item["line"]): item["figures"] for item in items}


def all_rows() -> list[Row]:
    """Return the rows of all runs under one MPI."""
    return [*rows_of_clients(FULL), *rows(FULL)]


def _run_of(row: Row, runs: Runs) -> Mapping[Measurement, Figures]:
    return runs.get("-clients" if row.section == CLIENTS else "", {})


def summary(runs: Mapping[str, Runs]) -> str:
    """Return a table of the rows that have a target, and the plots of the chains.

    Args:
        runs: the figures under each MPI, named as in ``NAMES``.
    """
    wanted = [row for row in all_rows() if row.section in SECTIONS and row.target is not None]
    head = ["measured", "over", "to reach", *(NAMES[name] for name in runs)]
    lines = [
        [
            row.what,
            row.over,
            f"{'>=' if row.at_least else '<='} {number(row.target, row.kind)}",
            *(_cell(row, _run_of(row, of_mpi)) for of_mpi in runs.values()),
        ]
        for row in wanted
    ]
    plots = [f"![{NAMES[name]}: one operation in a chain]({name}-chains.svg)" for name in runs]
    return "\n\n".join([table(head, lines), *plots])


def headlines(runs: Mapping[str, Runs]) -> str:
    """Return a table of the few figures that the README has, those that were measured.

    Args:
        runs: the figures under each MPI, named as in ``NAMES``.
    """
    found = {(row.section, row.what, row.over): row for row in all_rows()}
    lines = []
    for line in HEADLINES:
        row = found[line.row]
        figures = [_run_of(row, of_mpi) for of_mpi in runs.values()]
        if any(row.measured in of_run for of_run in figures):
            lines.append([line.says, line.than, *(_two_times(line, row, of_run) for of_run in figures)])
    return table(["operation", "compared with", *(NAMES[name] for name in runs)], lines)


def _two_times(line: Headline, row: Row, figures: Mapping[Measurement, Figures]) -> str:
    both = (figures.get(m, "not measured") for m in (row.measured, row.peer if line.is_peer else row.against) if m)
    return " / ".join("-" if isinstance(times, str) else _format_time(times, line.steps) for times in both)


def _format_time(times: Sequence[Sequence[float]], steps: int) -> str:
    value = statistics.median(time[0] for time in times) * 1e6 / steps
    unit, value = ("ms", value / 1e3) if value >= 1e3 else ("µs", value)
    return f"{value:.{0 if value >= 10 else 1}f} {unit}"


def _cell(row: Row, figures: Mapping[Measurement, Figures]) -> str:
    if any(m not in figures for m in row.measurements()):
        return ""
    cell = number(result_of(row, figures).value, row.kind)
    peer = result_of(row, figures, row.peer).value if row.peer else None
    return cell if peer is None else f"{cell} (mpi4jax {number(peer, row.kind)})"


def pages() -> dict[Path, str]:
    """Return the pages that show the measured figures, as they are to be."""
    folder = ROOT / "docs" / "bench"
    runs = {name: {run: load(folder / f"{name}{run}.json") for run in ("", "-clients")} for name in NAMES}
    blocks = {ROOT / "README.md": headlines(runs), ROOT / "docs" / "bench" / "README.md": summary(runs)}
    return {page: fill(page.read_text(), BEGIN, block) for page, block in blocks.items()}


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text)
