"""``python -m mpixla.compat NAME script.py arguments``, also ``-m module`` and ``-c code`` in place of the script."""

import sys

from mpi4py import MPI

from ..base import jax_settings
from ..base.command_line import program_of
from ..base.program import run_program
from ..extend import own_process, print_and_exit
from . import NAMES, install

_USAGE = (
    "usage: python -m mpixla.compat NAME[,NAME] (script.py | -m module | -c code) [arguments...]\n"
    f"NAME is one of {', '.join(NAMES)}.\n"
    "Runs a program that was written for mpi4jax 0.8 or later (mpi4jax), for mpi4jax before 0.8 (mpi4jax-tokens) or "
    "for JPI (jpi).\n"
)


def _main(arguments: list[str]) -> None:
    """Install the interfaces of the command line and run its program, where MPI.Init does nothing; or print usage."""
    if arguments[:1] in (["-h"], ["--help"]):
        print_and_exit(0, _USAGE)
    names, *words = arguments or [""]
    if not set(names.split(",")) <= set(NAMES) or not (program := program_of(words)):
        print_and_exit(2, _USAGE)
    for name in names.split(","):
        install(name)
    # MPI is initialized already; a program may call MPI.Init before it imports the library.
    MPI.Init = lambda: None
    MPI.Init_thread = lambda required=MPI.THREAD_MULTIPLE: MPI.Query_thread()
    jax_settings.note_environment("mpixla.compat")
    own_process()
    run_program(program)


_main(sys.argv[1:])
