"""A square of cells, of which each process in a Cartesian communicator has a block."""

from typing import Any

import numpy as np
from mpi4py import MPI

import mpixla


def cells_of(cart: MPI.Cartcomm, size: int) -> tuple[slice, slice]:
    """Return this process's rows and columns of the square."""
    rows, columns = (slice(i * size // n, (i + 1) * size // n) for i, n in zip(cart.coords, cart.dims, strict=True))
    return rows, columns


def whole(cart: MPI.Cartcomm, block: Any) -> np.ndarray | None:
    """Return the square that all processes' blocks make, on rank 0."""
    blocks = np.asarray(mpixla.gather(block, root=0, comm=cart))
    if cart.rank != 0:
        return None
    return np.block([list(row) for row in blocks.reshape(*cart.dims, *block.shape)])
