"""How each operation becomes a step: with which operands and arguments, and what it must give.

Whatever is drawn is drawn alike on all ranks. Ranks as arguments are those that every communicator of the name has.
"""

from collections.abc import Callable
from fractions import Fraction
from functools import reduce
from typing import Any

import numpy as np

from halo_model import Grid
from reference import REDUCTIONS, ROW
from soak.comms import Comm, Topology
from soak.oracle import Arrays, Model
from soak.steps import Scope, Step

MOST_BYTES, THE_FIRST = "most_bytes", "the_first"  # of the user's (prelude.py)
DIFFERENTIABLE = ("SUM", "MAX", "MIN", "PROD")


# Reductions


def _takes(op: str) -> Callable[[np.dtype], bool]:
    if op in (MOST_BYTES, THE_FIRST):
        return lambda t: t.kind in "iu"
    return lambda t: ROW["allreduce"].takes(t, op=op)


def _fold(op: str, arrays: list[np.ndarray]) -> np.ndarray:
    if op == THE_FIRST:
        return arrays[0]
    if op == MOST_BYTES:
        most = reduce(np.maximum, [np.array(a, order="C")[..., None].view(np.uint8) for a in arrays])
        return most.view(arrays[0].dtype)[..., 0]
    return reduce(REDUCTIONS[op][0], arrays).astype(arrays[0].dtype)


# Of each reducing operation: the part of an operand that a rank's result is made of, and the ranks that take part in
# it; None where the result is the operand.
PARTS: dict[str, Callable[..., Any]] = {
    "allreduce": lambda rank, size, root: range(size),
    "reduce": lambda rank, size, root: range(size) if rank == root else None,
    "reduce_scatter": lambda rank, size, root: range(size),
    "scan": lambda rank, size, root: range(rank + 1),
    "exscan": lambda rank, size, root: range(rank),
}


def _part(name: str, x: np.ndarray, rank: int) -> np.ndarray:
    return x[rank] if name == "reduce_scatter" else x


def _reduced(name: str, comm: Comm, op: str, root: int) -> Model:
    def one(inputs: list[list[np.ndarray]], rank: int, w: int) -> list[np.ndarray]:
        taking = PARTS[name](rank, len(inputs), root)
        if taking is None:
            return [inputs[rank][0]]
        parts = [_part(name, inputs[r][0], rank) for r in taking]
        if parts:
            return [_fold(op, parts)]
        if op in (MOST_BYTES, THE_FIRST):
            return [np.zeros_like(inputs[rank][0])]
        return [ROW["exscan"].model(inputs, 0, op=op)]

    return comm.model(one)


def _extreme_at(name: str, comm: Comm, op: str, root: int) -> Callable[[list[Arrays]], Model]:
    """Return the derivative of MAX and MIN: that of those that hold the extreme, in equal shares."""

    def linear_at(at: list[Arrays]) -> Model:
        def one(inputs: list[list[np.ndarray]], rank: int, w: int) -> list[np.ndarray]:
            taking = PARTS[name](rank, len(inputs), root)
            if taking is None:
                return [inputs[rank][0]]
            if not taking:
                return [np.zeros_like(inputs[rank][0])]
            values, moved = (np.stack([_part(name, inputs[r][i], rank) for r in taking]) for i in (1, 0))
            holds = values == _fold(op, list(values))
            return [(holds * moved).sum(0) / holds.sum(0)]

        model = comm.model(one)
        return lambda arrays: model([*arrays, *at])

    return linear_at


def reduction(scope: Scope) -> None:
    core, comm = scope.core, scope.comm()
    name = core.choose(["allreduce", "allreduce", "reduce", "reduce_scatter", "scan", "exscan"])
    differentiable = DIFFERENTIABLE if core.products > 0 and not scope.depth else DIFFERENTIABLE[:3]
    op = core.choose(differentiable if core.derivative else [*REDUCTIONS, "SUM", "MAX", MOST_BYTES, THE_FIRST])
    if core.derivative and op in ("MAX", "MIN") and name == "exscan":
        name = "scan"  # the first rank would have an infinity, with which the oracle cannot form differences
    root = int(core.rng.integers(comm.least()))
    leaves = 2 if core.chance(0.2) else 1
    first = scope.pick(_takes(op), small=True)
    if first is None:
        return
    names = []
    for n in [first] + [scope.pick(_takes(op), small=True) for _ in range(leaves - 1)]:
        if name == "reduce_scatter":
            names.append(scope.fitted(n, _rows(comm, scope.shape(), core.size)))
        else:
            names.append(scope.even(n, comm))
    if core.derivative and op == "PROD":
        core.products -= 1
    arguments = f", {op if op in (MOST_BYTES, THE_FIRST) else 'MPI.' + op}" + (f", {root}" if name == "reduce" else "")
    scope.call(
        name,
        comm,
        [names],
        arguments,
        _reduced(name, comm, op, root),
        linear_at=_extreme_at(name, comm, op, root) if op in ("MAX", "MIN") else None,
        grown=True,
        replicated=name == "allreduce",
        starts=True,
    )


