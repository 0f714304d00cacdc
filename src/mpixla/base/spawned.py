"""Processes that a rank starts inherit the variables by which its launcher told it which rank it is, and are none.

Only the rank itself can run MPI: in them MPI would hang, or end the job. So mpixla imports this first of all, which
leaves a mark in the environment, and in a process that finds another's says what to do. Those that multiprocessing
starts anew import the program's file, and a pool would start another one in their place, for ever: they end the job.
mpi4py, which they mostly import before, is told not to start MPI there: MPI would end it.
"""

import multiprocessing.util
import os
import signal
import stat
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

from .speaker import is_first, say
from .started import launcher as started_by

_VARIABLE = "RANK_OF_MPIXLA"
_RANKS = ("PMI_RANK", "PMIX_RANK")  # who has them is a rank, and so is whoever inherits them
# What is another's in a job that a rank starts.
_JOBS = ("PMIX_NAMESPACE", "PMI_FD", "PMI_PORT", "SLURM_JOB_ID", "SLURM_STEP_ID", "PALS_APID")
# Seconds: for mpirun to forward what was printed; and for which no other process says it, while the job ends.
_FORWARDING, _SILENCE = 0.3, 3.0

_spawn = multiprocessing.util.spawnv_passfds


def _place() -> str:
    """Which rank of which job the environment makes of this process, in a word."""
    return ",".join(os.environ.get(name, "") for name in _RANKS + _JOBS)


def _socket() -> int:
    """The number of the socket to the launcher (MPICH), which Python's own ways of starting a process close; else 0."""
    with suppress(KeyError, ValueError, OSError):
        found = os.fstat(int(os.environ["PMI_FD"]))
        if stat.S_ISSOCK(found.st_mode):
            return found.st_ino
    return 0


def _spawn_no_rank(path: Any, args: Sequence[Any], passfds: Any) -> int:
    args = list(args)
    if "-c" in args:
        code = args.index("-c") + 1
        args[code] = f"import os; os.environ['MPI4PY_RC_INITIALIZE'] = '0'; {args[code]}"
    return _spawn(path, args, passfds)


def _end_job(rank: str, process: str, launcher: str) -> NoReturn:
    if is_first(f"spawned {launcher}"):
        say(
            f"mpixla: a process that multiprocessing has started on rank {rank} imports mpixla, as it imports the "
            "program's file, or a module with one of its functions. But only the rank itself can run MPI, so the whole "
            'job ends. Import mpixla, and mpi4py, under `if __name__ == "__main__":`, or in the functions that use '
            "them.\n"
        )
    time.sleep(_FORWARDING)
    os.kill(int(process), signal.SIGTERM)
    time.sleep(_SILENCE)
    os._exit(1)


if _ranks := [os.environ[name] for name in _RANKS if name in os.environ]:
    _process, _launcher, _its_socket, _its_place = os.environ.get(_VARIABLE, " " * 3).split(" ", 3)
    # With the same number, it is another program by now.
    if _process != str(os.getpid()) and _its_place == _place() and _socket() in (0, int(_its_socket)):
        if any("from multiprocess" in argument for argument in sys.orig_argv):  # or that of pathos
            _end_job(_ranks[0], _process, _launcher)
        raise ImportError(
            f"rank {_ranks[0]}, process {_process}, has started this process, which cannot import mpixla: it has "
            "inherited the variables of the rank's launcher, but only the rank itself can run MPI. Start it without "
            "them, as a job of its own: env={k: v for k, v in os.environ.items() if not k.startswith(('PMI', 'OMPI_'))}"
        )
    os.environ[_VARIABLE] = f"{os.getpid()} {started_by()} {_socket()} {_place()}"
    multiprocessing.util.spawnv_passfds = _spawn_no_rank
