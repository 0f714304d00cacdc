"""MPI's errors as values, found in the sentences of the C library.

mpi_error_set (native/mpi/mpi.c) words an error that MPI returned, with the call as facts_describe (native/call/facts.c)
and frame_describe describe it. native/call/frame.c words the refusal of a rank or tag before the call, and
native/execute.c adds the line.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..base.tracebacks import PACKAGE, public
from .mpi import MPI


@dataclass(frozen=True)
class MPIError:
    """An error of a call of MPI, which ``error_of`` returns.

    Args:
        function: the function of MPI, such as ``"MPI_Recv"``.
        error_class: the class of the error, such as ``MPI.ERR_TRUNCATE``.
        rank: the rank in ``MPI.COMM_WORLD`` of the process whose call failed.
        peer: the rank at the other end of the message, on the call's communicator, of ``sendrecv`` the source; None if
            the call is no message, or receives from ``MPI.ANY_SOURCE``.
        line: the line of the program, such as ``"model.py:42 in step"``; None if it is not known.
        text: MPI's text, with the description of the call.

    Example:
        >>> import mpixla
        >>> from mpi4py import MPI
        >>> error = mpixla.MPIError("MPI_Recv", MPI.ERR_TRUNCATE, 1, 0, "model.py:42 in step", "Message truncated")
        >>> error.error_class == MPI.ERR_TRUNCATE
        True
    """

    __module__ = PACKAGE

    function: str
    error_class: int
    rank: int
    peer: int | None
    line: str | None
    text: str


# Patterns, compiled where they are used.
# A line of the user's source, with notes in parentheses, which may contain parentheses (checks/sites.py).
_LINE = r"([^,()]*[^,()\s](?: \((?:[^()]|\([^()]*\))*\))?)"
_RETURNED = r"(?s)r(\d+) \| (MPI_\w+(?: or MPI_\w+)?) returned error code (-?\d+): (.*)"
_LINE_OF_CALL = rf"(?s), on rank \d+ of \d+ of communicator '.*?', (?:started )?at {_LINE}"
# The message of an exchange that failed, else the call's own messages: of both directions the source is last.
_FAILED_SLOT = r", in (?:destination|source) slot \d+ (?:->|<-) (\d+) with tag"
_MESSAGE = r" (?:->|<-) (\w+) with tag \w+ and \d+ items"
_REFUSED = r"(MPI_\w+) got (dest|source|root|sendtag|recvtag) = (-?\d+), but [^\n]*"
_LINE_OF_REFUSAL = rf" \(at {_LINE}\)"
_CLASSES = {"dest": MPI.ERR_RANK, "source": MPI.ERR_RANK, "root": MPI.ERR_ROOT}


@public
def error_of(exception: BaseException) -> MPIError | None:
    """Return the error of MPI that an exception is about, as a value: what failed, and with which error class.

    Args:
        exception: an exception that the program caught. Its causes are searched too, the exceptions during whose
            handling it was raised, and the members of a group.

    Returns:
        The first error that is found: one that MPI returned in a call of mpixla or in one of XLA's collectives; or a
        root, or the rank or tag of a message, that was known only at run time and that mpixla refused before the call,
        with the class that MPI has for it. None for any other exception: arguments that are refused when tracing, for
        example, and mpi4py's own ``MPI.Exception``, which has ``Get_error_class``.

    Example:
        >>> import jax, jax.numpy as jnp, mpixla
        >>> from mpi4py import MPI
        >>> receive = jax.jit(lambda source: mpixla.recv(jnp.float32(0), source))
        >>> try:
        ...     y = receive(mpixla.size()).block_until_ready()  # there is no such rank
        ... except jax.errors.JaxRuntimeError as e:
        ...     error = mpixla.error_of(e)
        >>> error.function, error.error_class == MPI.ERR_RANK, error.peer == mpixla.size()
        ('MPI_Recv', True, True)
    """
    for one in _exceptions_of(exception):
        if found := _parse_error(str(one)):
            return found
    return None


def _exceptions_of(exception: BaseException) -> Iterator[BaseException]:
    """Yield an exception, its causes and contexts, and the members of groups, each once."""
    waiting: list[BaseException | None] = [exception]
    seen = set[int]()
    while waiting:
        one = waiting.pop(0)
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        context = None if one.__suppress_context__ else one.__context__
        waiting += [one.__cause__, context, *getattr(one, "exceptions", ())]


def _parse_error(text: str) -> MPIError | None:
    """Return the error that a text of the C library describes; None if it describes none."""
    if returned := re.search(_RETURNED, text):
        rank, function, error_class, words = returned.groups()
        line = re.search(_LINE_OF_CALL, words)
        peers = re.findall(_FAILED_SLOT, words) or re.findall(_MESSAGE, words)
        peer = int(peers[-1]) if peers and peers[-1].isdigit() else None
        return MPIError(function, int(error_class), int(rank), peer, line and line[1], words)
    if refused := re.search(_REFUSED, text):
        function, what, number = refused.groups()
        line = re.search(_LINE_OF_REFUSAL, text[refused.start() :])
        peer = int(number) if what in ("dest", "source") else None
        error_class = _CLASSES.get(what, MPI.ERR_TAG)
        return MPIError(function, error_class, MPI.COMM_WORLD.Get_rank(), peer, line and line[1], refused.group())
    return None