def crossed(scope: Scope) -> None:
    """Add two reductions, waited for in different orders on different ranks."""
    core, one = scope.core, scope.comm()
    comms = [one, scope.comm(lambda c: c is not one)]
    operands = [scope.pick(_takes("SUM"), small=True) for _ in comms]
    if None in (*comms, *operands):
        return
    for comm, x in zip(comms, operands, strict=True):
        scope.call(
            "iallreduce",
            comm,
            [[scope.even(x, comm)]],
            ", MPI.SUM",
            _reduced("allreduce", comm, "SUM", 0),
            grown=True,
            replicated=True,
            only_start=True,
        )
    pair = scope.pending[-2:]
    first = len(scope.steps)
    names = [scope.wait(r, called="wait")[0] for r in pair]
    orders = [core.choose([1, -1]) for _ in range(core.size)]
    orders[-1] = -orders[0]
    order = scope.each(orders)
    both = f"({pair[0].name}, {pair[1].name})[::{order}]"
    lines = [f"{names[0]}, {names[1]} = [mpixla.wait(r) for r in {both}][::{order}]"]
    texts = [(name, r.text(name)) for name, r in zip(names, pair, strict=True)]
    scope.steps[first].lines = lines + [f"{name} = {text}" for name, text in texts if text != name]
    core.ops["wait, crossed"] += 1


def _rows(comm: Comm, shape: tuple[int, ...], size: int) -> list[tuple[int, ...]]:
    """Return shapes with an entry of the first axis for each rank of the communicator."""
    return [(len(comm.place(w)[0]), *shape) for w in range(size)]


def is_ordered(t: np.dtype) -> bool:
    """Return whether MAXLOC and MINLOC accept the dtype."""
    return t.kind in "iuf" or t.name.startswith(("bfloat16", "float8_e5", "float8_e4"))


def greatest(scope: Scope, values: str) -> str:
    """Return the text of the values of a MAXLOC."""
    comm = scope.comm()
    values, made = scope.even(values, comm), scope.core.fresh("v")
    line = f"{made}, _ = mpixla.allreduce(({values}, jnp.zeros({values}.shape, int)), MPI.MAXLOC{comm.argument})"
    step = Step([line], [([values], [made])], _reduced("allreduce", comm, "MAX", 0))
    return scope.add(step, grown=values in scope.grown)[0]


def located(scope: Scope) -> None:
    """Add a MAXLOC or MINLOC: the extreme and the least place of those that hold it."""
    core, comm = scope.core, scope.comm()
    if core.derivative:
        return
    op, name = core.choose(["MAXLOC", "MINLOC"]), core.choose(["allreduce", "reduce", "reduce_scatter", "scan"])
    root = int(core.rng.integers(comm.least()))
    values = scope.pick(is_ordered)
    if values is None:
        return
    even = _rows(comm, scope.shape(), core.size) if name == "reduce_scatter" else None
    values = scope.fitted(values, even) if even else scope.even(values, comm)
    places = scope.pick(lambda t: t.kind in "iu", shapes=scope.shapes(values))
    if places is None:
        return

    def one(inputs: list[list[np.ndarray]], rank: int, w: int) -> list[np.ndarray]:
        taking = PARTS[name](rank, len(inputs), root)
        if taking is None:
            return inputs[rank]
        found, at = (np.stack([_part(name, inputs[r][i], rank) for r in taking]) for i in (0, 1))
        wide = found.astype(np.float64 if found.dtype.kind not in "iu" else found.dtype)
        extreme = (wide.max if op == "MAXLOC" else wide.min)(0)
        last = np.iinfo(at.dtype).max
        return [extreme.astype(found.dtype), np.where(wide == extreme, at, last).min(0).astype(at.dtype)]

    made = [core.fresh("v"), core.fresh("v")]
    core.ops[name] += 1
    core.types[scope.dtype(values).name] += 1
    arguments = f"MPI.{op}" + (f", {root}" if name == "reduce" else "")
    line = f"{made[0]}, {made[1]} = mpixla.{name}(({values}, {places}), {arguments}{comm.argument})"
    grown = values in scope.grown or places in scope.grown
    scope.add(Step([line], [([values, places], made)], comm.model(one)), grown=grown)


