"""These tests start MPI jobs of their own."""

from jobs import job  # noqa: F401
