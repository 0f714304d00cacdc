"""Where the processes of a job meet: an address of rank 0 that all of them reach."""

import contextlib
import socket

from ..runtime.mpi import MPI

_SECONDS = 5.0  # to reach an address of another host


def find_coordinator() -> str:
    """An address and a free port of rank 0's host. All ranks must call it.

    Raises:
        RuntimeError: on all ranks, if one of them reaches no address of rank 0.
    """
    comm = MPI.COMM_WORLD.Dup()
    try:
        return _agree(comm)
    finally:
        comm.Free()


def _agree(comm: MPI.Intracomm) -> str:
    """Rank 0 listens, and the others try the addresses that it knows of itself."""
    is_one_host = _is_one_host(comm)
    with socket.socket(socket.AF_INET) as listener:
        if comm.Get_rank() == 0:
            listener.bind(("", 0))
            listener.listen(comm.Get_size())
            port = listener.getsockname()[1]
            addresses = ["127.0.0.1"] if is_one_host else _own_addresses()
        else:
            port, addresses = 0, []
        addresses, port = comm.bcast((addresses, port))
        reached = comm.allgather([a for a in addresses if comm.Get_rank() == 0 or _reaches(a, port)])
    common = [a for a in addresses if all(a in mine for mine in reached)]
    if not common:
        alone = [str(rank) for rank, mine in enumerate(reached) if not mine]
        who = "each reaches one, but not the same"
        if alone:
            who = f"ranks {', '.join(alone)} reach none" if len(alone) > 1 else f"rank {alone[0]} reaches none"
        raise RuntimeError(
            f"No address of rank 0 ({', '.join(addresses) or 'it knows of none'}) is reached by all ranks: {who}. Pass "
            "coordinator_address to jax.distributed.initialize, or see whether a firewall is between the hosts."
        )
    return f"{common[0]}:{port}"


def _is_one_host(comm: MPI.Intracomm) -> bool:
    host = comm.Split_type(MPI.COMM_TYPE_SHARED)
    is_one = host.Get_size() == comm.Get_size()
    host.Free()
    return is_one


def _own_addresses() -> list[str]:
    """What others may reach this host by."""
    names = [socket.gethostname(), socket.getfqdn()]
    found = [address for name in names for address in _resolve(name)]
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # an address of nobody's: nothing is sent, but a way is chosen
        found.append(probe.getsockname()[0])
    others = [a for a in found if not a.startswith("127.")]
    return list(dict.fromkeys(others))


def _resolve(name: str) -> list[str]:
    with contextlib.suppress(OSError):
        return [str(info[4][0]) for info in socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)]
    return []


def _reaches(address: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((address, port), _SECONDS):
        return True
    return False
