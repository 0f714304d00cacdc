"""Command lines that all ranks were given: rank 0 answers for all, and no rank ends before it has."""

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

from ..base.speaker import say
from .mpi import MPI


@contextlib.contextmanager
def while_read() -> Iterator[None]:
    """What is printed inside and later goes nowhere once its reader has seen enough, as ``head`` has."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def print_and_exit(status: int, text: str) -> NoReturn:
    """Prints on rank 0, and ends this process when all ranks have come here: mpirun may kill the others then.

    The text goes to standard output where the exit status is 0, and to standard error elsewhere.
    """
    if MPI.COMM_WORLD.Get_rank() == 0:
        if status:
            say(text)
        else:
            with while_read():
                sys.stdout.write(text)
    MPI.COMM_WORLD.Barrier()
    raise SystemExit(status)


class Parser(argparse.ArgumentParser):
    """argparse's, with one voice for all ranks. All ranks must parse the same arguments."""

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Ends the process, with the others."""
        print_and_exit(status, message or "")

    def _print_message(self, message: str, file: Any = None) -> None:
        if MPI.COMM_WORLD.Get_rank() == 0:
            super()._print_message(message, file)