# What moves arrays. Models of most are rows of tests/reference.py.


def _row(name: str, comm: Comm, **variant: Any) -> Model:
    return comm.model(lambda inputs, rank, w: [ROW[name].model(inputs, rank, **variant)])


def _moved(scope: Scope, comm: Comm, leaves: int = 1, shapes: list[tuple[int, ...]] | None = None) -> Any:
    """Return leaves that an operation can move, and whether they travel as PRNG keys, whose data are two words each."""
    core = scope.core
    if not core.derivative and core.chance(0.07):
        keys = scope.pick(dtype=np.dtype(np.uint32))
        if keys is not None:
            front = shapes or [core.choose([(), (2,), (3,)])] * core.size
            return [scope.fitted(keys, [(*s, 2) for s in front])], True
    names = [scope.pick(shapes=shapes) for _ in range(leaves)]
    return [n if shapes else scope.even(n, comm) for n in names], False


def moving(scope: Scope) -> None:
    core, comm = scope.core, scope.comm()
    name = core.choose(["allgather", "alltoall", "bcast", "gather", "scatter"])
    root = int(core.rng.integers(comm.least()))
    leaves = 2 if core.chance(0.2) else 1
    if name == "alltoall":
        shapes = _rows(comm, scope.shape(), core.size)
    elif name == "scatter":
        rest = scope.shape()
        template = (int(np.prod(rest)),) if core.chance(0.3) else rest  # of as many items in any shape
        sizes = [comm.place(w) for w in range(core.size)]
        shapes = [(len(group), *rest) if rank == root else template for group, rank in sizes]
    else:
        shapes = None
    names, keys = _moved(scope, comm, leaves, shapes)
    model = _row(name, comm, **({"root": root} if name in ("bcast", "gather", "scatter") else {}))
    scope.call(
        name,
        comm,
        [names],
        f", {root}" if name in ("bcast", "gather", "scatter") else "",
        _as_the_template(model, comm, root) if name == "scatter" else model,
        replicated=name in ("allgather", "bcast"),
        starts=True,
        keys=keys,
    )


def _as_the_template(model: Model, comm: Comm, root: int) -> Model:
    """Return a model's result in the shape of the operand, where that is not the root's."""

    def shaped(arrays: list[Arrays]) -> list[Arrays]:
        (parts,) = model(arrays)
        places = [comm.place(w)[1] for w in range(len(parts))]
        return [[p if r == root else p.reshape(x.shape) for r, p, x in zip(places, parts, arrays[0], strict=True)]]

    return shaped


def _listed(comm: Comm, table: list[Any], size: int) -> str:
    """Return the text of the first entries of a list, one for each rank of the communicator."""
    return repr(table) if all(len(g) == size for g in comm.groups) else f"{table!r}[:{comm.size}]"


def vector(scope: Scope) -> None:
    """Add an operation whose parts differ between ranks."""
    core, comm = scope.core, scope.comm()
    name = core.choose(["allgatherv", "alltoallv", "gatherv", "scatterv"])
    least = 1 if core.derivative or scope.batched else 0
    root = int(core.rng.integers(comm.least()))
    rest = core.choose([(), (2,), (1, 2)])
    places = [comm.place(w) for w in range(core.size)]
    if name == "alltoallv":
        rows = core.rng.integers(least, 3, (core.size, core.size))
        sent = [rows[rank, : len(group)] for group, rank in places]
        columns = rows.T.tolist()
        name_in = scope.pick(shapes=[(int(s.sum()), *rest) for s in sent])
        cut = "" if all(len(g) == core.size for g in comm.groups) else f"[:{comm.size}]"
        arguments = f", {rows.tolist()}[{comm.rank}]{cut}, {columns}[{comm.rank}]{cut}"

        def exchanged(inputs: list[list[np.ndarray]], rank: int, w: int) -> list[np.ndarray]:
            size = len(inputs)
            starts = np.concatenate([np.zeros((core.size, 1), int), np.cumsum(rows, 1)], 1)
            return [np.concatenate([inputs[r][0][starts[r, rank] : starts[r, rank + 1]] for r in range(size)])]

        scope.call(name, comm, [[name_in]], arguments, comm.model(exchanged), starts=True)
        return
    counts = core.rng.integers(least, 4, core.size).tolist()
    whole = name == "scatterv"
    shapes = [(sum(counts[: len(group)]) if whole and rank == root else counts[rank], *rest) for group, rank in places]
    name_in = scope.pick(shapes=shapes)

    def one(inputs: list[list[np.ndarray]], rank: int, w: int) -> list[np.ndarray]:
        if name == "scatterv":
            start = sum(counts[:rank])
            return [inputs[root][0][start : start + counts[rank]]]
        if name == "gatherv" and rank != root:
            return [inputs[rank][0]]
        return [np.concatenate([own[0] for own in inputs])]

    arguments = f", {_listed(comm, counts, core.size)}" + ("" if name == "allgatherv" else f", {root}")
    scope.call(name, comm, [[name_in]], arguments, comm.model(one), replicated=name == "allgatherv")


