"""Processes that multiprocessing starts anew import the program's file, and may not be the same rank once more.

So mpixla imports this first of all. In such a process it says what to do, and ends the job: a pool would start another
one in its place, for ever. mpi4py, which is mostly imported before, is told not to start MPI there: MPI would end it.
"""

import multiprocessing.util
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any, NoReturn

from .speaker import is_first

_VARIABLE = "SPAWNED_BY_A_RANK_OF_MPIXLA"
_RANKS = ("PMI_RANK", "PMIX_RANK")  # who has them is a rank, and so is whoever inherits them
# Seconds: for mpirun to forward what was printed; and for which no other process says it, while the job ends.
_FORWARDING, _SILENCE = 0.3, 3.0

_spawn = multiprocessing.util.spawnv_passfds


def _spawn_no_rank(path: Any, args: Sequence[Any], passfds: Any) -> int:
    marks = {_VARIABLE: f"{os.getpid()} {os.getppid()}", "MPI4PY_RC_INITIALIZE": "0"}
    before = {name: os.environ.get(name) for name in marks}
    os.environ.update(marks)
    try:
        return _spawn(path, args, passfds)
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _end_job(rank: str, process: str, launcher: str) -> NoReturn:
    if is_first(f"spawned {launcher}"):
        sys.stderr.write(
            f"mpixla: a process that multiprocessing has started on rank {rank} imports mpixla, as it imports the "
            "program's file, or a module with one of its functions. But only the rank itself can run MPI, so the whole "
            'job ends. Import mpixla, and mpi4py, under `if __name__ == "__main__":`, or in the functions that use '
            "them.\n"
        )
        sys.stderr.flush()
    time.sleep(_FORWARDING)
    os.kill(int(process), signal.SIGTERM)
    time.sleep(_SILENCE)
    os._exit(1)


if _ranks := [os.environ[name] for name in _RANKS if name in os.environ]:
    if _VARIABLE in os.environ and any("multiprocessing" in argument for argument in sys.orig_argv):
        _end_job(_ranks[0], *os.environ[_VARIABLE].split())
    multiprocessing.util.spawnv_passfds = _spawn_no_rank
