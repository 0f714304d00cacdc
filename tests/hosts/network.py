"""Two hosts on one machine: two sets of Linux namespaces, with a network of a limited rate between them.

Each has its own network, host name, processes, shared memory, and a monotonic clock and a start of the kernel of its
own; files they share, like hosts with a network file system. `ssh.py` runs commands on them.
"""

import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

HERE = Path(__file__).parent
NAMES = ("mpixla-a", "mpixla-b")
ADDRESSES = ("10.77.0.1", "10.77.0.2")
DEVICE = "eth0"
PREFIX = "mpixla-hosts-"
# Of the second host's clock before the first's.
SECONDS_AHEAD = 1000
PATIENCE = 10  # seconds


class CannotBeMadeError(Exception):
    """This machine, or this user, cannot have such hosts."""


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise CannotBeMadeError(f"`{' '.join(command)}` failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def _remove_what_was_left() -> None:
    """Remove the folders of killed runs, whose hosts are gone."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}[0-9]*-*"):
        if not Path(f"/proc/{folder.name.removeprefix(PREFIX).split('-')[0]}").exists():
            shutil.rmtree(folder, ignore_errors=True)


class Host:
    """One of them, from `start` to `stop`."""

    def __init__(self, name: str, folder: Path, seconds_ahead: int) -> None:
        self.name = name
        names = [f"{address}={name}" for address, name in zip(ADDRESSES, NAMES, strict=True)]
        unshare = ["unshare", "--net", "--uts", "--ipc", "--pid", "--mount", "--mount-proc", "--fork", "--kill-child"]
        unshare += ["--time", "--monotonic", str(seconds_ahead)]
        self._process = subprocess.Popen(
            [*unshare, sys.executable, HERE / "host.py", name, folder, *names],
            stdin=subprocess.PIPE,  # never written to; it ends when this process does, and the host with it
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout
        if self._process.stdout.readline() != "ready\n":
            _, err = self._process.communicate()
            raise CannotBeMadeError(f"`{' '.join(unshare)}` failed: {err.strip()}")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(str(folder / f"{name}.socket"))
            peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        self._first = struct.unpack("3i", peer)[0]

    def network(self, *command: str) -> str:
        """Run `ip` or `tc` in the host's network. Return what it prints."""
        return _run("nsenter", "--target", str(self._first), "--net", *command)

    def connect(self, other: "Host") -> None:
        self.network("ip", "link", "add", DEVICE, "type", "veth", "peer", "name", DEVICE, "netns", str(other._first))

    def set_link(self, up: bool) -> None:
        """Take the host's network down, as if somebody pulled its cable, or up again."""
        self.network("ip", "link", "set", DEVICE, "up" if up else "down")

    def wait_for_link(self) -> None:
        """Wait for the kernel, up to a second; until then programs do not count the device as running."""
        until = time.monotonic() + PATIENCE
        while " state UP " not in self.network("ip", "link", "show", DEVICE):
            if time.monotonic() > until:
                raise CannotBeMadeError(f"the network of {self.name} is not up after {PATIENCE} s")
            time.sleep(0.02)

    def processes(self) -> dict[int, str]:
        """Return the processes of this host but its first, from this side's number to the command line."""
        own, found = os.readlink(f"/proc/{self._first}/ns/pid"), {}
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it is gone
                if os.readlink(process / "ns" / "pid") == own and int(process.name) != self._first:
                    state = (process / "stat").read_text().rpartition(")")[2].split()[0]
                    line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    found[int(process.name)] = f"{line.strip()} ({state})"
        return found

    def kill_all(self) -> None:
        for process in self.processes():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def stop(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)  # and the kernel all others
        self._process.communicate()


class Network:
    """Both, and the folder in which they are found: `Network.ssh` is a command like ssh."""

    def __init__(self, rate: str) -> None:
        """Make them, with so much between them, as tc(8) says it.

        Raises:
            CannotBeMadeError: and nothing is left of it.
        """
        missing = [tool for tool in ("unshare", "nsenter", "ip", "tc") if not shutil.which(tool)]
        if missing:
            raise CannotBeMadeError(f"{', '.join(missing)} not found (on Debian: apt-get install util-linux iproute2)")
        if os.geteuid() != 0:
            raise CannotBeMadeError(
                "only root can make network namespaces; try `unshare --user --map-root-user` in front"
            )
        _remove_what_was_left()
        self.folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
        self.hosts: list[Host] = []
        try:
            self.ssh = self.folder / "ssh"
            self.ssh.symlink_to(HERE / "ssh.py")
            for i, name in enumerate(NAMES):
                self.hosts.append(Host(name, self.folder, i * SECONDS_AHEAD))
            self.hosts[0].connect(self.hosts[1])
            limit = ("tbf", "rate", rate, "burst", "256kb", "latency", "20ms")
            for host, address in zip(self.hosts, ADDRESSES, strict=True):
                host.network("ip", "address", "add", f"{address}/24", "dev", DEVICE)
                host.set_link(True)
                host.network("tc", "qdisc", "add", "dev", DEVICE, "root", *limit)
            for host in self.hosts:
                host.wait_for_link()
        except BaseException:
            self.remove()
            raise

    def processes(self) -> dict[str, dict[int, str]]:
        """Return the processes of this host but its first, from this side's number to the command line."""
        return {host.name: found for host in self.hosts if (found := host.processes())}

    def remove(self) -> None:
        for host in self.hosts:
            host.stop()
        shutil.rmtree(self.folder)
