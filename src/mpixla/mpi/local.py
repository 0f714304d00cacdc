"""Whether ranks of one host make collective calls through memory that they share (native/local): ``MPIXLA_LOCAL``."""

from ..base import settings
from . import native


def wish() -> tuple[float]:
    """Whether this rank refuses."""
    return (not settings.is_on(settings.LOCAL, otherwise=True),)


def begin(refused: float) -> None:
    """Lets them, if no rank refuses."""
    if not refused:
        native.lib.mpixla_local_start()
