"""The MPI that mpi4py loads in this environment, without starting it."""

import ctypes
from dataclasses import dataclass
from pathlib import Path

from ..base.missing import ADVICE


class NoMPIError(Exception):
    """mpi4py loads none."""


@dataclass(frozen=True)
class Library:
    """An MPI library."""

    vendor: str  # as mpi4py calls it: MPICH, Open MPI, Intel MPI, ...
    version: str
    file: Path | None  # None if the system does not say

    def __str__(self) -> str:
        return f"{self.vendor} {self.version}" + (f" ({self.file})" if self.file else "")


class _Place(ctypes.Structure):
    """Dl_info: what dladdr says of an address."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def loaded() -> Library:
    """The library that a rank will have, as this process has the same environment.

    Raises:
        NoMPIError: if mpi4py finds none.
    """
    import mpi4py

    mpi4py.rc.initialize = mpi4py.rc.finalize = False
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as e:
        raise NoMPIError(f"no MPI library was found that mpi4py can load. {ADVICE} mpi4py says: {e}") from e
    vendor, version = MPI.get_vendor()
    return Library(vendor, ".".join(map(str, version)), _file(str(MPI.__file__)))


def _file(extension: str) -> Path | None:
    """Where MPI's functions come from that mpi4py's extension module calls."""
    place = _Place()
    function = ctypes.cast(ctypes.CDLL(extension).MPI_Init, ctypes.c_void_p)
    if not ctypes.CDLL(None).dladdr(function, ctypes.byref(place)) or not place.file:
        return None
    return Path(place.file.decode())
