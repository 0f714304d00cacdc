"""Writes the table of docs/faults.md from what the tests have kept; an MPI that was not tested keeps its column.

    python tests/faults/report.py mpich | openmpi

Calls in which the same fault was tried are one row: it quotes the first, and says the longest time of all. What one MPI
says like the one before it is not quoted again.
"""

import json
import re
import sys
from collections.abc import Iterator

from runner import RESULTS, ROOT
from table import CALLS, FAULTS, Fault

sys.path.insert(0, str(ROOT / "bench"))

from marks import between, fill

DOCUMENT = ROOT / "docs" / "faults.md"
BEGIN = "<!-- tests/faults/report.py writes this -->\n"
MPIS = {"mpich": "MPICH", "openmpi": "Open MPI"}
LONGEST = 110  # characters of a quotation
# Where one ends: after its first sentence, or before what is the same in many rows or different in each run.
END_OF_QUOTATION = re.compile(r"(?<=\.) (?=[A-Z])|, so the whole job is aborted|: process \d| \(at script")
THE_SAME = "the same"

Key = tuple[str, str, str]  # the fault, where it was tried, under which setting


def _rows() -> dict[Key, list[Fault]]:
    rows: dict[tuple[str, str, tuple[tuple[str, str], ...]], list[Fault]] = {}
    for fault in FAULTS:
        name = "" if fault.name in CALLS else fault.name
        rows.setdefault((fault.group, name, fault.setting), []).append(fault)
    return {_key(group, name, faults): faults for (group, name, _), faults in rows.items()}


def _key(group: str, name: str, faults: list[Fault]) -> Key:
    ranks = sorted({fault.ranks for fault in faults})
    calls = list(dict.fromkeys(fault.name for fault in faults))
    where = name or ("any call" if calls == list(CALLS) else "; ".join(calls))
    by_run = ["`mpixla run`"] if faults[0].by_run else []
    setting = ", ".join([*by_run, *(f"`{name}={value}`" for name, value in faults[0].setting)])
    return group if ranks == [2] else f"{group} ({', '.join(map(str, ranks))} ranks)", where, setting


def _quotation(text: str) -> str:
    text = re.sub(r"\S*/(?=[\w-]+\.(py|json|trace))", "", text.strip("= ")).replace("|", "\\|").replace("`", "'")
    text = END_OF_QUOTATION.split(text)[0]
    return text if len(text) <= LONGEST else text[:LONGEST].rsplit(" ", 1)[0] + " ..."


def _line_of(fault: Fault, text: str) -> str:
    patterns = [p.replace("{victim}", str(fault.ranks - 1)) for p in (fault.quote, fault.saw) if p]
    found = (line for pattern in patterns for line in text.split("\n") if re.search(pattern, line, re.IGNORECASE))
    return next(found, "").strip()


def _cell(family: str, faults: list[Fault]) -> str:
    kept = [json.loads((RESULTS / family / f"{fault.id}.json").read_text()) for fault in faults]
    first, seconds = kept[0], max(record["seconds"] for record in kept)
    if faults[0].status == 0 and not faults[0].saw:
        return "the right result"
    ends = "" if faults[0].status == 0 else f"; status {first['status']}"
    line = _line_of(faults[0], first["printed"])
    said = f"`{_quotation(line)}`" if line else "nothing"
    return f"{said}{ends} ({seconds} s)"


def _quoted(cell: str) -> str:
    found = re.match("`.*`", cell)
    return found[0] if found else ""


def _without_repetition(cells: list[str]) -> list[str]:
    first, *others = cells
    said = _quoted(first)
    return [first, *(cell.replace(said, THE_SAME) if said and said == _quoted(cell) else cell for cell in others)]


def _with_repetition(cells: list[str]) -> list[str]:
    return [re.sub(f"^{THE_SAME}", lambda _: _quoted(cells[0]), cell) for cell in cells]


def _cells_that_are_there(text: str) -> dict[Key, list[str]]:
    cells = {}
    for line in text.splitlines():
        parts = [part.strip() for part in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(parts) == 3 + len(MPIS):
            cells[parts[0], parts[1], parts[2]] = _with_repetition(parts[3:])
    return cells


def _table(tested: str, before: str) -> Iterator[str]:
    kept = _cells_that_are_there(before)
    yield "| fault | in | set | " + " | ".join(MPIS.values()) + " |"
    yield "|---|---|---|" + "---|" * len(MPIS)
    for key, faults in _rows().items():
        old = dict(zip(MPIS, kept.get(key, [""] * len(MPIS)), strict=True))
        cells = [_cell(family, faults) if family == tested else old[family] for family in MPIS]
        yield "| " + " | ".join([*key, *_without_repetition(cells)]) + " |"


def main() -> None:
    """Replace the table, and leave the rest of the document alone."""
    text = DOCUMENT.read_text()
    DOCUMENT.write_text(fill(text, BEGIN, "\n".join(_table(sys.argv[1], between(text, BEGIN)))))


if __name__ == "__main__":
    main()
