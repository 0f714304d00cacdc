"""Helpers that need no MPI."""
