"""The launchers of MPIs, a row each: what they are called, and what tells them what to do."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .library import CannotStartError, Library

_SECONDS = 30  # that one may take to say what it is


@dataclass(frozen=True)
class Kind:
    """What all launchers of one MPI have in common."""

    vendors: tuple[str, ...]  # of the libraries that it starts, as mpi4py calls them
    names: tuple[str, ...]  # of the program, the first one there is
    says: str  # what it prints with --version, with the version as a group
    label: tuple[str, ...]  # each line of output with its rank
    unpinned: tuple[str, ...]  # leaves the pinning to us
    as_root: tuple[str, ...] = ()
    crowded: tuple[str, ...] = ()  # more ranks than cores
    # Variables, where the user has not set these: that leave the pinning to us, and that pay between hosts.
    environment_unpinned: Mapping[str, str] = field(default_factory=dict)
    environment_between_hosts: Mapping[str, str] = field(default_factory=dict)
    passes_environment: bool = True  # to other hosts
    srun: tuple[str, ...] = ()  # the languages of Slurm's that it understands, the best first


# By itself UCX moves 8 KiB at a time over TCP: less than the network can, while only a thread calls MPI now and then.
_UCX = {"UCX_TCP_TX_SEG_SIZE": "256k", "UCX_TCP_RX_SEG_SIZE": "256k"}
_HYDRA = ("mpiexec.hydra", "mpiexec.mpich", "mpirun.mpich", "mpiexec", "mpirun")

KINDS = (
    Kind(
        vendors=("MPICH", "MVAPICH", "MVAPICH2"),
        names=_HYDRA,
        says=r"HYDRA build details:\s+Version:\s+(\d+(?:\.\d+)*)",
        label=("-prepend-rank",),
        unpinned=(),  # it pins none unless it is told to; and told not to, it cannot serve MPI_Comm_spawn
        environment_between_hosts=_UCX,
        srun=("pmi2", "pmix"),
    ),
    Kind(
        vendors=("Intel MPI",),
        names=("mpiexec.hydra",),  # mpirun is a script that keeps signals to itself
        says=r"Intel\(R\) MPI Library.*Version (\d+(?:\.\d+)+)",
        label=("-prepend-rank",),
        unpinned=(),
        environment_unpinned={"I_MPI_PIN": "0"},
        srun=("pmi2", "pmix"),
    ),
    Kind(
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
    Kind(vendors=("Cray MPI", "Cray MPICH"), names=(), says=r"$^", label=(), unpinned=(), srun=("cray_shasta", "pmi2")),
)


def kind_of(library: Library) -> Kind:
    """The kind of an MPI's launchers.

    Raises:
        CannotStartError: if the MPI is one that is not in the table.
    """
    for kind in KINDS:
        if library.vendor in kind.vendors:
            return kind
    known = ", ".join(vendor for kind in KINDS for vendor in kind.vendors)
    raise CannotStartError(
        f"mpi4py loads {library}, and mpixla does not know how that MPI starts ranks (it knows {known}). Start the "
        "program with that MPI's own launcher: mpirun -n 4 python script.py."
    )


def find(kind: Kind, library: Library) -> Path:
    """The launcher that belongs to an MPI library: beside it, or on PATH.

    A name says nothing: every MPI has an mpirun, and another MPI's starts ranks that each take themselves for alone.

    Raises:
        CannotStartError: if there is none, with those that there are.
    """
    others = []
    for file in _candidates(kind, library):
        found = _version_of(file, kind)
        # MVAPICH has numbers of its own, and a launcher of MPICH's.
        if found and (_shortest(found) == _shortest(library.version) or library.vendor not in kind.vendors[:1]):
            return file
        others.append(f"{file} ({found or 'of another MPI, or it fails: see what its --version says'})")
    raise CannotStartError(
        f"mpi4py loads {library}, and no launcher of this MPI and version was found beside it or on PATH"
        + (f", but {', '.join(others)}" if others else "")
        + ". Load or install the launcher of the same MPI, or name it with --launcher."
    )


def _shortest(version: str) -> str:
    """4.2 is the version that others call 4.2.0."""
    return re.sub(r"(\.0)+$", "", version)


def _beside(file: Path) -> list[Path]:
    """Where the installation has its programs that this library, in its `lib` or below, belongs to.

    Not wherever there is a `bin` above the library: further up, anybody may have made one.
    """
    roots = [folder.parent for folder in file.parents if folder.name in ("lib", "lib64")]
    return [root / "bin" for root in roots[:1]]


def _candidates(kind: Kind, library: Library) -> Iterator[Path]:
    folders = _beside(library.file.resolve()) + _beside(library.file.absolute()) if library.file else []
    folders += map(Path, os.environ.get("PATH", os.defpath).split(os.pathsep))
    seen = set()
    # Open MPI's takes the name by which it is called apart, and cannot have /bin, which is /usr/bin.
    for folder in dict.fromkeys(folder.resolve() for folder in folders):
        for name in kind.names:
            found = shutil.which(name, path=str(folder))
            if found and os.path.realpath(found) not in seen:
                seen.add(os.path.realpath(found))
                yield Path(found)


def _version_of(file: Path, kind: Kind) -> str | None:
    """The version of a launcher; None if it is of another kind, or does not say."""
    said = re.search(kind.says, said_by([str(file), "--version"], with_folder(file)))
    return said.group(1) if said else None


def said_by(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """All that a command prints; "" if it cannot be started, or takes too long."""
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


def with_folder(launcher: Path) -> dict[str, str]:
    """The environment in which a launcher finds its own parts first: some are scripts that look for these on PATH."""
    path = os.environ.get("PATH", os.defpath)
    if os.path.realpath(shutil.which(launcher.name) or "") == os.path.realpath(launcher):
        return dict(os.environ)
    return {**os.environ, "PATH": os.pathsep.join([str(launcher.parent), path])}
