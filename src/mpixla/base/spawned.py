"""Refuse the import in a process that multiprocessing has started on a rank.

It inherits the variables by which MPI's launcher told the rank its place, and in MPI's start it would hang, or end the
job: only the rank itself can run MPI.
"""

from multiprocessing import parent_process

from .started import place

if (_parent := parent_process()) is not None and (_rank := place()) is not None:
    raise ImportError(
        f"multiprocessing has started this process, from process {_parent.pid}, on rank {_rank} of an MPI job, so it "
        "cannot import mpixla: it has inherited the variables of the rank's launcher, but only the rank itself can run "
        'MPI. Import mpixla, and mpi4py, under `if __name__ == "__main__":`, or in the functions that use them: '
        "processes of multiprocessing import the program's file."
    )
