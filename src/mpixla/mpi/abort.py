"""Ending all ranks with a sentence."""

import os
import threading
import time
from typing import NoReturn

from ..base.speaker import say
from . import output
from .mpi import MPI
from .native import lib

# Seconds that saying why and flushing may take: a terminal may be stopped, and nobody may read a pipe.
_MOST = 15

exit_at_once = os._exit  # before watch/owner.py puts its own there


def limit_end(status: int) -> None:
    """Has this process end with a status in some seconds at the latest, whatever keeps it."""
    lib.mpixla_job_limit(_MOST, status)


def abort(sentence: str, status: int = 1) -> NoReturn:
    """Says on this rank why the job ends, and ends it."""
    limit_end(status)
    say(f"{sentence}\n")
    end_all_ranks(status)


def end_all_ranks(status: int, seconds: float = 0.0) -> NoReturn:
    """Ends all ranks, after so many seconds more than what they have printed takes."""
    limit_end(status)
    if not output.is_running():
        output.flush()
    time.sleep(seconds)
    is_main = threading.current_thread() is threading.main_thread()
    lib.mpixla_job_end(status, int(is_main or MPI.Query_thread() == MPI.THREAD_MULTIPLE))
    exit_at_once(status)
