"""``python -m mpixla.trace directory``: a report on a job's time. Under mpirun, rank 0 does the work."""

import sys
from pathlib import Path

from mpi4py import MPI

from ..base.command_line import parse_positive
from ..base.speaker import print_message
from ..extend import RankZeroParser, ignore_closed_pipe
from . import picture
from .match import match_calls
from .merge import write_merged_trace
from .read import read_timelines
from .tables import format_tables


def _print_report(directory: Path, merged: Path, drawn: Path | None, rows: int) -> str | None:
    """Print the report, and write the merged timeline and the picture; return None, or a message if that fails."""
    try:
        job = read_timelines(directory)
    except FileNotFoundError as e:
        return str(e)
    match_calls(job)
    print(format_tables(job, rows))
    for note in job.notes:
        print(f"Note: {note}")
    try:
        write_merged_trace(job, merged)
    except OSError as e:
        return f"The timeline of all ranks cannot be written to {merged}: {e.strerror}. Name another file with -o."
    print(f"All ranks on one timeline, for ui.perfetto.dev or chrome://tracing: {merged}")
    if drawn is not None:
        if not drawn.suffix:
            drawn = Path(f"{drawn}.png")
        if failure := picture.draw_picture(job, drawn):
            return failure
        print(f"The picture: {drawn}")
    return None


def main(arguments: list[str] | None = None) -> int:
    """Print the report on a directory of timelines on rank 0; return the exit status. All ranks must call it.

    Args:
        arguments: the command line, by default that of this process.
    """
    parser = RankZeroParser(
        prog="python -m mpixla.trace",
        description="Says where the time of a job went that ran with MPIXLA_TRACE=directory: by operation, by line, by "
        "rank, and who waited for whom. docs/trouble.md explains it.",
    )
    parser.add_argument("directory", type=Path, help="what MPIXLA_TRACE named")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="the timeline of all ranks (default: directory/merged.json)"
    )
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw it, as PNG, SVG or PDF; needs matplotlib")
    parser.add_argument(
        "--rows",
        type=parse_positive,
        default=20,
        metavar="N",
        help="at most so many rows in a table (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    failure = None
    if MPI.COMM_WORLD.Get_rank() == 0:
        output = options.output or options.directory / "merged.json"
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # names of files may be any
        with ignore_closed_pipe():
            failure = _print_report(options.directory, output, options.picture, options.rows)
        if failure:
            print_message(f"{failure}\n")
    return int(MPI.COMM_WORLD.bcast(failure is not None))


if __name__ == "__main__":
    sys.exit(main())
