"""Boxes of arrays in jaxprs: the equations that read a box of an array, and those that write one."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jax import lax

from .effect import ordered
from .rewrite import is_literal

_CONSTANT = 64  # items of the largest constant that is computed here: an index of an array has fewer
_DEPTH = 8  # equations in a row that make an index
_WRITES = (lax.dynamic_update_slice_p, lax.scatter_p)
LOOPS = (lax.cond_p, lax.scan_p, lax.while_p)
_RESHAPES = (lax.broadcast_in_dim_p, lax.reshape_p, lax.squeeze_p)


class Box(NamedTuple):
    """A box of an array: the variable, and for each axis the first index and the number of items."""

    array: Any
    begin: tuple[Any, ...]  # ints; those that are known only at run time are variables
    size: tuple[int, ...]

    def is_apart_from(self, other: "Box") -> bool:
        """Return True if two boxes of arrays of one shape certainly have no item in common."""
        axes = zip(self.begin, self.size, other.begin, other.size, strict=True)
        return any(type(i) is int and type(j) is int and (i + n <= j or j + m <= i) for i, n, j, m in axes)

    def is_same_as(self, other: "Box") -> bool:
        """Return True if two boxes certainly have the same items of an array."""
        same = (
            i is j or (type(i) is int and type(j) is int and i == j)
            for i, j in zip(self.begin, other.begin, strict=True)
        )
        return self.size == other.size and all(same)


def has_same_items(shape: Sequence[int], other: Sequence[int]) -> bool:
    """Return True if two shapes differ only by axes of one item."""
    return [n for n in shape if n != 1] == [n for n in other if n != 1]


def is_view(eqn: Any) -> bool:
    """Return True if an equation only adds or removes axes of one item."""
    return (
        eqn.primitive in _RESHAPES
        and len(eqn.invars) == 1
        and has_same_items(eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape)
    )


def writes_box(eqn: Any) -> bool:
    """Return True if an equation may write a box of its first operand (``Graph.written_box``)."""
    return eqn.primitive in _WRITES


def written_value(eqn: Any) -> Any:
    """Return the operand that such an equation writes."""
    return eqn.invars[2 if eqn.primitive is lax.scatter_p else 1]


class Graph:
    """The equations of a jaxpr, and how they depend on each other. Equations may be replaced; None is none."""

    def __init__(self, eqns: Sequence[Any], results: Sequence[Any]) -> None:
        """Read the equations and the results of a jaxpr."""
        self.eqns: list[Any] = list(eqns)
        self.end = len(self.eqns)  # the place of the program's results, as of an equation that uses them
        self._results = results
        self._maker: dict[Any, int] = {v: i for i, eqn in enumerate(self.eqns) for v in eqn.outvars}
        self._hoisted: dict[int, float] = {}  # the places of equations that have moved, between those of others
        self.users: dict[Any, dict[int, None]] = defaultdict(dict)  # places, as an ordered set
        for i in self._needed_places():
            for atom in self.eqns[i].invars:
                if not is_literal(atom):
                    self.users[atom][i] = None
        for atom in self._results:
            if not is_literal(atom):
                self.users[atom][self.end] = None
        self.kept = self._find_kept()

    def _needed_places(self) -> list[int]:
        """Return the places of the equations that lead to a result or have an effect."""
        needed = {atom for atom in self._results if not is_literal(atom)}
        places = []
        for i in sorted(range(self.end), key=self._place_of, reverse=True):
            eqn = self.eqns[i]
            if eqn is not None and (eqn.effects or any(v in needed for v in eqn.outvars)):
                places.append(i)
                needed.update(atom for atom in eqn.invars if not is_literal(atom))
        return places[::-1]

    def _find_kept(self) -> set[Any]:
        """Return the variables that XLA keeps in memory as a whole because of their uses.

        These are the results of the program, what loops and calls take, and arrays into which a box is written if the
        result is kept, or used more than once.
        """
        kept = {atom for atom in self._results if not is_literal(atom)}
        for eqn in reversed(self.eqns):
            if ordered in eqn.effects or eqn.primitive in LOOPS:
                kept.update(atom for atom in eqn.invars if not is_literal(atom))
            elif eqn.primitive in _WRITES and not is_literal(eqn.invars[0]):
                (result,) = eqn.outvars
                if result in kept or len(self.users.get(result, ())) > 1:
                    kept.update((result, eqn.invars[0]))
        return kept

    def _place_of(self, i: int) -> float:
        return self._hoisted.get(i, i)

    def place_of_maker(self, variable: Any) -> float:
        """Return the place of the equation that makes a variable; -1 for an argument or a constant."""
        return self._place_of(self._maker.get(variable, -1))

    def maker_of(self, variable: Any) -> Any:
        """Return the equation that makes a variable, or None."""
        i = self._maker.get(variable, -1)
        return None if i < 0 else self.eqns[i]

    def scalars_behind(self, variable: Any, place: int, depth: int = _DEPTH) -> list[int] | None:
        """Return the places, from ``place`` on, of equations that make a scalar; None if too deep or not scalar."""
        if is_literal(variable) or self.place_of_maker(variable) < place:
            return []
        eqn = self.maker_of(variable)
        operands_and_results = (*eqn.invars, *eqn.outvars)
        if depth == 0 or eqn.effects or any(getattr(x.aval, "shape", None) != () for x in operands_and_results):
            return None
        found: list[int] = []
        for atom in eqn.invars:
            more = self.scalars_behind(atom, place, depth - 1)
            if more is None:
                return None
            found += [i for i in more if i not in found]
        return [*found, self._maker[variable]]

    def hoist_eqns(self, places: Sequence[int], before: int) -> None:
        """Place these equations right before ``before``, in their order; ``remaining_eqns`` returns them there."""
        for k, i in enumerate(places):
            self._hoisted[i] = before - 1 + (k + 1) / (len(places) + 1)

    def replace_eqn(self, place: int, eqn: Any) -> None:
        """Put an equation at a place, or None to remove the one there; update users and makers of its variables."""
        old = self.eqns[place]
        if old is not None:
            for atom in old.invars:
                if not is_literal(atom):
                    self.users[atom].pop(place, None)
        self.eqns[place] = eqn
        if eqn is not None:
            for atom in eqn.invars:
                if not is_literal(atom):
                    self.users[atom][place] = None
            for v in eqn.outvars:
                self._maker[v] = place

    def split_variable(self, variable: Any, place: int) -> Any:
        """Give a new variable to the equation that makes ``variable`` and to its users before a place; return it."""
        new, maker = type(variable)(variable.aval), self._maker[variable]
        eqn = self.eqns[maker]
        self.replace_eqn(maker, eqn.replace(outvars=[new if v is variable else v for v in eqn.outvars]))
        for user in [user for user in self.users[variable] if user < place]:
            eqn = self.eqns[user]
            self.replace_eqn(user, eqn.replace(invars=[new if atom is variable else atom for atom in eqn.invars]))
        return new

    def remaining_eqns(self) -> list[Any]:
        """Return the equations that have an effect or lead to a result, in the order of their places."""
        return [self.eqns[i] for i in self._needed_places()]

    def only_user(self, variable: Any) -> Any:
        """Return the place of the only equation that uses a variable; None for several, or none, or a result."""
        users = list(self.users.get(variable, ()))
        return users[0] if len(users) == 1 and users[0] < self.end else None

    # Constants

    def _fold_constant(self, atom: Any) -> Any:
        """Return in NumPy the value of a literal, or of a small array made of literals alone; None for any other."""
        if is_literal(atom):
            return np.asarray(atom.val)
        eqn = self.maker_of(atom)
        if eqn is None or eqn.primitive not in _FOLDS or atom.aval.size > _CONSTANT:
            return None
        values = [self._fold_constant(x) for x in eqn.invars]
        return None if any(x is None for x in values) else _FOLDS[eqn.primitive](eqn, *values)

    def value_of(self, atom: Any) -> Any:
        """Return as a NumPy scalar the literal of which all items of an array are copies; None if there is none."""
        while not is_literal(atom):
            eqn = self.maker_of(atom)
            if eqn is not None and eqn.primitive.name == "empty" and isinstance(atom.aval.dtype, np.dtype):
                return np.zeros((), atom.aval.dtype)  # jnp.empty since JAX 0.12, which lowers it to zeros for the host
            if eqn is None or eqn.primitive not in _RESHAPES:
                return None
            atom = eqn.invars[0]
        return np.asarray(atom.val, atom.aval.dtype).reshape(()) if atom.aval.shape == () else None

    # Boxes

    def _clamp_begin(self, atoms: Sequence[Any], size: Sequence[int], shape: Sequence[int]) -> tuple[Any, ...] | None:
        """Return a dynamic slice's clamped start indices, ints or variables; None for a variable of another dtype."""
        begin = []
        for atom, m, n in zip(atoms, size, shape, strict=True):
            known = self._fold_constant(atom)
            if known is None and atom.aval.dtype not in (np.int32, np.int64):
                return None
            begin.append(atom if known is None else max(0, min(int(known), n - m)))
        return tuple(begin)

    def read_box(self, eqn: Any) -> Box | None:
        """Return the box that a slice of stride 1, or a dynamic slice, reads; None for any other equation."""
        if eqn is None or eqn.primitive not in (lax.slice_p, lax.dynamic_slice_p) or is_literal(eqn.invars[0]):
            return None
        array, size = eqn.invars[0], eqn.outvars[0].aval.shape
        if eqn.primitive is lax.slice_p:
            steps = eqn.params["strides"]
            if steps is not None and any(step != 1 for step in steps):
                return None
            return Box(array, tuple(map(int, eqn.params["start_indices"])), size)
        begin = self._clamp_begin(eqn.invars[1:], size, array.aval.shape)
        return None if begin is None else Box(array, begin, size)

    def view_of(self, atom: Any) -> Any:
        """Return the variable or literal that an array equals, but for added or removed axes of one item."""
        while not is_literal(atom):
            eqn = self.maker_of(atom)
            if eqn is None or not is_view(eqn):
                break
            atom = eqn.invars[0]
        return atom

    def box_of(self, atom: Any) -> Box | None:
        """Return the box of which an array is the slice, but for axes of one item; None if it is no slice."""
        viewed = self.view_of(atom)
        return None if is_literal(viewed) else self.read_box(self.maker_of(viewed))

    def written_box(self, eqn: Any) -> Box | None:
        """Return the box of its first operand that an update or scatter writes; None if the equation is another."""
        if not writes_box(eqn) or is_literal(eqn.invars[0]):
            return None
        array, shape = eqn.invars[0], eqn.invars[0].aval.shape
        if eqn.primitive is lax.dynamic_update_slice_p:
            size = eqn.invars[1].aval.shape
            begin = self._clamp_begin(eqn.invars[2:], size, shape)
            return None if begin is None else Box(array, begin, size)
        return self._scattered_box(eqn, array, shape)

    def _scattered_box(self, eqn: Any, array: Any, shape: tuple[int, ...]) -> Box | None:
        """Return the box that a scatter writes; None unless it is one window at constant indices, inside the array."""
        _, index, update = eqn.invars
        numbers, at = eqn.params["dimension_numbers"], self._fold_constant(index)
        is_one_window = (
            at is not None
            and at.ndim == 1
            and len(numbers.update_window_dims) == update.aval.ndim
            and not numbers.operand_batching_dims
        )
        if not is_one_window:
            return None
        begin, sizes = [0] * len(shape), iter(update.aval.shape)
        for axis, i in zip(numbers.scatter_dims_to_operand_dims, at, strict=True):
            begin[axis] = int(i)
        size = tuple(1 if i in numbers.inserted_window_dims else next(sizes) for i in range(len(shape)))
        is_inside = all(0 <= i <= n - m for i, m, n in zip(begin, size, shape, strict=True))
        return Box(array, tuple(begin), size) if is_inside else None


def _fold_broadcast(eqn: Any, x: Any) -> Any:
    """Evaluate a broadcast_in_dim equation for a NumPy array."""
    shape = eqn.params["shape"]
    before = [1] * len(shape)
    for axis, n in zip(eqn.params["broadcast_dimensions"], x.shape, strict=True):
        before[axis] = n
    return np.broadcast_to(x.reshape(before), shape)


# The equations that are computed here.
_FOLDS: dict[Any, Any] = {
    lax.broadcast_in_dim_p: _fold_broadcast,
    lax.concatenate_p: lambda eqn, *xs: np.concatenate(xs, axis=eqn.params["dimension"]),
    lax.convert_element_type_p: lambda eqn, x: x.astype(eqn.params["new_dtype"]),
    lax.reshape_p: lambda eqn, x: x.reshape(eqn.outvars[0].aval.shape),
    lax.squeeze_p: lambda eqn, x: x.reshape(eqn.outvars[0].aval.shape),
}
