"""The oracle of halo_exchange, in NumPy: it builds the whole domain and cuts the blocks out of it.

The domain has the ghost zones at its walls, as cells that the blocks there own. So each cell of a block, ghost or not,
is a cell of the domain that exactly one block owns.
"""

from dataclasses import dataclass

import numpy as np
from mpi4py import MPI


@dataclass(frozen=True)
class Grid:
    """Blocks in each dimension, and what halo_exchange is told. The blocks differ in size."""

    dims: tuple[int, ...]
    periods: tuple[bool, ...]
    widths: tuple[int, ...]
    axes: tuple[int, ...]  # of arrays with `ndim` axes, not negative
    ndim: int

    def inner(self, dimension, coordinate):
        """Return how many cells a block has without its ghosts."""
        return max(self.widths[dimension], 1) + (2 * coordinate + dimension) % 3

    def coordinates(self, rank):
        return [int(i) for i in np.unravel_index(rank, self.dims)]

    def shape(self, rank):
        """Return the shape of a block with its ghosts; axes that are not exchanged have 2 or 3 items."""
        shape = [2 + axis % 2 for axis in range(self.ndim)]
        for d, c in enumerate(self.coordinates(rank)):
            shape[self.axes[d]] = self.inner(d, c) + 2 * self.widths[d]
        return tuple(shape)

    def cells(self, rank):
        """Return for each dimension the places of the block's lines in the domain, and whether the block owns them."""
        for d, c in enumerate(self.coordinates(rank)):
            width, last = self.widths[d], self.dims[d] - 1
            sizes = [self.inner(d, i) for i in range(self.dims[d])]
            place = sum(sizes[:c]) + np.arange(-width, sizes[c] + width)
            inside = slice(width, width + sizes[c])
            owned = np.zeros(len(place), bool)
            owned[inside] = True
            if self.periods[d]:
                place %= sum(sizes)
            else:
                place += width
                owned[:width] |= c == 0
                owned[inside.stop :] |= c == last
            yield place, owned

    def domain(self, like):
        sizes = [
            sum(self.inner(d, i) for i in range(self.dims[d])) + (0 if self.periods[d] else 2 * self.widths[d])
            for d in range(len(self.dims))
        ]
        rest = np.moveaxis(like, self.axes, range(len(self.axes))).shape[len(self.axes) :]
        return np.zeros((*sizes, *rest), like.dtype)

    def exchanged(self, blocks, rank):
        """Return the result of the exchange on a rank, from the blocks of all ranks."""
        front = range(len(self.axes))
        domain = self.domain(blocks[rank])
        for r, block in enumerate(blocks):
            places, owned = zip(*self.cells(r), strict=True)
            own = np.ix_(*(p[o] for p, o in zip(places, owned, strict=True)))
            domain[own] = np.moveaxis(block, self.axes, front)[np.ix_(*owned)]
        places, _ = zip(*self.cells(rank), strict=True)
        return np.moveaxis(domain[np.ix_(*places)], front, self.axes)

    def transposed(self, blocks, rank):
        """Return the result of the transpose: each cell's owner gets the sum, other blocks zero."""
        front = range(len(self.axes))
        domain = self.domain(blocks[rank])
        for r, block in enumerate(blocks):
            places, _ = zip(*self.cells(r), strict=True)
            np.add.at(domain, np.ix_(*places), np.moveaxis(block, self.axes, front))
        places, owned = zip(*self.cells(rank), strict=True)
        result = np.zeros_like(np.moveaxis(blocks[rank], self.axes, front))
        own = np.ix_(*(p[o] for p, o in zip(places, owned, strict=True)))
        result[np.ix_(*owned)] = domain[own]
        return np.moveaxis(result, front, self.axes)


def dims_of(dimensions, size):
    """Return the ways to share the ranks between dimensions that differ most."""
    balanced = tuple(MPI.Compute_dims(size, dimensions))
    return sorted({balanced, balanced[::-1]}, reverse=True)


def blocks_of(grid, size, dtype=np.float64, draw=0):
    """Return the blocks of all ranks, with random values in the ghosts too."""
    rng = np.random.default_rng([draw, sum(grid.widths)])
    values = [rng.integers(-9, 10, grid.shape(r)) for r in range(size)]
    if np.dtype(dtype).name == "float8_e8m0fnu":  # powers of two only
        values = [2.0 ** abs(x) for x in values]
    return [x.astype(dtype) for x in values]
