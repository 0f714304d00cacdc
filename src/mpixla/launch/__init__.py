"""Starting the ranks of a job, whatever the MPI: ``python -m mpixla run``. Nothing here loads JAX or starts MPI."""

import sys

from ..base.trampoline import module_of

NAME = "run"
PACKAGE = "mpixla"


def _options_of_python(before: list[str]) -> list[str]:
    """Python's own options, from what stands before ``run``: ``-X dev -m mpixla``, or in one word ``-ummpixla``."""
    *options, last = before
    if last == PACKAGE:
        *options, last = options
    last = last.removesuffix(PACKAGE).removesuffix("m")
    return [*options, last] if last != "-" else options


# For -m Python imports the package first, with the rest of the command line in sys.argv.
if sys.argv[:2] == ["-m", NAME] and module_of(sys.orig_argv) == PACKAGE:
    from .start import run

    _place = sys.orig_argv.index(NAME)
    run(sys.orig_argv[_place + 1 :], [sys.executable, *_options_of_python(sys.orig_argv[1:_place])])
