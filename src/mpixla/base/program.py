"""Running a user's program as Python would: a script, ``-m module`` or ``-c code``.

``python -m mpixla run`` starts this file as a script, so it imports nothing of mpixla's: the program itself decides
when to import mpixla.
"""

import atexit
import builtins
import os
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib.machinery import BuiltinImporter, SourceFileLoader
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from pkgutil import get_importer
from types import ModuleType, SimpleNamespace, TracebackType
from typing import Any

_Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]

_process = os.getpid()
_FOLDER = os.path.dirname(__file__)  # Python deletes __file__ before exit handlers run

_EXIT = "mpixla.checks.exit"

# Seconds in which other ranks, which no communication has synchronized yet, may fail alike.
_MOMENT = 3.0

# For a rank that fails before it has imported mpixla, seconds: to start MPI, which all ranks must do; to wait for the
# rank that has printed the same message to abort the job; for the launcher to forward printed output.
_STARTING, _PATIENCE, _FORWARDING = 30, 2.0, 0.3


def status_of(code: Any) -> int:
    """Return the exit status that Python makes of the argument of sys.exit."""
    return 0 if code is None else code & 0xFF if isinstance(code, int) else 1


def _load_file(name: str) -> SimpleNamespace:
    """Execute a file of this folder without importing mpixla, and return its globals as a namespace."""
    return SimpleNamespace(**runpy.run_path(os.path.join(_FOLDER, name)))


def _write_error(text: str) -> None:
    with suppress(Exception):  # a program may have put anything there, or None
        sys.stderr.write(text)
        sys.stderr.flush()


def _end_early(did: str, more: str, status: int) -> bool:
    """Print why this rank failed before mpixla's import, and abort unless all did; False, unprinted, if it may not.

    Args:
        did: the sentence after its subject, the ranks that fail alike.
        more: further lines, printed once for these ranks.
        status: the job's exit status.

    Returns:
        Whether the message was printed, by this rank or another; if True is returned, all ranks of the job have failed.
    """
    settings, started, shared_message = map(_load_file, ("settings.py", "started.py", "shared_message.py"))
    others, rank = started.detect_launcher(), started.rank_of_launcher()
    if os.getpid() != _process or not others or rank is None or not settings.aborts_job():
        return False
    job = started.job_name()
    shared_message.open_file(job)
    told = shared_message.print_once(
        rank,
        others[2],
        _write_error,
        did,
        ", so the whole job is aborted. Set MPIXLA_ABORT=0 to let the other ranks go on.",
        more,
        then_by_all=".",
        moment=_MOMENT,
    )
    shared_message.remove_name(job)
    if not told.by_all:
        with suppress(Exception):  # a program may have put anything there
            sys.stdout.flush()
        time.sleep(_FORWARDING if told.here else _PATIENCE)
        _abort_job(status)
    return True


def _abort_job(status: int) -> None:
    """Abort the job by MPI_Abort, starting MPI if needed; return if that fails or MPI has ended; SIGALRM if it hangs.

    The alarm comes after ``_STARTING`` seconds, and ends this process.
    """
    # If other ranks never start MPI, the signal kills this process, and its launcher then ends the job.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_STARTING)
    with suppress(Exception):
        from mpi4py import MPI

        if not MPI.Is_initialized():
            MPI.Init()
        if not MPI.Is_finalized():
            MPI.COMM_WORLD.Abort(status)
    signal.alarm(0)


def _mark_early_end() -> None:
    """If this process never imported mpixla, take the lock that tells so to ranks that wait in their import."""
    if os.getpid() == _process and not any(module.partition(".")[0] == "mpixla" for module in sys.modules):
        started = _load_file("started.py")
        if started.detect_launcher():
            _load_file("host_lock.py").take_lock(started.ended_without())


