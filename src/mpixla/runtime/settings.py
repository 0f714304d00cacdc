"""What the environment asks for, as far as more than one file wants to know."""

import os
import threading

_OFF = ("", "0", "false", "off", "no")


def is_on(variable: str) -> bool:
    """Whether a variable of the environment turns something on."""
    return os.environ.get(variable, "").lower() not in _OFF


CHECK, TIMEOUT, TRACE = "MPIXLA_CHECK", "MPIXLA_TIMEOUT", "MPIXLA_TRACE"
COMPILE_ONCE = "MPIXLA_COMPILE_ONCE"

# Whether something is on that reports calls of several ranks to people.
reports = any(map(is_on, (CHECK, TIMEOUT, TRACE)))


def time_limit() -> float | None:
    """The seconds of ``MPIXLA_TIMEOUT``; None where it is not set, or to what is no time (timeout.py refuses that)."""
    try:
        limit = float(os.environ.get(TIMEOUT, ""))
    except ValueError:
        return None
    return limit if 0 < limit < threading.TIMEOUT_MAX else None
