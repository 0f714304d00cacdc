"""MPI in this process: the library, communicators, reductions, GPUs, and aborting the job."""
