"""The common part of the examples: a command line, a progress bar, a picture and a file.

Every rank parses the same command line, and rank 0 speaks for all. Only rank 0 draws.
"""

import argparse
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from mpi4py import MPI


class Parser(argparse.ArgumentParser):
    """argparse's: rank 0 speaks, and no rank ends before it has."""

    def __init__(self, description: str | None) -> None:
        super().__init__(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)

    def add_argument(self, *names: str, help: str = "", default: Any = None, **options: Any) -> argparse.Action:
        """Add an argument, as argparse does, with its default in --help."""
        if default is not None and default != argparse.SUPPRESS:
            help = f"{help} (default: %(default)s)".lstrip()
        return super().add_argument(*names, help=help, default=default, **options)

    def takes_picture(self) -> None:
        """Add --save."""
        self.add_argument("--save", metavar="FILE", type=Path, help="draw what came of it into a .png, .pdf or .svg")

    def takes_data(self) -> None:
        """Add --data."""
        self.add_argument("--data", metavar="FILE", type=Path, help="write what came of it into a .npz")

    def parse(self) -> argparse.Namespace:
        """Return the arguments, if this installation has what they need: else all ranks end."""
        options = self.parse_args()
        # What only rank 0 needs, only rank 0 may lack; all learn of it, so that all stop.
        problem = MPI.COMM_WORLD.bcast(_problem_with(options) if MPI.COMM_WORLD.rank == 0 else None)
        if problem:
            self.error(problem)
        return options

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        self._print_message(message or "", sys.stderr)
        sys.stderr.flush()
        MPI.COMM_WORLD.Barrier()
        sys.exit(status)

    def error(self, message: str) -> NoReturn:
        """End all ranks with a sentence. All of them must call it."""
        self.exit(2, f"{self.prog}: {message}\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        if MPI.COMM_WORLD.rank == 0:
            super()._print_message(message, file)


def _problem_with(options: argparse.Namespace) -> str | None:
    """Return as a sentence why this process cannot show progress or draw."""
    picture = getattr(options, "save", None)
    missing = [name for name in ["tqdm", *(["matplotlib"] if picture else [])] if not importlib.util.find_spec(name)]
    if missing:
        return f"{' and '.join(missing)} must be installed: pip install 'mpixla[demo]'."
    for option, endings in {"save": ".png, .pdf or .svg", "data": ".npz"}.items():
        file = getattr(options, option, None)
        if file is None:
            continue
        if file.suffix not in endings.replace(",", "").split():
            return f"--{option} {file}: the name must end in {endings}."
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.open("ab").close()
        except OSError as error:
            return f"--{option} {file}: the file cannot be written ({error.strerror})."
    return None


def say(text: str) -> None:
    """Print on rank 0."""
    if MPI.COMM_WORLD.rank == 0:
        print(text, flush=True)


def progress(steps: Iterable[Any], unit: str) -> Iterator[Any]:
    """Go through them, with a progress bar on rank 0."""
    if MPI.COMM_WORLD.rank != 0:
        return iter(steps)
    from tqdm import tqdm

    return iter(tqdm(steps, unit=f" {unit}"))


def keep(file: Path | None, **arrays: Any) -> None:
    """Write the arrays, for np.load, on rank 0, if there is a file."""
    if file is None or MPI.COMM_WORLD.rank != 0:
        return
    np.savez(file, **arrays)
    print(f"wrote {file}")


def draw(file: Path | None, how: Callable[[Any], Any], **figure: Any) -> None:
    """Write a figure of these arguments, in which how(pyplot) draws, on rank 0, if there is a file."""
    if file is None or MPI.COMM_WORLD.rank != 0:
        return
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    pyplot.figure(**{"figsize": (8, 4.5), "layout": "constrained"} | figure)
    how(pyplot)
    pyplot.savefig(file, dpi=150)
    pyplot.close()
    print(f"wrote {file}")
