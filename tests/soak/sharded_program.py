"""Programs on arrays that JAX spreads over the ranks: drawn by a seed and a number, as text, and what they must give.

A program is a function of whole arrays, for jax.jit. Parts of it are inside jax.shard_map, with collectives of JAX's
and operations of mpixla's in any order, most of them without data between them. All numbers are small integers, with
which every type computes exactly, in any order. In NumPy what is inside is a list of arrays, one for each device.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Shards = list[np.ndarray]
Spec = list[tuple[str, ...]]  # the axes of the mesh along each axis of an array

START = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from mpi4py import MPI
import mpixla
"""

# JAX's types say over which axes a value varies, and its collectives take those that do.
VARY = """
def vary(x):
    for name in {names}:
        try:
            x = jax.lax.pcast(x, name, to="varying")
        except ValueError:  # it varies already
            pass
    return x
"""


@dataclass
class Grid:
    """The mesh: ranks, and the sizes of its axes."""

    ranks: list[int]
    sizes: dict[str, int]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.sizes)

    def place(self, device: int) -> dict[str, int]:
        return dict(zip(self.sizes, np.unravel_index(device, tuple(self.sizes.values())), strict=True))

    def count(self, axes: Sequence[str]) -> int:
        return int(np.prod([self.sizes[a] for a in axes], dtype=int))

    def position(self, device: int, axes: Sequence[str]) -> int:
        """Return the place along several axes, as JAX counts it: the first one slowest."""
        place, result = self.place(device), 0
        for a in axes:
            result = result * self.sizes[a] + int(place[a])
        return result

    def group(self, device: int, axes: Sequence[str]) -> list[int]:
        """Return the devices that differ from this one along these axes only, in their order along them."""
        mine = self.place(device)
        same = [
            d for d in range(len(self.ranks)) if all(self.place(d)[a] == mine[a] for a in self.names if a not in axes)
        ]
        return sorted(same, key=lambda d: self.position(d, axes))

    def cut(self, x: np.ndarray, spec: Spec, device: int) -> np.ndarray:
        """Return the part of a whole array that a device has."""
        for axis, names in enumerate(spec):
            x = np.split(x, self.count(names), axis)[self.position(device, names)]
        return x

    def join(self, shards: Shards, spec: Spec) -> np.ndarray:
        parts = [self.count(names) for names in spec]
        whole = np.zeros([n * s for n, s in zip(shards[0].shape, parts, strict=True)], shards[0].dtype)
        for device, shard in enumerate(shards):
            self.cut(whole, spec, device)[...] = shard
        return whole


def text_of(spec: Spec) -> str:
    parts = [repr(names[0]) if len(names) == 1 else repr(names) if names else "None" for names in spec]
    return f"P({', '.join(parts)})"


@dataclass
class Drawing:
    """The part of a program that is drawn so far."""

    rng: np.random.Generator
    grid: Grid
    linear: bool
    lines: list[str] = field(default_factory=list)
    comms: dict[tuple[str, ...], str] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    names: int = 0

    def fresh(self, letter: str) -> str:
        self.names += 1
        return f"{letter}{self.names}"

    def choose(self, options: Sequence[Any]) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def axes(self) -> tuple[str, ...]:
        """Return some axes of the mesh, in its order."""
        names = self.grid.names
        return names if len(names) == 1 or self.chance(0.5) else (self.choose(names),)

    def comm(self, axes: tuple[str, ...]) -> str:
        """Return a ring of the devices along these axes, in a variable of its own."""
        return self.comms.setdefault(axes, f"comm_{'_'.join(axes)}")


def _tamed(d: Drawing, text: str) -> str:
    return text if d.linear else f"jnp.mod({text}, 7)"


def _tame(d: Drawing, x: np.ndarray) -> np.ndarray:
    return x if d.linear else np.mod(x, 7).astype(x.dtype)


# Inside jax.shard_map. Each step draws a text, and the function from all devices' arrays to theirs.


