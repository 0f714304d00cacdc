"""Hooks in a process that mpixla owns: ``python -m mpixla run``, ``mpixla.compat`` and ``mpixla.distributed``.

A process that only imports mpixla gets none of them (docs/guest.md).
"""

import os
import secrets
import signal
import sys
import threading
from typing import NoReturn

from mpi4py import MPI

from ..base import settings, shared_message, started
from ..extend import can_abort, capture_hook_text, check_result, end_job, exit_at_once, lib, own_comm

_previous_hook = threading.excepthook


def install() -> None:
    """Install, once, hooks for SIGINT, and unless ``MPIXLA_ABORT=0`` for failed threads and ``os._exit``.

    Does nothing if ``os._exit`` was replaced before. A handler of SIGINT that is not Python's own stays. In ranks of
    ``python -m mpixla run`` it is collective, as they open the file of shared messages.
    """
    if os._exit is not exit_at_once:
        return
    aborts = settings.aborts_job()
    if aborts:
        threading.excepthook = _end_job_from_thread
        os._exit = _end_job_or_exit
    if started.is_of_run():
        _share_file()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        may_abort = aborts and MPI.Query_thread() == MPI.THREAD_MULTIPLE
        check_result(lib.mpixla_interrupt_watch(may_abort))


def _share_file() -> None:
    """Open, on all ranks, the file by which ranks of a host print the same message once (base/shared_message.py)."""
    comm = own_comm()
    if comm.Get_size() > 1:
        name = comm.bcast(secrets.token_hex(8))
        shared_message.open_file(name)
        comm.Barrier()
        shared_message.remove_name(name)


def _end_job_from_thread(args: threading.ExceptHookArgs) -> None:
    """Print an exception that has ended a thread, and abort the job if the thread is not a daemon.

    The job goes on once the main thread has ended: threads then fail for other reasons, and no rank waits for this one.
    """
    thread = args.thread
    is_failure = not issubclass(args.exc_type, SystemExit)  # SystemExit merely ends the thread
    if is_failure and thread and not thread.daemon and threading.main_thread().is_alive() and can_abort():
        text = capture_hook_text(_previous_hook, args.exc_value, args)
        end_job(f": uncaught {args.exc_type.__name__} in thread {thread.name}", text)
    _previous_hook(args)


def _end_job_or_exit(status: int) -> NoReturn:
    """Abort the job in place of ``os._exit``, or exit if no rank waits: some MPIs would end others with status 0."""
    if can_abort():
        caller = sys._getframe(1)
        end_job(
            "called os._exit",
            f"os._exit({status}) at {caller.f_code.co_filename}:{caller.f_lineno} would end it while MPI runs and "
            "the others may wait for it. Use sys.exit, or call MPI.Finalize() first.",
            status & 0xFF or 1,
        )
    exit_at_once(status)
