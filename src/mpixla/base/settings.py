"""Settings from the environment that more than one file reads."""

import os
from contextlib import suppress

OFF, ON = ("0", "false", "off", "no", "n"), ("1", "true", "on", "yes", "y")

CHECK, TIMEOUT, TRACE = "MPIXLA_CHECK", "MPIXLA_TIMEOUT", "MPIXLA_TRACE"
WINDOWS = "MPIXLA_WINDOWS"

# Variables that mpixla no longer reads, and the alternative to each.
_REMOVED = {
    "MPIXLA_COMPILE_ONCE": "have rank 0 compile first, as docs/other_tools.md shows (The compilation cache)",
}


def removed_variables_report() -> str:
    """Return a line for each variable that the environment sets and mpixla no longer reads."""
    return "".join(
        f"mpixla: {name} has no effect any more: {advice}.\n" for name, advice in _REMOVED.items() if name in os.environ
    )


def is_on(variable: str, *, otherwise: bool = False) -> bool:
    """Return whether an environment variable is set to any word but one of ``OFF``; ``otherwise`` if it is unset."""
    word = os.environ.get(variable, "").lower()
    return word not in OFF if word else otherwise


def aborts_job() -> bool:
    """Return whether a rank that fails is to end the job: unless ``MPIXLA_ABORT=0``."""
    return is_on("MPIXLA_ABORT", otherwise=True)


def asks_for_reports() -> bool:
    """Return whether this rank's environment asks for checks, a time limit or a trace."""
    return any(map(is_on, (CHECK, TIMEOUT, TRACE)))


def time_limit(*, otherwise: float = 0.0) -> float | None:
    """Return ``MPIXLA_TIMEOUT`` in seconds, 0 for no limit; ``otherwise`` if it is unset; None if it is no time."""
    if not os.environ.get(TIMEOUT):
        return otherwise
    if not is_on(TIMEOUT):
        return 0.0
    with suppress(ValueError):
        seconds = float(os.environ[TIMEOUT])
        if 0 <= seconds < 1e9:
            return seconds
    return None
