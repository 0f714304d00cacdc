"""The contenders' jobs: starting them, asking them, ending them."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class NoAnswerError(Exception):
    """A contender that is not there or has no answer. Its message says why, as tables print it."""


def _line(stream: Any, end: float) -> bytes:
    """Read a line, until the clock shows ``end``."""
    line = b""
    while not line.endswith(b"\n"):
        if not select.select([stream], [], [], max(0, end - time.monotonic()))[0]:
            raise TimeoutError
        part = stream.read(1 << 16)
        if not part:
            raise EOFError
        line += part
    return line


class Job:
    """A contender: some ranks that answer.

    Args:
        name: what tables call it.
        commands: the commands that start it, with {socket} where the socket's path belongs; one starts all ranks,
            or each one rank.
        ranks: how many ranks will connect.
        environment: variables in addition to those of this process.
        log: the file that gets what it prints.
    """

    def __init__(
        self, name: str, commands: Sequence[Sequence[str]], ranks: int, environment: Mapping[str, str], log: Path
    ) -> None:
        self.name, self.log = name, log
        self._broken = ""
        self._folder = tempfile.TemporaryDirectory(prefix="mpixla-")
        path = f"{self._folder.name}/socket"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._streams: dict[int, Any] = {}
        with socket.socket(socket.AF_UNIX) as listener, log.open("wb") as output:
            listener.bind(path)
            listener.listen(ranks)
            for command in commands:
                self._processes.append(
                    subprocess.Popen(
                        [word.format(socket=path) for word in command],
                        env={**os.environ, **environment},
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
            try:
                self._accept(listener, ranks)
            except (EOFError, TimeoutError):
                self._broken = f"it did not start ({self._last_words()})"
                self.close()

    def _accept(self, listener: socket.socket, ranks: int, timeout: float = 120) -> None:
        end = time.monotonic() + timeout
        while len(self._streams) < ranks:
            if select.select([listener], [], [], 0.2)[0]:
                stream = listener.accept()[0].makefile("rwb", buffering=0)
                self._streams[int(_line(stream, end))] = stream
            elif any(process.poll() is not None for process in self._processes):
                raise EOFError
            elif time.monotonic() > end:
                raise TimeoutError

    @property
    def is_up(self) -> bool:
        """Return whether it may answer: a contender that was late, or has died, never will."""
        return not self._broken

    def _last_words(self) -> str:
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if "Error" in line]
        return (errors or lines or ["it printed nothing"])[-1][:200]

    def ask(self, line: str, timeout: float) -> list[Any]:
        """Ask all ranks at once. Return their answers, in order of the ranks.

        Raises:
            NoAnswerError: if there is none, or a rank says why it has none. A contender that does not answer in time,
                or dies, is ended, and will answer nothing any more.
        """
        if self._broken:
            raise NoAnswerError(self._broken)
        try:
            for stream in self._streams.values():
                stream.write(line.encode() + b"\n")
            end = time.monotonic() + timeout
            answers = [json.loads(_line(self._streams[rank], end)) for rank in sorted(self._streams)]
        except (OSError, EOFError, TimeoutError) as error:
            late = f"it did not answer '{line}' within {timeout:.0f} s"
            self._broken = late if isinstance(error, TimeoutError) else f"it ended ({self._last_words()})"
            self.close()
            raise NoAnswerError(self._broken) from error
        for answer in answers:
            if isinstance(answer, dict) and "error" in answer:
                raise NoAnswerError(answer["error"])
        return answers

    def close(self) -> None:
        """End the job: it ends by itself when the runner asks no more, and is killed if not."""
        for stream in self._streams.values():
            with contextlib.suppress(OSError):
                stream.close()
        self._streams = {}
        for process in self._processes:
            try:
                process.wait(0 if self._broken else 20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._folder.cleanup()
