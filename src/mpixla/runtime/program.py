"""Running a user's program as Python would: a script, ``-m module`` or ``-c code``."""

import os
import runpy
import sys
from collections.abc import Sequence
from types import ModuleType


def is_program(program: Sequence[str]) -> bool:
    """Whether a command line begins with one."""
    wants_more = program[:1] in (["-m"], ["-c"])
    return len(program) >= 1 + wants_more and (wants_more or not program[0].startswith("-"))


def run(program: list[str]) -> None:
    """Runs it as ``__main__``, with what follows it as its arguments."""
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
