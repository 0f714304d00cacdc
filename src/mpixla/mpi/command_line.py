"""Command lines that all ranks were given: rank 0 answers for all, and no rank ends before it has."""

import argparse
import sys
from typing import IO, Any, NoReturn

from ..mpi.mpi import MPI


def end(status: int, text: str) -> NoReturn:
    """Prints on rank 0, and ends this process when all ranks have come here: mpirun may kill the others then.

    Args:
        status: the exit status; the text goes to standard output for 0, and to standard error for others.
        text: what to print.
    """
    if MPI.COMM_WORLD.Get_rank() == 0:
        (sys.stderr if status else sys.stdout).write(text)
        sys.stdout.flush()
        sys.stderr.flush()
    MPI.COMM_WORLD.Barrier()
    raise SystemExit(status)


class Parser(argparse.ArgumentParser):
    """argparse's, with one voice for all ranks. All ranks must parse the same arguments."""

    def print_usage(self, file: Any = None) -> None:
        """Prints the usage on rank 0."""
        self._print_on_one(self.format_usage(), file)

    def print_help(self, file: Any = None) -> None:
        """Prints the help on rank 0."""
        self._print_on_one(self.format_help(), file)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Ends the process, with the others."""
        end(status, message or "")

    def _print_on_one(self, text: str, file: IO[str] | None) -> None:
        if MPI.COMM_WORLD.Get_rank() == 0:
            (file or sys.stdout).write(text)
