"""The collectives in a compiled program, parsed from its HLO text."""

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

_OPERATIONS = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "ragged-all-to-all",
    "reduce-scatter",
)
_INSTRUCTION = re.compile(rf"""^\s*(?:ROOT )?%?\S+ = ([^"]*?) ({"|".join(_OPERATIONS)})(?:-start)?\((.*)$""")
_LISTED = re.compile(r"replica_groups=\{((?:\{[\d, ]*\},?\s*)*)\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\((.*?)\))? \{([^}]*)\}")
_MESH_IOTA = re.compile(r"\[([\d,]+)\](?:T\(([\d,]+)\))?|([\d,]+)")
_ARRAY = re.compile(r"\b(pred|[a-z]+\d+\w*)\[([\d,]*)\]")


class Collective(NamedTuple):
    """A collective instruction of a program."""

    operation: str
    groups: tuple[tuple[int, ...], ...]  # indices into the program's list of devices
    dtype: str  # XLA's name
    items: int  # the number of elements of the largest result


def collectives_of(text: str, devices: int) -> Iterator[Collective]:
    """Yield the collectives in the HLO text of a program for this many devices."""
    for line in text.splitlines():
        found = _INSTRUCTION.match(line)
        if not found:
            continue
        shape, operation, rest = found.groups()
        arrays = [(name, math.prod(map(int, filter(None, sizes.split(","))))) for name, sizes in _ARRAY.findall(shape)]
        dtype, items = max(arrays, key=lambda array: array[1], default=("", 0))
        yield Collective(operation, _parse_groups(operation, rest, devices), dtype, items)


def _parse_groups(operation: str, rest: str, devices: int) -> tuple[tuple[int, ...], ...]:
    """Parse the replica groups of a collective in HLO text; raise ValueError if their notation is unknown."""
    everyone = (tuple(range(devices)),)
    if operation == "collective-permute":
        return everyone
    if found := _IOTA.search(rest):
        sizes, shape, order = (_parse_numbers(part) for part in found.groups(""))
        return _as_tuples(_number_devices(shape, order).reshape(sizes))
    if found := _MESH.search(rest):
        return _as_tuples(_mesh_groups(*found.groups("")))
    if found := _LISTED.search(rest):
        groups = tuple(_parse_numbers(group) for group in re.findall(r"\{([\d, ]*)\}", found[1]))
        return groups or everyone
    if "replica_groups=" in rest:
        raise ValueError(f"mpixla cannot read the groups of this collective of XLA's: {operation}({rest[:400]}")
    return everyone


def _number_devices(shape: Sequence[int], order: Sequence[int]) -> Any:
    numbers = np.arange(math.prod(shape)).reshape(shape)
    return numbers.transpose(order) if order else numbers


def _mesh_groups(axes: str, ids: str, chosen: str) -> Any:
    """Return the replica groups along chosen axes of a mesh, a row each.

    Args:
        axes: the mesh: ``'a'=2,'b'=4``.
        ids: its devices if not in order: ``[2,4]T(1,0)``.
        chosen: the axes: ``'a','b':(2)2``. ``:(m)n`` stands for a part of an axis of size n, with m parts before it.
    """
    sizes = {name: int(size) for name, size in re.findall(r"'([^']*)'=(\d+)", axes)}
    devices = np.ravel(_parse_mesh_devices(ids, math.prod(sizes.values())))
    # Each device's coordinate along each axis. In the loop, `along` becomes the coordinates that are equal in a group,
    # and `place` the position within the group.
    along = dict(zip(sizes, np.indices([*sizes.values()]).reshape(len(sizes), devices.size), strict=True))
    place, members = np.zeros(devices.size, int), 1
    for name, before, length in re.findall(r"'([^']*)'(?::\((\d+)\)(\d+))?", chosen):
        parts = int(length or sizes[name])
        below = sizes[name] // (int(before or 1) * parts)  # entries of a part
        part = along[name] // below % parts
        along[name] = along[name] - part * below
        place, members = place * parts + part, members * parts
    order = np.lexsort((place, *reversed(along.values())))
    return devices[order].reshape(-1, members)


def _parse_mesh_devices(ids: str, count: int) -> Any:
    """Parse the device ids of a mesh in HLO text, in order if it has none; raise ValueError for unknown notation."""
    found = _MESH_IOTA.fullmatch(ids.replace(" ", ""))
    if not ids:
        return np.arange(count)
    if not found:
        raise ValueError(f"mpixla cannot read the devices of this mesh of XLA's: {ids}")
    shape, order, listed = (_parse_numbers(part) for part in found.groups(""))
    return np.array(listed) if listed else _number_devices(shape, order)


def _as_tuples(numbers: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, numbers.tolist()))


def _parse_numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part.strip())
