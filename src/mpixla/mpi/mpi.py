"""The MPI that mpi4py has loaded; the import fails with a message if mpixla cannot use it."""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ..base import host_lock, speaker, started
from ..base.files import own_file
from ..base.missing_mpi import explain_missing_mpi
from ..base.speaker import print_message

_PATIENCE = 20.0  # seconds until the report, as for the import (arrival.py)


def _report_mixed_launcher() -> None:
    """Print a warning on rank 0 if Open MPI's mpirun has started this process, but mpi4py loads MPICH."""
    if "mpi4py.MPI" in sys.modules or os.environ.get("OMPI_COMM_WORLD_RANK") != "0":
        return
    with suppress(ImportError, AttributeError, RuntimeError):  # an mpi4py for one MPI only, or no MPI
        from mpi4py import _mpiabi

        if _mpiabi._get_mpiabi() == "mpich":  # type: ignore[attr-defined]
            print_message(
                "mpixla: Open MPI's mpirun has started this process, but the library that mpi4py loads is not Open "
                "MPI's. If it ends the processes now, or takes each for a job of its own, start them with python -m "
                "mpixla run, which finds the launcher that belongs to the library.\n"
            )


def _report_lost_socket() -> None:
    """Print a warning, once for a launcher, if MPICH's socket to it (PMI_FD) is closed: MPICH would end silently."""
    number = os.environ.get("PMI_FD", "")
    if "mpi4py.MPI" in sys.modules or not number.isdecimal() or "OMPI_COMM_WORLD_RANK" in os.environ:
        return
    try:
        os.fstat(int(number))
    except OSError:
        # The session's first process is the launcher's child: the launcher starts a session for each rank.
        if host_lock.take_lock(f"socket {started.parent_of(os.getsid(0))}"):
            print_message(
                f"mpixla: MPI's launcher has given this process the file descriptor {number} (PMI_FD), which is not "
                "open: a program between mpiexec and Python has closed it, such as conda run, submitit or "
                "subprocess.run. So MPI cannot start. Have mpiexec start Python itself: activate the environment "
                "first, or name its Python, as in mpiexec -n 4 /path/to/python script.py.\n"
            )


@contextmanager
def _report_late_start() -> Iterator[None]:
    """Report once, during the body of the with statement, that the start of MPI takes long.

    The report comes from a thread of the C library, since MPI_Init holds Python's global lock.
    """
    name = f"MPI's start {started.launcher_process()}"
    if "mpi4py.MPI" in sys.modules or started.detect_launcher() is None or not host_lock.take_lock(name):
        yield
        return
    try:
        library = ctypes.CDLL(str(own_file("libmpixla.so")))
    except OSError:  # native.py raises the error
        yield
        return
    rank = started.rank_of_launcher()
    library.mpixla_init_watch.argtypes = [ctypes.c_double, ctypes.c_char_p]
    library.mpixla_output_set(speaker.error_descriptor())
    library.mpixla_init_watch(
        _PATIENCE,
        f"mpixla: {'a rank' if rank is None else f'rank {rank}'} has waited for {_PATIENCE:g} s in the start of MPI, "
        "and goes on waiting. All processes of the job must start MPI, by importing mpixla or mpi4py, and another one "
        "has not: it may have ended, or do something else first, or have no script (with `mpiexec python < script.py` "
        "the first process gets the script and the others get nothing: name the file instead). Or the hosts cannot "
        "reach each other (docs/clusters.md, Several hosts).\n".encode(),
    )
    try:
        yield
    finally:
        library.mpixla_init_done()
        host_lock.release_lock(name)


_report_mixed_launcher()
_report_lost_socket()
try:
    with _report_late_start():
        from mpi4py import MPI
except (ImportError, RuntimeError) as e:
    raise ImportError(explain_missing_mpi(e)) from None

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
    """Return the message for processes that one launcher has started as separate MPI jobs; None if all is well."""
    found = started.detect_launcher()
    if MPI.COMM_WORLD.Get_size() > 1 or found is None:
        return None
    variable, launcher, number = found
    return (
        f"{variable}={number}: {number} processes were started by {launcher}, but each is an MPI job of its own. The "
        f"launcher and the MPI that mpi4py has loaded ({MPI.get_vendor()[0]}) do not belong together: start the job "
        "with python -m mpixla run, which finds the MPI's own launcher, point MPI4PY_LIBMPI at the other MPI, or tell "
        "srun which one to speak (srun --mpi=list)."
    )


# A warning only: each process then computes the whole problem.
if (_wrong := wrong_launcher()) and host_lock.take_lock(f"launcher {started.launcher_process()}"):
    print_message(f"mpixla: {_wrong}\n")
