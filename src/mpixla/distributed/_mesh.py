"""``jax.make_mesh`` over the CPUs of several hosts."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np


def over_hosts(make_mesh: Any) -> Any:
    """``jax.make_mesh`` that also makes meshes of CPUs of several hosts, in their order.

    JAX takes each host for a slice of accelerators, with a fast network inside and a slow one between, and refuses to
    make a mesh of several. Under MPI the network is one.
    """

    @functools.wraps(make_mesh)
    def make(
        axis_shapes: Sequence[int], axis_names: Any, *types: Any, devices: Sequence[Any] | None = None, **named: Any
    ) -> Any:
        used = (jax.devices() if devices is None else list(devices))[: math.prod(axis_shapes)]
        if not _are_cpus_of_several_hosts(used) or len(used) < math.prod(axis_shapes):
            return make_mesh(axis_shapes, axis_names, *types, devices=devices, **named)
        # What it makes of the other arguments, and of those that were left out, each JAX decides for itself.
        one = make_mesh([1] * len(axis_shapes), axis_names, *types, devices=used[:1], **named)
        return jax.sharding.Mesh(np.array(used).reshape(axis_shapes), one.axis_names, axis_types=one.axis_types)

    return make


def _are_cpus_of_several_hosts(devices: list[Any]) -> bool:
    slices = {getattr(device, "slice_index", 0) for device in devices}
    return len(slices) > 1 and all(device.platform == "cpu" for device in devices)
