"""Notice of failed calls whose exception the program has seen.

XLA keeps a failure until the program reads a result. JAX does not report the reading, but constructs an exception.
"""

from typing import Any

from jax.errors import JaxRuntimeError

from ..checks import exit

LOST = "A program that catches the exception of a failed call still ends with an error, as if nothing had caught it."


def install() -> None:
    """Replace JaxRuntimeError's constructor by one that tells the C library that the program has seen the failure."""
    init = JaxRuntimeError.__init__

    def init_and_tell(self: Any, *args: Any) -> None:
        init(self, *args)
        exit.note_exception(str(args[0]) if args else "")

    JaxRuntimeError.__init__ = init_and_tell
