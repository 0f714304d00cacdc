"""Aborting the job with a message."""

import os
import threading
import time
from typing import NoReturn

from ..base.speaker import print_message
from . import output
from .mpi import MPI
from .native import lib

# Seconds that printing the reason and flushing may take: a terminal may be stopped, and a pipe may have no reader.
_MOST = 15

exit_at_once = os._exit  # the original: run/process.py replaces it


def limit_end(status: int) -> None:
    """Return at once; ``_MOST`` seconds later the C library ends this process with ``status``, if it still runs."""
    lib.mpixla_job_limit(_MOST, status)


def abort_job(sentence: str, status: int = 1) -> NoReturn:
    """Print a message on this rank, and abort the whole job with a status."""
    limit_end(status)
    print_message(f"{sentence}\n")
    end_all_ranks(status)


def end_all_ranks(status: int, seconds: float = 0.0) -> NoReturn:
    """Flush this rank's output, wait for ``seconds``, and abort the job; just exit if MPI cannot be called."""
    limit_end(status)
    if not output.is_running():
        output.flush_output()
    time.sleep(seconds)
    is_main = threading.current_thread() is threading.main_thread()
    lib.mpixla_job_end(status, int(is_main or MPI.Query_thread() == MPI.THREAD_MULTIPLE))
    exit_at_once(status)
