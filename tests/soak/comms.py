"""The communicators of programs: the text that makes one, and what the oracle knows of it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Edge = tuple[int, int]  # a rank of the communicator, and the slot of its that a message is sent from


@dataclass(frozen=True)
class Topology:
    """The destinations and sources of each rank of the world, slot by slot, by their ranks in the communicator."""

    dests: list[list[int | None]]
    sources: list[list[Edge | None]]
    dims: list[tuple[int, ...]] | None = None  # of a Cartesian communicator
    periods: tuple[bool, ...] = ()


@dataclass(frozen=True)
class Comm:
    """One communicator on each rank of the world, under the same name; there may be several side by side."""

    name: str  # "" is what operations use that are given none
    make: str  # the expression that makes it
    groups: list[list[int]]  # for each of them, the ranks of the world in their order
    topology: Topology | None = None
    freed: bool = True  # whether the program frees it
    kind: str = ""

    @property
    def variable(self) -> str:
        return self.name or "world"

    @property
    def argument(self) -> str:
        return f", comm={self.name}" if self.name else ""

    @property
    def rank(self) -> str:
        return f"{self.variable}.rank"

    @property
    def size(self) -> str:
        return f"{self.variable}.size"

    def least(self) -> int:
        """Return the size of the smallest one."""
        return min(map(len, self.groups))

    def place(self, rank: int) -> tuple[list[int], int]:
        """Return the group of a rank of the world, and the rank there."""
        group = next(g for g in self.groups if rank in g)
        return group, group.index(rank)

    def model(self, one: Callable[[list[list[np.ndarray]], int, int], list[np.ndarray]]) -> Callable[..., Any]:
        """Return a model of an operation, from a function that returns the result of one rank.

        It is `one(operands of each rank of its group, rank, w)`, where w is the rank in the world.
        """

        def model(operands: list[list[np.ndarray]]) -> list[list[np.ndarray]]:
            size = sum(map(len, self.groups))
            results: list[Any] = [None] * size
            for group in self.groups:
                inputs = [[x[w] for x in operands] for w in group]
                for rank, w in enumerate(group):
                    results[w] = one(inputs, rank, w)
            return [list(column) for column in zip(*results, strict=True)]

        return model


DEFAULT = "default"


@dataclass
class Maker:
    """Draws communicators. Names begin with `prefix` and are numbered."""

    rng: np.random.Generator
    size: int  # of the world
    prefix: str
    made: list[Comm] = field(default_factory=list)

    def draw(self) -> Comm:
        kinds = [self.world, self.default, self.dup, self.split, self.self_, self.cart, self.cart, self.cart_of_split]
        kinds += [self.dist_graph, self.graph, self.sub]
        comm = kinds[self.rng.integers(len(kinds))]()
        self.made.append(comm)
        return comm

    def cartesian(self) -> Comm:
        comm = self.cart()
        self.made.append(comm)
        return comm

    def graphs(self) -> Comm:
        comm = self.dist_graph()
        self.made.append(comm)
        return comm

    def _name(self) -> str:
        return f"{self.prefix}{len(self.made)}"

    def _everyone(self) -> list[list[int]]:
        return [list(range(self.size))]

    def world(self) -> Comm:
        return Comm(self._name(), "MPI.COMM_WORLD", self._everyone(), freed=False, kind="world")

    def default(self) -> Comm:
        return Comm("", "", self._everyone(), freed=False, kind=DEFAULT)

    def self_(self) -> Comm:
        return Comm(self._name(), "MPI.COMM_SELF", [[r] for r in range(self.size)], freed=False, kind="self")

    def dup(self) -> Comm:
        how = self.rng.choice(["Dup", "Clone"])
        plain = [c for c in self.made if c.name and c.topology is None]
        if plain and self.rng.random() < 0.5:
            of = plain[self.rng.integers(len(plain))]
            return Comm(self._name(), f"{of.name}.{how}()", of.groups, kind="dup")
        return Comm(self._name(), f"world.{how}()", self._everyone(), kind="dup")

    def _parts(self) -> tuple[str, list[list[int]]]:
        colors = self.rng.integers(0, 2, self.size).tolist()
        keys = self.rng.permutation(self.size).tolist()
        groups = [sorted((r for r in range(self.size) if colors[r] == c), key=keys.__getitem__) for c in (0, 1)]
        return f"world.Split({colors}[world.rank], {keys}[world.rank])", [g for g in groups if g]

    def split(self) -> Comm:
        make, groups = self._parts()
        return Comm(self._name(), make, groups, kind="split")

    def _dims(self) -> tuple[int, ...]:
        n = self.size
        dims = {(n,), (n,), (n, 1), (1, n), (1, n, 1)} | {(a, n // a) for a in range(2, n) if n % a == 0}
        return sorted(dims)[self.rng.integers(len(dims))]

    def cart(self) -> Comm:
        dims = self._dims()
        periods = tuple(bool(p) for p in self.rng.integers(0, 2, len(dims)))
        topology = _grid(self._everyone(), [dims] * self.size, periods)
        make = f"world.Create_cart({list(dims)}, {list(periods)})"
        return Comm(self._name(), make, self._everyone(), topology, kind="Cartesian")

    def cart_of_split(self) -> Comm:
        """Return a line or ring in each part of a split; the communicator that was split goes at once."""
        make, groups = self._parts()
        periods = (bool(self.rng.integers(2)),)
        dims = [(len(next(g for g in groups if r in g)),) for r in range(self.size)]
        topology = _grid(groups, dims, periods)
        make = f"(lambda c: (c.Create_cart([c.size], {list(periods)}), c.Free())[0])({make})"
        return Comm(self._name(), make, groups, topology, kind="Cartesian")

    def sub(self) -> Comm:
        """Return the columns or rows of a grid."""
        a, b = self._dims()[0], 0
        b = self.size // a
        keep = int(self.rng.integers(2))
        periods = [bool(p) for p in self.rng.integers(0, 2, 2)]
        places = [divmod(r, b) for r in range(self.size)]
        groups = [[r for r in range(self.size) if places[r][1 - keep] == line] for line in range((b, a)[keep])]
        dims = [((a, b)[keep],)] * self.size
        topology = _grid(groups, dims, (periods[keep],))
        make = f"(lambda c: (c.Sub({[keep == 0, keep == 1]}), c.Free())[0])(world.Create_cart({[a, b]}, {periods}))"
        return Comm(self._name(), make, groups, topology, kind="Cartesian")

    def dist_graph(self) -> Comm:
        """Return any edges, several between the same two ranks and to oneself as well."""
        n = self.size
        dests = [self.rng.integers(0, n, self.rng.integers(0, 4)).tolist() for _ in range(n)]
        topology = _edges(dests)
        sources = [[edge[0] for edge in edges if edge] for edges in topology.sources]
        make = f"world.Create_dist_graph_adjacent({sources}[world.rank], {dests}[world.rank])"
        return Comm(self._name(), make, self._everyone(), topology, kind="graph")

    def graph(self) -> Comm:
        """Return edges that go both ways, at least one, each to oneself or another rank once."""
        n = self.size
        pairs = {(int(a), int(b)) for a, b in self.rng.integers(0, n, (n, 2))}
        dests = [sorted({b for a, b in pairs if a == r} | {a for a, b in pairs if b == r}) for r in range(n)]
        index = [0, *np.cumsum([len(d) for d in dests]).tolist()]  # mpi4py knows a leading 0, and needs it here
        make = f"world.Create_graph({index}, {[r for d in dests for r in d]})"
        return Comm(self._name(), make, self._everyone(), _edges(dests), kind="graph")


def _grid(groups: list[list[int]], dims: list[tuple[int, ...]], periods: tuple[bool, ...]) -> Topology:
    """Return the neighbours by MPI's definition of a Cartesian communicator: down and up in each dimension."""
    dests: list[list[int | None]] = [[] for _ in dims]
    sources: list[list[Edge | None]] = [[] for _ in dims]
    for group in groups:
        for rank, w in enumerate(group):
            here = np.unravel_index(rank, dims[w])
            for axis, length in enumerate(dims[w]):
                for step in (-1, 1):
                    there = [int(i) for i in here]
                    there[axis] += step
                    inside = periods[axis] or 0 <= there[axis] < length
                    there[axis] %= length
                    dests[w].append(int(np.ravel_multi_index(there, dims[w])) if inside else None)
            # What was sent down comes from above, and the other way round.
            sources[w] = [None if r is None else (r, slot ^ 1) for slot, r in enumerate(dests[w])]
    return Topology(dests, sources, dims, periods)


def _edges(dests: list[list[int]]) -> Topology:
    """Return a graph by each rank's destinations. Sources are ordered by rank; edges between the same two by slot."""
    sources: list[list[Edge | None]] = [
        [(r, slot) for r, own in enumerate(dests) for slot, dest in enumerate(own) if dest == rank]
        for rank in range(len(dests))
    ]
    return Topology([list(d) for d in dests], sources)
