"""What a process has: MPI, the C library, communicators, JAX's insides, and its end. Not for users."""
