"""The coordinator's address: one of rank 0's host that all ranks reach."""

import contextlib
import fcntl
import socket
import struct
import sys

from ..extend import has_several, own_comm

_SECONDS = 5.0  # to reach an address of another host
_SIOCGIFADDR = 0xC0206921 if sys.platform == "darwin" else 0x8915  # the kernel's number for asking a device's address


def find_coordinator() -> str:
    """Return "address:port" of rank 0's host that all ranks reach; RuntimeError if none. All ranks must call it.

    Raises:
        RuntimeError: on all ranks, if some rank does not reach any address.
    """
    # Rank 0 listens, and the others try its addresses, one after the other.
    comm = own_comm()
    is_first, several = comm.Get_rank() == 0, has_several(comm)
    with socket.socket(socket.AF_INET) as listener:
        port, addresses = 0, list[str]()
        if is_first:
            listener.bind(("", 0))
            listener.listen(comm.Get_size())
            port = listener.getsockname()[1]
            addresses = _own_addresses() if several else ["127.0.0.1"]
        addresses, port = comm.bcast((addresses, port))
        missed = list[str]()
        for address in addresses:
            reached = comm.allgather(is_first or _can_connect(address, port))
            if all(reached):
                return f"{address}:{port}"
            missed.append(f"{address} not by rank {', '.join(str(r) for r, does in enumerate(reached) if not does)}")
    raise RuntimeError(
        f"No address of rank 0 is reached by all ranks: {'; '.join(missed) or 'it knows of none'}. Pass "
        "coordinator_address to jax.distributed.initialize, or see whether a firewall is between the hosts."
    )


def _own_addresses() -> list[str]:
    """Return the IPv4 addresses of this host's network devices, except loopback."""
    found = list[str]()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, device in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has none
                found.append(_address_of(device, any_socket))
    return [a for a in found if not a.startswith("127.")]


def _address_of(device: str, any_socket: socket.socket) -> str:
    """Return a network device's IPv4 address; raise OSError if it has none.

    The ioctl takes an ifreq, on Linux and macOS: a name in 16 bytes, then a sockaddr_in with the address as its second
    word.
    """
    asked = struct.pack("16s24x", device.encode())
    return socket.inet_ntoa(fcntl.ioctl(any_socket, _SIOCGIFADDR, asked)[20:24])


def _can_connect(address: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((address, port), _SECONDS):
        return True
    return False