@dataclass
class Part:
    """Variables inside of a shard_map, with one shape on all devices, and how they are made."""

    drawing: Drawing
    lines: list[str] = field(default_factory=list)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    steps: list[tuple[str, list[str], Callable[..., Shards]]] = field(default_factory=list)
    indent: str = "    "

    def pick(self) -> str:
        return self.drawing.choose(list(self.shapes))

    def add(self, text: str, operands: list[str], shape: Sequence[int], model: Callable[..., Shards]) -> str:
        name = self.drawing.fresh("v")
        self.lines.append(f"{self.indent}{name} = {text}")
        self.shapes[name] = tuple(shape)
        self.steps.append((name, operands, model))
        return name

    def run(self, env: dict[str, Shards]) -> None:
        for name, operands, model in self.steps:
            env[name] = model(*(env[o] for o in operands))


def _by_group(d: Drawing, axes: Sequence[str], of: Callable[[Shards, int], np.ndarray]) -> Callable[[Shards], Shards]:
    """Return a model from one of a group: all its arrays, and a place in it."""
    grid = d.grid

    def model(x: Shards) -> Shards:
        return [of([x[g] for g in grid.group(i, axes)], grid.position(i, axes)) for i in range(len(x))]

    return model


def _local(p: Part) -> None:
    d, a = p.drawing, p.pick()
    others = [n for n in p.shapes if p.shapes[n] == p.shapes[a]]
    b, k = d.choose(others), int(d.rng.integers(1, 4))
    p.add(
        _tamed(d, f"{a} * {k} - {b}"),
        [a, b],
        p.shapes[a],
        lambda x, y: [_tame(d, i * k - j) for i, j in zip(x, y, strict=True)],
    )


def _turned(p: Part) -> None:
    a = p.pick()
    p.add(f"{a}.T", [a], p.shapes[a][::-1], lambda x: [i.T for i in x])


def _indexed(p: Part) -> None:
    d, a, axes = p.drawing, p.pick(), p.drawing.axes()
    names = axes[0] if len(axes) == 1 else axes
    k = _by_group(d, axes, lambda xs, i: _tame(d, (xs[i] * (i + 1)).astype(xs[i].dtype)))
    text = f"{a} * (jax.lax.axis_index({names!r}) + 1).astype({a}.dtype)"
    p.add(_tamed(d, text), [a], p.shapes[a], k)


def _reduced(p: Part) -> None:
    d, a, axes = p.drawing, p.pick(), p.drawing.axes()
    name, ufunc = d.choose(
        [("psum", np.add)] if d.linear else [("psum", np.add), ("pmax", np.maximum), ("pmin", np.minimum)]
    )
    d.used.add(name)
    p.add(
        _tamed(d, f"jax.lax.{name}(vary({a}), {axes!r})"),
        [a],
        p.shapes[a],
        _by_group(d, axes, lambda xs, i: _tame(d, ufunc.reduce(xs).astype(xs[0].dtype))),
    )


def _gathered(p: Part) -> None:
    d, a, axes = p.drawing, p.pick(), p.drawing.axes()
    axis, n, shape = int(d.rng.integers(2)), d.grid.count(axes), list(p.shapes[a])
    shape[axis] *= n
    if np.prod(shape) > 20000:
        return
    d.used.add("all_gather")
    p.add(
        f"jax.lax.all_gather(vary({a}), {axes!r}, axis={axis}, tiled=True)",
        [a],
        shape,
        _by_group(d, axes, lambda xs, i: np.concatenate(xs, axis)),
    )


def _scattered(p: Part) -> None:
    d, a, axes = p.drawing, p.pick(), p.drawing.axes()
    axis, n, shape = int(d.rng.integers(2)), d.grid.count(axes), list(p.shapes[a])
    if shape[axis] % n:
        return
    shape[axis] //= n
    d.used.add("psum_scatter")
    text = f"jax.lax.psum_scatter(vary({a}), {axes!r}, scatter_dimension={axis}, tiled=True)"
    p.add(
        _tamed(d, text),
        [a],
        shape,
        _by_group(d, axes, lambda xs, i: _tame(d, np.split(np.add.reduce(xs), n, axis)[i].astype(xs[0].dtype))),
    )


