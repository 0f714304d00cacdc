"""Checked mode: what ``MPIXLA_CHECK`` asks for, the same on all ranks."""

import os

import numpy as np

from . import native, settings
from .comm import channel_of_reports, get_default_comm
from .mpi import MPI

# What the environment may say, and how the C library calls it (native/check/check.h).
_MODES = {"": "first"} | dict.fromkeys(settings.OFF, "off") | dict.fromkeys(settings.ON, "lines")
_MODES |= {"lines": "lines", "calls": "calls"}


def install() -> None:
    """Sets how much is compared, together with all other ranks: without a word of the environment, the first calls.

    Raises:
        ValueError: if the environment asks for something that there is not.
        RuntimeError: if the ranks are asked for different things. Both are raised on every rank.
    """
    given = os.environ.get(settings.CHECK, "").lower()
    names = list(dict.fromkeys(_MODES.values()))
    mode = _MODES.get(given)
    mine = -1 if mode is None else names.index(mode)
    extremes = np.empty(2, np.int32)
    get_default_comm().Allreduce(np.array([mine, -mine], np.int32), extremes, MPI.MAX)
    most, least = int(extremes[0]), -int(extremes[1])
    if least < 0:
        raise ValueError(
            f"{settings.CHECK} is {given!r} on rank {MPI.COMM_WORLD.Get_rank()}, and on some rank it is nothing that "
            "mpixla knows. Set it to 1, calls or 0, the same on all ranks, or leave it out."
        )
    if most != least:
        raise RuntimeError(
            f"{settings.CHECK} is {given!r} on rank {MPI.COMM_WORLD.Get_rank()}, but must be the same on all ranks. "
            "Have the launcher pass it on: mpirun -x MPIXLA_CHECK (Open MPI), mpirun -genvlist MPIXLA_CHECK (MPICH)."
        )
    assert mode is not None
    if mode == "off":
        return
    native.check(native.lib.mpixla_check_set(mode.encode(), channel_of_reports()))
