"""Refusal of the import in a process that multiprocessing has started on a rank.

Such a process inherits the variables by which MPI's launcher told the rank its place. In MPI's start it would hang, or
end the job: only the rank itself can run MPI.
"""

import sys

from .started import rank_for_mpi

# Such a process begins by importing the program's file, and has no parent_process until then.
_begins = any(argument.startswith("from multiprocessing.") for argument in sys.orig_argv)
_process = sys.modules.get("multiprocessing.process")  # which it has, and whose import takes a while

if (_begins or (_process and _process.parent_process())) and (_rank := rank_for_mpi()) is not None:
    raise ImportError(
        f"multiprocessing has started this process, on rank {_rank} of an MPI job, so it cannot import mpixla: it has "
        "inherited the variables of the rank's launcher, but only the rank itself can run MPI. Import mpixla, and "
        'mpi4py, under `if __name__ == "__main__":`, or in the functions that use them: processes of multiprocessing '
        "import the program's file."
    )
