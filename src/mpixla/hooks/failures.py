"""Whether anybody has looked at the result of a call that failed.

XLA keeps a failure until somebody looks at a result. JAX does not say that somebody has; but it makes an exception.
"""

from typing import Any

from jax.errors import JaxRuntimeError

from ..watch import exit

LOST = "A program that catches the exception of a failed call ends badly all the same, as if nobody had seen it."


def install() -> None:
    """Replaces the constructor of JAX's exception."""
    init = JaxRuntimeError.__init__

    def init_and_tell(self: Any, *args: Any) -> None:
        init(self, *args)
        exit.note_exception(str(args[0]) if args else "")

    JaxRuntimeError.__init__ = init_and_tell
