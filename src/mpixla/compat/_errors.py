"""MPI's errors as programs for mpi4jax know them: a line on standard error, and then the job ends."""

import re
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import jax

from ..runtime import native
from ..runtime.comm import comm_of
from ..runtime.mpi import MPI

_LINE = re.compile(r"r\d+ \| \w+ returned error code -?\d+: .*")


def install() -> None:
    """Puts the line of an MPI error that nobody catches before its traceback."""
    previous = sys.excepthook

    def hook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        line = _LINE.search(str(value))
        if line:
            sys.stderr.write(line.group() + "\n")
            sys.stderr.flush()
        previous(kind, value, trace)

    sys.excepthook = hook


# Ranks that mpixla refuses when tracing, where mpi4jax leaves that to MPI. Each with the error class that MPI has for
# it, and the ranks beyond those of the communicator that it may be.
_RANKS = {
    "dest": (MPI.ERR_RANK, (MPI.PROC_NULL,)),
    "source": (MPI.ERR_RANK, (MPI.PROC_NULL, MPI.ANY_SOURCE)),
    "root": (MPI.ERR_ROOT, ()),
}


def check_ranks(name: str, arguments: Mapping[str, Any]) -> None:
    """Refuses ranks that are none of the communicator's, in the words of an MPI error.

    Raises:
        ValueError: for such a rank.
    """
    for what, (code, others) in _RANKS.items():
        rank: Any = arguments.get(what)
        if not hasattr(rank, "__index__") or isinstance(rank, jax.core.Tracer) or rank in others:
            continue
        comm = comm_of(arguments.get("comm"))
        if not 0 <= int(rank) < comm.size:
            raise ValueError(
                f"r{MPI.COMM_WORLD.Get_rank()} | {native.ops[name].mpi_name} returned error code {code}: {what} is "
                f"{int(rank)}, but the ranks of communicator '{comm.name}' are 0 to {comm.size - 1}"
            )
