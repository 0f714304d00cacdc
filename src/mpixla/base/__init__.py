"""What needs no MPI."""
