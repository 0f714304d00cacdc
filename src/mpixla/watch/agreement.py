"""What all ranks must agree on, however their environments differ: by one reduction, when mpixla is imported.

Each part of it has a wish, which is numbers, and begins with the greatest that any rank wishes.
"""

import numpy as np

from ..base import settings
from ..mpi import gpu, local
from ..mpi.comm import get_default_comm
from ..mpi.mpi import MPI
from . import checks, progress, timeline, timeout

# Those that begin, in this order.
_PARTS = (timeout, checks, gpu, local, progress, timeline)


def settle() -> None:
    """Lets the parts begin. All ranks must call it.

    Raises:
        ValueError, RuntimeError, ImportError: as a part does that cannot have what it is asked for.
    """
    wishes = [(settings.asks_for_reports(),), *(part.wish() for part in _PARTS)]
    greatest = np.concatenate(wishes, dtype=float)
    get_default_comm().Allreduce(MPI.IN_PLACE, greatest, MPI.MAX)
    (reports,), *answers = np.split(greatest, np.cumsum([len(wish) for wish in wishes[:-1]]))
    settings.reports = bool(reports)
    for part, answer in zip(_PARTS, answers, strict=True):
        part.begin(*answer.tolist())
