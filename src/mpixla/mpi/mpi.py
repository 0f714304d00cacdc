"""The MPI of this process, as mpi4py has it: refused in words where mpixla cannot use it."""

import os
import sys
from contextlib import suppress

from ..base import started
from ..base.speaker import is_first, say


def _tell_of_launcher() -> None:
    """MPICH ends a process that Open MPI has started, and does not say why, unless it was built to speak PMIx."""
    if "mpi4py.MPI" in sys.modules or os.environ.get("OMPI_COMM_WORLD_RANK") != "0":
        return
    with suppress(ImportError, AttributeError, RuntimeError):  # an mpi4py for one MPI only, or no MPI
        from mpi4py import _mpiabi

        if _mpiabi._get_mpiabi() == "mpich":  # type: ignore[attr-defined]
            say(
                "mpixla: Open MPI's mpirun has started this process, but the library that mpi4py loads is not Open "
                "MPI's. If it ends the processes now, or takes each for a job of its own, start them with python -m "
                "mpixla run, which finds the launcher that belongs to the library.\n"
            )


_tell_of_launcher()
try:
    from mpi4py import MPI
except (ImportError, RuntimeError) as e:
    from ..launch.library import missing  # which other processes need not load

    raise ImportError(missing(e)) from None

__all__ = ["MPI", "wrong_launcher"]

if not MPI.Is_initialized() or MPI.Is_finalized():
    raise ImportError(
        "mpixla needs MPI to be running, but mpi4py has not initialized it (mpi4py.rc.initialize is False?) or has "
        "finalized it already. Import mpixla after MPI.Init_thread(MPI.THREAD_MULTIPLE) and before MPI.Finalize()."
    )

_TOO_LOW = {MPI.THREAD_SINGLE: "MPI_THREAD_SINGLE", MPI.THREAD_FUNNELED: "MPI_THREAD_FUNNELED"}
if MPI.Query_thread() in _TOO_LOW:
    raise ImportError(
        f"MPI was initialized with the thread level {_TOO_LOW[MPI.Query_thread()]}, but XLA calls MPI from threads of "
        "its own. Start it with MPI.Init_thread(MPI.THREAD_MULTIPLE), or let mpi4py start it with "
        "mpi4py.rc.thread_level = 'multiple' (the default), or use an MPI that was built with thread support."
    )


def wrong_launcher() -> str | None:
    """A sentence about processes that were started together and do not know each other, or None."""
    found = started.by_launcher()
    if MPI.COMM_WORLD.Get_size() > 1 or found is None:
        return None
    variable, launcher, number = found
    return (
        f"{variable}={number}: {number} processes were started by {launcher}, but each is an MPI job of its own. The "
        f"launcher and the MPI that mpi4py has loaded ({MPI.get_vendor()[0]}) do not belong together: start the job "
        "with python -m mpixla run, which finds the MPI's own launcher, point MPI4PY_LIBMPI at the other MPI, or tell "
        "srun which one to speak (srun --mpi=list)."
    )


# Each computes then what all were to share.
if (_wrong := wrong_launcher()) and is_first(f"launcher {started.launcher()}"):
    say(f"mpixla: {_wrong}\n")