def _exact(column: list[float]) -> float:
    return float(sum(map(Fraction, column))) if np.isfinite(column).all() else float(np.sum(column))


def summed(scope: Scope) -> None:
    """Add exact sums along the first axis, in which ranks differ, and over all ranks."""
    core, comm = scope.core, scope.comm()
    rest = core.choose([(), (2,), (1, 2)])
    least = 1 if core.derivative or scope.batched else 0
    rows = core.rng.integers(least, 4, core.size).tolist()
    name_in = scope.pick(dtype=np.dtype(np.float64), shapes=[(n, *rest) for n in rows], small=True)
    if name_in is None:
        return

    def one(inputs: list[list[np.ndarray]], rank: int, w: int) -> list[np.ndarray]:
        columns = np.concatenate([own[0] for own in inputs]).reshape(-1, int(np.prod(rest)))
        sums = [_exact(column.tolist()) for column in columns.T]
        return [np.reshape(np.array(sums), inputs[rank][0].shape[1:])]

    scope.call("fsum", comm, [[name_in]], ", 0", comm.model(one), grown=True, replicated=True)


def _with_topology(comm: Comm) -> bool:
    return comm.topology is not None


def neighbors(scope: Scope) -> None:
    core, comm = scope.core, scope.comm(_with_topology)
    if comm is None:
        return
    topology: Topology = comm.topology  # type: ignore[assignment]
    name = core.choose(["neighbor_allgather", "neighbor_alltoall", "neighbor_alltoallv"])
    slots = [len(d) for d in topology.dests]
    item = core.choose([(), (2,), (1, 2)])
    counts = [core.rng.integers(0, 3, n).tolist() for n in slots]
    recvcounts = [
        [
            int(core.rng.integers(0, 2)) if edge is None else counts[comm.place(w)[0][edge[0]]][edge[1]]
            for edge in topology.sources[w]
        ]
        for w in range(core.size)
    ]
    arguments, keys = "", False
    if name == "neighbor_allgather":
        (operand,), keys = _moved(scope, comm, 1, [item] * core.size)
    else:
        rows = slots if name == "neighbor_alltoall" else [sum(c) for c in counts]
        if (core.derivative or scope.batched) and not all(rows):  # an array of nothing depends on nothing
            return
        operand = scope.pick(shapes=[(n, *item) for n in rows])
        if name == "neighbor_alltoallv":
            arguments = f", {scope.each(counts)}, {scope.each(recvcounts)}"

    def one(inputs: list[list[np.ndarray]], rank: int, w: int) -> list[np.ndarray]:
        own = inputs[rank][0]
        rest = own.shape if name == "neighbor_allgather" else own.shape[1:]
        pieces = [np.zeros((0, *rest), own.dtype)]
        for edge, count in zip(topology.sources[w], recvcounts[w], strict=True):
            lines = 1 if name != "neighbor_alltoallv" else count
            if edge is None:
                pieces.append(np.zeros((lines, *rest), own.dtype))
                continue
            x, there = inputs[edge[0]][0], comm.place(w)[0][edge[0]]
            if name == "neighbor_allgather":
                pieces.append(x[None])
            elif name == "neighbor_alltoall":
                pieces.append(x[edge[1]][None])
            else:
                start = sum(counts[there][: edge[1]])
                pieces.append(x[start : start + count])
        return [np.concatenate(pieces)]

    scope.call(name, comm, [[operand]], arguments, comm.model(one), keys=keys)


