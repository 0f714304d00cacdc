"""The hosts of ranks. Ranks are on one host if MPI says that they share memory, since two hosts may have one name."""

from typing import Any

from .mpi import MPI


def has_several(comm: Any) -> bool:
    """Return whether a communicator has ranks on several hosts. All its ranks must call it."""
    here = comm.Split_type(MPI.COMM_TYPE_SHARED)
    is_alone = here.Get_size() == comm.Get_size()
    here.Free()
    return not is_alone


def host_of_each(comm: Any) -> list[str]:
    """Return the name of each rank's host, numbered if several hosts have the same name. All ranks must call it."""
    here = comm.Split_type(MPI.COMM_TYPE_SHARED)
    first = here.bcast(comm.Get_rank())
    here.Free()
    found = comm.allgather((MPI.Get_processor_name(), first))
    alike: dict[str, list[int]] = {}  # by name: the lowest rank of each host with this name
    for name, first in found:
        if first not in alike.setdefault(name, []):
            alike[name].append(first)
    return [name if len(alike[name]) == 1 else f"{name}#{alike[name].index(first) + 1}" for name, first in found]