def run_program(program: list[str]) -> None:
    """Run a program as ``__main__`` with its arguments; an uncaught exception or a nonzero exit status ends the job."""
    own = {__file__, sys._getframe(1).f_code.co_filename, runpy.run_path.__code__.co_filename}

    def wrap_hook(hook: _Hook) -> _Hook:
        """Wrap an exception hook: hide the runner's frames, and end the job if mpixla's import has not succeeded."""

        def print_without_us(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
            """Print an exception without the runner's frames; end the job if mpixla's import had not ended."""
            while trace and trace.tb_frame.f_code.co_filename in own:
                trace = trace.tb_next
            value = value.with_traceback(trace)
            end = sys.modules.get(_EXIT)
            if end or sys.excepthook is not print_without_us or not issubclass(kind, Exception):
                hook(kind, value, trace)
                if end and sys.excepthook is print_without_us and issubclass(kind, Exception):
                    end.program_fails(kind)
                return
            text = "".join(traceback.format_exception(kind, value, trace)) if hook is sys.__excepthook__ else ""
            if not text:
                hook(kind, value, trace)
            when = "while" if any(module.partition(".")[0] == "mpixla" for module in sys.modules) else "before"
            if not _end_early(f"ended with an uncaught {kind.__name__} {when} importing mpixla", text, 1) and text:
                sys.stderr.write(text)  # in one write

        print_without_us.only_prints = hook is sys.__excepthook__  # type: ignore[attr-defined]  # for checks/exit.py
        return print_without_us

    if end := sys.modules.get(_EXIT):  # mpixla.compat and mpixla.distributed have imported it
        end.replace_printing(wrap_hook)
    else:
        sys.excepthook = wrap_hook(sys.excepthook)
    atexit.register(_mark_early_end)  # registered first, so it runs last, when threads have ended, too
    # Under MPICH stdout is a pipe: output in Python's buffer of 8 KiB comes late, or never if the process is killed.
    with suppress(AttributeError, ValueError):
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    try:
        _execute_program(program)
    except SystemExit as e:
        # sys.excepthook is not called for SystemExit.
        if status := status_of(e.code):
            if end := sys.modules.get(_EXIT):
                end.program_exits(e.code)
            elif _end_early(
                f"ended by sys.exit, with status {status}", "" if isinstance(e.code, int) else str(e.code), status
            ):
                raise SystemExit(status) from None
        raise


def _execute_program(program: list[str]) -> None:
    """Execute a script, folder, ``-m`` module or ``-c`` code as ``__main__``, as the Python interpreter does."""
    kind, *rest = program
    # The module outlives its last line: exit handlers and threads pickle its functions and classes.
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __loader__=BuiltinImporter)
    if "__annotations__" in vars(sys.modules["__main__"]):  # not in every version of Python
        main.__dict__.update(__annotations__={})
    if kind == "-c":
        code, *rest = rest
        _set_up_main(main, "", ["-c", *rest])
        exec(compile(code, "<string>", "exec"), main.__dict__)
    elif kind == "-m":
        _set_up_main(main, os.getcwd(), rest)
        runpy._run_module_as_main(rest[0])  # type: ignore[attr-defined]  # as Python itself does
    else:
        file = kind if os.path.isabs(kind) else os.path.join(os.getcwd(), kind)
        if get_importer(file):  # a folder or an archive, with a __main__.py
            _set_up_main(main, file, program)
            if sys.flags.safe_path:
                sys.path.insert(0, file)
            runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]
            return
        _set_up_main(main, os.path.dirname(os.path.realpath(kind)), program)
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


def _set_up_main(main: ModuleType, folder: str, arguments: list[str]) -> None:
    """Set ``sys.path[0]``, ``sys.argv`` and ``sys.modules["__main__"]`` for a program."""
    if not sys.flags.safe_path:
        sys.path[0] = folder
    sys.argv[:] = arguments
    sys.modules["__main__"] = main


if __name__ == "__main__":
    run_program(sys.argv[1:])