def halo(scope: Scope) -> None:
    core, comm = scope.core, scope.comm(lambda c: _with_topology(c) and c.topology.dims is not None)
    if comm is None:
        return
    topology: Topology = comm.topology  # type: ignore[assignment]
    dimensions = len(topology.periods)
    widths = tuple(int(n) for n in core.rng.integers(0, 2 if core.derivative or dimensions > 1 else 3, dimensions))
    if not any(widths):  # which is refused
        widths = (1, *widths[1:])
    ndim = dimensions + int(core.rng.integers(0, 2))
    axes = tuple(int(a) for a in core.rng.permutation(ndim)[:dimensions])
    grids = [Grid(dims, topology.periods, widths, axes, ndim) for dims in topology.dims]  # type: ignore[union-attr]
    shapes = [grids[w].shape(comm.place(w)[1]) for w in range(core.size)]
    leaves = [scope.pick(shapes=shapes) for _ in range(2 if core.chance(0.3) else 1)]
    signed = [a - ndim if core.chance(0.3) else a for a in axes]
    plain = signed == list(range(dimensions)) and core.chance(0.5)
    one_width = len(set(widths)) == 1 and core.chance(0.5)
    arguments = f", width={widths[0] if one_width else list(widths)}" + ("" if plain else f", axes={signed}")

    def one(inputs: list[list[np.ndarray]], rank: int, w: int) -> list[np.ndarray]:
        return [grids[w].exchanged([own[0] for own in inputs], rank)]

    scope.call(core.choose(["halo_exchange", "in_halves"]), comm, [leaves], arguments, comm.model(one))


# Messages


def _ring_or_line(scope: Scope, comm: Comm) -> tuple[str, str, Callable[[int, int, int], int | None]]:
    """Return the texts of a source and of a destination that fit together on all ranks, and the source of a rank."""
    core = scope.core
    rank, size = comm.rank, comm.size
    if comm.topology is not None and comm.topology.dims is not None and core.chance(0.6):
        axis, topology = int(core.rng.integers(len(comm.topology.periods))), comm.topology
        shift = f"{comm.name}.Shift({axis}, 1)"
        return f"{shift}[0]", f"{shift}[1]", lambda r, n, w: topology.dests[w][2 * axis]
    if core.chance(0.3):
        below, above = (
            f"{rank} - 1 if {rank} > 0 else MPI.PROC_NULL",
            f"{rank} + 1 if {rank} + 1 < {size} else MPI.PROC_NULL",
        )
        return f"({below})", f"({above})", lambda r, n, w: r - 1 if r else None
    step = int(core.rng.integers(0, 3))
    return f"({rank} - {step}) % {size}", f"({rank} + {step}) % {size}", lambda r, n, w: (r - step) % n


def _arrived(source: Callable[[int, int, int], int | None]) -> Callable[..., list[np.ndarray]]:
    """Return a rank's array after a message: the template, with the message in front."""

    def one(inputs: list[list[np.ndarray]], rank: int, w: int) -> list[np.ndarray]:
        result = inputs[rank][1].copy()
        sender = source(rank, len(inputs), w)
        if sender is not None:
            message = inputs[sender][0].ravel()
            result.reshape(-1)[: message.size] = message
        return [result]

    return one


def _message_and_template(scope: Scope, comm: Comm) -> tuple[str, str] | None:
    """Return a message and a template that may be longer."""
    core = scope.core
    message = scope.pick()
    if message is None:
        return None
    message = scope.even(message, comm)
    if core.derivative == "reverse" or core.chance(0.7):  # the cotangent of the template would be too long to go back
        return message, scope.pick(dtype=scope.dtype(message), shapes=scope.shapes(message))
    longer = [(np.prod(s, dtype=int).item() + int(core.rng.integers(0, 3)),) for s in scope.shapes(message)]
    even = [longer[comm.place(w)[0][0]] for w in range(core.size)]
    return message, scope.pick(dtype=scope.dtype(message), shapes=even)


def _tags(scope: Scope, plain: str = "tag") -> tuple[str, str, int]:
    """Return the text of the tags to send and to receive with."""
    tag = scope.core.names["tag"] = scope.core.names["tag"] + 1
    any_tag = not scope.anything_pending() and scope.core.chance(0.2)
    return f"{tag}", "MPI.ANY_TAG" if any_tag else f"{tag}", tag


