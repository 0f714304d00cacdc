"""python -m mpixla: a report of the versions that are installed and in use."""

import importlib.metadata
import platform
import sys
import threading
from collections import Counter
from contextlib import nullcontext
from itertools import chain
from pathlib import Path

from mpi4py import MPI

import mpixla

from ..base import tested
from ..base.cores import find_cores
from ..extend import (
    abort_job,
    describe_installed,
    gpu,
    host_of_each,
    ignore_closed_pipe,
    lib,
    run_timer,
    wrong_launcher,
)

_THREAD_LEVELS = {
    getattr(MPI, name): "MPI_" + name
    for name in ("THREAD_SINGLE", "THREAD_FUNNELED", "THREAD_SERIALIZED", "THREAD_MULTIPLE")
}

_PATIENCE = 30.0  # seconds that the ranks may take to exchange their hosts and CPUs
_NOTHING_ARRIVES = (
    "mpixla: MPI has started, but messages between the ranks have not arrived within {:g} s, so the job ends. MPI may "
    "have chosen a network that does not connect the hosts, or a firewall is between them: tell MPI which network to "
    "use (docs/clusters.md, Several hosts)."
)


def print_line(text: str) -> None:
    """Print a line on rank 0."""
    if MPI.COMM_WORLD.Get_rank() == 0:
        with ignore_closed_pipe():
            print(text)


def run() -> int:
    """Print the report on rank 0; return 1 if the launcher is another MPI's, else 0. All ranks must call it."""
    comm = MPI.COMM_WORLD
    transport = _agree_on_transport()
    end = threading.Timer(_PATIENCE, abort_job, [_NOTHING_ARRIVES.format(_PATIENCE)])
    with run_timer(end) if comm.Get_rank() == 0 else nullcontext():
        places = list(zip(host_of_each(comm), comm.allgather(_own_cpus()), strict=True))
    rows = describe_ranks(places, transport)
    for title, text in rows.items():
        print_line(f"{title:{max(map(len, rows))}}  {text}")
    if hooks := describe_installed():
        print_line("\nWithout a hook (MPIXLA_HOOKS_OFF, docs/other_tools.md):")
        for name, loss in hooks.items():
            print_line(f"  {name}: {loss}")
    return int(wrong_launcher() is not None)  # the message was printed when mpixla was imported


def describe_ranks(places: list[tuple[str, list[int]]], transport: str) -> dict[str, str]:
    """Return titles and texts of the report, for ranks with these hosts and CPUs, and this transport of GPU arrays."""
    version = importlib.metadata.version
    return {
        "mpixla": f"{version('mpixla')} in {Path(mpixla.__file__).parent}",
        "JAX": f"{version('jax')}, jaxlib {version('jaxlib')} (mpixla was tested up to {tested.NEWEST})",
        "hooks in JAX": ", ".join(describe_installed()) or "none",
        "NumPy": version("numpy"),
        "mpi4py": version("mpi4py"),
        "Python": f"{platform.python_version()} in {sys.prefix}",
        "MPI": mpi_name(),
        "MPI standard": ".".join(map(str, MPI.Get_version())),
        "MPI library": _mpi_file(),
        "MPI handles": handle_kind(),
        "thread level": _THREAD_LEVELS[MPI.Query_thread()],
        "ranks": _describe_ranks(places),
        "CPUs": _describe_cpus(places),
        "GPUs of rank 0": gpu.describe_gpus(),
        "GPU transport": transport,
    }


def _agree_on_transport() -> str:
    """Return the transport of GPU arrays, on which the ranks agree in the first call. All ranks must call it."""
    if not gpu.in_job:
        return "none: CPU only"
    try:
        mpixla.barrier()
    except Exception as e:
        return f"none: {e}"
    return gpu.transport_of(None)


def mpi_name() -> str:
    """Return the first line of MPI_Get_library_version's text; "unknown" if it is empty."""
    text = MPI.Get_library_version().replace("\0", "").strip()
    return " ".join(text.splitlines()[0].split()) if text else "unknown"


def _mpi_file() -> str:
    """Return the name by which MPI's library was loaded, the file behind it, and the tool that intercepts calls."""
    name = lib.mpixla_mpi_file().decode()
    file = str(Path(name).resolve())
    tool = lib.mpixla_mpi_tool().decode()
    return (name if name == file else f"{name}, which is {file}") + (
        f", behind {tool}, which intercepts it" * bool(tool)
    )


def handle_kind() -> str:
    """Return whether the MPI in use has handles that are ints or pointers, in words: its binary interface."""
    size = MPI._sizeof(MPI.Comm)
    if size == 4:
        return "int, as in MPICH and its family"
    standard = "abi" in Path(str(MPI.__file__)).name.split(".")[1:2]
    return "pointer, as in the MPI-5 standard ABI" if standard else "pointer, as in Open MPI"


def _own_cpus() -> list[int]:
    return sorted(chain(*find_cores()))


def _describe_ranks(places: list[tuple[str, list[int]]]) -> str:
    """Return in words the number of ranks, and how many of them each host has."""
    ranks = Counter(host for host, _ in places)
    shown = ", ".join(f"{n} on {host}" for host, n in list(ranks.items())[:8])
    more = f", and {len(ranks) - 8} more hosts" if len(ranks) > 8 else ""
    return f"{len(places)} ({shown}{more})"


def _describe_cpus(places: list[tuple[str, list[int]]]) -> str:
    """Return in words how many CPUs each rank has, and whether ranks share them."""
    counts = sorted({len(cpus) for _, cpus in places})
    each = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    taken = Counter((host, cpu) for host, cpus in places for cpu in cpus)
    shared = "shared with other ranks (not pinned)" if max(taken.values()) > 1 else "of its own"
    return f"{each} for each rank, {shared}"
