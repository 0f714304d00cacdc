"""Numbers that may not grow in a process that runs for long, and a check of them."""

import ctypes
import gc
import os
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

import mpixla
from mpixla.mpi import native
from mpixla.mpi.comm import comm_of

PAGE = os.sysconf("SC_PAGE_SIZE")
CLASSES = range(6, 15)  # requests are kept by the power of two that their bytes fit in
# Of the memory that a process has: each compilation may add so much, of which JAX and XLA keep some for good, as
# they do without communication (--control: 8 KiB). Of what MPI numbers: so many more at the end than in the first half.
BYTES_PER_COMPILATION = 16384
MORE = {"descriptors": 2, "threads": 2, "communicators": 0, "communicator numbers": 16, "types": 4, "reductions": 4}
MORE |= {"request places": 64}  # the number of one that is free, of as many as a program had under way at once
HANDLE = 0x03FFFFFF  # of an MPICH handle: the part that numbers


def _next_number(made: Any) -> int:
    """Return the number that MPI gives a new object: the next free one, so it grows if objects are left behind."""
    number = made.py2f() & HANDLE
    made.Free()
    return number


def _places() -> int:
    """Return how many places the table of requests has, at least: a new request gets one that is free."""
    most = 0
    for power in CLASSES:
        request = mpixla.isend(jnp.zeros(1 << power, np.uint8), MPI.PROC_NULL)
        most = max(most, int(np.asarray(jax.tree.leaves(request)[0])[0]))
        mpixla.wait(request)
    return most


def _take() -> dict[str, int]:
    """Return figures of this process, when nothing is under way. It is collective."""
    jax.clear_caches()
    gc.collect()
    probe = MPI.COMM_WORLD.Dup()
    number = comm_of(probe).id
    alive = sum(native.lib.mpixla_comm_is_alive(i) for i in range(number))
    places = _places()
    figures = {
        "communicators": alive,
        "communicator numbers": _next_number(probe),
        "types": _next_number(MPI.BYTE.Create_contiguous(3)),
        "reductions": _next_number(MPI.Op.Create(lambda a, b, t: None)),
        "request places": places,
        "threads": len(os.listdir("/proc/self/task")),
        "descriptors": len(os.listdir("/proc/self/fd")),
    }
    jax.clear_caches()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        figures["memory"] = int(file.read().split()[1]) * PAGE
    return figures


@dataclass
class Watch:
    compiled: int = 0  # programs by XLA, so far
    at_look: list[int] = field(default_factory=list)
    samples: list[dict[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        jax.monitoring.register_event_duration_secs_listener(self._hear)

    def _hear(self, event: str, seconds: float, **_: Any) -> None:
        self.compiled += event == "/jax/core/compile/backend_compile_duration"

    def look(self) -> None:
        self.at_look.append(self.compiled)
        self.samples.append(_take())

    def column(self, name: str) -> np.ndarray:
        return np.array([sample[name] for sample in self.samples])

    def slope(self, name: str) -> float:
        """Return the growth for each compilation after the first third: the median of all pairs' slopes."""
        first = len(self.samples) // 3
        x, y = np.array(self.at_look[first:]), self.column(name)[first:]
        i, j = np.triu_indices(len(x), 1)
        return float(np.median((y[j] - y[i]) / (x[j] - x[i]))) if len(x) > 1 else 0.0

    def at(self, name: str, fraction: float) -> int:
        return int(self.column(name)[round(fraction * (len(self.samples) - 1))])

    def complaints(self) -> list[str]:
        """Return a sentence for each number that has grown."""
        found = []
        if len(self.samples) < 8:
            return found
        half = len(self.samples) // 2
        for name, more in MORE.items():
            early, late = self.column(name)[1:half], self.column(name)[half:]
            if np.median(late) > early.max() + more:
                found.append(
                    f"{name} have grown from {early.max()} in the first half to {np.median(late):.0f} in the second"
                )
        if (slope := self.slope("memory")) > BYTES_PER_COMPILATION and len(self.samples) >= 30:
            found.append(f"memory grows by {slope:.0f} bytes for each compilation")
        return found
