"""These tests start the examples, and compare what they compute with NumPy, or with what one rank computes."""

from jobs import example, job  # noqa: F401