def _status(scope: Scope, comm: Comm, source: Callable[..., int | None], message: str, tag: int) -> str:
    """Return the text of a status object, or "", with its expected content."""
    core = scope.core
    if scope.depth or scope.batched or core.derivative or not core.chance(0.4):
        return ""
    expected: list[tuple[int | None, int, int]] = []
    for w in range(core.size):
        group, rank = comm.place(w)
        sender = source(rank, len(group), w)
        expected.append((None, 0, 0) if sender is None else (sender, tag, scope.arrays(message)[group[sender]].nbytes))
    name = core.fresh("status")
    core.statuses.append((name, expected))
    return f", status={name}"


def sendrecv(scope: Scope) -> None:
    core, comm = scope.core, scope.comm()
    pair = _message_and_template(scope, comm)
    if pair is None:
        return
    source_text, dest_text, source = _ring_or_line(scope, comm)
    sendtag, recvtag, tag = _tags(scope)
    starts = core.chance(0.4)
    op = "isendrecv" if starts else "sendrecv"
    status = "" if starts else _status(scope, comm, source, pair[0], tag)
    if (
        core.derivative != "reverse"
        and core.chance(0.2)
        and "PROC_NULL" not in source_text
        and "Shift" not in source_text
    ):
        source_text = "MPI.ANY_SOURCE"
        recvtag = sendtag  # with any tag, a later message of a third rank, which is ahead, would match too
    arguments = f", {source_text}, {dest_text}, sendtag={sendtag}, recvtag={recvtag}{status}"
    scope.call(op, comm, [[n] for n in pair], arguments, comm.model(_arrived(source)), only_start=starts)


def shift(scope: Scope) -> None:
    core, comm = scope.core, scope.comm()
    x = scope.pick()
    if x is None:
        return
    if comm.topology is not None and comm.topology.dims is not None:
        axis, dests = int(core.rng.integers(len(comm.topology.periods))), comm.topology.dests
        arguments = f", 1, dimension={axis}"

        def source(r: int, n: int, w: int) -> int | None:
            return dests[w][2 * axis]
    else:
        disp = int(core.rng.integers(-2, 3))
        arguments = f", {disp}"

        def source(r: int, n: int, w: int) -> int | None:
            return (r - disp) % n

    def one(inputs: list[list[np.ndarray]], rank: int, w: int) -> list[np.ndarray]:
        sender = source(rank, len(inputs), w)
        return [inputs[rank if sender is None else sender][0].copy()]

    scope.call("shift", comm, [[scope.even(x, comm)]], arguments, comm.model(one))


Index = tuple[int | slice, ...]


def _box(scope: Scope, shape: tuple[int, ...]) -> Index:
    """Return a number or a slice for each axis."""
    core, index = scope.core, []
    for n in shape:
        first = int(core.rng.integers(n))
        last = int(core.rng.integers(first + 1, n + 1))
        index.append(first if core.chance(0.5) else slice(0, n) if core.chance(0.4) else slice(first, last))
    return tuple(index)


def _boxes(scope: Scope, shape: tuple[int, ...]) -> tuple[Index, Index]:
    """Return a box to send, and one to receive it, which may be longer where no cotangent has to go back."""
    like = np.empty(shape)
    to = _box(scope, shape)
    for _ in range(20):
        box = _box(scope, shape)
        longer = like[to].size - like[box].size
        if longer == 0 or (longer > 0 and scope.core.derivative != "reverse" and scope.core.chance(0.2)):
            return box, to
    return to, to


def _as_slices(index: Index) -> Index:
    return tuple(i if isinstance(i, slice) else slice(i, i + 1) for i in index)


def _index_text(index: Index) -> str:
    return ", ".join(f"{i.start}:{i.stop}" if isinstance(i, slice) else str(i) for i in index)