def _swapped(p: Part) -> None:
    d, a, axes = p.drawing, p.pick(), p.drawing.axes()
    split, to, n, shape = int(d.rng.integers(2)), int(d.rng.integers(2)), d.grid.count(axes), list(p.shapes[a])
    if shape[split] % n:
        return
    shape[split] //= n
    shape[to] *= n
    d.used.add("all_to_all")
    text = f"jax.lax.all_to_all(vary({a}), {axes!r}, {split}, {to}, tiled=True)"
    p.add(
        text, [a], shape, _by_group(d, axes, lambda xs, i: np.concatenate([np.split(x, n, split)[i] for x in xs], to))
    )


def _permuted(p: Part) -> None:
    d, a = p.drawing, p.pick()
    axis = d.choose(d.grid.names)
    n = d.grid.sizes[axis]
    count = int(d.rng.integers(1, n + 1))
    pairs = list(zip(d.rng.permutation(n)[:count].tolist(), d.rng.permutation(n)[:count].tolist(), strict=True))
    source = {to: at for at, to in pairs}
    d.used.add("ppermute")
    p.add(
        f"jax.lax.ppermute(vary({a}), {axis!r}, {pairs})",
        [a],
        p.shapes[a],
        _by_group(d, (axis,), lambda xs, i: xs[source[i]] if i in source else np.zeros_like(xs[i])),
    )


def _of_mpixla(p: Part) -> None:
    """Return one of mpixla's operations, on a ring."""
    d, a, axes = p.drawing, p.pick(), p.drawing.axes()
    comm, n, shape = d.comm(axes), d.grid.count(axes), list(p.shapes[a])
    k, step = int(d.rng.integers(n)), int(d.rng.integers(0, 3))
    there = f"source=({comm}.rank - {step}) % {n}, dest=({comm}.rank + {step}) % {n}"
    kinds: list[tuple[str, str, list[int], Callable[[Shards, int], np.ndarray]]] = [
        ("allreduce", f"mpixla.allreduce({a}, MPI.SUM, comm={comm})", shape, lambda xs, i: np.add.reduce(xs)),
        (
            "iallreduce",
            f"mpixla.wait(mpixla.iallreduce({a}, MPI.SUM, comm={comm}))",
            shape,
            lambda xs, i: np.add.reduce(xs),
        ),
        ("scan", f"mpixla.scan({a}, MPI.SUM, comm={comm})", shape, lambda xs, i: np.add.reduce(xs[: i + 1])),
        ("bcast", f"mpixla.bcast({a}, {k}, comm={comm})", shape, lambda xs, i: xs[k]),
        ("sendrecv", f"mpixla.sendrecv({a}, {a}, {there}, comm={comm})", shape, lambda xs, i: xs[(i - step) % n]),
        (
            "isendrecv",
            f"mpixla.wait(mpixla.isendrecv({a}, {a}, {there}, comm={comm}))",
            shape,
            lambda xs, i: xs[(i - step) % n],
        ),
        (
            "allgather",
            f"mpixla.allgather({a}, comm={comm}).sum(0, dtype={a}.dtype)",
            shape,
            lambda xs, i: np.add.reduce(xs),
        ),
        (
            "halo_exchange",
            f"mpixla.halo_exchange(jnp.pad({a}, ((1, 1), (0, 0))), {comm}, axes=(0,))",
            [shape[0] + 2, shape[1]],
            lambda xs, i: np.concatenate([xs[i - 1][-1:], xs[i], xs[(i + 1) % n][:1]]),
        ),
    ]
    if shape[0] == n:
        kinds.append(
            ("alltoall", f"mpixla.alltoall({a}, comm={comm})", shape, lambda xs, i: np.stack([x[i] for x in xs]))
        )
    if shape[0] % n == 0:
        m = shape[0] // n
        kinds.append(
            (
                "reduce_scatter",
                f"mpixla.reduce_scatter({a}.reshape({n}, {m}, {shape[1]}), MPI.SUM, comm={comm})",
                [m, shape[1]],
                lambda xs, i: np.split(np.add.reduce(xs), n)[i],
            )
        )
    name, text, shape, of = d.choose(kinds)
    d.used.add(f"mpixla.{name}")
    p.add(_tamed(d, text), [a], shape, _by_group(d, axes, lambda xs, i: _tame(d, of(xs, i).astype(xs[i].dtype))))


