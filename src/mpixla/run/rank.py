"""Start a rank: take its share of the host's cores, run the user's Python as a child, and end as the child does.

MPI's launcher starts this file once for each rank, so it imports nothing of mpixla's: start.py passes it the folder of
two files that it executes. Launchers pin ranks, too, but each by options of its own, and MPICH's and Open MPI's count
all cores of the host: under ``taskset``, or beside another job, several ranks get the same ones. The process's own
affinity mask has the CPUs that it may use.

Only a parent learns which signal has ended a process. This one is in the child's process group, to which launchers send
signals, so it blocks all of them; SIGKILL and SIGSTOP, which cannot be blocked, reach both processes.
"""

import ctypes
import os
import resource
import runpy
import signal
import sys
import time
from contextlib import suppress
from typing import Any, NoReturn

# Variables that have the local rank and the number of ranks on the host.
PLACES = (
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),  # MPICH and its family
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),  # Open MPI
)
AUTO = "auto"  # as many threads as a rank has cores
ALL = "all"  # all cores, and the threads of the environment
# Signals that the kernel sends, and the hint for each.
_FATAL = {
    signal.SIGKILL: "often because memory ran out (the kernel's log says so: dmesg)",
    **dict.fromkeys(
        (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT),
        "in C code. With python -X faulthandler -m mpixla run the rank prints the lines of Python that led there",
    ),
    signal.SIGXCPU: "because its time on the processor ran out (ulimit -t)",
}
_FORWARDING = 0.3  # seconds between the sentence and the rank's end, in which the launcher forwards the sentence
_PR_SET_PDEATHSIG = 1  # Linux: <sys/prctl.h>


def share_cores(of: list[set[int]], place: int, ranks: int, threads: int | None) -> tuple[set[int] | None, int]:
    """Return (a rank's CPUs, its number of threads): an equal share of the cores ``of`` a host; None for too few cores.

    Args:
        of: the cores of the host, as sets of CPUs.
        place: the rank among those of the host.
        ranks: the number of ranks on the host.
        threads: the threads of each rank; None for one on each core of its share.
    """
    each = threads or len(of) // ranks
    if each == 0 or each * ranks > len(of):
        return None, max(each, 1)
    return set().union(*of[place * each : (place + 1) * each]), each


def _pin_rank(threads: str, of: list[set[int]]) -> None:
    """Pin this rank to its share of the cores ``of`` its host, or warn if too few; set NPROC; exit if rank unknown."""
    known = [(os.environ[rank], os.environ[size]) for rank, size in PLACES if rank in os.environ and size in os.environ]
    if not known:
        sys.exit(
            "python -m mpixla run: this MPI's launcher does not say which of the ranks on its host a process is, so it "
            "cannot be given cores of its own. Add --no-pin."
        )
    place, ranks = map(int, known[0])
    cpus, number = share_cores(of, place, ranks, None if threads == AUTO else int(threads))
    if cpus is None and place == 0:
        each = f"{number} thread{'s' * (number > 1)}"
        sys.stderr.write(
            f"python -m mpixla run: {f'{ranks} ranks, with {each} each,' if ranks > 1 else f'the {each} of one rank'} "
            f"share {len(of)} core{'s' * (len(of) > 1)} of {os.uname().nodename}. They take turns, and one that waits "
            "for another keeps it from computing, so fewer of them would be faster.\n"
        )
    if cpus is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cpus)
    os.environ.setdefault("NPROC", str(number))  # XLA's number of threads


def _exec_program(command: list[str], variable: str, parent: int, launcher: int) -> NoReturn:
    """Execute the user's Python in this child, which the kernel kills with its parent (Linux); exit with 1 on error."""
    try:
        with suppress(AttributeError):  # not on Linux
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == parent:
            error = 2
            with suppress(OSError):  # it may be closed
                error = os.dup(2)
                os.set_inheritable(error, True)
            os.environ[variable] = f"{os.getpid()} {launcher} {error}"
            os.execv(command[0], command)
    except OSError as e:
        sys.stderr.write(f"python -m mpixla run: {command[0]} cannot be started: {e.strerror}.\n")
        sys.stderr.flush()
    os._exit(1)


def _say_signal(number: int, rank: int | None) -> None:
    """Print that a signal has ended this rank, if the signal is one that the kernel sends."""
    if hint := _FATAL.get(number):  # type: ignore[call-overload]  # a signal is an int
        who = "a rank" if rank is None else f"rank {rank}"
        text = f"mpixla: {who} was ended by signal {number} ({signal.Signals(number).name}), {hint}.\n"
        with suppress(OSError):
            os.write(2, text.encode())
        time.sleep(_FORWARDING)


def _load_base_file(folder: str, name: str) -> dict[str, Any]:
    return runpy.run_path(os.path.join(folder, name))


def _main(base: str, threads: str, command: list[str]) -> NoReturn:
    """Pin this rank to its cores, run the program in a child process, and end with its status or by its signal."""
    if threads != ALL:
        _pin_rank(threads, _load_base_file(base, "cores.py")["find_cores"]())
    started = _load_base_file(base, "started.py")
    launcher, parent = os.getppid(), os.getpid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _exec_program(command, started["PROCESS"], parent, launcher)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status >= 0:
        os._exit(status)
    number = -status
    _say_signal(number, started["rank_of_launcher"]())
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # one core file is enough
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os._exit(128 + number)


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], sys.argv[3:])
