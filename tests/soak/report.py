"""The figures of a run: printed, and as a row of the table in CONTRIBUTING.md."""

from pathlib import Path
from typing import Any

from marks import between, fill
from soak.watch import MORE, Watch

AT = {"10 %": 0.1, "100 %": 1.0}
MIB = 2**20
PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"
BEGIN = "<!-- make soak writes this -->\n"
HEAD = """\
| MPI | ranks | JAX | minutes | programs | values compared on rank 0 | wrong | MiB at 10 % | at the end |
|---|---|---|---|---|---|---|---|---|
"""


def watched(watch: Watch) -> dict[str, Any]:
    """Return the watched numbers of one rank at some points of the run, and their growth for each compilation."""
    return {
        name: {**{at: watch.at(name, f) for at, f in AT.items()}, "for each compilation": round(watch.slope(name), 3)}
        for name in ("memory", *MORE)
    }


def write(figures: dict[str, Any], into_page: bool) -> None:
    """Print the figures, and may put them into the table, in the place of those that it has of this MPI."""
    print(_summary(figures), flush=True)
    if into_page:
        PAGE.write_text(_page(PAGE.read_text(), figures))


def _page(text: str, f: dict[str, Any]) -> str:
    library = f["MPI"].rpartition(" ")[0]  # without its version
    others = [
        row
        for row in between(text, BEGIN).strip().removeprefix(HEAD).splitlines()
        if not row.startswith(f"| {library} ")
    ]
    memory = [max(figures["memory"][at] for figures in f["watched"]) for at in AT]
    cells = [f[what] for what in ("MPI", "ranks", "JAX", "minutes", "programs", "checks", "wrong")]
    row = " | ".join(map(str, [*cells, *(f"{bytes / MIB:.0f}" for bytes in memory)]))
    return fill(text, BEGIN, HEAD + "\n".join(sorted([*others, f"| {row} |"])))


def _summary(f: dict[str, Any]) -> str:
    lines = [
        f"{f['programs']} programs of {f['steps']} steps in {f['minutes']} minutes on {f['ranks']} ranks: "
        f"{f['runs']} runs on each, {f['checks']} values compared, {f['wrong']} of them wrong.",
        *(
            f"rank {rank}: {figures['memory']['10 %'] / MIB:.0f} MiB at 10 %, "
            f"{figures['memory']['100 %'] / MIB:.0f} MiB at the end, "
            f"{figures['memory']['for each compilation']:.0f} bytes for each compilation; "
            f"{figures['descriptors']['100 %']} descriptors, {figures['threads']['100 %']} threads"
            for rank, figures in enumerate(f["watched"])
        ),
        *(
            f"{kind}: {', '.join(f'{name} {count}' for name, count in f[kind].items())}"
            for kind in ("modes", "transformations", "operations", "data types")
        ),
        *f["grown"],
    ]
    return "\n".join(lines)
