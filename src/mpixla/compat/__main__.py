"""``python -m mpixla.compat NAME script.py arguments``, also ``-m module`` and ``-c code`` in place of the script."""

import os
import runpy
import sys
from types import ModuleType

from ..runtime.command_line import end
from . import NAMES, install

_USAGE = (
    f"usage: python -m mpixla.compat {{{','.join(NAMES)}}} (script.py | -m module | -c code) [arguments...]\n"
    "Runs a program that was written for mpi4jax 0.8 or later (mpi4jax), for mpi4jax before 0.8 (mpi4jax-tokens) or "
    "for JPI (jpi).\n"
)


def _main(arguments: list[str]) -> None:
    if arguments[:1] in (["-h"], ["--help"]):
        end(0, _USAGE)
    name, *program = arguments or [""]
    wants_more = program[:1] in (["-m"], ["-c"])
    if name not in NAMES or len(program) < 1 + wants_more or (program[0].startswith("-") and not wants_more):
        end(2, _USAGE)
    install(name)
    if program[0] == "-c":
        _, code, *rest = program
        sys.argv[:] = ["-c", *rest]
        sys.path[0] = ""
        main = ModuleType("__main__")
        sys.modules["__main__"] = main
        exec(compile(code, "<string>", "exec"), main.__dict__)
    elif program[0] == "-m":
        _, module, *rest = program
        sys.argv[:] = [module, *rest]
        sys.path[0] = os.getcwd()
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = program
        sys.path[0] = os.path.dirname(os.path.abspath(program[0]))
        runpy.run_path(program[0], run_name="__main__")


_main(sys.argv[1:])
