"""The end of a process: it waits for running programs, and aborts the job if this rank has failed."""

import atexit
import ctypes
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

import jax
import jax.numpy as jnp

from ..base import settings, shared_message, speaker
from ..base.program import status_of
from ..base.required import jax_has_started
from ..base.state import state
from ..mpi import abort, native, output
from ..mpi.abort import exit_at_once
from ..mpi.comm import others_may_wait
from ..mpi.mpi import MPI
from . import timeline

_previous_hook = sys.excepthook

_aborts = settings.aborts_job()
_is_ending = False

# Seconds that this rank waits for the rank that has printed the same message to abort the job.
_PATIENCE = 2.0


def install() -> None:
    """Register handlers for exit and forks, start flushing; unless ``MPIXLA_ABORT=0`` have sys.excepthook abort."""
    # Handlers run in reverse order of registration: ours before JAX's own, and before mpi4py finalizes MPI.
    atexit.register(_end_process)
    output.start_flushing()
    os.register_at_fork(after_in_child=_begin_fork)
    # Threads that call JAX have a Python thread state; XLA's threads have none.
    thread_of_python = ctypes.cast(ctypes.pythonapi.PyGILState_GetThisThreadState, ctypes.c_void_p)
    native.lib.mpixla_failures_raised_on(thread_of_python)
    if _aborts:
        sys.excepthook = _abort_job


def _print_once(did: str, more: str, then_by_all: str | None = None) -> shared_message.PrintOutcome:
    world = MPI.COMM_WORLD
    return shared_message.print_once(
        world.Get_rank(), world.Get_size(), speaker.print_message, did, _ABORTED, more, then_by_all
    )


# A forked process has neither JAX's threads nor MPI. If it ended as its parent does, JAX would crash, and mpi4py would
# call MPI_Finalize, which hangs or aborts the job. So it ends at once, as processes of multiprocessing do.


def _begin_fork() -> None:
    """Turn off aborting and the library's checks in a forked child, and end it at its exit by ``_end_fork``."""
    global _aborts
    _aborts = False
    native.lib.mpixla_forked()
    state.is_forked = True
    atexit.register(_end_fork, getattr(sys, "last_value", None))


def _end_fork(before: BaseException | None) -> NoReturn:
    """End a forked process at once: status 1 after an uncaught exception since the fork, else 0, even by sys.exit."""
    output.flush_output()
    exit_at_once(int(getattr(sys, "last_value", None) is not before))


def _is_interactive() -> bool:
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)


def can_abort() -> bool:
    """Return whether a failure may abort the job: not in forks or interactively, after MPI, with MPIXLA_ABORT=0."""
    return _aborts and not _is_interactive() and not MPI.Is_finalized() and others_may_wait()


_ABORTED = ", so the whole job is aborted. Set MPIXLA_ABORT=0 to let the other ranks go on."


def end_job(did: str, more: str = "", status: int = 1) -> NoReturn:
    """Print what this rank ``did`` and ``more``, once for all ranks with the same message, and abort the job."""
    abort.limit_end(status)
    _abort_after_print(_print_once(did, more), status)


def _abort_after_print(told: shared_message.PrintOutcome, status: int) -> NoReturn:
    # MPI prints a message for each rank that aborts, so only the rank that has printed ours aborts, if it still runs.
    abort.end_all_ranks(status, 0.0 if told.here else _PATIENCE)


def replace_printing(replace: Callable[[Any], Any]) -> None:
    """Replace the hook that prints an uncaught exception by the result of ``replace`` for that hook."""
    global _previous_hook
    if _aborts:
        _previous_hook = replace(_previous_hook)
    else:
        sys.excepthook = replace(sys.excepthook)


def program_exits(code: Any) -> None:
    """Abort the job after sys.exit with a nonzero status, or raise SystemExit if all ranks exit alike; else return."""
    status = status_of(code)
    text = "" if isinstance(code, int) else str(code)
    if status and can_abort():
        _abort_unless_all(f"ended by sys.exit, with status {status}", text, status)
        raise SystemExit(status)


def program_fails(kind: type[BaseException]) -> None:
    """Abort the job after a printed exception in mpixla's import, unless all ranks fail alike or none may wait."""
    if can_abort():
        _abort_unless_all(f"ended with an uncaught {kind.__name__} while importing mpixla")
        sys.last_traceback = None  # handled, so _refuse_lost_exception must skip it


