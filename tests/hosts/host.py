"""The first process of a host of network.py, which is what sshd is on a real one: it runs what `ssh` asks for.

    python host.py NAME FOLDER ADDRESS=NAME ...

It ends when its standard input does, and the host with it, whatever runs there: the kernel kills a PID namespace whose
first process has ended.
"""

import fcntl
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from network import DEVICE, NAMES

# All that a command finds: sshd passes no variables on either.
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/root", "SHELL": "/bin/sh"}

# Of Linux: asks for a device's flags, of which one says that it is connected.
SIOCGIFFLAGS, IFF_RUNNING = 0x8913, 0x40

UNHEARD: list[socket.socket] = []  # connections whose other side does not hear that their command has ended


def set_up(name: str, folder: Path, addresses: list[str]) -> None:
    """Set up the host's name, the names of others, shared memory and a kernel's start of its own."""

    def replace(file: str, text: str) -> None:
        own = folder / f"{name}{file.replace('/', '-')}"
        own.write_text(text)
        subprocess.run(["mount", "--bind", own, file], check=True)

    socket.sethostname(name)
    # What programs keep under the numbers of their processes, which are the same on both.
    ENVIRONMENT["TMPDIR"] = str(folder / f"{name}-tmp")
    Path(ENVIRONMENT["TMPDIR"]).mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", "/dev/shm"], check=True)
    replace("/proc/sys/kernel/random/boot_id", f"{uuid.uuid4()}\n")
    replace("/etc/hosts", "127.0.0.1 localhost\n" + "".join(a.replace("=", " ") + "\n" for a in addresses))
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


class Session(NamedTuple):
    """A command that runs: for whom, and whether the network is between."""

    connection: socket.socket
    is_far: bool


def is_connected() -> bool:
    """Return whether the device is up, and the other host's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = fcntl.ioctl(any_socket, SIOCGIFFLAGS, struct.pack("16sH14x", DEVICE.encode(), 0))
    return bool(struct.unpack("16sH14x", request)[1] & IFF_RUNNING)


def start(connection: socket.socket, name: str) -> tuple[int, Session] | None:
    """Run a shell command with the standard streams that have come with it. Return its process."""
    message, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    if len(descriptors) != 3:
        return None
    wanted = json.loads(message)
    child = os.fork()
    if child == 0:
        os.setsid()
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
        os.closerange(3, 1 << 16)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.chdir(ENVIRONMENT["HOME"])
        os.execve("/bin/sh", ["sh", "-c", wanted["command"]], ENVIRONMENT)
    for descriptor in descriptors:
        os.close(descriptor)
    return child, Session(connection, wanted["from"] in NAMES and wanted["from"] != name)


def serve(listener: socket.socket, name: str) -> None:
    """Start commands, say how they have ended, and hang up on those whose `ssh` is gone, until there is no input.

    The connection does not go over the network, but where one would that is down, neither side hears of the other.
    """
    wakes, wakened = socket.socketpair()
    wakes.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes.fileno())
    running: dict[int, Session] = {}
    with selectors.DefaultSelector() as wait:
        for source in (listener, wakened, sys.stdin):
            wait.register(source, selectors.EVENT_READ)
        while True:
            for key, _ in wait.select():
                source = key.fileobj
                if source is sys.stdin:
                    return
                if source is listener:
                    connection, _ = listener.accept()
                    if started := start(connection, name):
                        running[started[0]] = started[1]
                        wait.register(connection, selectors.EVENT_READ)
                elif source is wakened:
                    wakened.recv(4096)
                elif source in wait.get_map():  # it says nothing more, so it has gone
                    wait.unregister(source)
                    for child, session in running.items():
                        if session.connection is source and (not session.is_far or is_connected()):
                            os.killpg(child, signal.SIGHUP)
            reap(running, wait)


def reap(running: dict[int, Session], wait: selectors.BaseSelector) -> None:
    """Wait for commands that have ended, and for processes without another parent."""
    while True:
        try:
            child, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if child == 0:
            return
        if child not in running:
            continue
        connection, is_far = running.pop(child)
        if is_far and not is_connected():
            UNHEARD.append(connection)
            continue
        code = os.waitstatus_to_exitcode(status)
        with suppress(OSError):  # nobody wants to know
            connection.send(bytes([code if code >= 0 else 128 - code]))
        if connection in wait.get_map():
            wait.unregister(connection)
        connection.close()


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    set_up(name, folder, sys.argv[3:])
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(folder / f"{name}.socket"))
        listener.listen(64)
        print("ready", flush=True)
        serve(listener, name)


if __name__ == "__main__":
    main()
