"""The figures of a run: as JSON, and as a page for people of all runs whose JSON lies together."""

import json
from pathlib import Path
from typing import Any

from soak.watch import BYTES_PER_COMPILATION, MORE, Watch

AT = {"10 %": 0.1, "50 %": 0.5, "90 %": 0.9, "100 %": 1.0}
MIB = 2**20

INTRODUCTION = """\
# Random programs for half an hour

`make soak` runs random programs that are correct, one after the other, and compares every value with what NumPy
computes from the inputs of all ranks. The programs use all operations, data types and reductions, requests, pytrees,
PRNG keys and status objects, on communicators that are made and freed all the time: duplicates, parts, grids, graphs.
They have loops, branches and functions inside, and are batched and differentiated. Each runs eagerly, compiled by
`jax.jit` (some with donated arguments) and by `mpixla.jit`, and some as two compiled functions with requests under way
between them; each several times with other inputs.

`make soak MINUTES=5 NP=2 MPI=openmpi SEED=7` is another run. Where a value is wrong, it prints the program as a script
that runs it alone. A run of 30 minutes writes this page. `make soak SHARDED=1` runs programs on arrays that JAX spreads
over the ranks, with its collectives and mpixla's operations in any order.
"""

LOOKS = f"""\
Looked at every ten programs, when all communicators were freed and JAX's caches emptied. The figures are those at
10 %, 50 %, 90 % and the end of the run. A run fails if one of them has grown from its first half to its second, or if
memory grows by more than {BYTES_PER_COMPILATION} bytes for each program that XLA compiles (the median of the slopes
between all pairs of looks after the first third): JAX and XLA keep some, as the same programs without communication
(`python tests/soak/run.py --control`) show.
"""

NAMES = """\
*communicators* are those that mpixla knows and that are not freed. *communicator numbers*, *types* and *reductions*
are the number that MPI gives to a new object of the kind: it rises where objects are left behind, those that mpixla
makes of a program's communicators among them. *request places* are those of the table of requests.
"""


def watched(watch: Watch) -> dict[str, Any]:
    """What one rank had at some points of the run, and by how much that grew for each compilation."""
    return {
        name: {**{at: watch.at(name, f) for at, f in AT.items()}, "for each compilation": round(watch.slope(name), 3)}
        for name in ("memory", *MORE)
    }


def write(figures: dict[str, Any], out: Path | None) -> None:
    """Prints the figures. With `out`, also writes out/soak/NAME.json, and out/soak.md from all that lie there."""
    print(_summary(figures), flush=True)
    if out is None:
        return
    folder = out / "soak"
    folder.mkdir(parents=True, exist_ok=True)
    library = "".join(figures["MPI"].split()[:-1]).lower()
    (folder / f"{library}-{figures['ranks']}.json").write_text(json.dumps(figures, indent=1) + "\n")
    runs = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    (out / "soak.md").write_text(_page(runs))


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
        *f["grown"],
    ]
    return "\n".join(lines)


def _table(head: list[str], rows: list[list[Any]]) -> list[str]:
    return [f"| {' | '.join(map(str, row))} |" for row in [head, ["---"] * len(head), *rows]]


def _page(runs: list[dict[str, Any]]) -> str:
    lines = [
        INTRODUCTION,
        "## Runs",
        "",
        *_table(
            ["MPI", "ranks", "minutes", "programs", "steps", "runs of each rank", "values compared on rank 0", "wrong"],
            [
                [r["MPI"], r["ranks"], r["minutes"], r["programs"], r["steps"], r["runs"], r["checks"], r["wrong"]]
                for r in runs
            ],
        ),
        "",
        f"Versions: {', '.join(sorted({'JAX ' + r['JAX'] for r in runs}))}.",
        "",
        "## What may not grow",
        "",
        LOOKS,
    ]
    for r in runs:
        lines += [f"### {r['MPI']}, {r['ranks']} ranks", ""]
        rows = []
        for rank, figures in enumerate(r["watched"]):
            for name, figure in figures.items():
                unit = MIB if name == "memory" else 1
                values = [f"{figure[at] / unit:.0f}" for at in AT]
                rows.append([rank, name + (" (MiB)" if unit > 1 else ""), *values])
        lines += [*_table(["rank", "what", *AT], rows), ""]
        slopes = ", ".join(f"{figures['memory']['for each compilation']:.0f}" for figures in r["watched"])
        lines += [f"Memory for each compilation, by rank, in bytes: {slopes}.", ""]
    lines += [
        NAMES,
        "## What the programs had",
        "",
    ]
    for kind, what in (("operations", "Steps by operation"), ("data types", "Calls by data type")):
        names = sorted({name for r in runs for name in r[kind]})
        heads = [what, *(f"{r['MPI']}, {r['ranks']} ranks" for r in runs)]
        lines += [*_table(heads, [[f"`{n}`", *(r[kind].get(n, 0) for r in runs)] for n in names]), ""]
    for kind, what in (("modes", "Programs by how they were run"), ("transformations", "Programs by transformation")):
        names = list(dict.fromkeys(name for r in runs for name in r[kind]))
        heads = [what, *(f"{r['MPI']}, {r['ranks']} ranks" for r in runs)]
        lines += [*_table(heads, [[n, *(r[kind].get(n, 0) for r in runs)] for n in names]), ""]
    return "\n".join(lines).rstrip("\n") + "\n"
