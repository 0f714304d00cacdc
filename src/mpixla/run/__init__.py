"""Starting the ranks of a job under any MPI: ``python -m mpixla run``. Nothing here imports JAX or starts MPI."""

import sys

from ..base.trampoline import module_run

NAME = "run"

# For -m Python imports the package first, with the rest of the command line in sys.argv.
if sys.argv[1:2] == [NAME] and (_run := module_run()) and _run[0] == "mpixla":
    from .start import run

    run(sys.argv[2:], [sys.executable, *_run[1]])
