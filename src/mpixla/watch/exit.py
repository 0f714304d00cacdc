"""The end of a process: what still runs is waited for, and a rank that fails takes the job down."""

import atexit
import ctypes
import gc
import os
import secrets
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

import jax
import jax.numpy as jnp

from ..base import alike, settings, speaker
from ..base.program import status_of
from ..base.required import jax_has_started
from ..mpi import abort, native, output
from ..mpi.abort import exit_at_once
from ..mpi.comm import others_may_wait, own_comm
from ..mpi.mpi import MPI
from . import timeline

_previous_hook = sys.excepthook
_previous_thread_hook = threading.excepthook

_aborts = settings.is_on("MPIXLA_ABORT", otherwise=True)
_is_ending = False

# Seconds in which the rank that has spoken for this one ends the job.
_PATIENCE = 2.0


def install() -> None:
    """Registers the exit handler and, unless ``MPIXLA_ABORT=0``, what ends the job when this rank fails."""
    # Handlers run in reverse order of registration: ours before JAX's own, and before mpi4py finalizes MPI.
    atexit.register(_end)
    output.start()
    os.register_at_fork(after_in_child=_begin_fork)
    # Threads that call JAX have a state of Python's; those of XLA have none.
    thread_of_python = ctypes.cast(ctypes.pythonapi.PyGILState_GetThisThreadState, ctypes.c_void_p)
    native.lib.mpixla_failures_raised_on(thread_of_python)
    if _aborts:
        sys.excepthook = _abort_job
        threading.excepthook = _abort_job_from_thread
        os._exit = _abort_job_or_exit
    _share_file()
    _watch_interrupts()
    signal._signal.signal = _set_and_watch  # type: ignore[attr-defined]


def _share_file() -> None:
    """Open the file by which the ranks of a host say the same once. All ranks must call it."""
    comm = own_comm()
    if comm.Get_size() > 1:
        name = comm.bcast(secrets.token_hex(8))
        alike.open_file(name)
        comm.Barrier()
        alike.remove_name(name)


def _tell(did: str, more: str, then_by_all: str | None = None) -> alike.Told:
    world = MPI.COMM_WORLD
    return alike.tell(world.Get_rank(), world.Get_size(), speaker.say, did, _ABORTED, more, then_by_all)


_may_abort_from_thread = _aborts and MPI.Query_thread() == MPI.THREAD_MULTIPLE
_set_handler = signal._signal.signal  # type: ignore[attr-defined]  # which signal.signal calls


def _watch_interrupts() -> None:
    # A handler of the program's own has reasons to let the call go on.
    is_patient = _is_interactive() or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    native.check(native.lib.mpixla_interrupt_watch(_may_abort_from_thread, is_patient, alike.file))


def _set_and_watch(number: int, handler: Any, /) -> Any:
    """Python's handler replaces what watches, though the program may only put the usual one back: asyncio.run does."""
    previous = _set_handler(number, handler)
    if number == signal.SIGINT:
        _watch_interrupts()
    return previous


# A forked process. JAX's threads are not in it, and MPI knows nothing of it: were it to end as its parent does, JAX
# would crash, and mpi4py would call MPI_Finalize, which hangs or takes the job down. So it ends at once, as those of
# multiprocessing do.

_status: int | None = None  # of SystemExit


_code: Any = vars(SystemExit)["code"]


class _Code:
    """``SystemExit.code`` in a fork: Python reads it when such an exception ends the process, and tells nobody else."""

    def __get__(self, exception: SystemExit | None, kind: type | None = None) -> Any:
        global _status
        code = _code.__get__(exception, kind)
        if sys._getframe().f_back is None:  # it was read by no function, but by Python itself
            _status = status_of(code)
        return code

    def __set__(self, exception: SystemExit, code: Any) -> None:
        _code.__set__(exception, code)


def _begin_fork() -> None:
    def exit_by_exception(status: Any = None, /) -> NoReturn:
        raise SystemExit(status)  # Python 3.11's sys.exit makes none, unless somebody is there to catch it

    global _aborts
    _aborts = False
    native.lib.mpixla_forked()
    native.is_forked = True
    sys.exit = exit_by_exception
    sys.last_value = None  # what Python sets before it calls a hook, whichever the program has put there
    # Types of Python's own take no new attributes, but the dictionary behind their read-only view does.
    gc.get_referents(vars(SystemExit))[0]["code"] = _Code()
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(SystemExit))
    atexit.register(_end_fork)


def _end_fork() -> None:
    output.flush()
    exit_at_once(int(sys.last_value is not None) if _status is None else _status)


def _is_interactive() -> bool:
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)


def _can_abort() -> bool:
    return _aborts and not _is_interactive() and not MPI.Is_finalized() and others_may_wait()


_ABORTED = ", so the whole job is aborted. Set MPIXLA_ABORT=0 to let the other ranks go on."


def _abort(did: str, more: str = "", status: int = 1) -> NoReturn:
    """Ends all ranks: they may be waiting for this one."""
    abort.limit(status)
    _end_job(_tell(did, more), status)


def _end_job(told: alike.Told, status: int) -> NoReturn:
    # Each MPI prints something for each rank that aborts. That is the one that has spoken, if it is still there.
    abort.end(status, 0.0 if told.here else _PATIENCE)


def replace_printing(replace: Callable[[Any], Any]) -> None:
    """Replaces the hook that prints an uncaught exception, before the job ends, by what ``replace`` makes of it."""
    global _previous_hook
    if _aborts:
        _previous_hook = replace(_previous_hook)
    else:
        sys.excepthook = replace(sys.excepthook)


