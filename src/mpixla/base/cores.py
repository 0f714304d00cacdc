"""The cores of the host that this process may use.

run/rank.py loads this file alone, so it imports nothing of mpixla's.
"""

import os
from pathlib import Path

_CPUS = Path("/sys/devices/system/cpu")


def find_cores() -> list[set[int]]:
    """Return the cores that this process may use, each as the set of its CPUs, ordered by node, package and core.

    Where the system has no affinity masks (macOS), each CPU counts as a core.
    """
    if not hasattr(os, "sched_getaffinity"):
        return [{cpu} for cpu in range(os.cpu_count() or 1)]
    found: dict[tuple[int, ...], set[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        found.setdefault(_core_of(cpu), set()).add(cpu)
    return [found[place] for place in sorted(found)]


def _core_of(cpu: int) -> tuple[int, ...]:
    """Return a CPU's (memory node, package, core), equal for all CPUs of a core; the CPU as core if unknown."""
    folder = _CPUS / f"cpu{cpu}"
    nodes = [int(node.name[4:]) for node in folder.glob("node[0-9]*")]
    try:
        package, core = (int((folder / "topology" / of).read_text()) for of in ("physical_package_id", "core_id"))
    except (OSError, ValueError):
        return (min(nodes, default=0), 0, cpu)
    return (min(nodes, default=0), package, core)