def _looped(p: Part) -> None:
    """Return a loop, with a few steps in it that keep the shape."""
    d, a = p.drawing, p.pick()
    if p.indent != "    ":
        return
    inner = Part(d, shapes={(parameter := d.fresh("a")): p.shapes[a]}, indent=p.indent + "    ")
    while len(inner.steps) < 2:
        d.choose([_local, _reduced, _permuted, _of_mpixla, _indexed])(inner)
    result = [n for n in inner.shapes if inner.shapes[n] == p.shapes[a]][-1]
    times, body = int(d.rng.integers(1, 4)), d.fresh("f")
    p.lines += [f"{p.indent}def {body}({parameter}):", *inner.lines, f"{inner.indent}return vary({result})"]

    def model(x: Shards) -> Shards:
        for _ in range(times):
            env = {parameter: x}
            inner.run(env)
            x = env[result]
        return x

    d.used.add("fori_loop")
    text = d.choose(
        [
            f"jax.lax.fori_loop(0, {times}, lambda _, a: {body}(a), vary({a}))",
            f"jax.lax.scan(lambda a, _: ({body}(a), None), vary({a}), None, {times})[0]",
        ]
    )
    p.add(text, [a], p.shapes[a], model)


STEPS = [
    (2, _local),
    (0.5, _turned),
    (1, _indexed),
    (2, _reduced),
    (1, _gathered),
    (1, _scattered),
    (1, _swapped),
    (1.5, _permuted),
    (5, _of_mpixla),
    (0.7, _looped),
]


def _spec(d: Drawing, shape: tuple[int, ...], every: bool = False) -> Spec:
    """Return the axes of the mesh for each axis of an array that they divide; with `every`, all of them somewhere."""
    spec: list[list[str]] = [[] for _ in shape]
    for name in d.rng.permutation(d.grid.names).tolist():
        places = [*range(len(shape)), *([] if every else [None])]
        place = d.choose(places)
        if place is not None and (every or shape[place] % (d.grid.count(spec[place]) * d.grid.sizes[name]) == 0):
            spec[place].append(name)
    return [tuple(names) for names in spec]


# Outside of it: whole arrays.


@dataclass
class Program:
    """One program."""

    seed: int
    number: int
    grid: Grid
    linear: bool
    inputs: list[tuple[np.ndarray, Spec]]
    script: str  # `program(*inputs)` is to be called by all ranks of the mesh
    outputs: list[str]
    used: set[str]
    evaluate: Callable[[list[np.ndarray]], list[np.ndarray]]

    def gradient(self, weights: list[np.ndarray]) -> np.ndarray:
        """Return the gradient of a linear program's weighted sum of outputs by the first input."""
        first, rest = self.inputs[0][0], [x for x, _ in self.inputs[1:]]

        def value(x: np.ndarray) -> float:
            return sum(float((w * y).sum()) for w, y in zip(weights, self.evaluate([x, *rest]), strict=True))

        base, result = value(np.zeros_like(first)), np.zeros_like(first)
        for i in np.ndindex(first.shape):
            unit = np.zeros_like(first)
            unit[i] = 1
            result[i] = value(unit) - base
        return result


