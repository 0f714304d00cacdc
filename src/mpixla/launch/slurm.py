"""Slurm: whether we are in an allocation, and what its srun is told."""

import os
import re
import shutil
from argparse import Namespace
from collections.abc import Sequence

from .launchers import said_by


def language(understood: Sequence[str]) -> str | None:
    """The language in which srun is to speak to the MPI, inside an allocation; None if srun cannot start the ranks.

    It is the first that both know of those that the MPI understands. ``pmix`` is also ``pmix_v4`` and so on.
    """
    if not os.environ.get("SLURM_JOB_ID") or not shutil.which("srun"):
        return None
    spoken = re.findall(r"[\w-]+", said_by(["srun", "--mpi=list"]))
    return next((each for each in understood if any(s == each or s.startswith(f"{each}_v") for s in spoken)), None)


def tasks() -> int | None:
    """The tasks of the allocation that this process is in; None if it is in none, or they were not said."""
    number = os.environ.get("SLURM_NTASKS", "") if os.environ.get("SLURM_JOB_ID") else ""
    return int(number) if number.isdecimal() else None


def command(speaks: str, options: Namespace) -> list[str]:
    """srun with what it is asked for; where that is nothing, it takes what the allocation has."""
    threads = options.threads or os.environ.get("SLURM_CPUS_PER_TASK")
    return [
        "srun",
        f"--mpi={speaks}",
        *([f"--ntasks={options.ranks}"] if options.ranks else []),
        *([f"--cpus-per-task={threads}"] if threads else []),
        f"--cpu-bind={'none' if options.no_pin else 'cores'}",
        *(["--label"] if options.label else []),
    ]
