"""What becomes a rank: takes its share of the host's cores, and becomes the user's Python.

MPI's launcher starts it as a file, once for each rank, so it imports nothing of mpixla's. Launchers pin ranks, too, but
each by options of its own, and MPICH's and Open MPI's count all cores of the host: under ``taskset``, or beside another
job, several ranks get the same ones. What a process may use, the process knows.
"""

import os
import sys
from pathlib import Path

# Where launchers say which of how many ranks on its host a process is.
PLACES = (
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),  # MPICH and its family
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),  # Open MPI
)
AUTO = "auto"  # as many threads as a rank has cores
_CPUS = Path("/sys/devices/system/cpu")


def cores() -> list[set[int]]:
    """The cores that this process may use, each as the numbers of its CPUs, neighbours side by side.

    Where the system does not say which CPUs a process may use (macOS), there are as many cores as CPUs.
    """
    if not hasattr(os, "sched_getaffinity"):
        return [{cpu} for cpu in range(os.cpu_count() or 1)]
    found: dict[tuple[int, ...], set[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        found.setdefault(_core_of(cpu), set()).add(cpu)
    return [found[place] for place in sorted(found)]


def _core_of(cpu: int) -> tuple[int, ...]:
    """Where a CPU is: memory node, package, core. CPUs of one core are in the same place."""
    folder = _CPUS / f"cpu{cpu}"
    nodes = [int(node.name[4:]) for node in folder.glob("node[0-9]*")]
    try:
        package, core = (int((folder / "topology" / of).read_text()) for of in ("physical_package_id", "core_id"))
    except (OSError, ValueError):
        return (min(nodes, default=0), 0, cpu)
    return (min(nodes, default=0), package, core)


def share(of: list[set[int]], place: int, ranks: int, threads: int | None) -> tuple[set[int] | None, int]:
    """The CPUs of a rank, by its place among those of a host with these cores, and its number of threads.

    None for the CPUs if there are too few cores. ``threads`` is what each rank is to have, None for one on each core.
    """
    each = threads or len(of) // ranks
    if each == 0 or each * ranks > len(of):
        return None, max(each, 1)
    return set().union(*of[place * each : (place + 1) * each]), each


def _main(threads: str, command: list[str]) -> None:
    known = [(os.environ[rank], os.environ[size]) for rank, size in PLACES if rank in os.environ and size in os.environ]
    if not known:
        sys.exit(
            "python -m mpixla run: this MPI's launcher does not say which of the ranks on its host a process is, so it "
            "cannot be given cores of its own. Add --no-pin."
        )
    place, ranks = map(int, known[0])
    of = cores()
    cpus, number = share(of, place, ranks, None if threads == AUTO else int(threads))
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
    os.execv(command[0], command)


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2:])
