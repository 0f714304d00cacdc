"""The installation, seen from the command line: ``python -m mpixla [test | bench]``, alone or under mpirun."""

import argparse
import sys
import threading

from .cli import bench, info, selftest
from .runtime.command_line import Parser


def _seconds(text: str) -> float:
    """A time to wait."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= threading.TIMEOUT_MAX:
        raise argparse.ArgumentTypeError(f"it must be a number of seconds greater than 0, but is '{text}'.")
    return seconds


def main(arguments: list[str] | None = None) -> int:
    """Does what the command line says, and returns the exit status. All ranks must call it.

    Args:
        arguments: the command line, by default that of this process.
    """
    parser = Parser(
        prog="python -m mpixla",
        description="Says what is installed, tests it, or measures it. Start it under mpirun to see all ranks.",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    commands.add_parser("info", help="versions, the MPI in use, ranks and hosts (the default)")
    test = commands.add_parser("test", help="tries every operation; ends with exit status 1 if one is wrong")
    test.add_argument(
        "--timeout",
        type=_seconds,
        default=selftest.TIMEOUT,
        metavar="SECONDS",
        help="give up when a check takes longer (default: %(default)g)",
    )
    commands.add_parser("bench", help="latency and bandwidth between ranks by size of message")
    options = parser.parse_args(arguments)
    if options.command == "test":
        return selftest.run(options.timeout)
    return bench.run() if options.command == "bench" else info.run()


if __name__ == "__main__":
    sys.exit(main())
