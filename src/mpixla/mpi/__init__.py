"""MPI, and what a process has of it."""
