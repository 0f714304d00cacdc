"""The form of jax.lax.ragged_all_to_all: slices of arrays, at places that are known only at run time."""

from typing import Any

import jax
import jax.numpy as jnp

from ..core.tree import as_leaf, data_of, moves
from ..mpi.comm import Comm, comm_of
from ..mpi.mpi import MPI
from .arguments import as_integers
from .collective import alltoall_p
from .vector import alltoallv


def _slices(value: Any, what: str, comm: Comm) -> jax.Array:
    """Integers, as many for each rank."""
    numbers = as_integers(value, what, "ragged_all_to_all")
    if numbers.ndim != 1 or numbers.size % comm.size:
        raise ValueError(
            f"{what} of ragged_all_to_all must be one integer for each of the {comm.size} ranks of communicator "
            f"'{comm.name}', or the same number of them for each, but has shape {numbers.shape}."
        )
    return numbers


def _places(offsets: Any, sizes: Any, rows: int, beyond: int) -> Any:
    """Where each of so many rows is, of slices that are packed one behind the other; ``beyond`` where no slice is."""
    ends = jnp.cumsum(sizes)
    row = jnp.arange(rows, dtype=ends.dtype)
    slice_ = jnp.searchsorted(ends, row, side="right", method="compare_all")
    inside = jnp.minimum(slice_, sizes.size - 1)
    return jnp.where(slice_ < sizes.size, offsets[inside] + row - (ends - sizes)[inside], beyond)


@moves(2, keys=True)
def ragged_all_to_all(
    operand: Any,
    output: Any,
    input_offsets: Any,
    send_sizes: Any,
    output_offsets: Any,
    recv_sizes: Any,
    *,
    comm: MPI.Comm | None = None,
) -> jax.Array:
    """Sends slices of this rank's array to the ranks, and puts those that come at places that their senders name.

    The arguments and the result are those of ``jax.lax.ragged_all_to_all``, with a communicator in the place of an
    axis. Slices are of rows, entries of the first axis. They are packed and unpacked in the program, so where they lie
    one behind the other anyway ``alltoallv`` with a ``capacity`` is faster.

    Args:
        operand: the array whose slices are sent, or a pytree of such arrays. In all, the slices have no more rows than
            it has.
        output: a template: the result has its shape and dtype, and its values except where slices come. For a pytree
            it is a pytree of the same structure.
        input_offsets: integers, which may be traced: the row of ``operand`` at which each slice begins. There is one
            slice for each rank, or the same number of them for each, those for rank 0 first.
        send_sizes: how many rows each slice has, likewise.
        output_offsets: the row of the receiver's ``output`` at which each slice is to begin, likewise.
        recv_sizes: how many rows each slice has that comes, likewise, those from rank 0 first.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        ``output`` with the slices that came.

    Derivative:
        Linear in ``operand`` and ``output``. Reverse mode: the cotangents of slices go back to where they came from,
        and add up where slices overlap; that of ``output`` is zero where slices came.

    Raises:
        TypeError: for offsets or sizes that are no integers, a ``comm`` that is no intra-communicator, or a dtype that
            MPI cannot move.
        ValueError: for offsets and sizes that are not the same number for each rank, for an ``operand`` and ``output``
            that differ in dtype or in other axes than the first, or a communicator that was freed.
        jax.errors.JaxRuntimeError: when running, for slices that have more rows than the array.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> comm = mpixla.get_default_comm()
        >>> rank, size = comm.Get_rank(), comm.Get_size()
        >>> ones = jnp.ones(size, int)
        >>> x = jnp.arange(size) + 10 * rank
        >>> y = mpixla.ragged_all_to_all(x, jnp.zeros(size, int), jnp.arange(size), ones, rank * ones, ones)
        >>> y.tolist() == [rank + 10 * i for i in range(size)]
        True
    """
    name, c = "ragged_all_to_all", comm_of(comm)
    operand, output = as_leaf(operand, "operand", name), as_leaf(output, "output", name)
    if operand.dtype != output.dtype or operand.ndim == 0 or operand.shape[1:] != output.shape[1:] or output.ndim == 0:
        raise ValueError(
            f"operand and output of {name} must have the same dtype and the same axes behind the first, but are "
            f"{operand.dtype}{list(operand.shape)} and {output.dtype}{list(output.shape)}."
        )
    operand, output = data_of(operand), data_of(output)
    starts, sizes = _slices(input_offsets, "input_offsets", c), _slices(send_sizes, "send_sizes", c)
    places, coming = _slices(output_offsets, "output_offsets", c), _slices(recv_sizes, "recv_sizes", c)
    if len({numbers.size for numbers in (starts, sizes, places, coming)}) > 1:
        raise ValueError(
            f"{name} needs as many offsets as sizes, for what it sends and for what comes, but input_offsets has "
            f"{starts.size}, send_sizes {sizes.size}, output_offsets {places.size} and recv_sizes {coming.size}."
        )
    each = starts.size // c.size
    (arriving,) = alltoall_p.bind(places.reshape(c.size, each), comm=c)
    packed = operand
    if operand.size:  # else JAX makes a constant of it, and this rank alone has no part in a derivative
        packed = operand.at[_places(starts, sizes, operand.shape[0], operand.shape[0])].get(mode="fill", fill_value=0)
    sent, received = (numbers.reshape(c.size, each).sum(1) for numbers in (sizes, coming))
    rows, _ = alltoallv(packed, sent, received, capacity=output.shape[0], comm=comm)
    if not output.shape[0]:
        return rows
    # Which row comes to each place, if any: of setting rows at places that are no constants JAX has no transpose.
    to = _places(arriving.reshape(-1), coming, output.shape[0], output.shape[0])
    row = jnp.full(output.shape[0], -1, to.dtype).at[to].set(jnp.arange(to.size, dtype=to.dtype), mode="drop")
    came = (row >= 0).reshape(-1, *[1] * (output.ndim - 1))
    return jnp.where(came, rows.at[row].get(mode="clip"), output)