def _part(d: Drawing, env: dict[str, tuple[int, ...]]) -> tuple[list[str], str, list[str], list[tuple[int, ...]], Any]:
    """Return a shard_map of some of the whole arrays: lines, a text that calls it, its operands, and what it gives."""
    operands = [d.choose(list(env)) for _ in range(int(d.rng.integers(1, 3)))]
    specs = [_spec(d, env[o]) for o in operands]
    parameters = [d.fresh("a") for _ in operands]
    part = Part(d)
    for parameter, o, spec in zip(parameters, operands, specs, strict=True):
        part.shapes[parameter] = tuple(n // d.grid.count(names) for n, names in zip(env[o], spec, strict=True))
    weights = np.array([w for w, _ in STEPS])
    for _ in range(int(d.rng.integers(3, 9))):
        STEPS[int(d.rng.choice(len(STEPS), p=weights / weights.sum()))][1](part)
    made = list(part.shapes)[len(parameters) :] or parameters
    results = list(dict.fromkeys(d.choose(made) for _ in range(3)))
    out_specs = [_spec(d, part.shapes[r], every=True) for r in results]
    f, check = d.fresh("f"), d.chance(0.5)
    lines = [
        f"def {f}({', '.join(parameters)}):",
        *(f"    {p} = vary({p})" for p in parameters),
        *part.lines,
        f"    return {', '.join(f'vary({r})' for r in results)},",
    ]
    call = (
        f"jax.shard_map({f}, mesh=mesh, in_specs=({', '.join(map(text_of, specs))},), "
        f"out_specs=({', '.join(map(text_of, out_specs))},), check_vma={check})({', '.join(operands)})"
    )
    if not check:
        lines = [line.replace("vary(", "(") for line in lines]

    def model(arrays: list[np.ndarray]) -> list[np.ndarray]:
        devices = range(len(d.grid.ranks))
        env = {p: [d.grid.cut(x, s, i) for i in devices] for p, x, s in zip(parameters, arrays, specs, strict=True)}
        part.run(env)
        return [d.grid.join(env[r], s) for r, s in zip(results, out_specs, strict=True)]

    shapes = [
        tuple(n * d.grid.count(names) for n, names in zip(part.shapes[r], s, strict=True))
        for r, s in zip(results, out_specs, strict=True)
    ]
    return lines, call, operands, shapes, model


def _whole(d: Drawing, env: dict[str, tuple[int, ...]]) -> tuple[str, list[str], tuple[int, ...], Any]:
    """Return an operation on whole arrays, for which XLA finds out what to communicate."""
    a = d.choose(list(env))
    (rows, columns), axis, k = env[a], int(d.rng.integers(2)), int(d.rng.integers(1, 4))
    b = d.choose([n for n in env if env[n] == env[a]])
    order = d.rng.permutation(rows).tolist() if rows <= 64 else list(range(rows))[::-1]
    spec = text_of(_spec(d, env[a]))
    kinds: list[tuple[str, str, tuple[int, ...], Callable[..., np.ndarray]]] = [
        ("add", f"{a} * {k} + {b}", env[a], lambda x, y: x * k + y),
        ("transpose", f"{a}.T", (columns, rows), lambda x, y: x.T),
        (
            "sum",
            f"{a} + {a}.sum({axis}, keepdims=True, dtype={a}.dtype)",
            env[a],
            lambda x, y: x + x.sum(axis, keepdims=True),
        ),
        ("cumsum", f"jnp.cumsum({a}, {axis})", env[a], lambda x, y: np.cumsum(x, axis)),
        ("roll", f"jnp.roll({a}, {k}, {axis})", env[a], lambda x, y: np.roll(x, k, axis)),
        ("take", f"{a}[np.array({order})]", env[a], lambda x, y: x[order]),
        ("constraint", f"jax.lax.with_sharding_constraint({a}, NamedSharding(mesh, {spec}))", env[a], lambda x, y: x),
        (
            "concatenate",
            f"jnp.concatenate([{a}, {b}], {axis})",
            (rows * (2 - axis), columns * (1 + axis)),
            lambda x, y: np.concatenate([x, y], axis),
        ),
        ("reshape", f"{a}.reshape({columns}, {rows})", (columns, rows), lambda x, y: x.reshape(columns, rows)),
    ]
    if not d.linear:
        kinds += [
            ("sort", f"jnp.sort({a}, {axis})", env[a], lambda x, y: np.sort(x, axis)),
            (
                "maximum",
                f"{a} - {a}.max({axis}, keepdims=True) + {k}",
                env[a],
                lambda x, y: x - x.max(axis, keepdims=True) + k,
            ),
            ("matmul", f"({a} @ {b}.T)[:, :1] + {a}", env[a], lambda x, y: (x @ y.T)[:, :1] + x),
        ]
    name, text, shape, model = d.choose(kinds)
    d.used.add(name)
    return _tamed(d, text), [a, b], shape, lambda x, y: _tame(d, model(x, y).astype(x.dtype))


def _alone(one: Callable[..., np.ndarray], arrays: list[np.ndarray]) -> list[np.ndarray]:
    return [one(*arrays)]


def _grid(rng: np.random.Generator, ranks: int) -> Grid:
    devices = list(range(ranks))
    if rng.random() < 0.3:
        devices = rng.permutation(ranks).tolist()
    if rng.random() < 0.3:
        devices = devices[: int(rng.integers(1, ranks + 1))]
    n = len(devices)
    divisors = [k for k in range(1, n + 1) if n % k == 0]
    first = int(rng.choice(divisors))
    sizes = {"x": n} if rng.random() < 0.5 else {"x": first, "y": n // first}
    return Grid(devices, sizes)


def draw(seed: int, number: int, ranks: int) -> Program:
    """Return the program of this number for this many ranks."""
    rng = np.random.default_rng([seed, number, ranks])
    grid = _grid(rng, ranks)
    linear = bool(rng.random() < 0.4)
    d = Drawing(rng, grid, linear)
    n = len(grid.ranks)
    dtype = np.dtype("float64") if linear else np.dtype(d.choose(["int32", "int64", "float32", "float64", "uint32"]))
    env: dict[str, tuple[int, ...]] = {}
    inputs: list[tuple[np.ndarray, Spec]] = []
    for _ in range(1 if linear else 2):
        shape = (n * int(rng.integers(1, 3)), n * d.choose([1, 2] if linear else [1, 2, 50]))
        inputs.append((rng.integers(0, 5, shape).astype(dtype), _spec(d, shape)))
        env[d.fresh("x")] = shape
    parameters, steps, body = list(env), [], []
    for _ in range(int(rng.integers(2, 5))):
        if rng.random() < 0.6:
            lines, call, operands, shapes, model = _part(d, env)
            results = [d.fresh("w") for _ in shapes]
            d.lines += lines
            body.append(f"    {', '.join(results)}, = {call}")
        else:
            text, operands, shape, one = _whole(d, env)
            results, shapes = [d.fresh("w")], [shape]
            body.append(f"    {results[0]} = {text}")
            model = functools.partial(_alone, one)
        steps.append((results, operands, model))
        for result, shape in zip(results, shapes, strict=True):
            if np.prod(shape) <= 40000:
                env[result] = shape
    outputs = [name for name in env if name not in parameters] or parameters
    members = f"MPI.COMM_WORLD.Get_group().Incl({grid.ranks})"
    setup = [
        START,
        f"ranks, sizes = {grid.ranks}, {tuple(grid.sizes.values())}",
        f"mesh = Mesh(np.array([jax.devices()[r] for r in ranks]).reshape(sizes), {grid.names})",
        f"members = MPI.COMM_WORLD.Create_group({members})",
        VARY.format(names=grid.names),
    ]
    for axes, name in d.comms.items():
        inner = [grid.position(i, axes) for i in range(n)]
        outer = [grid.position(i, [a for a in grid.names if a not in axes]) for i in range(n)]
        setup.append(f"part = members.Split({outer}[members.rank], {inner}[members.rank])")
        setup.append(f"{name} = part.Create_cart([part.size], periods=[True], reorder=False)")
    program = [*d.lines, f"def program({', '.join(parameters)}):", *body, f"    return {', '.join(outputs)},"]

    def evaluate(arrays: list[np.ndarray]) -> list[np.ndarray]:
        values = dict(zip(parameters, arrays, strict=True))
        for results, operands, model in steps:
            values.update(zip(results, model([values[o] for o in operands]), strict=True))
        return [values[o] for o in outputs]

    return Program(seed, number, grid, linear, inputs, "\n".join([*setup, *program]), outputs, d.used, evaluate)