def _abort_unless_all(did: str, more: str = "", status: int = 1) -> None:
    """Print what this rank ``did`` and ``more``, and abort the job; return if all ranks have printed the same."""
    told = _print_once(did, more, ".")
    if not told.by_all:
        _abort_after_print(told, status)


class _RecordedStream:
    """Standard error that also records the output of this thread, and withholds it if ``keeps`` is set."""

    def __init__(self, keeps: bool) -> None:
        self.stream, self.keeps, self.text, self._thread = sys.stderr, keeps, "", threading.get_ident()

    def write(self, text: str) -> int:
        """Record the text that the owning thread writes; pass all text on, except that thread's if ``keeps`` is set."""
        if threading.get_ident() == self._thread:
            self.text += text
            if self.keeps:
                return len(text)
        return self.stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def capture_hook_text(hook: Callable[..., Any], value: BaseException | None, *arguments: Any) -> str:
    """Call an exception hook; return the text yet to print: the default hook's, a traceback if it is silent, or "".

    Another hook prints at once, since it may end the job itself. If it prints nothing, as pytest's does, or fails, the
    exception's traceback is returned.
    """
    own = hook in (sys.__excepthook__, threading.__excepthook__) or getattr(hook, "only_prints", False)
    sys.stderr = heard = _RecordedStream(own)
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
    """Return whether an exception has left the outermost frame: the module ``code`` calls hooks for others, too."""
    return trace is not None and trace.tb_frame.f_back is None


def _abort_job(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
    if _has_ended_it(trace) and can_abort():
        end_job(f"ended with an uncaught {kind.__name__}", capture_hook_text(_previous_hook, value, kind, value, trace))
    _previous_hook(kind, value, trace)


def note_exception(text: str) -> None:
    """Tell the C library, unless at exit, that a failed call's text has reached the program as an exception."""
    if not _is_ending:
        native.lib.mpixla_failures_seen(text.encode(errors="replace"))


def _wait_for_programs() -> bool:
    """Wait for all dispatched programs, end checks and requests; print why and return False if a GPU failed."""
    # A failure becomes an exception here even if the program has seen it before: the C library knows whether it has.
    # Programs run in the order of their dispatch (ARCHITECTURE.md, "Order"), so the last one waits for all.
    try:
        jax.block_until_ready(jax.jit(jnp.negative)(jnp.zeros(())))
        jax.effects_barrier()
    except Exception:
        if state.tokens is not None:
            state.tokens()
    # The user's threads have orders of their own; their programs may still be inside MPI.
    while native.lib.mpixla_calls_in_flight():
        time.sleep(0.001)
    native.lib.mpixla_check_end()
    native.lib.mpixla_requests_end()
    if native.lib.mpixla_gpus_end() == 0:
        return True
    speaker.print_message(f"mpixla: r{MPI.COMM_WORLD.Get_rank()} | {native.lib.mpixla_last_error().decode()}\n")
    return False


# Callbacks at exit, when all programs of this process have run and MPI can still be used.
when_done: list[Callable[[], None]] = []


def _refuse_lost_exception() -> None:
    """Abort the job after an uncaught exception if the program has replaced our exception hook."""
    if _has_ended_it(getattr(sys, "last_traceback", None)) and can_abort():
        last = "".join(traceback.format_exception_only(sys.last_value))  # in case the hook has not printed it
        end_job(f"ended with an uncaught {type(sys.last_value).__name__}", last)


def _end_process() -> None:
    """End mpixla at the exit of this process: wait for programs, report failed calls, end the timeline and MPI."""
    global _is_ending
    _is_ending = True
    _refuse_lost_exception()
    native.lib.mpixla_timeout_ended()  # for the reports of ranks that wait for this one
    is_well = True
    if jax_has_started() and not MPI.Is_finalized():
        is_well = _wait_for_programs()
        for do in when_done:
            do()
    timeline.end_timeline()
    if native.lib.mpixla_failures_end():
        if can_abort():
            end_job("ended with a failed call that nobody has looked at (above)")
        is_well = False
    native.lib.mpixla_timeout_stop()
    # Finalizes MPI if mpi4py will not: some MPIs end the other ranks, silently and with status 0, if one rank does not.
    native.lib.mpixla_end_last(not is_well)
    output.stop_flushing()