def program_exits(code: Any) -> None:
    """Ends all ranks, where a program that mpixla runs has ended by sys.exit with a status that is not 0."""
    status = status_of(code)
    text = "" if isinstance(code, int) else str(code)
    if status and _can_abort():
        _abort_unless_all(f"ended by sys.exit, with status {status}", text, status)
        raise SystemExit(status)


def program_fails(kind: type[BaseException]) -> None:
    """Ends all ranks, where it has ended with an exception, which is printed, while it imported mpixla."""
    if _can_abort():
        _abort_unless_all(f"ended with an uncaught {kind.__name__} while importing mpixla")
        sys.last_traceback = None  # it is not lost (below)


def _abort_unless_all(did: str, more: str = "", status: int = 1) -> None:
    """As where a command line is wrong: nobody waits."""
    told = _tell(did, more, ".")
    if not told.by_all:
        _end_job(told, status)


class _Heard:
    """Standard error, but what this thread writes is heard, and kept back or not."""

    def __init__(self, keeps: bool) -> None:
        self.stream, self.keeps, self.text, self._thread = sys.stderr, keeps, "", threading.get_ident()

    def write(self, text: str) -> int:
        if threading.get_ident() == self._thread:
            self.text += text
            if self.keeps:
                return len(text)
        return self.stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _printed_by(hook: Callable[..., Any], value: BaseException | None, *arguments: Any) -> str:
    """What Python's own hook prints. Another prints at once: it may end the job itself. Or nothing, as pytest's."""
    own = hook in (sys.__excepthook__, threading.__excepthook__) or getattr(hook, "only_prints", False)
    sys.stderr = heard = _Heard(own)
    failure = ""
    try:
        hook(*arguments)
    except BaseException as e:  # the job must end all the same
        failure = "".join(traceback.format_exception(e))
    finally:
        sys.stderr = heard.stream
    if failure or not heard.text:
        failure += "".join(traceback.format_exception(value))
    return (heard.text if own else "") + failure


def _has_ended_it(trace: TracebackType | None) -> bool:
    """Whether the exception has left the program's outermost frame. ``code`` and others call hooks for what has not."""
    return trace is not None and trace.tb_frame.f_back is None


def _abort_job(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
    if _has_ended_it(trace) and _can_abort():
        _abort(f"ended with an uncaught {kind.__name__}", _printed_by(_previous_hook, value, kind, value, trace))
    _previous_hook(kind, value, trace)


def _abort_job_from_thread(args: threading.ExceptHookArgs) -> None:
    if not _can_abort() or issubclass(args.exc_type, SystemExit):  # which ends the thread, and is no failure
        _previous_thread_hook(args)
        return
    name = args.thread.name if args.thread else "unknown"
    _abort(
        f": uncaught {args.exc_type.__name__} in thread {name}",
        _printed_by(_previous_thread_hook, args.exc_value, args),
    )


def _abort_job_or_exit(status: int) -> NoReturn:
    """``os._exit``, which no exit handler hears of: some MPIs then end the other ranks, silently and with status 0."""
    if _can_abort():
        caller = sys._getframe(1)
        _abort(
            "called os._exit",
            f"os._exit({status}) at {caller.f_code.co_filename}:{caller.f_lineno} would end it while MPI runs and "
            "the others may wait for it. Use sys.exit, or call MPI.Finalize() first.",
            status & 0xFF or 1,
        )
    exit_at_once(status)


def hear(text: str) -> None:
    """Notes that a failure with this text became an exception."""
    if not _is_ending:
        native.lib.mpixla_failures_seen(text.encode(errors="replace"))


# Has JAX forget the programs that failed (hooks/tokens.py).
forget_failures: Callable[[], None] | None = None


def _wait() -> bool:
    """Waits for the programs that this process has dispatched, before MPI is finalized; False: a GPU has failed."""
    # A failure becomes an exception here if nobody has looked at it, and also if somebody has: the C library knows.
    # Programs run in the order of their dispatch (ARCHITECTURE.md, "Order"), so the last one waits for all.
    try:
        jax.block_until_ready(jax.jit(jnp.negative)(jnp.zeros(())))
        jax.effects_barrier()
    except Exception:
        if forget_failures is not None:
            forget_failures()
    # Threads of the user's have an order of their own; what they dispatched may still be inside MPI.
    while native.lib.mpixla_calls_in_flight():
        time.sleep(0.001)
    native.lib.mpixla_check_end()
    native.lib.mpixla_requests_end()
    if native.lib.mpixla_gpus_end() == 0:
        return True
    sys.stderr.write(f"mpixla: r{MPI.COMM_WORLD.Get_rank()} | {native.lib.mpixla_last_error().decode()}\n")
    return False


# What is called at the end, when all programs of this process have run and MPI can still be used.
when_done: list[Callable[[], None]] = []


def _refuse_lost_exception() -> None:
    """Ends all ranks if the program put a hook in the place of ours: Python notes an exception before it calls it."""
    if _has_ended_it(getattr(sys, "last_traceback", None)) and _can_abort():
        last = "".join(traceback.format_exception_only(sys.last_value))  # of what the hook may have printed, or not
        _abort(f"ended with an uncaught {type(sys.last_value).__name__}", last)


def _end() -> None:
    global _is_ending
    _is_ending = True
    _refuse_lost_exception()
    native.lib.mpixla_timeout_ended()  # for the reports of ranks that wait for this one
    is_well = True
    if jax_has_started() and not MPI.Is_finalized():
        is_well = _wait()
        for do in when_done:
            do()
    timeline.end()
    if native.lib.mpixla_failures_end():
        if _can_abort():
            _abort("ended with a failed call that nobody has looked at (above)")
        is_well = False
    # MPI, where mpi4py will not: some MPIs end the other ranks, silently and with status 0, for one that ends without.
    native.lib.mpixla_end_last(not is_well)
    output.end()
