"""Primitives inside ``jax.shard_map``.

JAX tracks in the types over which axes of the mesh a value varies between devices, unless check_vma=False, and derives
the sums of reverse mode from them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.core import ShapedArray

from ..base import required
from ..base.required import trace_state_clean


def manual_axes() -> frozenset[str]:
    """Return the mesh axes of the ``jax.shard_map`` that is being traced; empty outside of one."""
    return frozenset(jax.sharding.get_abstract_mesh().manual_axes)


def is_in_shard_map() -> bool:
    """Return True while a ``jax.shard_map`` over several devices is being traced."""
    return bool(manual_axes()) and jax.sharding.get_abstract_mesh().size > 1


def tracked_axes() -> frozenset[str]:
    """Return the mesh axes that shard_map's varying types track; empty if check_vma=False."""
    axes = manual_axes()
    if not axes:
        return axes
    # JAX has no query for check_vma. If the types track axes, a device's index along an axis varies over it.
    (index,) = jax.make_jaxpr(lambda: jax.lax.axis_index(next(iter(axes))))().out_avals
    return axes if varying_axes(index) else frozenset()


def device_count(module: Any) -> int:
    """Return the number of devices that a program is lowered for; ``module`` is JAX's context of the lowering."""
    context = module.axis_context
    mesh = getattr(context, "mesh", None)
    return (context.num_devices if mesh is None else mesh.size) or 1


def is_outside_shard_map(module: Any) -> bool:
    """Return True if a program for several devices is lowered, outside of a ``jax.shard_map`` over its whole mesh."""
    context = module.axis_context
    mesh = getattr(context, "mesh", None)
    return device_count(module) > 1 and (mesh is None or bool(set(mesh.axis_names) - set(context.manual_axes)))


def varying_axes(aval: Any) -> frozenset[str]:
    """Return the mesh axes over which a value of this type varies."""
    mat = getattr(aval, "mat", None)
    return mat.varying if mat is not None else frozenset()


def as_varying(x: Any, axes: frozenset[str]) -> Any:
    """Return ``x`` as a value that varies over these axes as well."""
    missing = axes - varying_axes(jax.typeof(x))
    return jax.lax.pcast(x, tuple(missing), to="varying") if missing else x


def with_shape(aval: ShapedArray, shape: Sequence[int], **other: Any) -> ShapedArray:
    """Return the type with another shape, with no axis sharded."""
    return aval.update(shape=shape, sharding=_replicated_sharding(aval.sharding.mesh, len(shape)), **other)


def without_weak_type(aval: ShapedArray) -> ShapedArray:
    """Return the type without JAX's weak_type, which MPI does not have, so that results have one type on all ranks."""
    return aval.update(weak_type=False) if aval.weak_type else aval


def _replicated_sharding(mesh: Any, ndim: int) -> jax.sharding.NamedSharding:
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*[None] * ndim))


def with_varying(aval: Any, axes: frozenset[str]) -> Any:
    """Return the type of a value that varies over these axes, and over no others."""
    if not isinstance(aval, ShapedArray) or varying_axes(aval) == axes:
        return aval
    if aval.sharding.mesh.empty:
        aval = aval.update(sharding=_replicated_sharding(jax.sharding.get_abstract_mesh(), aval.ndim))
    return aval.update(manual_axis_type=aval.mat.update(varying=axes))


class Primitive(required.Primitive):
    """A JAX primitive with a list of results; inside ``jax.shard_map`` each device has its own values of them.

    ``replicates(params)``: True if the results are the same on all devices; ``takes_replicated``: True if operands may
    be. ``tangents(primals, tangents, results, params)`` returns the results' tangents, if there is a derivative
    (core/rules.py).
    """

    multiple_results = True
    replicates: Callable[[dict[str, Any]], bool] = staticmethod(lambda params: False)
    takes_replicated = False
    tangents: Callable[..., Any]

    def bind(self, *operands: Any, **params: Any) -> Any:
        """Run the primitive if JAX traces nothing, else bind it, with varying operands inside ``jax.shard_map``."""
        if trace_state_clean():  # JAX's bind would call ``impl``, too, after some microseconds
            return self.impl(*operands, **params)
        if not self.takes_replicated and (axes := tracked_axes()):
            operands = tuple(as_varying(x, axes) for x in operands)
        return super().bind(*operands, **params)

    def def_abstract_eval(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Define the rule for the results' types, of a primitive without effects, and return it."""
        self.def_effectful_abstract_eval(lambda *operands, **params: (rule(*operands, **params), set()))
        return rule

    def def_effectful_abstract_eval(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Define the rule for types and effects, and return it; in shard_map the types get its varying axes as well."""

        def abstract_eval(*operands: Any, **params: Any) -> Any:
            """Return ``rule``'s types and effects; in shard_map the types vary over all axes, or none if replicated."""
            results, effects = rule(*operands, **params)
            if axes := tracked_axes():
                axes = frozenset() if self.replicates(params) else axes
                results = [with_varying(aval, axes) for aval in results]
            return list(results), effects

        super().def_effectful_abstract_eval(abstract_eval)
        return rule
