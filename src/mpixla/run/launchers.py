"""The launchers of MPIs, a row each: their names and their options."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .library import CannotStartError, Library

_SECONDS = 30  # the time limit for a command's output, such as that of --version


@dataclass(frozen=True)
class LauncherKind:
    """Names and options of the launchers of one MPI."""

    vendors: tuple[str, ...]  # mpi4py's names of the MPI libraries
    names: tuple[str, ...]  # the program's names, in the order in which they are tried
    says: str  # a pattern of the output of --version, with the version as a group
    label: tuple[str, ...]  # options: print the rank before each line of output
    unpinned: tuple[str, ...]  # options: do not pin ranks
    as_root: tuple[str, ...] = ()  # options: allow root
    crowded: tuple[str, ...] = ()  # options: allow more ranks than cores
    # Variables to set where the user has not: to turn pinning off, and for performance between hosts.
    environment_unpinned: Mapping[str, str] = field(default_factory=dict)
    environment_between_hosts: Mapping[str, str] = field(default_factory=dict)
    passes_environment: bool = True  # to other hosts
    srun: tuple[str, ...] = ()  # values for srun --mpi that the library supports, the best first


# UCX's default of 8 KiB for each TCP segment does not use the network's bandwidth while only a progress thread calls
# MPI now and then.
_UCX = {"UCX_TCP_TX_SEG_SIZE": "256k", "UCX_TCP_RX_SEG_SIZE": "256k"}
_HYDRA = ("mpiexec.hydra", "mpiexec.mpich", "mpirun.mpich", "mpiexec", "mpirun")

KINDS = (
    LauncherKind(
        vendors=("MPICH", "MVAPICH", "MVAPICH2"),
        names=_HYDRA,
        says=r"HYDRA build details:\s+Version:\s+(\d+(?:\.\d+)*)",
        label=("-prepend-rank",),
        unpinned=(),  # Hydra does not pin by default; with an option that says so, MPI_Comm_spawn fails
        environment_between_hosts=_UCX,
        srun=("pmi2", "pmix"),
    ),
    LauncherKind(
        vendors=("Intel MPI",),
        names=("mpiexec.hydra",),  # mpirun is a script that does not forward signals
        says=r"Intel\(R\) MPI Library.*Version (\d+(?:\.\d+)+)",
        label=("-prepend-rank",),
        unpinned=(),
        environment_unpinned={"I_MPI_PIN": "0"},
        srun=("pmi2", "pmix"),
    ),
    LauncherKind(
        vendors=("Open MPI",),
        names=("mpirun", "mpirun.openmpi", "mpiexec", "mpiexec.openmpi", "orterun"),
        says=r"\((?:Open MPI|OpenRTE)\) (\d+(?:\.\d+)+)",
        label=("--tag-output",),
        unpinned=("--bind-to", "none"),
        as_root=("--allow-run-as-root",),
        crowded=("--map-by", ":OVERSUBSCRIBE"),
        passes_environment=False,
        srun=("pmix",),
    ),
    LauncherKind(
        vendors=("Cray MPI", "Cray MPICH"), names=(), says=r"$^", label=(), unpinned=(), srun=("cray_shasta", "pmi2")
    ),
)


def kind_of(library: Library) -> LauncherKind:
    """Return the row of this table for an MPI library; raise CannotStartError for an MPI that has none.

    Raises:
        CannotStartError: if the MPI is not in the table.
    """
    for kind in KINDS:
        if library.vendor in kind.vendors:
            return kind
    known = ", ".join(vendor for kind in KINDS for vendor in kind.vendors)
    raise CannotStartError(
        f"mpi4py loads {library}, and mpixla does not know how that MPI starts ranks (it knows {known}). Start the "
        "program with that MPI's own launcher: mpirun -n 4 python script.py."
    )


def find_launcher(kind: LauncherKind, library: Library) -> Path:
    """Return the launcher of an MPI library's version, beside it or on PATH; CannotStartError if there is none.

    The name is not enough: every MPI has an mpirun, and another MPI's launcher starts jobs of one rank each.

    Raises:
        CannotStartError: if there is none; the message lists the launchers that were found.
    """
    others = []
    for file in _find_candidates(kind, library):
        found = _version_of(file, kind)
        # MVAPICH has version numbers of its own, and MPICH's launcher.
        if found and (_strip_zeros(found) == _strip_zeros(library.version) or library.vendor not in kind.vendors[:1]):
            return file
        others.append(f"{file} ({found or 'of another MPI, or it fails: see what its --version says'})")
    raise CannotStartError(
        f"mpi4py loads {library}, and no launcher of this MPI and version was found beside it or on PATH"
        + (f", but {', '.join(others)}" if others else "")
        + ". Load or install the launcher of the same MPI, or name it with --launcher."
    )


def _strip_zeros(version: str) -> str:
    """Return a version without trailing zeros: 4.2 of 4.2.0."""
    return re.sub(r"(\.0)+$", "", version)


def _folder_beside(file: Path) -> list[Path]:
    """Return the path of the `bin` beside the innermost `lib` or `lib64` of a library, if it exists or not; else [].

    A `bin` further up may belong to another installation.
    """
    roots = [folder.parent for folder in file.parents if folder.name in ("lib", "lib64")]
    return [root / "bin" for root in roots[:1]]


def _find_candidates(kind: LauncherKind, library: Library) -> Iterator[Path]:
    """Yield the launchers of a kind: first those beside the MPI library, then those on PATH, each once."""
    folders = _folder_beside(library.file.resolve()) + _folder_beside(library.file.absolute()) if library.file else []
    folders += map(Path, os.environ.get("PATH", os.defpath).split(os.pathsep))
    seen = set()
    # Open MPI's launcher derives its prefix from its own path, and fails with /bin, a link to /usr/bin.
    for folder in dict.fromkeys(folder.resolve() for folder in folders):
        for name in kind.names:
            found = shutil.which(name, path=str(folder))
            if found and os.path.realpath(found) not in seen:
                seen.add(os.path.realpath(found))
                yield Path(found)


def _version_of(file: Path, kind: LauncherKind) -> str | None:
    """Return the version of a launcher; None if it is of another kind, or prints no version."""
    said = re.search(kind.says, output_of([str(file), "--version"], environment_with_folder(file)))
    return said.group(1) if said else None


def output_of(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """Return the output of a command, stdout and stderr; "" if it cannot be started, or takes too long."""
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


def environment_with_folder(launcher: Path) -> dict[str, str]:
    """Return this environment with the launcher's folder first on PATH: some launchers are scripts that need it."""
    path = os.environ.get("PATH", os.defpath)
    if os.path.realpath(shutil.which(launcher.name) or "") == os.path.realpath(launcher):
        return dict(os.environ)
    return {**os.environ, "PATH": os.pathsep.join([str(launcher.parent), path])}
