"""Asking launchers what they are."""

import subprocess
from collections.abc import Mapping, Sequence

_SECONDS = 30  # that one may take to answer


def said_by(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """All that a command prints; "" if it cannot be started, or takes too long."""
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr
