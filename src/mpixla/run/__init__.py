"""Starting the ranks of a job under any MPI: ``python -m mpixla run``, which owns the processes of the ranks."""
