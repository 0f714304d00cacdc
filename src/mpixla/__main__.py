"""The command line: ``python -m mpixla [run | test | bench | trace]``, alone or, but for ``run``, under mpirun."""

import shlex
import sys

from . import __version__
from .base.command_line import RANKS, is_kind, parse_seconds
from .extend import RankZeroParser
from .tools import bench, info, selftest


def _is_program(words: list[str]) -> bool:
    """Return whether the first word is a program (``x.py``, ``-m``, ``-c``), or an option for the number of ranks."""
    return any(word in RANKS or is_kind(word) or word.endswith(".py") for word in words[:1])


def main(arguments: list[str] | None = None) -> int:
    """Run info, test, bench or trace, as the command line says; return the exit status. All ranks must call it.

    Args:
        arguments: the command line, by default that of this process.
    """
    parser = RankZeroParser(
        prog="python -m mpixla",
        description="Says what is installed, tests it, or measures it, on all ranks under mpirun; or starts a program.",
    )
    parser.add_argument(
        "--version", action="version", version=f"mpixla {__version__}", help="says the version of mpixla"
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    commands.add_parser("info", help="versions, the MPI in use, ranks and hosts (the default)")
    test = commands.add_parser("test", help="tries an operation of each kind; ends with exit status 1 if one is wrong")
    test.add_argument(
        "--timeout",
        type=parse_seconds,
        default=selftest.TIMEOUT,
        metavar="SECONDS",
        help="give up when a check takes longer (default: %(default)g)",
    )
    commands.add_parser("bench", help="latency and bandwidth between ranks by size of message")
    commands.add_parser("run", help="starts a program on several ranks, whatever the MPI", add_help=False)
    commands.add_parser("trace", help="what a job did with its time, from its timelines", add_help=False)
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == ["trace"]:
        from .trace import __main__ as trace

        return trace.main(given[1:])
    if _is_program(given):
        words = [word for word in given if word != "run"]
        parser.error(f"run starts programs: {shlex.join(['python', '-m', 'mpixla', 'run', *words])}")
    options = parser.parse_args(given)
    if options.command == "test":
        return selftest.run(options.timeout)
    return bench.run() if options.command == "bench" else info.run()


if __name__ == "__main__":
    sys.exit(main())
