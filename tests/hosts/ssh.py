#!/usr/bin/env python3
"""Takes the place of ssh between the hosts of network.py: ssh [options] HOST COMMAND ...

As with ssh, a shell of the other host runs the command, with none of this side's variables. The hosts are those of the
folder in which this is found.
"""

import json
import socket
import sys
from pathlib import Path


def main() -> int:
    words = sys.argv[1:]
    while words and words[0].startswith("-"):
        del words[0]
    host, *command = words
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        try:
            connection.connect(str(Path(sys.argv[0]).parent / f"{host}.socket"))
        except OSError as e:
            sys.stderr.write(f"ssh: there is no host {host}: {e.strerror}\n")
            return 255
        message = {"from": socket.gethostname(), "command": " ".join(command)}
        socket.send_fds(connection, [json.dumps(message).encode()], [0, 1, 2])
        status = connection.recv(1)
        return status[0] if status else 255


if __name__ == "__main__":
    sys.exit(main())
