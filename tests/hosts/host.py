"""The first process of a host of network.py, which is what sshd is on a real one: it runs what `ssh` asks for.

    python host.py NAME FOLDER ADDRESS=NAME ...

It ends when its standard input does, and the host with it, whatever runs there: the kernel kills a PID namespace whose
first process has ended.
"""

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import uuid
from pathlib import Path

# All that a command finds: sshd passes no variables on either.
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/root", "SHELL": "/bin/sh"}


def set_up(name: str, folder: Path, addresses: list[str]) -> None:
    """A name, names of the others, shared memory and a kernel's start of its own."""

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


def start(connection: socket.socket) -> int | None:
    """Runs a shell command with the standard streams that have come with it. Returns its process."""
    message, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    if len(descriptors) != 3:
        return None
    child = os.fork()
    if child == 0:
        os.setsid()
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
        os.closerange(3, 1 << 16)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.chdir(ENVIRONMENT["HOME"])
        os.execve("/bin/sh", ["sh", "-c", json.loads(message)], ENVIRONMENT)
    for descriptor in descriptors:
        os.close(descriptor)
    return child


def serve(listener: socket.socket) -> None:
    """Starts commands, says how they have ended, and hangs up on those whose `ssh` is gone, until there is no input."""
    wakes, wakened = socket.socketpair()
    wakes.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes.fileno())
    running: dict[int, socket.socket] = {}
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
                    if child := start(connection):
                        running[child] = connection
                        wait.register(connection, selectors.EVENT_READ)
                elif source is wakened:
                    wakened.recv(4096)
                else:  # it says nothing more, so it has gone
                    wait.unregister(source)
                    for child in [child for child, its in running.items() if its is source]:
                        os.killpg(child, signal.SIGHUP)
            reap(running, wait)


def reap(running: dict[int, socket.socket], wait: selectors.BaseSelector) -> None:
    """Of commands that have ended, and of processes that nobody else waits for."""
    while True:
        try:
            child, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if child == 0:
            return
        if connection := running.pop(child, None):
            code = os.waitstatus_to_exitcode(status)
            try:
                connection.send(bytes([code if code >= 0 else 128 - code]))
            except OSError:
                pass  # nobody wants to know
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
        serve(listener)


if __name__ == "__main__":
    main()
