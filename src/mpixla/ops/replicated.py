"""Checks that values are the same on every rank."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..checks.sites import number_of
from ..core.eager import eager
from ..core.primitive import lower_in_place, make_primitive
from ..core.tree import Tree, as_leaf, plan_of_each, refuse_started, unwrap_keys
from ..jaxprs.spmd import Primitive
from ..mpi import native
from ..mpi.comm import Comm, comm_of
from ..mpi.mpi import MPI
from .shapes import BATCH_FIRST, each_same_abstract_eval

# The results are the operands, and a derivative may differ between ranks, so that it is not compared.


def _assert_replicated_jvp_rule(primals: Any, tangents: Any, **params: Any) -> Sequence[Any]:
    return tangents


def _assert_replicated_transpose_rule(*cotangents: Any, types: Any, **params: Any) -> list[Any]:
    return list(cotangents)


assert_replicated_p: Primitive = make_primitive(
    "assert_replicated",
    each_same_abstract_eval,
    lower=lower_in_place,
    batch=BATCH_FIRST,
    jvp=_assert_replicated_jvp_rule,
    transpose=_assert_replicated_transpose_rule,
)


@functools.cache
def _register_name(name: str) -> int:
    """Return a name's hash, equal on every rank; the first call for it passes the name to the C library's reports."""
    number = number_of(name.encode())
    native.check_result(native.lib.mpixla_site_name(number, name.encode()))
    return number


def _leaf_number(path: str, x: jax.Array) -> int:
    return _register_name(f"{f'leaf {path}' if path else 'the array'} of shape {x.shape} and data type {x.dtype.name}")


# The meaning of a difference (native/ops/replicated.h): an error of assert_replicated, an error of checked mode, or a
# report, once.
_ASSERTED, CHECKED, REPORTED = range(3)


def compare_arrays(values: Mapping[str, Any], comm: Comm, checked: int) -> None:
    """Compare named arrays between ranks, collectively; if unequal fail (``CHECKED``) or report (``REPORTED``)."""
    assert_replicated_p.bind(*values.values(), comm=comm, leaves=tuple(map(_register_name, values)), checked=checked)


@eager(1)
def assert_replicated(tree: Tree, *, comm: MPI.Comm | None = None) -> Tree:
    """Check that a value is the same on every rank, bit by bit, and return it.

    Parameters of a model drift apart between ranks silently, because of one missing ``allreduce`` or one random
    key. Call this every now and then, inside ``jit`` or outside. It costs reading the arrays and one reduction of 16
    bytes; arrays travel only where they differ. It checks with and without ``MPIXLA_CHECK``, and whether or not its
    result is used.

    Args:
        tree: an array, or a pytree of arrays, PRNG keys among them.
        comm: the communicator; by default a clone of ``MPI.COMM_WORLD``.

    Returns:
        ``tree``.

    Derivative:
        The identity, without communication. Derivatives may differ between ranks.

    Raises:
        TypeError: for a ``comm`` that is no intra-communicator or a dtype that MPI cannot move.
        ValueError: for a communicator that was freed.
        RuntimeError: (or ``ValueError``, whichever JAX makes of a failed call) on every rank, if structures, shapes,
            dtypes or entries differ. It names the leaf and the ranks that differ from most others, how many entries
            differ, and the first of them with both values. A NaN is equal to one of the same bits, and 0.0 is not
            equal to -0.0.

    Example:
        >>> import jax.numpy as jnp, mpixla
        >>> params = mpixla.assert_replicated({"w": jnp.ones(3), "b": jnp.zeros(())})
        >>> float(params["w"].sum())
        3.0
    """
    refuse_started(tree)
    paths, structure = jax.tree_util.tree_flatten_with_path(tree)
    arrays = [as_leaf(x, f"tree{jax.tree_util.keystr(path)}", "assert_replicated") for path, x in paths]
    c = comm_of(comm)
    leaves = tuple(_leaf_number(jax.tree_util.keystr(path), x) for (path, _), x in zip(paths, arrays, strict=True))
    # A rank without leaves takes part as well.
    data = [unwrap_keys(x) for x in arrays] if arrays else [jnp.zeros(0)]
    results = assert_replicated_p.bind(
        *data, comm=c, leaves=leaves or (_register_name("an empty tree"),), checked=_ASSERTED
    )
    return plan_of_each(structure, arrays).tree_of(results if arrays else [])