def windows(scope: Scope) -> None:
    """Add exchanges of boxes of an array: one after the other, or all at once, in either order."""
    core, comm = scope.core, scope.comm()
    shape = core.choose([(4,), (3, 4), (2, 3, 3), (2, 2, 3, 2)])
    x = scope.pick()
    if x is None:
        return
    x = scope.fitted(x, [shape] * core.size)
    made, in_turn, at_run_time = core.fresh("v"), core.chance(0.5), not core.derivative and core.chance(0.2)
    lines, moves = [f"{made} = {x}"], []
    updates = []
    for _ in range(core.rng.integers(1, 4)):
        box, to = _boxes(scope, shape)
        if at_run_time:
            box, to = _as_slices(box), _as_slices(to)
        source_text, dest_text, source = _ring_or_line(scope, comm)
        sendtag, _, _ = _tags(scope)
        constant = core.chance(0.5)
        received = core.fresh("v")
        there = f"{made}[{_index_text(to)}]"
        template = f"jnp.full_like({there}, 1)" if constant else there
        sent = f"{made}[{_index_text(box)}]"
        if at_run_time:
            first = ", ".join(f"jnp.where({x}.ravel()[0] == 1, {i.start}, {i.start})" for i in box)
            size = tuple(i.stop - i.start for i in box)
            sent = f"jax.lax.dynamic_slice({made}, [{first}], {size})"
        lines.append(
            f"{received} = mpixla.sendrecv({sent}, {template}, {source_text}, {dest_text}, "
            f"sendtag={sendtag}, recvtag={sendtag}{comm.argument})"
        )
        updates.append(f"{made} = {made}.at[{_index_text(to)}].set({received})")
        if in_turn:
            lines.append(updates[-1])
        moves.append((box, to, constant, _arrived(source)))
        core.ops["sendrecv"] += 1
    core.types[scope.dtype(x).name] += 1
    order = core.rng.permutation(len(moves)).tolist()
    if not in_turn:
        lines += [updates[i] for i in order]

    def one(arrays: Arrays, move: tuple[Any, ...], rank: int, w: int) -> np.ndarray:
        box, to, constant, arrived = move
        templates = [np.array(np.ones_like(a[to]) if constant else a[to]) for a in arrays]
        return arrived([[np.array(a[box]), t] for a, t in zip(arrays, templates, strict=True)], rank, w)[0]

    def exchanged(inputs: list[list[np.ndarray]], world: list[int]) -> Arrays:
        arrays = [np.array(own[0]) for own in inputs]
        received = []
        for i, move in enumerate(moves):
            received.append([one(arrays, move, rank, w) for rank, w in enumerate(world)])
            if in_turn:
                for a, new in zip(arrays, received[i], strict=True):
                    a[move[1]] = new
        for i in [] if in_turn else order:
            for a, new in zip(arrays, received[i], strict=True):
                a[moves[i][1]] = new
        return arrays

    def model(operands: list[Arrays]) -> list[Arrays]:
        result: list[Any] = [None] * core.size
        for group in comm.groups:
            own = [[operands[0][w]] for w in group]
            for w, a in zip(group, exchanged(own, list(group)), strict=True):
                result[w] = a
        return [result]

    scope.add(Step(lines, [([x], [made])], model), grown=x in scope.grown)


def exchange(scope: Scope) -> None:
    """Add an irecv and an isend, each with a request of its own."""
    comm = scope.comm()
    if not _both_or_none(scope):
        return
    pair = _message_and_template(scope, comm)
    if pair is None:
        return
    source_text, dest_text, source = _ring_or_line(scope, comm)
    sendtag, _, _ = _tags(scope)
    message, template = pair
    model = comm.model(_arrived(source))
    # What arrives depends on what others send, so the oracle's operands are both; the call has the template.
    scope.call("irecv", comm, [[message], [template]], f", {source_text}, tag={sendtag}", model, only_start=True)
    start = scope.steps[-1]
    start.lines = [start.lines[0].replace(f"irecv({message}, {template}", f"irecv({template}")]
    scope.call("isend", comm, [[message]], f", {dest_text}, tag={sendtag}", lambda arrays: arrays, only_start=True)


