"""Which ranks are on one host: those that share memory, as MPI sees it, since two hosts may have one name."""

from typing import Any

from .mpi import MPI


def has_several(comm: Any) -> bool:
    """Whether some ranks of a communicator are on another host than others. All of them must call it."""
    here = comm.Split_type(MPI.COMM_TYPE_SHARED)
    is_alone = here.Get_size() == comm.Get_size()
    here.Free()
    return not is_alone


def host_of_each(comm: Any) -> list[str]:
    """The name of each rank's host, with a number behind it where several have the same. All ranks must call it."""
    here = comm.Split_type(MPI.COMM_TYPE_SHARED)
    first = here.bcast(comm.Get_rank())
    here.Free()
    found = comm.allgather((MPI.Get_processor_name(), first))
    alike: dict[str, list[int]] = {}  # by a name, the first rank of each host that has it
    for name, first in found:
        if first not in alike.setdefault(name, []):
            alike[name].append(first)
    return [name if len(alike[name]) == 1 else f"{name}#{alike[name].index(first) + 1}" for name, first in found]
