"""Command lines that all ranks were given: rank 0 prints for all, and no rank ends before that."""

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

from ..base.speaker import print_message
from .mpi import MPI


@contextlib.contextmanager
def ignore_closed_pipe() -> Iterator[None]:
    """Discard standard output once its reader has closed the pipe, as ``head`` does; flush it after the body."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def print_and_exit(status: int, text: str) -> NoReturn:
    """Print a text on rank 0, and raise SystemExit after a barrier of all ranks: mpirun may kill others at an exit.

    The text goes to standard output if the exit status is 0, and to standard error otherwise.
    """
    if MPI.COMM_WORLD.Get_rank() == 0:
        if status:
            print_message(text)
        else:
            with ignore_closed_pipe():
                sys.stdout.write(text)
    MPI.COMM_WORLD.Barrier()
    raise SystemExit(status)


class RankZeroParser(argparse.ArgumentParser):
    """An argparse.ArgumentParser that prints on rank 0 alone. All ranks must parse the same arguments."""

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Print on rank 0, and end the process together with the others."""
        print_and_exit(status, message or "")

    def _print_message(self, message: str, file: Any = None) -> None:
        if MPI.COMM_WORLD.Get_rank() == 0:
            super()._print_message(message, file)
