"""The tables of docs/reference.md: which operation works under which transformation, and with which data type.

    python tests/matrix.py            prints them
    python tests/matrix.py --write    writes them into the page

They are drawn from the oracle's rows, of which the tests try every cell; tests/launch/test_readme.py compares the page
with what this prints. What has the same cells is one row.
"""

import sys
from pathlib import Path

from reference import DTYPES, REDUCTIONS, ROWS, Row

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "bench"))

from marks import fill  # noqa: E402

PAGE = ROOT / "docs" / "reference.md"
BEGIN = "<!-- tests/matrix.py writes this -->\n"

TRANSFORMATIONS = (
    "`jit`",
    "`vmap`",
    "forward mode",
    "reverse mode",
    "`remat`",
    "`linear_transpose`",
    "second derivatives",
)


def of_operation(row: Row) -> list[str]:
    variants = row.variants(2)
    has_data = bool(row.shapes(shape=(), rank=0, size=1, **row.variants(1)[0]))
    if not has_data:
        return ["yes", *["-"] * 6]
    derivative = any(row.differentiable(**v) for v in variants)
    only = " (SUM, PROD, MAX, MIN)" if any("op" in v for v in variants) else ""
    forward = f"yes{only}" if derivative else "no"
    reverse = forward if row.reverse else "no"
    transpose = ("yes (SUM)" if only else "yes") if row.reverse else "no"
    return ["yes", "yes", forward, reverse, "yes", transpose, reverse]


def of_reduction(op: str) -> list[str]:
    row = next(row for row in ROWS if row.name == "allreduce")
    # One float8_e8m0fnu more than the tests' rows have: sums of powers of two, whose value depends on the order.
    return ["yes" if row.takes(t, op=op) or (t.name, op) == ("float8_e8m0fnu", "SUM") else "no" for t in DTYPES]


def table(head: list[str], rows: dict[str, list[str]]) -> str:
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, cells in rows.items():
        alike.setdefault(tuple(cells), []).append(f"`{name}`")
    lines = [head, ["---"] * len(head), *([", ".join(names), *cells] for cells, names in alike.items())]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def tables() -> str:
    columns = [of_reduction(op) for op in REDUCTIONS]
    operations = table(["operation", *TRANSFORMATIONS], {row.name: of_operation(row) for row in ROWS})
    types = table(
        ["data type", *(f"`{op}`" for op in REDUCTIONS)],
        {t.name: [column[i] for column in columns] for i, t in enumerate(DTYPES)},
    )
    return f"{operations}\n{types}".removesuffix("\n")


def main() -> None:
    print(tables())
    if "--write" in sys.argv:
        PAGE.write_text(fill(PAGE.read_text(), BEGIN, tables()))


if __name__ == "__main__":
    main()
