"""Slurm: its allocation, and the command line of srun."""

import os
import re
import shutil
from argparse import Namespace
from collections.abc import Sequence

from .launchers import output_of


def srun_plugin(understood: Sequence[str]) -> str | None:
    """Return the plugin for ``srun --mpi=`` that this MPI understands; None outside of Slurm, or if srun has none.

    It is the first one of ``understood`` that srun supports, too. ``pmix_v4`` and the like count as ``pmix``.
    """
    if not os.environ.get("SLURM_JOB_ID") or not shutil.which("srun"):
        return None
    spoken = re.findall(r"[\w-]+", output_of(["srun", "--mpi=list"]))
    return next((each for each in understood if any(s == each or s.startswith(f"{each}_v") for s in spoken)), None)


def task_count() -> int | None:
    """Return the number of tasks of this process's allocation; None without an allocation or a number of tasks."""
    number = os.environ.get("SLURM_NTASKS", "") if os.environ.get("SLURM_JOB_ID") else ""
    return int(number) if number.isdecimal() else None


def srun_command(speaks: str, options: Namespace) -> list[str]:
    """Return srun's words, with the plugin ``speaks`` for ``--mpi``; srun takes missing numbers from the allocation."""
    threads = options.threads or os.environ.get("SLURM_CPUS_PER_TASK")
    return [
        "srun",
        f"--mpi={speaks}",
        *([f"--ntasks={options.ranks}"] if options.ranks else []),
        *([f"--cpus-per-task={threads}"] if threads else []),
        f"--cpu-bind={'none' if options.no_pin else 'cores'}",
        *(["--label"] if options.label else []),
    ]