def messages(scope: Scope) -> None:
    """Add messages one after the other, each from one rank to one rank, to itself as well."""
    core, comm = scope.core, scope.comm()
    mine = scope.pick() if _both_or_none(scope) else None
    if mine is None:
        return
    mine = scope.even(mine, comm)
    least = comm.least()
    pairs = [(int(a), int(b)) for a, b in core.rng.integers(0, least, (core.rng.integers(1, 4), 2))]
    senders: dict[int, set[int]] = {}
    for a, b in pairs:
        senders.setdefault(b, set()).add(a)
    any_source = core.derivative != "reverse" and core.chance(0.3) and all(len(s) == 1 for s in senders.values())
    sendtag, recvtag, _ = _tags(scope)
    if core.derivative == "reverse" or any_source:
        # The cotangent of a message under any tag goes back under 0, which isend does not wait for. From any source, a
        # later message of a third rank, which is ahead, would match any tag too.
        recvtag = sendtag
    made = core.fresh("v")
    source = "MPI.ANY_SOURCE" if any_source else "source"
    by_request = core.derivative == "reverse" or core.chance(0.3)
    core.ops["isend" if by_request else "send"] += len(pairs)
    core.ops["recv"] += len(pairs)
    core.types[scope.dtype(mine).name] += 1
    receive = f"    {made} = mpixla.recv({made}, {source}, tag={recvtag}{comm.argument})"
    lines = [f"{made} = {mine}", f"for source, dest in {pairs}:", f"    if {comm.rank} == source:"]
    if by_request:
        lines += [f"        sending = mpixla.isend({made}, dest, tag={sendtag}{comm.argument})"]
    else:
        lines += [f"        mpixla.send({made}, dest, tag={sendtag}{comm.argument})"]
    lines += [f"    if {comm.rank} == dest:", f"    {receive}"]
    if by_request:
        lines += [f"    if {comm.rank} == source and source != dest:", f"        {made} = mpixla.wait(sending)"]
        lines += [f"    elif {comm.rank} == source:", "        mpixla.wait(sending)"]

    def one(inputs: list[list[np.ndarray]], rank: int, w: int) -> list[np.ndarray]:
        held = [own[0] for own in inputs]
        for a, b in pairs:
            held[b] = held[a]
        return [held[rank]]

    scope.add(Step(lines, [([mine], [made])], comm.model(one)), grown=mine in scope.grown)


def barrier(scope: Scope) -> None:
    comm = scope.comm()
    scope.core.ops["barrier"] += 1
    scope.add(Step([f"mpixla.barrier({comm.argument.removeprefix(', ')})"], [], lambda arrays: []))


def _both_or_none(scope: Scope) -> bool:
    """Return whether the two calls of a message have the same batch in reverse mode.

    JAX gives a cotangent of zeros no batch, so where one end's result is not used the ends may differ.
    """
    return not (scope.batched and scope.core.derivative == "reverse")


# Requests


def waiting(scope: Scope) -> None:
    core = scope.core
    if not scope.pending:
        return
    work = scope.pick() if core.chance(0.5) else None
    if len(scope.pending) > 1 and core.chance(0.6):
        scope.waitall(work)
    else:
        scope.wait(core.choose(scope.pending), work)


# What a rank computes


def local(scope: Scope) -> None:
    core = scope.core
    if core.derivative:
        kind = core.choose(
            ["add", "scale", "flip", "join", *(["multiply"] if core.products > 0 and not scope.depth else [])]
        )
    else:
        # JAX's derivatives and batches of a layout are wrong.
        laid_out = [] if scope.batched else ["columns_first"]
        kind = core.choose(["add", "multiply", "flip", "join", *laid_out])
    x = scope.pick(
        lambda t: t.name != "float8_e8m0fnu" or kind not in ("add", "multiply", "scale"),
        small=kind in ("add", "multiply"),
    )
    if x is None:
        return
    grown = x in scope.grown
    if kind == "scale":
        scope.local(f"{x} * 0.5 + 1", [x], lambda a: a * 0.5 + 1, grown=True)
    elif kind == "flip":
        scope.local(f"{x}.T", [x], lambda a: a.T, grown=grown)
    elif kind == "columns_first":
        scope.local(f"columns_first({x})", [x], lambda a: a, grown=grown)
    elif kind == "join":
        y = scope.pick(dtype=scope.dtype(x))
        scope.local(
            f"jnp.concatenate([{x}.ravel(), {y}.ravel()])",
            [x, y],
            lambda a, b: np.concatenate([a.ravel(), b.ravel()]),
            grown=grown or y in scope.grown,
        )
    else:
        y = scope.pick(dtype=scope.dtype(x), shapes=scope.shapes(x), small=True)
        if core.derivative and kind == "multiply":
            core.products -= 1
        sign, function = {"add": ("+", np.add), "multiply": ("*", np.multiply)}[kind]
        scope.local(f"{x} {sign} {y}", [x, y], lambda a, b: function(a, b).astype(a.dtype), grown=True)


OPERATIONS: list[tuple[float, Callable[[Scope], None]]] = [
    (3, reduction),
    (0.6, located),
    (0.6, crossed),
    (0.8, summed),
    (3, moving),
    (2, vector),
    (2, neighbors),
    (1.5, halo),
    (1.5, sendrecv),
    (0.8, shift),
    (1.5, windows),
    (1, exchange),
    (1.5, messages),
    (0.4, barrier),
    (1.5, waiting),
    (1.5, local),
]
