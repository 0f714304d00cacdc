"""The versions of JAX that mpixla's tests have passed with (`make test-matrix`). Imports nothing."""

# Ascending.
JAX = ("0.10.0", "0.10.2", "0.11.2", "0.12.0.1")
NEWEST = JAX[-1]
NEWEST_IN = "November 2026"
