"""The command line of ``python -m mpixla run``."""

import argparse
import re
import shlex
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

from ..base.command_line import RANKS, is_kind, parse_positive, parse_seconds, program_of


def _parse_hosts(text: str) -> list[str]:
    """Parse names of hosts with commas between them; raise argparse's error for an empty name."""
    hosts = [host.strip() for host in text.split(",")]
    if not all(hosts):
        raise argparse.ArgumentTypeError(f"it must be names of hosts with commas between them, but is '{text}'.")
    return hosts


def _parse_launcher(text: str) -> Path:
    """Return the absolute path of a launcher, which is given as a file or as a name on PATH."""
    return Path(shutil.which(text) or text).absolute()


def parse_options(arguments: list[str]) -> argparse.Namespace:
    """Parse the arguments after ``run``, and return the options; print usage and exit if they are invalid."""
    parser = argparse.ArgumentParser(
        prog="python -m mpixla run",
        usage="%(prog)s -n N [options] (script.py | -m module | -c code) [arguments...]",
        description="Starts a program on several ranks, by the launcher of the MPI that mpi4py loads; in an allocation "
        "of Slurm's, by srun. Each rank gets cores of its own, and XLA as many threads. The program is what Python "
        "would take: script.py, -m module or -c code, with its arguments.",
        allow_abbrev=False,
    )
    parser.add_argument(*RANKS, type=parse_positive, metavar="N", help="how many (default in Slurm: its tasks)")
    parser.add_argument(
        "--hosts", type=_parse_hosts, metavar="A,B", help="start them on these hosts, equally many on each"
    )
    parser.add_argument(
        "--threads", type=parse_positive, metavar="N", help="cores of each rank (default: all, divided by the ranks)"
    )
    parser.add_argument("--no-pin", action="store_true", help="leave each rank all cores")
    parser.add_argument("--label", action="store_true", help="put its rank in front of each line of output")
    parser.add_argument(
        "--timeout", type=parse_seconds, metavar="SECONDS", help="end the job if a call waits longer: MPIXLA_TIMEOUT"
    )
    parser.add_argument("--check", action="store_true", help="compare each call between the ranks: MPIXLA_CHECK")
    parser.add_argument("--trace", type=Path, metavar="DIRECTORY", help="write timelines there: MPIXLA_TRACE")
    parser.add_argument(
        "--distributed",
        action="store_true",
        help="have JAX's own collectives go over MPI, as python -m mpixla.distributed does",
    )
    parser.add_argument("--launcher", type=_parse_launcher, metavar="FILE", help="use this launcher, and look for none")
    parser.add_argument(
        "--launcher-args",
        type=shlex.split,
        default=[],
        metavar="'ARGS'",
        help="further arguments for the launcher: --launcher-args='-v'",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the command, and do nothing")
    parser.add_argument(
        "program", nargs=argparse.REMAINDER, metavar="script.py", help="or -m module, or -c code; with its arguments"
    )
    # Words from "--", -m or -c on belong to the program: after -mmodule argparse would take them for our options.
    end = next((i for i, word in enumerate(arguments) if word == "--" or is_kind(word)), len(arguments))
    options = parser.parse_args(arguments[:end])
    options.program = program_of(options.program + arguments[end:])
    if not options.program:
        parser.error("no program was given: end with script.py, -m module or -c code.")
    if ":" in options.program:
        parser.error("launchers take the argument ':' for the end of a program. Pass it as a part of a longer one.")
    before = arguments[: len(arguments) - len(options.program)]
    if not options.hosts and (
        missing := _explain_missing_program(options.program, before[: -1 if before[-1:] == ["--"] else None])
    ):
        parser.error(missing)
    return options


def explain_misplaced_ranks(program: list[str]) -> str:
    """Return the message for a number of ranks that stands after the program's name; "" if there is none."""
    names = 2 if is_kind(program[0]) else 1
    name, rest = shlex.join(program[:names]), program[names:]
    at = next((i for i, word in enumerate(rest[:-1]) if word in RANKS and rest[i + 1].isdecimal()), None)
    if at is None:
        return ""
    given = shlex.join(rest[at : at + 2])
    return (
        f"{given} stands behind {name}, so it is an argument of the program. Options of run stand before the program: "
        f"python -m mpixla run {given} {name}"
    )


def _explain_missing_program(program: list[str], before: list[str]) -> str:
    """Return the message for a program that does not exist; "" if it exists, or if this cannot be checked.

    Args:
        program: the program and its arguments.
        before: the words that stand before the program on the command line.
    """
    name, *rest = program
    if name == "-m":
        module = rest[0].partition(".")[0]
        if not module or find_spec(module):
            return ""
        return (
            f"there is no module {module} for this Python, {sys.executable}. If a package has it, install that: "
            f"{shlex.join([sys.executable, '-m', 'pip', 'install', module])}"
        )
    if is_kind(name) or Path(name).exists():
        return ""
    if re.fullmatch(r"python[\d.]*", Path(name).name) and rest:
        if rest[0].startswith("-") and not is_kind(rest[0]):
            return (
                f"run starts Python itself. Leave {name} out, and put its own options before -m: "
                f"python {rest[0]} -m mpixla run ..."
            )
        command = shlex.join(["python", "-m", "mpixla", "run", *before, *rest])
        return f"run starts Python itself. Leave {name} out: {command}"
    if found := shutil.which(name):
        return (
            f"there is no file {name} here, in {Path.cwd()}, but a command {found}. run starts Python programs: if "
            "that is one, name its file, or its module with -m."
        )
    return f"there is no file {name} here, in {Path.cwd()}."
