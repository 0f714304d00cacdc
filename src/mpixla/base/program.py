"""Running a user's program as Python would: a script, ``-m module`` or ``-c code``.

``python -m mpixla run`` starts it as a file, so it imports nothing of mpixla's: that the program does when it wants to.
"""

import os
import runpy
import sys
from collections.abc import Sequence
from types import ModuleType, TracebackType


def is_program(program: Sequence[str]) -> bool:
    """Whether a command line begins with one."""
    wants_more = program[:1] in (["-m"], ["-c"])
    return len(program) >= 1 + wants_more and (wants_more or not program[0].startswith("-"))


def run(program: list[str]) -> None:
    """Runs it as ``__main__``, with what follows it as its arguments. A failure that it exits with ends the job."""
    hook = sys.excepthook
    own = {__file__, sys._getframe(1).f_code.co_filename, runpy.run_path.__code__.co_filename}

    def print_without_us(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        while trace and trace.tb_next and trace.tb_frame.f_code.co_filename in own:
            trace = trace.tb_next
        hook(kind, value.with_traceback(trace), trace)

    print_without_us.only_prints = hook is sys.__excepthook__  # type: ignore[attr-defined]  # for watch/exit.py
    sys.excepthook = print_without_us
    try:
        _run(program)
    except SystemExit as e:
        # No hook of Python's hears of this one.
        if end := sys.modules.get("mpixla.watch.exit"):
            end.program_exits(e.code)
        raise


def _run(program: list[str]) -> None:
    kind, *rest = program
    folder = {"-c": "", "-m": os.getcwd()}.get(kind, os.path.dirname(os.path.abspath(kind)))
    if not sys.flags.safe_path:
        sys.path[0] = folder
    if kind == "-c":
        code, *rest = rest
        sys.argv[:] = ["-c", *rest]
        main = ModuleType("__main__")
        sys.modules["__main__"] = main
        exec(compile(code, "<string>", "exec"), main.__dict__)
    elif kind == "-m":
        sys.argv[:] = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = program
        runpy.run_path(kind, run_name="__main__")


if __name__ == "__main__":
    run(sys.argv[1:])
