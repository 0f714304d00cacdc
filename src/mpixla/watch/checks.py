"""Checked mode: what ``MPIXLA_CHECK`` asks for, the same on all ranks."""

import os

from ..base import settings
from ..mpi import native
from ..mpi.comm import channel_of_reports

# What the environment may say, and how the C library calls it (native/check/check.h).
_MODES = {"": "first"} | dict.fromkeys(settings.OFF, "off") | dict.fromkeys(settings.ON, "lines")
_MODES |= {"lines": "lines", "calls": "calls"}
_NAMES = list(dict.fromkeys(_MODES.values()))


def _given() -> str:
    return os.environ.get(settings.CHECK, "").lower()


def wish() -> tuple[float, float]:
    """The number of what is asked for, -1 for what there is not, and its negative."""
    mode = _MODES.get(_given())
    mine = -1 if mode is None else _NAMES.index(mode)
    return mine, -mine


def begin(most: float, minus_least: float) -> None:
    """Sets how much is compared: without a word of the environment, the first calls.

    Raises:
        ValueError: if the environment asks for something that there is not.
        RuntimeError: if the ranks are asked for different things. Both are raised on every rank.
    """
    given, least = _given(), -minus_least
    if least < 0:
        raise ValueError(
            f"{settings.CHECK} is {given!r} on this rank, and on some rank it is nothing that mpixla knows. Set it to "
            "1, calls or 0, the same on all ranks, or leave it out."
        )
    if most != least:
        raise RuntimeError(
            f"{settings.CHECK} is {given!r} on this rank, but must be the same on all ranks. "
            "Have the launcher pass it on: mpirun -x MPIXLA_CHECK (Open MPI), mpirun -genvlist MPIXLA_CHECK (MPICH)."
        )
    mode = _NAMES[int(most)]
    if mode != "off":
        native.check(native.lib.mpixla_check_set(mode.encode(), channel_of_reports()))
