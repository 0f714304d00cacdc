"""Prints which of valgrind's errors are ours, and fails if there is one: python tools/valgrind_reports.py report.xml...

Python, jaxlib and MPI have errors and lost memory of their own. Ours are those in whose call stack libmpixla.so is,
except for the ones in UNRELATED.
"""

import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

LIBRARY = "libmpixla.so"

# A kind of error, a function that its stack has, and why it is not ours.
UNRELATED = [
    (
        "Leak_DefinitelyLost",
        "PMPI_Comm_dup",
        "What was made of a communicator is freed with it (native/test/test_comm.c), but MPI_COMM_WORLD never is, nor "
        "what a program leaves to MPI_Finalize. MPICH then loses what those have in memory, in a few lines of C too.",
    )
]


def errors_of(report: Path) -> Iterator[str]:
    """Yield the errors with our library on their stack, as text, innermost function first.

    Raises:
        ValueError: if the process did not come to its end, as valgrind says of those that it has seen end.
    """
    states = []
    for _, element in ElementTree.iterparse(report):
        if element.tag == "state":
            states.append(element.text)
        if element.tag != "error":
            continue
        kind, frames = element.findtext("kind", "?"), list(next(element.iter("stack")))
        is_part = any(Path(frame.findtext("obj", "")).name == LIBRARY for frame in frames)
        names = [frame.findtext("fn", "?") for frame in frames]
        if is_part and not any(kind == known and function in names for known, function, _ in UNRELATED):
            yield "\n".join([kind, *map(_describe, frames)])
        element.clear()
    if states[-1:] != ["FINISHED"]:
        raise ValueError(f"{report}: this process did not come to its end under valgrind")


def _describe(frame: ElementTree.Element) -> str:
    file = frame.findtext("file")
    place = f"{file}:{frame.findtext('line')}" if file else Path(frame.findtext("obj", "?")).name
    return f"    {frame.findtext('fn', '?')} ({place})"


def main(reports: list[Path]) -> None:
    """Print these errors, and exit with status 1 if there is one, or no report."""
    found = Counter(error for report in reports for error in errors_of(report))
    for error, times in found.most_common():
        print(f"{times} times: {error}")
    print(f"valgrind: {len(found)} errors of {LIBRARY} in {len(reports)} processes")
    sys.exit(bool(found) or not reports)


main([Path(name) for name in sys.argv[1:]])
