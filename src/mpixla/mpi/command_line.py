"""Command lines that all ranks were given: rank 0 answers for all, and no rank ends before it has."""

import argparse
import sys
from typing import Any, NoReturn

from .mpi import MPI


def end(status: int, text: str) -> NoReturn:
    """Prints on rank 0, and ends this process when all ranks have come here: mpirun may kill the others then.

    The text goes to standard output where the exit status is 0, and to standard error elsewhere.
    """
    if MPI.COMM_WORLD.Get_rank() == 0:
        (sys.stderr if status else sys.stdout).write(text)
        sys.stdout.flush()
        sys.stderr.flush()
    MPI.COMM_WORLD.Barrier()
    raise SystemExit(status)


class Parser(argparse.ArgumentParser):
    """argparse's, with one voice for all ranks. All ranks must parse the same arguments."""

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Ends the process, with the others."""
        end(status, message or "")

    def _print_message(self, message: str, file: Any = None) -> None:
        if MPI.COMM_WORLD.Get_rank() == 0:
            super()._print_message(message, file)
