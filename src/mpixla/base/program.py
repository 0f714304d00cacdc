"""Running a user's program as Python would: a script, ``-m module`` or ``-c code``.

``python -m mpixla run`` starts it as a file, so it imports nothing of mpixla's: that the program does when it wants to.
"""

import builtins
import importlib
import os
import runpy
import signal
import sys
from contextlib import suppress
from importlib.machinery import BuiltinImporter, SourceFileLoader
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from pkgutil import get_importer
from types import ModuleType, TracebackType


def is_kind(word: str) -> bool:
    """Whether it is ``-m`` or ``-c``, which may have their value in the same word."""
    return word[:2] in ("-m", "-c")


def program_of(words: list[str]) -> list[str]:
    """The program that a command line begins with, without ``--`` and with ``-mmodule`` in two words; [] for none."""
    program = words[words[:1] == ["--"] :]
    if program and is_kind(program[0]):
        program[:1] = filter(None, (program[0][:2], program[0][2:]))
        return program if len(program) > 1 else []
    return program if program and not program[0].startswith("-") else []


_process = os.getpid()

# Seconds that a rank which fails before it has imported mpixla waits for the others to come to the start of MPI.
_PATIENCE = 10


def _what_ends_jobs() -> ModuleType | None:
    """The module, if there is one: where the program has not come as far as importing it, the others may wait there."""
    name = "mpixla.watch.exit"
    if os.getpid() == _process and not any(module.partition(".")[0] == "mpixla" for module in sys.modules):
        settings, started = (
            runpy.run_path(os.path.join(os.path.dirname(__file__), file)) for file in ("settings.py", "started.py")
        )
        if started["by_launcher"]() and settings["is_on"]("MPIXLA_ABORT", otherwise=True):
            # If they never come, the signal kills this process, for which its launcher ends them.
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(_PATIENCE)
            with suppress(Exception):
                importlib.import_module(name)
            signal.alarm(0)
    return sys.modules.get(name)


def run(program: list[str]) -> None:
    """Runs it as ``__main__``, with what follows it as its arguments. A failure that it exits with ends the job."""
    hook = sys.excepthook
    own = {__file__, sys._getframe(1).f_code.co_filename, runpy.run_path.__code__.co_filename}

    def print_without_us(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        while trace and trace.tb_frame.f_code.co_filename in own:
            trace = trace.tb_next
        hook(kind, value.with_traceback(trace), trace)
        if sys.excepthook is print_without_us and issubclass(kind, Exception) and (end := _what_ends_jobs()):
            end.program_fails(kind)

    print_without_us.only_prints = hook is sys.__excepthook__  # type: ignore[attr-defined]  # for watch/exit.py
    sys.excepthook = print_without_us
    try:
        _run(program)
    except SystemExit as e:
        # No hook of Python's hears of this one.
        if e.code not in (None, 0) and (end := _what_ends_jobs()):
            end.program_exits(e.code)
        raise


def _run(program: list[str]) -> None:
    kind, *rest = program
    # The module stays when its last line has run: exit handlers and threads pickle what is its.
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __loader__=BuiltinImporter)
    if "__annotations__" in vars(sys.modules["__main__"]):  # which not every version of Python gives it
        main.__dict__.update(__annotations__={})
    if kind == "-c":
        code, *rest = rest
        _begin(main, "", ["-c", *rest])
        exec(compile(code, "<string>", "exec"), main.__dict__)
    elif kind == "-m":
        _begin(main, os.getcwd(), rest)
        runpy._run_module_as_main(rest[0])  # type: ignore[attr-defined]  # what Python itself calls
    else:
        file = kind if os.path.isabs(kind) else os.path.join(os.getcwd(), kind)
        if get_importer(file):  # a folder or an archive, with a __main__.py
            _begin(main, file, program)
            if sys.flags.safe_path:
                sys.path.insert(0, file)
            runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]
            return
        _begin(main, os.path.dirname(os.path.realpath(kind)), program)
        try:
            source = Path(file).read_bytes()  # once: it may be a pipe
        except OSError as e:
            sys.stderr.write(f"{sys.executable}: can't open file {file!r}: [Errno {e.errno}] {e.strerror}\n")
            raise SystemExit(2) from None
        if source.startswith(MAGIC_NUMBER):  # compiled
            runpy.run_path(kind, run_name="__main__")
            return
        main.__dict__.update(__file__=file, __cached__=None, __loader__=SourceFileLoader("__main__", file))
        exec(compile(source, file, "exec", dont_inherit=True), main.__dict__)


def _begin(main: ModuleType, folder: str, arguments: list[str]) -> None:
    if not sys.flags.safe_path:
        sys.path[0] = folder
    sys.argv[:] = arguments
    sys.modules["__main__"] = main


if __name__ == "__main__":
    run(sys.argv[1:])
