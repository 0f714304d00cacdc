"""The MPI that mpi4py loads in this environment, without starting it."""

import ctypes
from dataclasses import dataclass
from pathlib import Path

from ..base.missing_mpi import explain_missing_mpi


class CannotStartError(Exception):
    """The error that no rank can be started, since there is no MPI or no launcher of it; its text is for the user."""


@dataclass(frozen=True)
class Library:
    """An MPI library."""

    vendor: str  # mpi4py's name: MPICH, Open MPI, Intel MPI, ...
    version: str
    file: Path | None  # None if the system does not tell

    def __str__(self) -> str:
        return f"{self.vendor} {self.version}" + (f" ({self.file})" if self.file else "")


def find_library() -> Library:
    """Return the MPI library that mpi4py loads here, and its version, without starting MPI; CannotStartError if none.

    Raises:
        CannotStartError: if mpi4py finds none.
    """
    import mpi4py

    mpi4py.rc.initialize = mpi4py.rc.finalize = False
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as e:
        raise CannotStartError(explain_missing_mpi(e)) from None
    vendor, version = MPI.get_vendor()
    return Library(vendor, ".".join(map(str, version)), _find_mpi_file(str(MPI.__file__)))


def _find_mpi_file(extension: str) -> Path | None:
    """Return the file with the MPI functions that mpi4py's extension module calls; None if the system does not tell."""
    function = ctypes.cast(ctypes.CDLL(extension).MPI_Init, ctypes.c_void_p)
    info = (ctypes.c_char_p * 4)()  # Dl_info: four pointers, the first to the file's name
    if not ctypes.CDLL(None).dladdr(function, info) or not info[0]:
        return None
    return Path(info[0].decode())
