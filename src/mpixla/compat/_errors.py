"""MPI's errors as programs for mpi4jax know them: a line on standard error, and then the job ends."""

import re
import sys
from types import TracebackType

from ..mpi.mpi import MPI

_LINE = re.compile(r"r\d+ \| \w+ returned error code -?\d+: .*")

# What the C library says of a rank that the communicator does not have, which it does not pass on to MPI.
_WRONG_RANK = re.compile(r"(\w+) got (dest|source|root) = .*")


def _line_of(text: str) -> str | None:
    if line := _LINE.search(text):
        return line.group()
    if wrong := _WRONG_RANK.search(text):
        code = MPI.ERR_ROOT if wrong[2] == "root" else MPI.ERR_RANK
        return f"r{MPI.COMM_WORLD.Get_rank()} | {wrong[1]} returned error code {code}: {wrong.group()}"
    return None


def install() -> None:
    """Puts the line of an MPI error that nobody catches before its traceback."""
    previous = sys.excepthook

    def hook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        if line := _line_of(str(value)):
            sys.stderr.write(line + "\n")
            sys.stderr.flush()
        previous(kind, value, trace)

    sys.excepthook = hook
